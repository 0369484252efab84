// How the ranks of a Communicator wait for each other, and how one that can go no further tells the others why.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/trace.cuh"
#include "weftline/wait.cuh"

namespace weftline {

// The ranks that work together.
struct CollectiveRanks {
  void* const* peers;
  u32 ranks;
  u32 rank;
};

// Failures are the first thing in a window.
__device__ __forceinline__ CollectiveFailure* failureAt(void* window, u32 from) {
  return static_cast<CollectiveFailure*>(window) + from;
}

// What the host finds as the channel of a record.
__device__ __forceinline__ u32 failureChannel(u32 kind, u32 reporter, u32 detail) { return kind | reporter << 4 | detail << 8; }

// ORDER: the reason, then the word that says there is one. The cell of this rank in every window, its own as well.
__device__ inline void tellCollectiveFailure(const CollectiveRanks& all, u32 kind, u32 culprit, u32 detail, u64 expected, u64 seen) {
  for (u32 peer = 0; peer < all.ranks; ++peer) {
    CollectiveFailure* failure = failureAt(all.peers[peer], all.rank);
    failure->reporter = all.rank;
    failure->culprit = culprit;
    failure->detail = detail;
    failure->expected = expected;
    failure->seen = seen;
    storeReleaseSystem(&failure->kind, kind);
  }
}

// One thread calls this: the host and the peers hear of the first failure of this rank.
__device__ inline void failCollective(const CollectiveRanks& all, const WaitScope& scope, u32 kind, u32 culprit, u32 detail,
                                      u64 expected, u64 seen) {
  const WaitFor whom = {culprit, failureChannel(kind, all.rank, detail)};
  const bool isAborted = kind == collectiveFailureExpired && timeoutReason(scope) == trapReasonAborted;
  const u32 reason = isAborted ? trapReasonAborted : trapReasonCallFailed;
  const bool isFirst = recordTrap(scope, whom, expected, seen, reason);
  // Why a host gives up its kernels, those of the other ranks find out by themselves.
  if (isFirst && !isAborted) tellCollectiveFailure(all, kind, culprit, detail, expected, seen);
}

// One thread calls this: true when rank `from`, or this one, cannot go on, which the host is told.
__device__ inline bool hasFailed(const CollectiveRanks& all, u32 from, const WaitScope& scope) {
  const CollectiveFailure* failure = failureAt(all.peers[all.rank], from);
  const u32 kind = loadAcquireSystem(&failure->kind);
  if (kind == collectiveFailureNone) return false;
  const u32 reporter = __ldcg(&failure->reporter);
  const WaitFor whom = {__ldcg(&failure->culprit), failureChannel(kind, reporter, __ldcg(&failure->detail))};
  recordTrap(scope, whom, __ldcg(&failure->expected), __ldcg(&failure->seen), trapReasonPeerFailed);
  return true;
}

// One thread per peer calls this: true once `isHere` is; false when the caller must leave the kernel. `word` is what this rank is
// in, `detail` what of it waits.
template <class IsHere>
__device__ __forceinline__ bool awaitPeer(const CollectiveRanks& all, u32 peer, u64 word, u32 detail, const WaitScope& scope,
                                          IsHere isHere) {
  if (isHere()) return true;
  const u64 start = waitStart(scope);
  WEFTLINE_TRACE_WAIT(peer, scope.rank);
  for (u32 polls = 1;; ++polls) {
    if (isHere()) return true;
    if ((polls & 7u) == 0 && (hasFailed(all, peer, scope) || hasFailed(all, all.rank, scope))) return false;
    if (!waitIsOver(scope, polls, start)) continue;
    failCollective(all, scope, collectiveFailureExpired, peer, detail, word, 0);
    return false;
  }
}

}  // namespace weftline
