// Brings the lanes of a warp together that come to one call at different times, or says who did not come.
//
// Lanes that have parted need not join again by themselves, so what __activemask() shows may be a part of those that call.
// A __syncwarp() of all lanes would join them, but waits without end for a lane that never calls. So each lane notes its
// arrival in a word of shared memory and looks at it until all have come, within the deadline of all waits.
#pragma once
#include "weftline/level.cuh"
#include "weftline/wait.cuh"

namespace weftline {

// Parts of a word: the lanes that have come, whether the call has failed for all of them, and whose word it is.
constexpr u64 arrivalFailed = 1ull << 32;
constexpr u32 arrivalOwnerShift = 33;

__device__ __forceinline__ u64* arrivalWord() {
  constexpr u32 mostWarps = 32;
  __shared__ u64 words[mostWarps];
  return words + Group<Level::Block>::index() / lanesPerWarp;
}

// 31 bits. Shared memory holds what earlier blocks left there, words of theirs among it.
__device__ __forceinline__ u64 arrivalOwner() {
  u64 grid;
  asm volatile("mov.u64 %0, %%gridid;" : "=l"(grid));
  const u64 block = blockIdx.x + gridDim.x * (blockIdx.y + static_cast<u64>(gridDim.y) * blockIdx.z);
  constexpr u64 mixer = 0x9e3779b97f4a7c15ull;
  return ((((grid + 1) * mixer) ^ (block + 1)) * mixer) >> arrivalOwnerShift;
}

// Lanes that do not all come at once call this: returns when all have. The lanes that have come when the deadline passes, or the
// host gives up; all of those leave with the same answer, as do lanes that come later.
__device__ __forceinline__ u32 awaitLanes(const WaitScope& scope) {
  u64* word = arrivalWord();
  volatile u64* current = word;
  const u64 owner = arrivalOwner();
  u64 seen = *current;
  for (;;) {
    const bool isOurs = seen >> arrivalOwnerShift == owner;
    if (isOurs && (seen & arrivalFailed) != 0) return static_cast<u32>(seen);
    const u32 before = isOurs ? static_cast<u32>(seen) : 0;
    const u64 found = atomicCAS(word, seen, owner << arrivalOwnerShift | before | 1u << laneIndex());
    if (found == seen) break;
    seen = found;
  }
  const u64 start = globalTimer();
  for (u32 polls = 1;; ++polls) {
    seen = *current;
    if (static_cast<u32>(seen) == allLanes) break;
    if ((seen & arrivalFailed) != 0) return static_cast<u32>(seen);
    // Unless the last lane comes just now: then it has not failed.
    if (waitIsOver(scope, polls, start) && atomicCAS(word, seen, seen | arrivalFailed) == seen) return static_cast<u32>(seen);
  }
  // All lanes come here, so these wait for none that does not. The word is cleared when all have seen it whole, and
  // before any of them comes to its next call.
  __syncwarp();
  if (laneIndex() == 0) *current = 0;
  __syncwarp();
  return allLanes;
}

// True once the group has come whole; groups of other levels than a warp do. False, with a record, if lanes do not come.
template <Level level>
__device__ __forceinline__ bool arrivesWhole(const WaitScope& scope, WaitFor whom) {
  if constexpr (level != Level::Warp) return true;
  // If one lane sees all of them at its side, all see the same.
  if (Group<level>::callers() == allLanes) return true;
  const u32 lanes = awaitLanes(scope);
  if (lanes == allLanes) return true;
  const u32 reason = timeoutReason(scope);
  recordTrap(scope, whom, allLanes, lanes, reason == trapReasonAborted ? reason : trapReasonMissingLanes);
  return false;
}

}  // namespace weftline
