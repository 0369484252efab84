// Shared memory of a warp that holds several parts of rows: while one is used, the next ones are on their way.
#pragma once
#include "weftline/copy/bulk-copy.cuh"
#include "weftline/types.cuh"

namespace weftline {

// By each warp: its `count` barriers, side by side with those of other warps at the beginning of `memory`. With a synchronisation
// of the block before they are used.
__device__ __forceinline__ u64* makeStageBarriers(u8* memory, u32 count) {
  u64* barriers = reinterpret_cast<u64*>(memory) + count * (threadIdx.x / lanesPerWarp);
  if (laneIndex() != 0) return barriers;
  for (u32 stage = 0; stage < count; ++stage) warpRowBarrierInit(&barriers[stage]);
  return barriers;
}

// The stages are loaded and used in turn. At most 32.
struct StageRing {
  u8* memory;
  u64* barriers;
  u32 count;
  u32 bytes;
  // The stage in use, and the one used before it, which may be loaded again.
  u32 used;
  u32 free;
  // A bit for each stage: the parity of its barrier.
  u32 parities;

  // `memory`: count * bytes of this warp; `barriers`: of makeStageBarriers().
  __device__ __forceinline__ StageRing(u8* memory, u64* barriers, u32 count, u32 bytes)
      : memory(memory), barriers(barriers), count(count), bytes(bytes), used(0), free(count - 1), parities(0) {}

  __device__ __forceinline__ u8* at(u32 stage) const { return memory + static_cast<u64>(stage) * bytes; }

  // load(stage): before the first use, for all stages but the free one.
  template <class Load>
  __device__ __forceinline__ void fill(const Load& load) const {
#pragma unroll 1
    for (u32 stage = 0; stage < free; ++stage) load(stage);
  }

  // Until what was loaded into the stage in use is there for all lanes.
  __device__ __forceinline__ void await() {
    warpWaitRow(&barriers[used], (parities >> used) & 1);
    parities ^= 1u << used;
  }

  __device__ __forceinline__ void advance() {
    free = used;
    used = used + 1 == count ? 0 : used + 1;
  }
};

}  // namespace weftline
