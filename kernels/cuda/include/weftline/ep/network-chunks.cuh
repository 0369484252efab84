// The loops over what crosses the network in one call: rows that come are taken chunk by chunk, sums go back chunk by chunk, and
// a rank's own tokens are added up when what other hosts have of them has come. What is done with a row is the caller's.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/ep/network-link.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Rows of one call, by slot: how many come from the source, and bytes of one.
struct ServedRows {
  const u32* tokens;
  u32 stride;
};

// All blocks call this: what comes from the sources that this rank serves, a chunk of each in turn. `forward(slot, index)`: one row, by a
// warp. False when the block must leave.
template <class Forward>
__device__ __forceinline__ bool forwardChunks(const EpNetwork& network, const ServedRows& served, const WaitScope& scope,
                                              u32 call, const Forward& forward) {
  const u32 step = gridDim.x * (blockDim.x / lanesPerWarp);
  // This warp's next row, counted over all chunks, so that rows are spread over all warps.
  u32 next = blockIdx.x + threadIdx.x / lanesPerWarp * gridDim.x;
  u32 before = 0;
  bool hasMore = true;
  for (u32 chunk = 0; hasMore; ++chunk) {
    hasMore = false;
    for (u32 slot = 0; slot < network.served; ++slot) {
      const Chunks chunks(network, __ldcg(&served.tokens[slot]), served.stride);
      if (chunk >= chunks.count()) continue;
      hasMore = true;
      bool isThere = true;
      if (threadIdx.x == 0) {
        isThere = waitForChunk(network, chunks, chunk, network.servedRank[slot], networkCellRows, scope, call,
                               networkPhaseRows);
      }
      if (!__syncthreads_and(isThere)) return false;
      const u32 size = chunks.sizeOf(chunk);
      for (; next - before < size; next += step) forward(slot, chunks.first(chunk) + next - before);
      before += size;
    }
  }
  return true;
}

// One thread calls this, when all blocks are done with a dispatch.
__device__ __forceinline__ void takeRows(const EpNetwork& network, const ServedRows& served) {
  for (u32 slot = 0; slot < network.served; ++slot) {
    const Chunks chunks(network, __ldcg(&served.tokens[slot]), served.stride);
    takeChunks(network, chunks, network.servedRank[slot], networkCellRows);
  }
  for (u32 way = 0; way < network.ways; ++way) forgetPushed(network, network.wayForwarder[way]);
}

// Address for rows that this rank packs for a way.
__device__ __forceinline__ ChunkTarget targetOfWay(const EpNetwork& network, u32 way) {
  const bool isWay = way < network.ways;
  return {way,
          network.wayRequests + way * networkMaxChannels,
          network.outOffset + way * network.slotBytes,
          network.inOffset + (isWay ? network.waySlot[way] : 0) * network.slotBytes,
          networkCellRows,
          isWay ? network.wayForwarder[way] : 0};
}

// All warps call this, when the sources have begun the call: the sums that go back to them, a chunk of each in turn.
// `sum(slot, index)`: makes one in the slot's memory, by a warp. False for a lane when its queue stayed full: the block must leave.
template <class Sum>
__device__ __forceinline__ bool sendSums(const EpNetwork& network, const ServedRows& served, const WaitScope& scope, u32 call,
                                         const Sum& sum) {
  const u32 step = gridDim.x * (blockDim.x / lanesPerWarp);
  u32 next = blockIdx.x + threadIdx.x / lanesPerWarp * gridDim.x;
  u32 before = 0;
  bool hasMore = true;
  bool isPushed = true;
  for (u32 chunk = 0; hasMore; ++chunk) {
    hasMore = false;
    for (u32 slot = 0; slot < network.served; ++slot) {
      const Chunks chunks(network, served.tokens[slot], served.stride);
      if (chunk >= chunks.count()) continue;
      hasMore = true;
      const u32 size = chunks.sizeOf(chunk);
      const ChunkTarget target = {network.ways + slot,
                                  network.servedRequests + slot * networkMaxChannels,
                                  network.inOffset + slot * network.slotBytes,
                                  network.outOffset + network.servedWay[slot] * network.slotBytes,
                                  networkCellSums,
                                  network.servedRank[slot]};
      for (; next - before < size; next += step) {
        const u32 index = chunks.first(chunk) + next - before;
        sum(slot, index);
        __syncwarp();
        if (laneIndex() == 0) {
          isPushed = rowIsReady(network, chunks, served.stride, index, target, scope, call, networkPhaseSums) && isPushed;
        }
        __syncwarp();
      }
      before += size;
    }
  }
  return isPushed;
}

// Sums that come back, by way: how many, and bytes of one.
using SentRows = ServedRows;

// All blocks call this: this rank's tokens, each when what other hosts have of it has come. `needed`: shared, a word per way. By a warp:
// `source.wayPlaceAt(token, way)` is the token's place among what went that way, -1 for none; `source.addUp(token)`. False when
// the block must leave.
template <class Source>
__device__ __forceinline__ bool addUpTokens(const EpNetwork& network, const SentRows& sent, u32 tokens, u32* needed,
                                            const WaitScope& scope, u32 call, const Source& source) {
  const u32 warps = blockDim.x / lanesPerWarp;
  // The thread of each way calls this: chunks that have come.
  u32 came = 0;
  if (threadIdx.x < epMaxWays) needed[threadIdx.x] = 0;
  __syncthreads();
  for (u32 first = blockIdx.x * warps; first < tokens; first += gridDim.x * warps) {
    const u32 token = first + threadIdx.x / lanesPerWarp;
    if (token < tokens && laneIndex() < network.ways) {
      // Places grow with tokens.
      const i32 place = source.wayPlaceAt(token, laneIndex());
      if (place >= 0) atomicMax(&needed[laneIndex()], static_cast<u32>(place) + 1);
    }
    __syncthreads();
    bool isThere = true;
    if (threadIdx.x < network.ways) {
      const u32 way = threadIdx.x;
      const Chunks chunks(network, sent.tokens[way], sent.stride);
      while (isThere && chunks.first(came) < needed[way]) {
        isThere = waitForChunk(network, chunks, came, network.wayForwarder[way], networkCellSums, scope, call, networkPhaseSums);
        ++came;
      }
    }
    if (!__syncthreads_and(isThere)) return false;
    if (token < tokens) source.addUp(token);
  }
  return true;
}

// One thread calls this, when all blocks are done with a combine.
__device__ __forceinline__ void takeSums(const EpNetwork& network, const SentRows& sent) {
  for (u32 way = 0; way < network.ways; ++way) {
    const Chunks chunks(network, sent.tokens[way], sent.stride);
    takeChunks(network, chunks, network.wayForwarder[way], networkCellSums);
  }
  for (u32 slot = 0; slot < network.served; ++slot) forgetPushed(network, network.servedRank[slot]);
}

}  // namespace weftline
