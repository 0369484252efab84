// The steps of a collective call: blocks of the same number at all ranks meet in each, and no others wait for each other.
//
// What a rank puts into slots of its peers in a step is there when they have met. Slots are used in turn by two steps: who
// arrives in a step has taken all that came in the one before it.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/collectives/move-range.cuh"
#include "weftline/collectives/ranks.cuh"

namespace weftline {

__device__ __forceinline__ CollectiveRanks ranksOf(const CollectiveArguments& a) { return {a.peers, a.ranks, a.rank}; }

__device__ __forceinline__ u32 cellOf(u32 step, u32 from) {
  return ((step & 1) * collectiveMaxBlocks + blockIdx.x) * collectiveMaxRanks + from;
}

// The number of the step, and in the upper half the signature of the call.
__device__ __forceinline__ u64* arrivalAt(const CollectiveArguments& a, u32 owner, u32 step, u32 from) {
  return reinterpret_cast<u64*>(static_cast<u8*>(a.peers[owner]) + a.windowArrivals) + cellOf(step, from);
}

__device__ __forceinline__ CollectiveRecord* recordAt(const CollectiveArguments& a, u32 owner, u32 step, u32 from) {
  return reinterpret_cast<CollectiveRecord*>(static_cast<u8*>(a.peers[owner]) + a.windowRecords) + cellOf(step, from);
}

// Record of this block, in the window of `owner`.
__device__ __forceinline__ u8* slotAt(const CollectiveArguments& a, u32 owner, u32 step, u32 from) {
  const u64 slot = static_cast<u64>(blockIdx.x * 2 + (step & 1)) * a.ranks + from;
  return static_cast<u8*>(a.peers[owner]) + a.windowSlots + slot * a.slotBytes;
}

// What ranks tell each other besides the number of a step.
constexpr u32 tellsNothing = 0;
constexpr u32 tellsCall = 1;
constexpr u32 tellsTensors = 2;

__device__ __forceinline__ void writeRecord(const CollectiveArguments& a, u32 peer, u32 step, u32 tells) {
  CollectiveRecord* record = recordAt(a, peer, step, a.rank);
  record->word = a.word;
  if (tells == tellsCall) return;
  record->inputOffset = a.inputOffset;
  record->outputOffset = a.outputOffset;
  record->inputId = a.inputId;
  record->outputId = a.outputId;
  if (a.shape != collectiveShapeAllToAllv) return;
  u64 most = 0;
  for (u32 to = 0; to < a.ranks; ++to) most = max(most, a.sendBytes[to]);
  record->sendBytes = a.sendBytes[peer];
  record->recvBytes = a.recvBytes[peer];
  record->recvOffset = a.recvOffsets[peer];
  record->mostBytes = most;
}

// One thread per peer calls this.
__device__ inline bool awaitArrival(const CollectiveArguments& a, u32 peer, u32 step, const WaitScope& scope) {
  const u64* cell = arrivalAt(a, a.rank, step, peer);
  u64 seen = 0;
  const auto isHere = [&]() {
    seen = loadAcquireSystem(cell);
    return epochReached(static_cast<u32>(seen), step);
  };
  if (!awaitPeer(ranksOf(a), peer, a.word, 0, scope, isHere)) return false;
  if (static_cast<u32>(seen >> 32) == a.signature) return true;
  // Ranks that gave up an earlier call say more.
  if (hasFailed(ranksOf(a), peer, scope) || hasFailed(ranksOf(a), a.rank, scope)) return false;
  failCollective(ranksOf(a), scope, collectiveFailureOtherCall, peer, 0, a.word, __ldcg(&recordAt(a, a.rank, step, peer)->word));
  return false;
}

// All threads call this. True when all ranks are in this step; false when the block must leave the kernel.
__device__ inline bool meet(const CollectiveArguments& a, u32 step, u32 tells, const WaitScope& scope) {
  __syncthreads();
  bool isGood = true;
  const u32 peer = threadIdx.x;
  if (peer < a.ranks && peer != a.rank) {
    if (tells != tellsNothing) writeRecord(a, peer, step, tells);
    // ORDER: publishes what this block wrote.
    storeReleaseSystem(arrivalAt(a, peer, step, a.rank), static_cast<u64>(a.signature) << 32 | step);
    isGood = awaitArrival(a, peer, step, scope);
  }
  return !__syncthreads_or(!isGood);
}

// All threads call this, before tensors of peers are touched where they lie: a rank that arrived may have given up since, and its
// caller may use its tensors for something else.
__device__ inline bool areStillHere(const CollectiveArguments& a, const WaitScope& scope) {
  const u32 peer = threadIdx.x;
  return !__syncthreads_or(peer < a.ranks && peer != a.rank && hasFailed(ranksOf(a), peer, scope));
}

// Thread 0 calls this, when the block leaves the kernel. After a failure its steps are never used again.
__device__ __forceinline__ void keepSteps(CollectiveBlock& own, u32 step, bool isGood) {
  if (isGood) own.steps = step;
  else own.failed = 1;
}

// A run of a tensor, in bytes.
struct Span {
  u64 at;
  u64 bytes;
};

// What of its input a rank sends to another, or to itself.
__device__ __forceinline__ Span outgoing(const CollectiveArguments& a, u32 to) {
  switch (a.shape) {
    case collectiveShapeBroadcast:
      return {0, a.rank == a.root ? a.bytes : 0};
    case collectiveShapeReduce:
      return {0, to == a.root ? a.bytes : 0};
    case collectiveShapeReduceScatter:
    case collectiveShapeAllToAll:
      return {to * a.bytes, a.bytes};
    case collectiveShapeAllToAllv:
      return {a.sendOffsets[to], a.sendBytes[to]};
    default:
      return {0, a.bytes};
  }
}

// The place in its output for that of another rank, or of itself; of shapes that do not reduce.
__device__ __forceinline__ Span incoming(const CollectiveArguments& a, u32 from) {
  switch (a.shape) {
    case collectiveShapeBroadcast:
      return {0, from == a.root ? a.bytes : 0};
    case collectiveShapeAllToAllv:
      return {a.recvOffsets[from], a.recvBytes[from]};
    default:
      return {from * a.bytes, a.bytes};
  }
}

__device__ __forceinline__ bool reduces(const CollectiveArguments& a) {
  return a.shape == collectiveShapeReduce || a.shape == collectiveShapeReduceScatter || a.shape == collectiveShapeAllReduce;
}

// The part of a run that each rank reduces for all.
__device__ __forceinline__ Span partOf(u64 bytes, u32 parts, u32 part) {
  const u64 each = ((bytes + parts - 1) / parts + 15) & ~static_cast<u64>(15);
  const u64 begin = min(bytes, part * each);
  return {begin, min(each, bytes - begin)};
}

__device__ __forceinline__ u8* inputOf(const CollectiveArguments& a) { return static_cast<u8*>(a.input); }
__device__ __forceinline__ u8* outputOf(const CollectiveArguments& a) { return static_cast<u8*>(a.output); }

}  // namespace weftline
