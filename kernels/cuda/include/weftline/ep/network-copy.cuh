// Copies of a row by plain loads and stores of a warp, to any number of places: between a GPU's memory and that of its host, whose
// link a few warps fill, there is nothing for the bulk copy engine to gain.
#pragma once
#include "weftline/types.cuh"

namespace weftline {

// Copies a row to the place that each lane in `holders` has in `to`.
template <class Vector>
__device__ __forceinline__ void copyToAll(const u8* from, u64 to, u32 holders, u32 bytes) {
  constexpr u32 depth = 8;
  const u32 count = bytes / sizeof(Vector);
  for (u32 begin = 0; begin < count; begin += depth * lanesPerWarp) {
    const u32 first = begin + laneIndex();
    Vector parts[depth];
#pragma unroll
    for (u32 k = 0; k < depth; ++k) {
      if (first + k * lanesPerWarp < count) parts[k] = __ldcg(reinterpret_cast<const Vector*>(from) + first + k * lanesPerWarp);
    }
    for (u32 rest = holders; rest != 0; rest &= rest - 1) {
      Vector* target = reinterpret_cast<Vector*>(__shfl_sync(0xffffffffu, to, __ffs(rest) - 1));
#pragma unroll
      for (u32 k = 0; k < depth; ++k) {
        if (first + k * lanesPerWarp < count) target[first + k * lanesPerWarp] = parts[k];
      }
    }
  }
}

__device__ __forceinline__ void copyRowToAll(const u8* from, u64 to, u32 holders, u32 bytes) {
  if (bytes % 16 == 0) copyToAll<uint4>(from, to, holders, bytes);
  else copyToAll<unsigned long long>(from, to, holders, bytes);
}

}  // namespace weftline
