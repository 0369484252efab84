// What unpacking is measured against: a warp per fragment, plain accesses of 16 bytes, addresses that are known already.
#include "weftline/abi.cuh"
#include "weftline/types.cuh"

using namespace weftline;

extern "C" __global__ void __launch_bounds__(1024) benchFragments(const __grid_constant__ BenchFragmentsArguments a) {
  const u32 warps = gridDim.x * (blockDim.x / lanesPerWarp);
  const FragmentPair* const pairs = static_cast<const FragmentPair*>(a.pairs);
  const u32 vectors = a.bytes / 16;
  for (u32 index = blockIdx.x * (blockDim.x / lanesPerWarp) + threadIdx.x / lanesPerWarp; index < a.count; index += warps) {
    const uint4* const from = static_cast<const uint4*>(pairs[index].from);
    uint4* const to = static_cast<uint4*>(pairs[index].to);
    for (u32 vector = laneIndex(); vector < vectors; vector += lanesPerWarp) to[vector] = from[vector];
  }
}
