// What unpacking is measured against: a warp per fragment, plain accesses of 16 bytes, addresses that are known already.
#include "weftline/abi.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

// Loads under way per lane; the vector behind the last whole batch.
template <u32 batch>
__device__ __forceinline__ u32 copyBatches(uint4* to, const uint4* from, u32 vector, u32 vectors) {
  for (; vector + (batch - 1) * lanesPerWarp < vectors; vector += batch * lanesPerWarp) {
    uint4 values[batch];
#pragma unroll
    for (u32 part = 0; part < batch; ++part) values[part] = from[vector + part * lanesPerWarp];
#pragma unroll
    for (u32 part = 0; part < batch; ++part) to[vector + part * lanesPerWarp] = values[part];
  }
  return vector;
}

template <u32 most>
__device__ __forceinline__ void copyFragments(const BenchFragmentsArguments& a) {
  const u32 warps = gridDim.x * (blockDim.x / lanesPerWarp);
  const FragmentPair* const pairs = static_cast<const FragmentPair*>(a.pairs);
  const u32 vectors = a.bytes / 16;
  for (u32 index = blockIdx.x * (blockDim.x / lanesPerWarp) + threadIdx.x / lanesPerWarp; index < a.count; index += warps) {
    const uint4* const from = static_cast<const uint4*>(pairs[index].from);
    uint4* const to = static_cast<uint4*>(pairs[index].to);
    u32 vector = laneIndex();
    if constexpr (most > 1) vector = copyBatches<most>(to, from, vector, vectors);
    if constexpr (most > 2) vector = copyBatches<2>(to, from, vector, vectors);
    copyBatches<1>(to, from, vector, vectors);
  }
}

}  // namespace

// One load at a time.
extern "C" __global__ void __launch_bounds__(1024) benchFragments(const __grid_constant__ BenchFragmentsArguments a) {
  copyFragments<1>(a);
}

// Several, where a fragment has them.
extern "C" __global__ void __launch_bounds__(1024) benchFragmentsBatched(const __grid_constant__ BenchFragmentsArguments a) {
  copyFragments<4>(a);
}
