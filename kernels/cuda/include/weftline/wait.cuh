// Waits that end: they have a deadline given at run time, and say in a record of the host whom they waited for.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Nanoseconds, the same clock on the whole GPU; it ticks coarsely (up to about 1 us).
__device__ __forceinline__ u64 globalTimer() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// What all waits of one kernel share.
struct WaitScope {
  // A word in mapped host memory.
  TrapRecord* trap;
  // One of the trapKernel constants.
  u32 kernel;
  u32 rank;
  u64 timeoutNs;
  // What sharedWaits() gave: the time of all waits of the block counts together. Without it, each wait has its own.
  u64* firstWait = nullptr;
};

// All threads call this, once in a kernel, with a synchronisation of the block before the first wait, or of the warp of thread `first`
// which waits first. When the first wait of this block began that did not end at once; 0 before that.
__device__ __forceinline__ u64* sharedWaits(u32 first = 0) {
  __shared__ u64 firstWait;
  if (threadIdx.x == first) firstWait = 0;
  return &firstWait;
}

// The time from which a wait that begins now counts. The timer is read only by waits that do not end at once.
__device__ __forceinline__ u64 waitStart(const WaitScope& scope) {
  const u64 now = globalTimer();
  if (scope.firstWait == nullptr) return now;
  // Threads that begin to wait at the same time may all store: their times hardly differ.
  volatile u64* first = scope.firstWait;
  const u64 known = *first;
  if (known != 0) return known;
  *first = now;
  return now;
}

// The peer that a wait is for, for the record; what `channel` counts is the kernel's own business.
struct WaitFor {
  u32 peer;
  u32 channel;
};

// Only the first wait of a GPU that expires is recorded: the others mostly follow from it. True for that one.
__device__ __forceinline__ bool recordTrap(const WaitScope& scope, WaitFor whom, u64 expected, u64 seen,
                                           u32 reason = trapReasonTimeout) {
  TrapRecord* trap = scope.trap;
  if (compareExchangeGpu(&trap->state, trapStateEmpty, trapStateWriting) != trapStateEmpty) return false;
  trap->kernel = scope.kernel;
  trap->rank = scope.rank;
  trap->peer = whom.peer;
  trap->channel = whom.channel;
  trap->reason = reason;
  trap->expected = expected;
  trap->seen = seen;
  trap->timeoutNs = scope.timeoutNs;
  // ORDER: publishes the fields above to the host.
  storeReleaseSystem(&trap->state, trapStateReadable);
  return true;
}

// Reading the timer costs as much as a few polls; asking the host, whose memory is far, much more.
__device__ __forceinline__ bool waitIsOver(const WaitScope& scope, u32 polls, u64 start) {
  if ((polls & 31u) == 0 && globalTimer() - start >= scope.timeoutNs) return true;
  return (polls & 1023u) == 0 && loadRelaxedSystem(&scope.trap->abort) != 0;
}

__device__ __forceinline__ u32 timeoutReason(const WaitScope& scope) {
  return loadRelaxedSystem(&scope.trap->abort) != 0 ? trapReasonAborted : trapReasonTimeout;
}

// Epochs only grow and may wrap: reached means not behind by signed difference.
__device__ __forceinline__ bool epochReached(u32 seen, u32 expected) { return static_cast<i32>(seen - expected) >= 0; }

// Returns true once `*word` has reached the epoch, with what its writer released before; false after the deadline, when
// the caller must leave the kernel without touching what it waited for. One thread per word suffices. A word of 64 bits
// has its epoch in the lower half; `*value` becomes the whole of what was read.
template <class Word>
__device__ __forceinline__ bool waitForEpoch(const Word* word, u32 expected, Word* value, const WaitScope& scope,
                                             WaitFor whom) {
  *value = loadAcquireSystem(word);
  if (epochReached(static_cast<u32>(*value), expected)) return true;
  const u64 start = waitStart(scope);
  WEFTLINE_TRACE_WAIT(whom.peer, scope.rank);
  for (u32 polls = 1;; ++polls) {
    *value = loadAcquireSystem(word);
    if (epochReached(static_cast<u32>(*value), expected)) return true;
    if (waitIsOver(scope, polls, start)) break;
  }
  recordTrap(scope, whom, expected, static_cast<u32>(*value), timeoutReason(scope));
  return false;
}

__device__ __forceinline__ bool waitForEpoch(const u32* word, u32 expected, const WaitScope& scope, WaitFor whom) {
  u32 value;
  return waitForEpoch(word, expected, &value, scope, whom);
}

// The same for a counter of 64 bits that is to be at least `threshold`.
__device__ __forceinline__ bool waitForThreshold(const u64* counter, u64 threshold, const WaitScope& scope,
                                                 WaitFor whom) {
  u64 value = loadAcquireSystem(counter);
  if (value >= threshold) return true;
  const u64 start = waitStart(scope);
  WEFTLINE_TRACE_WAIT(whom.peer, scope.rank);
  for (u32 polls = 1;; ++polls) {
    value = loadAcquireSystem(counter);
    if (value >= threshold) return true;
    if (waitIsOver(scope, polls, start)) break;
  }
  recordTrap(scope, whom, threshold, value, timeoutReason(scope));
  return false;
}

// The same for a word that is to become anything but `empty`; stores what it became in `*value`.
__device__ __forceinline__ bool waitForChange(const u64* word, u64 empty, u64* value, const WaitScope& scope,
                                              WaitFor whom) {
  const u64 start = waitStart(scope);
  WEFTLINE_TRACE_WAIT(whom.peer, scope.rank);
  for (u32 polls = 1;; ++polls) {
    *value = loadAcquireSystem(word);
    if (*value != empty) return true;
    if (waitIsOver(scope, polls, start)) break;
  }
  recordTrap(scope, whom, empty, *value, timeoutReason(scope));
  return false;
}

}  // namespace weftline
