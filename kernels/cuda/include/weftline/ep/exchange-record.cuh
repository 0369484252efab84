// The records of a count exchange: one per source rank in every rank's window, two sets used in turn.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/types.cuh"

namespace weftline {

struct ExchangeRecords {
  // Start of every rank's window.
  void* const* peers;
  u64 offset;
  u32 ranks;
  u32 words;
  // Number of the dispatch: its parity picks the set, so that a fast rank's next record spares what a slow one reads.
  u32 sequence;

  // The record of `source` in the window of `owner`.
  __device__ __forceinline__ u32* at(u32 owner, u32 source) const {
    u8* region = static_cast<u8*>(peers[owner]) + offset;
    return reinterpret_cast<u32*>(region) + (static_cast<u64>(sequence & 1) * ranks + source) * words;
  }

  // Peers wrote these words during this kernel; volatile loads keep them out of the read-only path.
  __device__ __forceinline__ u32 received(u32 owner, u32 source, u32 word) const {
    return *static_cast<const volatile u32*>(at(owner, source) + word);
  }
};

// A failure that all ranks found alike; of a wait that ended without its peer the trap record tells.
__device__ __forceinline__ bool isJudged(u32 status) {
  return status != epStatusGood && status != epStatusTimeout && status != epStatusOtherCall;
}

// A choice or a place as the caller gave it, 4 or 8 bytes wide.
__device__ __forceinline__ i64 integerAt(const void* cells, u32 bytes, u64 cell) {
  return bytes == 8 ? static_cast<const i64*>(cells)[cell] : static_cast<const i32*>(cells)[cell];
}

}  // namespace weftline
