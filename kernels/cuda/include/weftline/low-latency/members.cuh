// The ranks that take part where ranks come and go. The words that say so lie in memory of the host which all ranks map, and each process
// has a table of the windows that it has mapped. Both are far, so the first block of a kernel alone looks at them: it waits for
// the peers, masks those that are late, and tells the other blocks what it has decided. Its rules are those of
// LowLatencyMembers, which the hosts go by.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/types.cuh"
#include "weftline/wait.cuh"

namespace weftline {

// Shared memory of each block.
struct LowLatencyMeeting {
  u32 isOut;
  u32 isLast;
  u32 rows[epMaxRanks];
  // What the first block saw of each rank's LowLatencyMember.
  u64 lines[epMaxRanks][sizeof(LowLatencyMember) / 8];
};

// State of one rank, as the first block last saw it; each lane has its own.
struct LowLatencyPresence {
  u32 word = lowLatencyStateAbsent;
  bool isMasked = true;
  // 0 unless it is mapped.
  u64 window = 0;

  __device__ __forceinline__ u32 state() const { return word & ((1u << lowLatencyStateBits) - 1); }

  __device__ __forceinline__ bool takesPart(u32 dispatch) const {
    if (isMasked) return false;
    // The sign of the difference of 30 bits.
    const bool isFrom = static_cast<i32>((dispatch - (word >> lowLatencyStateBits)) << lowLatencyStateBits) >= 0;
    return state() == lowLatencyStateActive ? isFrom : state() == lowLatencyStateLeaving && !isFrom;
  }

  // Now or from a later dispatch on.
  __device__ __forceinline__ bool isStaying() const { return !isMasked && state() == lowLatencyStateActive; }

  // What this rank has done may concern it: one that leaves takes part until then.
  __device__ __forceinline__ bool hears() const {
    return window != 0 && (isStaying() || (!isMasked && state() == lowLatencyStateLeaving));
  }
};

template <class Arguments>
__device__ __forceinline__ LowLatencyMember* memberAt(const Arguments& a, u32 r) {
  return reinterpret_cast<LowLatencyMember*>(static_cast<u8*>(a.board) + static_cast<u64>(r) * a.boardStride);
}

// A whole warp calls this; lane r gets rank r. All loads are under way at once.
template <class Arguments>
__device__ inline LowLatencyPresence lookAtMembers(const Arguments& a, LowLatencyMeeting& meeting) {
  constexpr u32 pairsPerLine = sizeof(LowLatencyMember) / 16;
  static_assert(epMaxRanks * pairsPerLine == lanesPerWarp, "a pair of words for each lane");
  const u32 lane = laneIndex();
  u64 window = 0;
  u64 life = 0;
  if (lane < a.ranks) loadRelaxedSystem(static_cast<const LowLatencyPeer*>(a.table) + lane, window, life);
  const u32 of = lane / pairsPerLine;
  if (of < a.ranks) {
    u64* line = meeting.lines[of] + lane % pairsPerLine * 2;
    loadRelaxedSystem(reinterpret_cast<const u8*>(memberAt(a, of)) + lane % pairsPerLine * 16, line[0], line[1]);
  }
  __syncwarp();
  LowLatencyPresence presence;
  if (lane < a.ranks) {
    const auto* member = reinterpret_cast<const LowLatencyMember*>(meeting.lines[lane]);
    presence.word = static_cast<u32>(member->word);
    presence.isMasked = false;
    for (u32 r = 0; r < a.ranks; ++r) {
      const auto* marks = reinterpret_cast<const LowLatencyMember*>(meeting.lines[r])->marks;
      presence.isMasked |= static_cast<u32>(marks[lane]) == (presence.word ^ 1u);
    }
    const u32 mapped = static_cast<u32>(life);
    presence.window = mapped != 0 && mapped == static_cast<u32>(member->life) ? window : 0;
  }
  __syncwarp();
  return presence;
}

// The rank with that word is masked, for all GPUs and hosts.
template <class Arguments>
__device__ __forceinline__ void maskRank(const Arguments& a, u32 r, u32 word) {
  storeRelaxedSystem(reinterpret_cast<u32*>(memberAt(a, a.rank)->marks) + r, word ^ 1u);
  // ORDER: whoever sees what this rank publishes from now on sees the mark.
  fenceSystem();
}

// What the first block waits for.
struct LowLatencyAwaited {
  // This rank must take part in it.
  u32 dispatch;
  // Name of the peer, for records.
  u32 channel;
};

// True when a peer has ended the use of the object on all ranks, which the host hears.
template <class Arguments>
__device__ inline bool hasPeerFailed(const Arguments& a, bool takesPart, const WaitScope& scope, u32 channel) {
  const u32 lane = laneIndex();
  u32 failure = lowLatencyFailureNone;
  if (takesPart) failure = loadAcquireSystem(&flagsAt(a.peers[a.rank], lane)->failure);
  if (failure != lowLatencyFailureNone) {
    recordTrap(scope, {lane, channel}, failureWord(failure, 0), 0, trapReasonPeerFailed);
  }
  return __any_sync(0xffffffffu, failure != lowLatencyFailureNone);
}

// The first warp of the first block calls this. Lane r waits until isDone(presence) of rank r; those that are late are masked. False when
// this rank takes no part itself, or when the object can be used no more. A change of who takes part begins the time anew: those
// that are missing may have waited themselves.
template <class Arguments, class IsDone>
__device__ inline bool awaitMembers(const Arguments& a, LowLatencyMeeting& meeting, const WaitScope& scope,
                                    const LowLatencyAwaited& what, LowLatencyPresence& presence, const IsDone& isDone) {
  constexpr u32 all = 0xffffffffu;
  constexpr u32 pollsPerLook = 32;
  const u32 lane = laneIndex();
  presence = lookAtMembers(a, meeting);
  u32 view = __ballot_sync(all, presence.takesPart(what.dispatch));
  // The time of all waits of the kernel counts together.
  u64 start = __shfl_sync(all, lane == 0 ? waitStart(scope) : 0, 0);
  for (u32 polls = 1;; ++polls) {
    if ((view >> a.rank & 1u) == 0) return false;
    const bool isPending = lane < a.ranks && !isDone(presence);
    if (!__any_sync(all, isPending)) {
      return !hasPeerFailed(a, (view >> lane & 1u) != 0, scope, what.channel);
    }
    if (polls % pollsPerLook != 0) continue;
    const u64 now = __shfl_sync(all, globalTimer(), 0);
    // This rank itself is late only while its blocks wait for this one.
    if (now - start >= scope.timeoutNs && isPending && lane != a.rank) maskRank(a, lane, presence.word);
    __syncwarp();
    presence = lookAtMembers(a, meeting);
    const u32 seen = __ballot_sync(all, presence.takesPart(what.dispatch));
    if (seen != view) {
      start = now;
      if (lane == 0) *scope.firstWait = now;
    }
    view = seen;
    if (hasPeerFailed(a, (view >> lane & 1u) != 0, scope, what.channel)) return false;
    if (__shfl_sync(all, lane == 0 ? loadRelaxedSystem(&scope.trap->abort) : 0, 0) != 0) return false;
  }
}

// What the first block has decided, by all lanes of its first warp; it is this block's own as well. `rows` is of the lane's rank.
template <class Arguments>
__device__ inline void tellDecision(Arguments& a, LowLatencyMeeting& meeting, u32 half, bool isIn, u32 active, u32 told, u32 rows,
                                    const LowLatencyPresence& presence) {
  const u32 lane = laneIndex();
  LowLatencyDecision* decision = static_cast<LowLatencyDecision*>(a.decisions) + half;
  if (lane < a.ranks) {
    void* window = ((active | told) >> lane & 1u) != 0 ? reinterpret_cast<void*>(presence.window) : nullptr;
    decision->windows[lane] = window;
    decision->rows[lane] = rows;
    meeting.rows[lane] = rows;
    if (lane != a.rank) a.peers[lane] = window;
  }
  if (lane == 0) {
    decision->isOut = isIn ? 0 : 1;
    decision->active = active;
    decision->told = told;
    meeting.isOut = isIn ? 0 : 1;
    a.active = active;
    a.told = told;
  }
  __syncwarp();
  // ORDER: publishes the fields, and what the peers released to the first block.
  if (lane == 0) storeReleaseGpu(&decision->stamp, a.stamp);
}

// The same decision, by the first warp of any other block. The first block is there before it and leaves no wait without one.
template <class Arguments>
__device__ inline void followDecision(Arguments& a, LowLatencyMeeting& meeting, u32 half) {
  const u32 lane = laneIndex();
  const LowLatencyDecision* decision = static_cast<const LowLatencyDecision*>(a.decisions) + half;
  if (lane == 0) {
    while (loadAcquireGpu(&decision->stamp) != a.stamp) {
    }
  }
  __syncwarp();
  if (lane < a.ranks) {
    void* window = reinterpret_cast<void*>(__ldcg(reinterpret_cast<const u64*>(decision->windows) + lane));
    meeting.rows[lane] = __ldcg(decision->rows + lane);
    if (lane != a.rank) a.peers[lane] = window;
  }
  if (lane != 0) return;
  meeting.isOut = __ldcg(&decision->isOut);
  a.active = __ldcg(&decision->active);
  a.told = __ldcg(&decision->told);
}

// All threads call this: decide() is for the first warp of the first block and ends with tellDecision(). False when the block must leave.
template <class Arguments, class Decide>
__device__ __forceinline__ bool meetMembers(Arguments& a, LowLatencyMeeting& meeting, u32 half, const Decide& decide) {
  if (threadIdx.x < lanesPerWarp) {
    if (blockIdx.x == 0) decide();
    else followDecision(a, meeting, half);
  }
  __syncthreads();
  return meeting.isOut == 0;
}

// All threads call this, behind their work of this half: true in the last block to be done, for which that of all is visible.
template <class Arguments>
__device__ __forceinline__ bool areAllBlocksDone(const Arguments& a, LowLatencyMeeting& meeting, u32 half) {
  __syncthreads();
  if (threadIdx.x == 0) {
    u32* done = static_cast<LowLatencyElastic*>(a.elastic)->done + half;
    meeting.isLast = fetchWrapAcquireReleaseGpu(done, gridDim.x - 1) == gridDim.x - 1 ? 1 : 0;
  }
  __syncthreads();
  return meeting.isLast != 0;
}

// The arguments of a kernel where they can be changed: windows of peers are known only when it runs. By all threads.
template <class Arguments>
__device__ __forceinline__ void copyArguments(Arguments& to, const Arguments& from) {
  static_assert(sizeof(Arguments) % 4 == 0, "words");
  for (u32 at = threadIdx.x; at < sizeof(Arguments) / 4; at += blockDim.x) {
    reinterpret_cast<u32*>(&to)[at] = reinterpret_cast<const u32*>(&from)[at];
  }
  __syncthreads();
}

}  // namespace weftline
