// What the first block of a dispatch decides where ranks come and go, and what its last one tells the others.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/low-latency/members.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/types.cuh"

namespace weftline {

// One thread for each rank that hears of it calls this: this rank has no more use for what it received in that dispatch.
__device__ __forceinline__ void tellReleased(const LowLatencyDispatchArguments& a, u32 slot, u32 dispatch) {
  if (threadIdx.x >= a.ranks || (a.told >> threadIdx.x & 1u) == 0) return;
  storeReleaseSystem(&flagsAt(a.peers[threadIdx.x], a.rank)->released[slot], dispatch);
}

// The threads of the last block to be done call this: rows, counts and words of this dispatch are in place.
__device__ __forceinline__ void tellSent(const LowLatencyDispatchArguments& a) {
  if (threadIdx.x >= a.ranks || (a.active >> threadIdx.x & 1u) == 0) return;
  storeReleaseSystem(&flagsAt(a.peers[threadIdx.x], a.rank)->arrived, a.number);
}

// The first warp of the first block calls this: who gets rows. It waits until the windows of all that take part, now or soon, are
// mapped, and until the slots of those that have been there for long are free.
__device__ inline void decideSend(LowLatencyDispatchArguments& a, LowLatencyMeeting& meeting, const WaitScope& scope) {
  constexpr u32 all = 0xffffffffu;
  const u32 lane = laneIndex();
  const u32 number = a.number;
  const LowLatencyAwaited what = {number, waitWord(lowLatencyWaitSlot, a.call)};
  const LowLatencyFlags* flags = flagsAt(a.peers[a.rank], lane);
  LowLatencyPresence presence;
  const auto isMapped = [&](const LowLatencyPresence& seen) {
    return seen.window != 0 || !(seen.isStaying() || seen.takesPart(number));
  };
  bool isIn = awaitMembers(a, meeting, scope, what, presence, isMapped);
  // Rows by rank stay where they came until the second dispatch after their own begins: now, before this rank waits for the same.
  if (isIn && lowLatencyIsRankMajor && presence.hears()) {
    LowLatencyFlags* theirs = flagsAt(reinterpret_cast<void*>(presence.window), a.rank);
    storeReleaseSystem(&theirs->released[a.releasedSlot], number - lowLatencyResults);
  }
  const u32 before = number - a.slots;
  const auto isFree = [&](const LowLatencyPresence& seen) {
    if (!isMapped(seen)) return false;
    return !seen.takesPart(before) || epochReached(loadAcquireSystem(&flags->released[a.slot]), before);
  };
  isIn = isIn && awaitMembers(a, meeting, scope, what, presence, isFree);
  // ORDER: behind the wait, also for a rank that joins now: by then all that concerns this dispatch is decided.
  const u32 active = __ballot_sync(all, isIn && presence.takesPart(number) && presence.window != 0);
  if (lane == 0) static_cast<LowLatencyElastic*>(a.elastic)->sentTo[number % lowLatencyResults] = active;
  tellDecision(a, meeting, 0, isIn, active, 0, 0, presence);
}

// The same: whose rows are here. A rank that was masked and whose rows had come counts.
__device__ inline void decideReceive(LowLatencyDispatchArguments& a, LowLatencyMeeting& meeting, const WaitScope& scope) {
  constexpr u32 all = 0xffffffffu;
  const u32 lane = laneIndex();
  const u32 number = a.number;
  const u32 channel = waitWord(lowLatencyWaitRows, a.call);
  const LowLatencyFlags* flags = flagsAt(a.peers[a.rank], lane);
  const u32 sentTo = __ldcg(&static_cast<const LowLatencyElastic*>(a.elastic)->sentTo[number % lowLatencyResults]);
  const bool isPeer = (sentTo >> lane & 1u) != 0;
  const u64 began = globalTimer();
  u32 arrived = number - 1;
  const auto hasCome = [&](const LowLatencyPresence& seen) {
    if (!isPeer || epochReached(arrived, number)) return true;
    arrived = loadAcquireSystem(&flags->arrived);
    if (!epochReached(arrived, number)) return !seen.takesPart(number);
    if (a.waitStats != nullptr) static_cast<u64*>(a.waitStats)[lane] += globalTimer() - began;
    return true;
  };
  LowLatencyPresence presence;
  bool isIn = awaitMembers(a, meeting, scope, {number, channel}, presence, hasCome);
  bool isHere = isIn && isPeer && epochReached(arrived, number);
  // One that is further ahead than this rank allows goes on without it.
  if (__any_sync(all, isHere && static_cast<i32>(arrived - number) >= static_cast<i32>(a.slots))) {
    if (lane == a.rank) maskRank(a, lane, presence.word);
    isIn = false;
  }
  u32 rows = 0;
  bool isSame = true;
  if (isIn && isHere) {
    u64 cell;
    u64 told;
    readDispatch(flags, number, cell, told);
    // A rank that did not know of this one in time has left it out.
    isHere = static_cast<u32>(cell) == number;
    isSame = isSameCall({a.peers, a.ranks, a.rank}, cell, number, a.call, scope, {lane, channel});
    rows = toldOf(told);
  }
  isIn = isIn && __all_sync(all, isSame);
  const u32 active = __ballot_sync(all, isIn && isHere && presence.window != 0);
  const u32 told = __ballot_sync(all, isIn && presence.hears());
  if ((active >> lane & 1u) == 0) rows = 0;
  if (lane < a.ranks) {
    static_cast<u32*>(a.arrived)[lane] = rows;
    static_cast<u32*>(a.activeMask)[lane] = active >> lane & 1u;
  }
  tellDecision(a, meeting, 1, isIn, active, told, rows, presence);
}

}  // namespace weftline
