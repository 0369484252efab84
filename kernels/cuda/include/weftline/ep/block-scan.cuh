// Running sums by all threads of a block.
#pragma once
#include "weftline/types.cuh"

namespace weftline {

// Replaces the counts by the sums of those before them; returns the sum of all. `values` and `warpSums`, a word
// per warp, are in shared memory.
template <u32 threads>
__device__ __forceinline__ u32 scanCounts(u32* values, u32 count, u32* warpSums) {
  constexpr u32 warps = threads / lanesPerWarp;
  const u32 each = (count + threads - 1) / threads;
  const u32 first = min(threadIdx.x * each, count);
  const u32 end = min(first + each, count);
  u32 sum = 0;
  for (u32 index = first; index < end; ++index) sum += values[index];
  u32 inclusive = sum;
#pragma unroll
  for (u32 distance = 1; distance < lanesPerWarp; distance *= 2) {
    const u32 other = __shfl_up_sync(0xffffffffu, inclusive, distance);
    if (laneIndex() >= distance) inclusive += other;
  }
  const u32 warp = threadIdx.x / lanesPerWarp;
  if (laneIndex() == lanesPerWarp - 1) warpSums[warp] = inclusive;
  __syncthreads();
  u32 before = 0;
  u32 total = 0;
  for (u32 w = 0; w < warps; ++w) {
    if (w < warp) before += warpSums[w];
    total += warpSums[w];
  }
  u32 run = before + inclusive - sum;
  for (u32 index = first; index < end; ++index) {
    const u32 value = values[index];
    values[index] = run;
    run += value;
  }
  __syncthreads();
  return total;
}

}  // namespace weftline
