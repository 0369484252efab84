// The barrier between the ranks of a host: each writes {epoch, call} into its cell in every peer's window.
//
// Epochs only grow, so nothing is ever reset. The host gives them; kernels of a CUDA graph, which run again and again with the
// same arguments, count on from the last one. Two sets of cells are used in turn: a peer is at most one barrier ahead,
// hence the cell of the barrier just passed still holds its call when everyone compares it.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/wait.cuh"

namespace weftline {

// Epochs and numbers of dispatches count as numberAfter() of the host does.
__device__ __forceinline__ u32 numberAfter(u32 number) { return number == 0xffffffffu ? 2 : number + 1; }

// The epoch of a kernel's first barrier: the one given or, if that is 0, the one after `*lastEpoch`. Only an earlier kernel and
// the end of this one write there.
__device__ __forceinline__ u32 firstEpoch(u32 given, const void* lastEpoch) {
  return given != 0 ? given : numberAfter(__ldcg(&static_cast<const EpLastEpoch*>(lastEpoch)->number));
}

// All threads call this, before anything that peers or later kernels see: true when an earlier kernel of the object left before its
// last barrier, and this one must leave too. Its words would stand where a late peer still reads those of the kernel that left,
// and the peer would find another call, or records of a later one, instead of the reason.
__device__ __forceinline__ bool hasLeftEarly(const void* lastEpoch) {
  // Another block of this kernel may be the one that leaves: the threads must agree.
  return __syncthreads_or(__ldcg(&static_cast<const EpLastEpoch*>(lastEpoch)->failed) != 0);
}

// Any thread of a kernel that leaves before its last barrier calls this.
__device__ __forceinline__ void noteFailure(void* lastEpoch) { static_cast<EpLastEpoch*>(lastEpoch)->failed = 1; }

struct RankBarrier {
  // Start of every rank's window, as this process maps it.
  void* const* peers;
  u32 ranks;
  u32 rank;
  u32 epoch;
  u32 call;
  // What errors call the ranks, by index; null where that is the index itself.
  const u32* names = nullptr;
};

__device__ __forceinline__ u64* arrivalCell(void* window, u32 epoch, u32 from) {
  u8* base = static_cast<u8*>(window) + ((epoch & 1) * epMaxRanks + from) * epArrivalStride;
  return reinterpret_cast<u64*>(base);
}

// One thread per rank (peer = its index) calls this, after a block synchronisation that ends what the barrier publishes.
// ORDER: the release publishes all that this block wrote, and what others of this GPU wrote before they told this one.
__device__ __forceinline__ void signalRank(const RankBarrier& barrier, u32 peer) {
  const u64 word = (static_cast<u64>(barrier.call) << 32) | barrier.epoch;
  storeReleaseSystem(arrivalCell(barrier.peers[peer], barrier.epoch, barrier.rank), word);
}

// One thread per rank calls this. 0, or the epStatus of why the caller must leave the kernel.
__device__ __forceinline__ u32 awaitRank(const RankBarrier& barrier, u32 peer, const WaitScope& scope) {
  const WaitFor whom = {barrier.names == nullptr ? peer : barrier.names[peer], barrier.call};
  // Epoch and call are one word, written at once and read at once.
  const u64* cell = arrivalCell(barrier.peers[barrier.rank], barrier.epoch, peer);
  u64 word;
  if (!waitForEpoch(cell, barrier.epoch, &word, scope, whom)) return epStatusTimeout;
  const u32 call = static_cast<u32>(word >> 32);
  if (call == barrier.call) return epStatusGood;
  recordTrap(scope, whom, barrier.call, call, trapReasonOtherCall);
  return epStatusOtherCall;
}

// All threads of every block of a kernel call this: true when all ranks have arrived, else the caller must leave.
__device__ __forceinline__ bool enterTogether(const RankBarrier& barrier, const WaitScope& scope) {
  // What this block's waits share is ready for all its threads.
  __syncthreads();
  u32 status = epStatusGood;
  if (threadIdx.x < barrier.ranks) {
    if (blockIdx.x == 0) signalRank(barrier, threadIdx.x);
    status = awaitRank(barrier, threadIdx.x, scope);
  }
  return !__syncthreads_or(status != epStatusGood);
}

// All threads of every block call this, as the last thing: the block that ends last tells the peers and waits for them.
// `counter` counts the blocks of this kernel; it is zero before and after. True for all threads of the last block once
// all ranks have arrived; what they wrote is then read past the first-level cache. `lastEpoch`: EpLastEpoch; may be null.
__device__ __forceinline__ bool leaveTogether(const RankBarrier& barrier, u32* counter, void* lastEpoch,
                                              const WaitScope& scope) {
  __shared__ u32 last;
  __syncthreads();
  if (threadIdx.x == 0) {
    // ORDER: all of this block's writes, then the count; the last block's release publishes those of all.
    fenceSystem();
    last = fetchAddAcquireReleaseGpu(counter, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last == 0) return false;
  u32 status = epStatusGood;
  if (threadIdx.x < barrier.ranks) {
    signalRank(barrier, threadIdx.x);
    status = awaitRank(barrier, threadIdx.x, scope);
  }
  if (threadIdx.x == 0) {
    *counter = 0;
    if (lastEpoch != nullptr) static_cast<EpLastEpoch*>(lastEpoch)->number = barrier.epoch;
  }
  if (status != epStatusGood && lastEpoch != nullptr) noteFailure(lastEpoch);
  return !__syncthreads_or(status != epStatusGood);
}

}  // namespace weftline
