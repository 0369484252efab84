// Sums of a low-latency combine: a warp adds up a part of 512 bytes of the rows of one item, in f32 in the order of its lanes.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/ep/element.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/types.cuh"

namespace weftline {

// What one lane adds: a row or null, and its weight.
struct Addend {
  const u8* row;
  f32 weight;
};

// At byte `at` of the rows of all lanes, in the order of lanes. With weights products and sums are rounded one by one; without,
// one row alone stays as it is. No row is zeros.
template <bool isWeighted>
__device__ __forceinline__ uint4 sumAt(const Addend& addend, u32 at, bool isInRow) {
  // Rows under way at once: as many as registers hold. Where ranks come and go their windows lie in shared memory, and some
  // registers with them.
#if __CUDA_ARCH__ >= 900 && !WEFTLINE_ELASTIC
  constexpr u32 together = 8;
#else
  constexpr u32 together = 4;
#endif
  constexpr u32 perVector = Bf16Element::perVector;
  u32 rest = __ballot_sync(0xffffffffu, addend.row != nullptr);
  const bool isOne = __popc(rest) == 1;
  f32 sum[perVector] = {};
  uint4 first = make_uint4(0, 0, 0, 0);
  bool isStarted = false;
  while (rest != 0) {
    uint4 values[together];
    f32 weights[together];
    const u32 count = min(together, static_cast<u32>(__popc(rest)));
#pragma unroll
    for (u32 j = 0; j < together; ++j) {
      if (j >= count) continue;
      const u32 lane = __ffs(rest) - 1;
      rest &= rest - 1;
      const u64 row = __shfl_sync(0xffffffffu, reinterpret_cast<u64>(addend.row), lane);
      if constexpr (isWeighted) weights[j] = __shfl_sync(0xffffffffu, addend.weight, lane);
      // Past the first-level cache: peers may have written it during this kernel.
      values[j] = isInRow ? __ldcg(reinterpret_cast<const uint4*>(reinterpret_cast<const u8*>(row) + at)) : first;
    }
#pragma unroll
    for (u32 j = 0; j < together; ++j) {
      if (j >= count) continue;
      f32 addends[perVector];
      Bf16Element::start(addends, values[j]);
      if constexpr (isWeighted) {
#pragma unroll
        for (u32 i = 0; i < perVector; ++i) addends[i] = __fmul_rn(weights[j], addends[i]);
      }
#pragma unroll
      for (u32 i = 0; i < perVector; ++i) sum[i] = isStarted ? __fadd_rn(sum[i], addends[i]) : addends[i];
      if (!isStarted) first = values[j];
      isStarted = true;
    }
  }
  if (!isWeighted && isOne) return first;
  return Bf16Element::round(sum);
}

// All blocks together: all parts of all items. Source, all 32 lanes calling together:
//   Addend addendOf(item)   what this lane adds
//   u8* outOf(item)         where the sum goes
template <bool isWeighted, class Source>
__device__ __forceinline__ void sumRows(u32 items, u32 rowBytes, const Source& source) {
  constexpr u32 partBytes = lanesPerWarp * 16;
  const u32 parts = (rowBytes + partBytes - 1) / partBytes;
  const u32 warps = gridDim.x * (blockDim.x / lanesPerWarp);
  const u32 all = items * parts;
  // Neighbouring parts to a warp, which then looks up what to add once per item.
  const u32 run = (all + warps - 1) / warps;
  const u32 begin = (blockIdx.x + (threadIdx.x / lanesPerWarp) * gridDim.x) * run;
  const u32 end = min(begin + run, all);
  if (begin >= end) return;
  u32 item = begin / parts;
  u32 part = begin - item * parts;
  Addend addend = source.addendOf(item);
  u8* out = source.outOf(item);
  for (u32 work = begin; work < end; ++work, ++part) {
    if (part == parts) {
      part = 0;
      addend = source.addendOf(++item);
      out = source.outOf(item);
    }
    const u32 at = part * partBytes + laneIndex() * 16;
    const uint4 sum = sumAt<isWeighted>(addend, at, at < rowBytes);
    if (at < rowBytes) *reinterpret_cast<uint4*>(out + at) = sum;
  }
}

}  // namespace weftline
