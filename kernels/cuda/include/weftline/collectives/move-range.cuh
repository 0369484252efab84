// Copies and reductions of runs of bytes that lie here or at peers, by any number of threads of any number of blocks.
//
// All loads go past the first-level cache, for peers write what is read. Several are under way per thread before the first
// store, because a link is kept busy by bytes in flight and not by threads.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/types.cuh"

namespace weftline {

// The units of a run that a thread takes: the first one, and how far apart they are.
struct Share {
  u64 first;
  u64 step;
};

__device__ __forceinline__ Share shareOfBlock() { return {threadIdx.x, blockDim.x}; }

// The block with this index of `blocks` that work together.
__device__ __forceinline__ Share shareOfBlocks(u32 index, u32 blocks) {
  return {static_cast<u64>(index) * blockDim.x + threadIdx.x, static_cast<u64>(blocks) * blockDim.x};
}

__device__ __forceinline__ u64 addressBits(const void* pointer) { return reinterpret_cast<u64>(pointer); }

template <u32 batch, typename Unit>
__device__ __forceinline__ u64 copyBatches(Unit* to, const Unit* from, u64 index, u64 step, u64 count) {
  for (; index + (batch - 1) * step < count; index += batch * step) {
    Unit values[batch];
#pragma unroll
    for (u32 part = 0; part < batch; ++part) values[part] = __ldcg(from + index + part * step);
#pragma unroll
    for (u32 part = 0; part < batch; ++part) to[index + part * step] = values[part];
  }
  return index;
}

template <typename Unit>
__device__ __forceinline__ void copyUnits(u8* to, const u8* from, u64 bytes, const Share& share) {
  Unit* target = reinterpret_cast<Unit*>(to);
  const Unit* source = reinterpret_cast<const Unit*>(from);
  const u64 count = bytes / sizeof(Unit);
  u64 index = share.first;
  if constexpr (sizeof(Unit) == 16) {
    index = copyBatches<8>(target, source, index, share.step, count);
    index = copyBatches<2>(target, source, index, share.step, count);
  }
  copyBatches<1>(target, source, index, share.step, count);
}

// Any addresses and sizes; whole vectors where both sides allow it.
__device__ inline void copyRange(u8* to, const u8* from, u64 bytes, const Share& share) {
  const u64 all = addressBits(to) | addressBits(from);
  const u64 apart = addressBits(to) ^ addressBits(from);
  if ((apart & 15) == 0 && bytes >= 32) {
    // Bytes before the first whole vector, the vectors, and what is left.
    const u64 head = (16 - (addressBits(to) & 15)) & 15;
    const u64 body = (bytes - head) & ~static_cast<u64>(15);
    copyUnits<uint4>(to + head, from + head, body, share);
    if (share.first < head) to[share.first] = __ldcg(from + share.first);
    const u64 at = head + body + share.first;
    if (at < bytes) to[at] = __ldcg(from + at);
    return;
  }
  if (((all | bytes) & 3) == 0) copyUnits<u32>(to, from, bytes, share);
  else if (((all | bytes) & 1) == 0) copyUnits<u16>(to, from, bytes, share);
  else copyUnits<u8>(to, from, bytes, share);
}

// The same into several places, read once where all are aligned to vectors.
__device__ inline void spreadRange(u8* const* targets, u32 count, const u8* from, u64 bytes, const Share& share) {
  u64 all = addressBits(from);
  for (u32 target = 0; target < count; ++target) all |= addressBits(targets[target]);
  const bool isAligned = count > 1 && (all & 15) == 0;
  const u64 body = isAligned ? bytes & ~static_cast<u64>(15) : 0;
  const u64 vectors = body / 16;
  const uint4* source = reinterpret_cast<const uint4*>(from);
  u64 index = share.first;
  for (; index + 3 * share.step < vectors; index += 4 * share.step) {
    uint4 values[4];
#pragma unroll
    for (u32 part = 0; part < 4; ++part) values[part] = __ldcg(source + index + part * share.step);
    for (u32 target = 0; target < count; ++target) {
      uint4* to = reinterpret_cast<uint4*>(targets[target]) + index;
#pragma unroll
      for (u32 part = 0; part < 4; ++part) to[part * share.step] = values[part];
    }
  }
  for (; index < vectors; index += share.step) {
    const uint4 value = __ldcg(source + index);
    for (u32 target = 0; target < count; ++target) reinterpret_cast<uint4*>(targets[target])[index] = value;
  }
  for (u32 target = 0; target < count; ++target) copyRange(targets[target] + body, from + body, bytes - body, share);
}

template <typename Unit>
__device__ __forceinline__ void swapUnits(u8* left, u8* right, u64 bytes, const Share& share) {
  Unit* a = reinterpret_cast<Unit*>(left);
  Unit* b = reinterpret_cast<Unit*>(right);
  const u64 count = bytes / sizeof(Unit);
  u64 index = share.first;
  for (; index + 3 * share.step < count; index += 4 * share.step) {
    Unit ofA[4];
    Unit ofB[4];
#pragma unroll
    for (u32 part = 0; part < 4; ++part) {
      ofA[part] = __ldcg(a + index + part * share.step);
      ofB[part] = __ldcg(b + index + part * share.step);
    }
#pragma unroll
    for (u32 part = 0; part < 4; ++part) {
      a[index + part * share.step] = ofB[part];
      b[index + part * share.step] = ofA[part];
    }
  }
  for (; index < count; index += share.step) {
    const Unit ofA = __ldcg(a + index);
    a[index] = __ldcg(b + index);
    b[index] = ofA;
  }
}

__device__ inline void swapRange(u8* left, u8* right, u64 bytes, const Share& share) {
  const u64 all = addressBits(left) | addressBits(right) | bytes;
  if ((all & 15) == 0) swapUnits<uint4>(left, right, bytes, share);
  else if ((all & 3) == 0) swapUnits<u32>(left, right, bytes, share);
  else if ((all & 1) == 0) swapUnits<u16>(left, right, bytes, share);
  else swapUnits<u8>(left, right, bytes, share);
}

}  // namespace weftline
