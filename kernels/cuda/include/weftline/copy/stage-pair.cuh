// Shared memory of a warp for two parts of rows: while one is used, the next is on its way.
#pragma once
#include "weftline/copy/bulk-copy.cuh"
#include "weftline/types.cuh"

namespace weftline {

constexpr u32 stagesPerWarp = 2;

// Every warp calls this. Its two barriers lie beside those of the other warps at the beginning of `memory`. The block must
// synchronise before it uses them.
__device__ __forceinline__ u64* makeStageBarriers(u8* memory) {
  u64* barriers = reinterpret_cast<u64*>(memory) + stagesPerWarp * (threadIdx.x / lanesPerWarp);
  if (laneIndex() != 0) return barriers;
  for (u32 stage = 0; stage < stagesPerWarp; ++stage) warpRowBarrierInit(&barriers[stage]);
  return barriers;
}

// The stages are loaded and used in turn.
struct StagePair {
  u8* memory;
  u64* barriers;
  u32 bytes;
  // The stage in use, 0 or 1.
  u32 current;
  // A bit for each stage: the parity of its barrier.
  u32 parities;

  // `memory`: of this warp, twice `bytes`; `barriers`: of makeStageBarriers().
  __device__ __forceinline__ StagePair(u8* memory, u64* barriers, u32 bytes)
      : memory(memory), barriers(barriers), bytes(bytes), current(0), parities(0) {}

  // The memory of a stage: `current`, or `current ^ 1` for the other.
  __device__ __forceinline__ u8* at(u32 stage) const { return memory + stage * static_cast<u64>(bytes); }

  // Waits until all lanes see what was loaded into the stage in use.
  __device__ __forceinline__ void await() {
    warpWaitRow(&barriers[current], (parities >> current) & 1);
    parities ^= 1u << current;
  }

  __device__ __forceinline__ void swap() { current ^= 1; }
};

}  // namespace weftline
