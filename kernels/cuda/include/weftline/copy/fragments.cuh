// Moves fragments by warps: one fragment by the whole warp, or those of all lanes together, so that short ones leave no
// lane idle and no warp waits for one load at a time.
//
// A fragment moves in units of 16, 8, 4, 2 or 1 bytes, the widest that both sides can be aligned to at the same time: the
// bytes before the first aligned unit and behind the last one are moved singly. All loads of a batch are under way before
// its first store. Sources and targets do not overlap.
#pragma once
#include "weftline/types.cuh"

namespace weftline {

// Each byte is read and written once: it need not stay in the first-level cache.
__device__ __forceinline__ uint4 loadOnce(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}
__device__ __forceinline__ u64 loadOnce(const u64* from) {
  u64 value;
  asm volatile("ld.global.L1::no_allocate.u64 %0, [%1];" : "=l"(value) : "l"(from));
  return value;
}
__device__ __forceinline__ u32 loadOnce(const u32* from) {
  u32 value;
  asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}
__device__ __forceinline__ u16 loadOnce(const u16* from) {
  u16 value;
  asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(value) : "l"(from));
  return value;
}
__device__ __forceinline__ u8 loadOnce(const u8* from) {
  u16 value;
  asm volatile("ld.global.L1::no_allocate.u8 %0, [%1];" : "=h"(value) : "l"(from));
  return static_cast<u8>(value);
}

// What one lane, or a whole warp, has to move.
struct Fragment {
  u8* to;
  const u8* from;
  u32 bytes;
};

// How a fragment divides: bytes up to the first unit, units, and bytes behind them.
struct FragmentParts {
  u32 width;
  u32 head;
  u32 units;
  u32 tail;
};

__device__ __forceinline__ FragmentParts partsOf(const Fragment& fragment) {
  const u32 to = static_cast<u32>(reinterpret_cast<u64>(fragment.to));
  const u32 differ = (to ^ static_cast<u32>(reinterpret_cast<u64>(fragment.from))) | 16u;
  FragmentParts parts;
  parts.width = differ & (0u - differ);
  parts.head = min((0u - to) & (parts.width - 1), fragment.bytes);
  // The width is a power of two.
  parts.units = (fragment.bytes - parts.head) >> (31 - __clz(parts.width));
  parts.tail = fragment.bytes - parts.head - parts.units * parts.width;
  return parts;
}

// The place of the rank-th bit that is set, counted from 0; rank is less than their number.
__device__ __forceinline__ u32 selectBit(u32 mask, u32 rank) {
  u32 at = 0;
#pragma unroll
  for (u32 width = lanesPerWarp / 2; width > 0; width /= 2) {
    const u32 below = __popc((mask >> at) & ((1u << width) - 1));
    if (rank >= below) {
      rank -= below;
      at += width;
    }
  }
  return at;
}

// Every lane brings a run of `count` units, or none; the lanes move all runs together, one behind the other. By all lanes.
template <typename Unit, u32 batch>
__device__ __forceinline__ void moveRuns(u64 to, u64 from, u32 count) {
  constexpr u32 all = 0xffffffffu;
  const u32 filled = __ballot_sync(all, count != 0);
  if (filled == 0) return;
  const u32 lane = laneIndex();
  if ((filled & (filled + 1)) != 0) {
    // The lanes that have a run come first, so that no two runs start at the same place.
    const u32 owner = selectBit(filled, min(lane, static_cast<u32>(__popc(filled)) - 1));
    to = __shfl_sync(all, to, owner);
    from = __shfl_sync(all, from, owner);
    count = __shfl_sync(all, count, owner);
    if (lane >= __popc(filled)) count = 0;
  }
  const u32 end = warpInclusiveSum(count);
  const u32 total = __shfl_sync(all, end, lanesPerWarp - 1);
  const u32 start = end - count;
  // The place where unit 0 of all runs would be if the lane's own run went back that far.
  to -= static_cast<u64>(start) * sizeof(Unit);
  from -= static_cast<u64>(start) * sizeof(Unit);
  const u32 lanesBefore = (1u << lane) - 1;
  // The lane whose run holds unit `first`.
  u32 owner = 0;
  for (u32 first = 0; first < total; first += batch * lanesPerWarp) {
    Unit values[batch];
    // Four lanes to a word.
    u32 owners[(batch + 3) / 4] = {};
#pragma unroll
    for (u32 part = 0; part < batch; ++part) {
      const u32 window = first + part * lanesPerWarp;
      // Runs that start behind unit `window`, up to the one behind the last lane's, each as a bit.
      const u32 ahead = start - window - 1;
      const u32 starts = __reduce_or_sync(all, ahead < lanesPerWarp ? 1u << ahead : 0u);
      const u32 mine = owner + __popc(starts & lanesBefore);
      owner += __popc(starts);
      owners[part / 4] |= mine << (part % 4 * 8);
      const Unit* source = reinterpret_cast<const Unit*>(__shfl_sync(all, from, mine));
      if (window + lane < total) values[part] = loadOnce(source + window + lane);
    }
#pragma unroll
    for (u32 part = 0; part < batch; ++part) {
      const u32 index = first + part * lanesPerWarp + lane;
      Unit* target = reinterpret_cast<Unit*>(__shfl_sync(all, to, owners[part / 4] >> (part % 4 * 8)));
      if (index < total) target[index] = values[part];
    }
  }
}

// Every lane brings a fragment, or one of 0 bytes; each lane has so many loads under way. By all lanes.
template <u32 batch>
__device__ __forceinline__ void moveFragments(const Fragment& fragment) {
  const FragmentParts parts = partsOf(fragment);
  const u64 to = reinterpret_cast<u64>(fragment.to);
  const u64 from = reinterpret_cast<u64>(fragment.from);
  const u32 body = parts.head;
  moveRuns<uint4, batch>(to + body, from + body, parts.width == 16 ? parts.units : 0);
  // Whatever is not made of whole vectors.
  if (!__any_sync(0xffffffffu, (parts.head | parts.tail) != 0 || (parts.width != 16 && parts.units != 0))) return;
  moveRuns<u64, batch / 4>(to + body, from + body, parts.width == 8 ? parts.units : 0);
  moveRuns<u32, batch / 4>(to + body, from + body, parts.width == 4 ? parts.units : 0);
  moveRuns<u16, batch / 4>(to + body, from + body, parts.width == 2 ? parts.units : 0);
  moveRuns<u8, batch / 4>(to, from, parts.width == 1 ? parts.units : parts.head);
  const u32 end = fragment.bytes - parts.tail;
  moveRuns<u8, 1>(to + end, from + end, parts.tail);
}

// Units of one fragment, a warp apart per lane; the unit behind the last whole batch of this size.
template <typename Unit, u32 batch>
__device__ __forceinline__ u32 moveBatches(Unit* to, const Unit* from, u32 index, u32 count) {
  for (; index + (batch - 1) * lanesPerWarp < count; index += batch * lanesPerWarp) {
    Unit values[batch];
#pragma unroll
    for (u32 part = 0; part < batch; ++part) values[part] = loadOnce(from + index + part * lanesPerWarp);
#pragma unroll
    for (u32 part = 0; part < batch; ++part) to[index + part * lanesPerWarp] = values[part];
  }
  return index;
}

template <u32 batch, typename Unit>
__device__ __forceinline__ void moveUnits(u8* to, const u8* from, u32 count) {
  Unit* const target = reinterpret_cast<Unit*>(to);
  const Unit* const source = reinterpret_cast<const Unit*>(from);
  u32 index = moveBatches<Unit, batch>(target, source, laneIndex(), count);
  if constexpr (batch > 4) index = moveBatches<Unit, 4>(target, source, index, count);
  index = moveBatches<Unit, 2>(target, source, index, count);
  moveBatches<Unit, 1>(target, source, index, count);
}

// All lanes bring the same fragment. By all lanes.
template <u32 batch>
__device__ __forceinline__ void moveFragment(const Fragment& fragment) {
  const FragmentParts parts = partsOf(fragment);
  const u32 lane = laneIndex();
  u8* const to = fragment.to;
  const u8* const from = fragment.from;
  if (lane < parts.head) to[lane] = from[lane];
  u8* const body = to + parts.head;
  const u8* const source = from + parts.head;
  if (parts.width == 16) moveUnits<batch, uint4>(body, source, parts.units);
  else if (parts.width == 8) moveUnits<4, u64>(body, source, parts.units);
  else if (parts.width == 4) moveUnits<4, u32>(body, source, parts.units);
  else if (parts.width == 2) moveUnits<4, u16>(body, source, parts.units);
  else moveUnits<4, u8>(body, source, parts.units);
  const u32 end = fragment.bytes - parts.tail;
  if (lane < parts.tail) to[end + lane] = from[end + lane];
}

}  // namespace weftline
