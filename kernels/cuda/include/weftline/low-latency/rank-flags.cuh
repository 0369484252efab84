// How ranks meet in low-latency mode: words in the windows of the peers that count kernels, and waits for them.
//
// Where rows have flags, each block of a kernel that sends adds its share to a word of every peer as soon as it is done; the shares
// of a kernel make one unit. So no block waits for the others of its grid, and nothing is ever reset. The next kernel tells the peers
// that memory may be written again, where such a kernel is certain to come before anybody waits for it.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/trace.cuh"
#include "weftline/wait.cuh"

// What a kernel is compiled for: the calls are so short that instructions which they jump over are felt.
//
// One of lowLatencyGroups; where ranks come and go see members.cuh, where they are on several hosts host-message.cuh.
#ifndef WEFTLINE_GROUP
#define WEFTLINE_GROUP 0
#endif
// 1 where received rows stand by rank.
#ifndef WEFTLINE_RANK_MAJOR
#define WEFTLINE_RANK_MAJOR 0
#endif
// One of lowLatencyRows.
#ifndef WEFTLINE_ROWS
#define WEFTLINE_ROWS 0
#endif
// One of lowLatencyTravels.
#ifndef WEFTLINE_TRAVELS
#define WEFTLINE_TRAVELS 0
#endif

namespace weftline {

constexpr bool lowLatencyIsElastic = WEFTLINE_GROUP == lowLatencyGroupElastic;
constexpr bool lowLatencyAcrossHosts = WEFTLINE_GROUP == lowLatencyGroupHosts;
// Whether kernels send to some of the ranks alone, whose bits are in `active` of their arguments.
constexpr bool lowLatencyIsMasked = lowLatencyIsElastic || lowLatencyAcrossHosts;
constexpr u32 lowLatencyMostRanks = lowLatencyAcrossHosts ? epMaxGroupRanks : epMaxRanks;
constexpr bool lowLatencyIsRankMajor = WEFTLINE_RANK_MAJOR != 0;
constexpr bool lowLatencyIsBf16 = WEFTLINE_ROWS == lowLatencyRowsBf16;
constexpr u32 lowLatencyTravels = WEFTLINE_TRAVELS;
// Whether the words of rows, or of sums, show that they have come; see arriving-words.cuh. Elastic ranks need one flag for all rows of
// a rank, because it may die after sending some of them; rows of bf16 may hold any words; no kernel reads rows by rank.
constexpr bool lowLatencyRowsShow = !lowLatencyIsElastic && !lowLatencyIsRankMajor && !lowLatencyIsBf16;
constexpr bool lowLatencySumsShow = !lowLatencyIsElastic && lowLatencyTravels == lowLatencyTravelsRankSums;

// Marks in LowLatencyDispatchArguments::rowOf: a choice whose expert is at another rank, and one for which its expert has no room.
constexpr i32 lowLatencyElsewhere = -1;
constexpr i32 lowLatencyLeftOut = -2;

// The cell of rank `from` in a window, whose first region they are.
__device__ __forceinline__ LowLatencyFlags* flagsAt(void* window, u32 from) {
  return static_cast<LowLatencyFlags*>(window) + from;
}

__device__ __forceinline__ bool isLastBlock() { return blockIdx.x + 1 == gridDim.x; }

__device__ __forceinline__ u32 blockShare() { return isLastBlock() ? lowLatencyUnit - (gridDim.x - 1) : 1; }

// The ranks that meet.
struct LowLatencyRanks {
  void* const* peers;
  u32 ranks;
  u32 rank;
};

// Why this rank can go no further.
struct LowLatencyFailure {
  u32 kind;
  u32 number;
  u32 detail;
  u32 extent;
};

// ORDER: the reason, then the word that says there is one. The cell of this rank in every window, its own as well.
__device__ inline void tellFailure(const LowLatencyRanks& all, const LowLatencyFailure& failure) {
#pragma unroll 1
  for (u32 peer = 0; peer < all.ranks; ++peer) {
    // The window of a rank that is away is mapped nowhere.
    if (lowLatencyIsElastic && all.peers[peer] == nullptr) continue;
    LowLatencyFlags* flags = flagsAt(all.peers[peer], all.rank);
    storeRelaxedSystem(&flags->failureNumber, failure.number);
    storeRelaxedSystem(&flags->failureDetail, failure.detail);
    storeRelaxedSystem(&flags->failureExtent, failure.extent);
    storeReleaseSystem(&flags->failure, failure.kind);
    // Whoever sees it looks at the other one for the reason.
    storeReleaseSystem(&flags->combineFailure, failure.kind);
  }
}

__device__ __forceinline__ u64 failureWord(u32 kind, u32 number) { return kind | static_cast<u64>(number) << 8; }

// One thread calls this: the host and the peers hear of the first failure of this rank; where ranks come and go the host alone, which
// masks this rank, and the others go on. Out of line, as all that hardly ever happens: instructions in between would have to be
// fetched.
__device__ __noinline__ void failCall(LowLatencyRanks all, WaitScope scope, WaitFor whom, LowLatencyFailure failure) {
  const u64 seen = failure.detail | static_cast<u64>(failure.extent) << 32;
  if (!recordTrap(scope, whom, failureWord(failure.kind, failure.number), seen, trapReasonCallFailed)) return;
  if constexpr (!lowLatencyIsElastic) tellFailure(all, failure);
}

// Why the peer of a wait cannot go on, for the host.
__device__ __noinline__ void tellWhyPeerFailed(const LowLatencyFlags* flags, WaitScope scope, WaitFor whom) {
  // ORDER: awaitPeer() saw the word without it; the reason stands behind it.
  const u32 failure = loadAcquireSystem(&flags->failure);
  const u64 detail = loadRelaxedSystem(&flags->failureDetail);
  const u64 extent = loadRelaxedSystem(&flags->failureExtent);
  recordTrap(scope, whom, failureWord(failure, loadRelaxedSystem(&flags->failureNumber)), detail | extent << 32,
             trapReasonPeerFailed);
}

// The deadline of a wait is over.
__device__ __noinline__ void giveUpWait(LowLatencyRanks all, u32 expected, u32 seen, WaitScope scope, WaitFor whom) {
  if (recordTrap(scope, whom, expected, seen, timeoutReason(scope))) tellFailure(all, {lowLatencyFailureGaveUp, 0, 0, 0});
}

// Why a wait for a peer ends without what it was for: the failure of any rank, or the deadline. `number`: of the call.
__device__ __noinline__ void endWait(LowLatencyRanks all, u32 number, WaitScope scope, WaitFor whom) {
  const LowLatencyFlags* flags = flagsAt(all.peers[all.rank], 0);
  for (u32 r = 0; r < all.ranks; ++r) {
    if (r == all.rank || loadRelaxedSystem(&flags[r].failure) == lowLatencyFailureNone) continue;
    tellWhyPeerFailed(flags + r, scope, {r, whom.channel});
    return;
  }
  if (loadRelaxedSystem(&flags[all.rank].failure) != lowLatencyFailureNone) return;
  giveUpWait(all, number, number - 1, scope, whom);
}

static_assert(lowLatencyFailureNone == 0, "bits of a failure");

// Whether the caller, after so many looks, must endWait() and leave the kernel: a rank has failed, or the deadline is over. The waits of a
// block count together (sharedWaits()). Any rank's failure counts: a peer may have left because another rank failed, and reports only its
// own failures; one on another host does not report them here.
__device__ __forceinline__ bool mustEndWait(const LowLatencyRanks& all, const WaitScope& scope, u32 polls) {
  if ((polls & 31u) != 0) return false;
  const LowLatencyFlags* flags = flagsAt(all.peers[all.rank], 0);
  u32 failures = 0;
#pragma unroll 1
  for (u32 r = 0; r < all.ranks; ++r) failures |= loadRelaxedSystem(&flags[r].failure);
  return failures != lowLatencyFailureNone || waitIsOver(scope, polls, waitStart(scope));
}

// What a peer counts, and why it can go no further, if it cannot.
struct PeerWord {
  u32 count;
  u32 failure;
};

// LowLatencyFlags::arrived or ::combined, with the failure that stands beside it.
struct FailingWord {
  const u32* word;

  __device__ __forceinline__ PeerWord look(u32) const {
    const u64 both = loadAcquireSystem(reinterpret_cast<const u64*>(word));
    return {static_cast<u32>(both), static_cast<u32>(both >> 32)};
  }
};

// Any other word.
struct PlainWord {
  const u32* word;
  const LowLatencyFlags* flags;

  __device__ __forceinline__ PeerWord look(u32 expected) const {
    // Both at once.
    u32 failure = loadRelaxedSystem(&flags->failure);
    const u32 count = loadAcquireSystem(word);
    // ORDER: after the word, so that a failure before what it counts is seen.
    if (epochReached(count, expected)) failure = loadRelaxedSystem(&flags->failure);
    return {count, failure};
  }
};

// One thread per peer calls this. True once its word counts so many units, with what it released before; false when the caller must
// leave the kernel: the peer, or across hosts any rank, cannot go on, or the deadline is over.
template <class Word>
__device__ __forceinline__ bool awaitPeer(const LowLatencyRanks& all, const Word& word, u32 units, const WaitScope& scope,
                                          WaitFor whom) {
  const u32 expected = units * lowLatencyUnit;
  u64 start = 0;
  WEFTLINE_TRACE_LATER_WAIT();
  for (u32 polls = 0;; ++polls) {
    const PeerWord seen = word.look(expected);
    if (seen.failure != lowLatencyFailureNone) break;
    if (epochReached(seen.count, expected)) return true;
    if (polls == 0) {
      start = waitStart(scope);
      WEFTLINE_TRACE_WAIT_BEGINS(whom.peer, scope.rank);
      continue;
    }
    if constexpr (lowLatencyAcrossHosts) {
      // What comes from another host a rank of this one passes on, which may fail instead.
      if (mustEndWait(all, scope, polls)) break;
    } else {
      if (!waitIsOver(scope, polls, start)) continue;
      giveUpWait(all, expected, seen.count, scope, whom);
      return false;
    }
  }
  if constexpr (lowLatencyAcrossHosts) endWait(all, expected, scope, whom);
  else tellWhyPeerFailed(flagsAt(all.peers[all.rank], whom.peer), scope, whom);
  return false;
}

__device__ __noinline__ void tellOtherCall(LowLatencyRanks all, u32 theirs, u32 number, WaitScope scope,
                                          WaitFor whom) {
  const u32 what = whom.channel & ~((1u << lowLatencyWaitShift) - 1);
  if (!recordTrap(scope, whom, whom.channel, theirs | what, trapReasonOtherCall)) return;
  tellFailure(all, {lowLatencyFailureGaveUp, number, 0, 0});
}

// One thread per peer calls this, once its word says that it has come: false when it is in another call. The word of a call may be
// that of a later one, for a peer that is ahead.
__device__ inline bool isSameCall(const LowLatencyRanks& all, u64 there, u32 number, u32 call, const WaitScope& scope,
                                  WaitFor whom) {
  const u32 theirs = static_cast<u32>(there >> 32);
  if (static_cast<u32>(there) != number || theirs == call) return true;
  tellOtherCall(all, theirs, number, scope, whom);
  return false;
}

// Bits of LowLatencyBlock::owed.
__device__ __forceinline__ u32 owedSlot(u32 slot) { return 1u << slot; }
__device__ __forceinline__ u32 owedResult(u32 result) { return 1u << (lowLatencyMostSlots + result); }

// A warp of the first block calls this, before anything else: what kernels before have read is given up. Lane r tells rank r.
// ORDER: those kernels are over, so their loads have returned; what they emptied is published.
__device__ __forceinline__ void tellOwed(const LowLatencyRanks& all, LowLatencyBlock& own, u32 owed, u32 lane) {
  if (lane < all.ranks) {
    LowLatencyFlags* flags = flagsAt(all.peers[lane], all.rank);
    for (u32 rest = owed; rest != 0; rest &= rest - 1) {
      const u32 bit = __ffs(rest) - 1;
      u32* word = bit < lowLatencyMostSlots ? flags->released + bit : flags->taken + (bit - lowLatencyMostSlots);
      addReleaseSystem(word, lowLatencyUnit);
    }
  }
  // Before this kernel can fail, so that none of it is told twice.
  __syncwarp();
  if (lane == 0) own.owed = 0;
  __syncwarp();
}

// All threads call this, as the last thing: what this block has read is given up by this kernel itself, in the word of every peer. The end
// of the kernel then waits until peers have it. `hasEmptied`: the block has also emptied what it has read.
// ORDER: the values of all loads of the block have been used before the synchronisation; only emptied words are published.
template <bool hasEmptied, class WordOf>
__device__ __forceinline__ void giveUpRead(const LowLatencyRanks& all, const WordOf& wordOf) {
  __syncthreads();
  if (threadIdx.x >= all.ranks) return;
  u32* word = wordOf(flagsAt(all.peers[threadIdx.x], all.rank));
  if constexpr (hasEmptied) addReleaseSystem(word, blockShare());
  else addRelaxedSystem(word, blockShare());
}

// A word of a call: its number, and what is told of it.
__device__ __forceinline__ u64 callCell(u32 number, u32 told) { return number | static_cast<u64>(told) << 32; }
__device__ __forceinline__ u32 toldOf(u64 cell) { return static_cast<u32>(cell >> 32); }

// LowLatencyFlags::calls of a dispatch: callCell(number, call), then callCell(number, rows).
__device__ __forceinline__ void tellDispatch(LowLatencyFlags* flags, u32 number, u32 call, u32 rows) {
  storeRelaxedSystem(flags->calls + number % lowLatencyCalls * 4, callCell(number, call), callCell(number, rows));
}

__device__ __forceinline__ void readDispatch(const LowLatencyFlags* flags, u32 number, u64& call, u64& rows) {
  loadRelaxedSystem(flags->calls + number % lowLatencyCalls * 4, call, rows);
}

__device__ __forceinline__ u32 waitWord(u32 what, u32 call) { return call | what << lowLatencyWaitShift; }

// Past the first-level cache, for peers wrote it during this kernel.
__device__ __forceinline__ u64 loadCell(const u64* cell) { return __ldcg(cell); }

}  // namespace weftline
