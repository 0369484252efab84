// Sums of a low-latency combine: a warp adds up parts of 512 bytes of the rows of one item, in f32 in the order of its lanes.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/ep/element.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/types.cuh"

namespace weftline {

// What one lane adds: a row or null, and its weight.
struct Addend {
  const u8* row;
  f32 weight;
};

// What all lanes add up, and where the sum goes: nowhere if null.
struct RowSum {
  Addend addend;
  u8* out;
};

// Bytes of a row that a warp adds up together.
constexpr u32 lowLatencyPartBytes = lanesPerWarp * 16;

// Sums at byte `at` of the rows of all lanes, in the order of lanes. With weights products and sums are rounded one by one; without,
// one row alone stays as it is. No row is zeros.
template <bool isWeighted>
__device__ __forceinline__ uint4 sumAt(const Addend& addend, u32 at, bool isInRow) {
  // Rows under way at once: as many as registers hold. Where ranks come and go their windows lie in shared memory, and some
  // registers with them.
#if __CUDA_ARCH__ >= 900 && WEFTLINE_GROUP == 0
  constexpr u32 together = 8;
#else
  constexpr u32 together = 4;
#endif
  constexpr u32 perVector = Bf16Element::perVector;
  u32 rest = __ballot_sync(0xffffffffu, addend.row != nullptr);
  if (rest == 0) return make_uint4(0, 0, 0, 0);
  const bool isOne = (rest & (rest - 1)) == 0;
  // Adding to -0 leaves a number as it is, +0 and -0 as well.
  f32 sum[perVector];
#pragma unroll
  for (u32 i = 0; i < perVector; ++i) sum[i] = -0.0f;
  for (;;) {
    uint4 values[together];
    u32 next = rest;
#pragma unroll
    for (u32 j = 0; j < together; ++j) {
      if (next == 0) continue;
      const u64 row = __shfl_sync(0xffffffffu, reinterpret_cast<u64>(addend.row), __ffs(next) - 1);
      next &= next - 1;
      // Past the first-level cache: peers may have written it during this kernel.
      values[j] = make_uint4(0, 0, 0, 0);
      if (isInRow) values[j] = __ldcg(reinterpret_cast<const uint4*>(reinterpret_cast<const u8*>(row) + at));
    }
    if (!isWeighted && isOne) return values[0];
#pragma unroll
    for (u32 j = 0; j < together; ++j) {
      if (rest == 0) continue;
      f32 addends[perVector];
      Bf16Element::start(addends, values[j]);
      if constexpr (isWeighted) {
        const f32 weight = __shfl_sync(0xffffffffu, addend.weight, __ffs(rest) - 1);
#pragma unroll
        for (u32 i = 0; i < perVector; ++i) addends[i] = __fmul_rn(weight, addends[i]);
      }
#pragma unroll
      for (u32 i = 0; i < perVector; ++i) sum[i] = __fadd_rn(sum[i], addends[i]);
      rest &= rest - 1;
    }
    if (rest == 0) return Bf16Element::round(sum);
  }
}

// The parts of a warp. Neighbouring ones, so that it looks up what to add once per item; neighbouring warps' parts to different blocks,
// for items differ in what is added.
struct WarpRun {
  u32 first;
  u32 end;

  __device__ __forceinline__ explicit WarpRun(u32 all) {
    const u32 warps = gridDim.x * (blockDim.x / lanesPerWarp);
    const u32 run = Divisor(warps).quotient(all + warps - 1);
    first = min((threadIdx.x / lanesPerWarp * gridDim.x + blockIdx.x) * run, all);
    end = min(first + run, all);
  }
};

// All blocks together: all parts of all items. Source, all 32 lanes calling together: RowSum sumOf(item).
// By all threads, each once: areRowsHere() before the first row is read, may() before the first sum is written. False when the
// block must leave, because one of them said so.
template <bool isWeighted, class Source, class Arrival, class Permission>
__device__ __forceinline__ bool sumRows(u32 items, u32 rowBytes, const Source& source, const Arrival& areRowsHere,
                                        const Permission& may) {
  const u32 parts = (rowBytes + lowLatencyPartBytes - 1) / lowLatencyPartBytes;
  const WarpRun mine(items * parts);
  u32 work = mine.first;
  const u32 end = mine.end;
  u32 item = Divisor(parts).quotient(work);
  u32 part = work - item * parts;
  RowSum sum = {{nullptr, 0}, nullptr};
  if (work < end) sum = source.sumOf(item);
  if (!areRowsHere()) return false;
#pragma unroll 1
  for (bool isFirst = true;; isFirst = false) {
    const bool hasWork = work < end;
    const u32 at = part * lowLatencyPartBytes + laneIndex() * 16;
    uint4 value = make_uint4(0, 0, 0, 0);
    if (hasWork) value = sumAt<isWeighted>(sum.addend, at, at < rowBytes);
    // All warps in one place, for it may be a barrier.
    __syncwarp();
    if (isFirst && !may()) return false;
    if (!hasWork) return true;
    if (at < rowBytes && sum.out != nullptr) storeWordsSystem(reinterpret_cast<uint4*>(sum.out + at), value);
    ++work;
    if (++part < parts) continue;
    part = 0;
    if (work < end) sum = source.sumOf(++item);
  }
}

}  // namespace weftline
