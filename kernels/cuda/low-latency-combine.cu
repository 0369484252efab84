// Low-latency combine: the weighted sum of the experts' rows of each token, back at the token's rank. Either each rank adds up
// what it has of a token and puts one row to the token's rank, or peers read the experts' rows where they lie.
#include "weftline/abi.cuh"
#include "weftline/launch-order.cuh"
#include "weftline/low-latency/add-hosts.cuh"
#include "weftline/low-latency/arriving-words.cuh"
#include "weftline/low-latency/members.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/sum-rows.cuh"
#include "weftline/low-latency/take-sums.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

// The thread that counts calls on.
constexpr u32 keeping = lowLatencyThreads - lanesPerWarp;

__device__ __forceinline__ u8* combineRowsAt(const LowLatencyCombineArguments& a, u32 r) {
  return static_cast<u8*>(a.peers[r]) + a.rowsOffset;
}

// Whether the rank's rows count.
__device__ __forceinline__ bool isIn(const LowLatencyCombineArguments& a, u32 r) {
  return !lowLatencyIsElastic || (a.active >> r & 1u) != 0;
}

// One thread per peer calls this: what an earlier combine left in the memory of this result is read.
__device__ __forceinline__ bool isBufferFree(const LowLatencyCombineArguments& a, u32 peer, u32 uses, const WaitScope& scope) {
  const LowLatencyFlags* flags = flagsAt(a.peers[a.rank], peer);
  return awaitPeer({a.peers, a.ranks, a.rank}, PlainWord{&flags->taken[a.result], flags}, uses, scope,
                   {peer, waitWord(lowLatencyWaitCombineSlot, a.call)});
}

// The tokens of all sources in turn: item to (source, token). By all lanes; lane r has the rows of rank r.
struct ArrivedRow {
  u32 block;
  u32 row;

  __device__ __forceinline__ ArrivedRow(u32 arrived, u32 item) : block(0), row(item) {
    for (u32 count; row >= (count = __shfl_sync(0xffffffffu, arrived, block)); ++block) row -= count;
  }
};

// One row per (token, rank): the weighted rows of the token's experts here. Lane j has choice j. None for a token that went elsewhere.
struct ChoicesHere {
  const LowLatencyCombineArguments& a;
  // Lane r has that of rank r.
  u32 arrived;

  __device__ __forceinline__ RowSum sumOf(u32 item) const {
    const u32 lane = laneIndex();
    const ArrivedRow at(arrived, item);
    const u64 token = static_cast<u64>(at.block) * a.maxTokens + at.row;
    const u64 cell = token * a.topkColumns + lane;
    const bool isChoice = lane < a.topkColumns;
    const i32 row = isChoice ? static_cast<const i32*>(a.rowOf)[cell] : lowLatencyElsewhere;
    const f32 weight = isChoice ? static_cast<const f32*>(a.rowWeights)[cell] : 0.0f;
    if (!__any_sync(0xffffffffu, row != lowLatencyElsewhere)) return {{nullptr, 0}, nullptr};
    u8* out = combineRowsAt(a, at.block) + (static_cast<u64>(a.column) * a.maxTokens + at.row) * a.rowBytes;
    if (row < 0) return {{nullptr, 0}, out};
    return {{static_cast<const u8*>(a.y) + static_cast<u64>(row) * a.rowBytes, weight}, out};
  }
};

// The sums or rows of all ranks that a token went to. Lane r has rank r.
struct RanksOfToken {
  const LowLatencyCombineArguments& a;

  __device__ __forceinline__ Addend addendOf(u32 token) const {
    const u32 r = laneIndex();
    if (r >= a.ranks || !isIn(a, r)) return {nullptr, 0};
    const i32 row = static_cast<const i32*>(a.sentRows)[static_cast<u64>(token) * a.ranks + r];
    if (row < 0) return {nullptr, 0};
    const bool isPushed = lowLatencyTravels == lowLatencyTravelsRankSums;
    const u8* rows = isPushed ? combineRowsAt(a, a.rank) : combineRowsAt(a, r);
    return {rows + (static_cast<u64>(isPushed ? r : a.rank) * a.maxTokens + row) * a.rowBytes, 0};
  }

  __device__ __forceinline__ RowSum sumOf(u32 token) const {
    return {addendOf(token), static_cast<u8*>(a.out) + static_cast<u64>(token) * a.rowBytes};
  }
};

// The rows of a token's choices, at whichever rank. Lane j has choice j.
struct ChoicesOfToken {
  const LowLatencyCombineArguments& a;

  __device__ __forceinline__ Addend addendOf(u32 token) const {
    const u32 lane = laneIndex();
    if (lane >= a.topkColumns) return {nullptr, 0};
    const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
    const int2 choice = static_cast<const int2*>(a.sentPlaces)[cell];
    if (choice.x < 0) return {nullptr, 0};
    const u32 expert = static_cast<u32>(choice.x);
    if (!isIn(a, expert / a.expertsPerRank)) return {nullptr, 0};
    const u32* first = reinterpret_cast<const u32*>(static_cast<const u8*>(a.peers[a.rank]) + a.firstRowsOffset);
    const u32 place = __ldcg(first + expert) + static_cast<u32>(choice.y);
    if (place >= a.capacity) return {nullptr, 0};
    const u32 r = expert / a.expertsPerRank;
    const u64 row = static_cast<u64>(expert - r * a.expertsPerRank) * a.capacity + place;
    return {combineRowsAt(a, r) + row * a.rowBytes, static_cast<const f32*>(a.weights)[cell]};
  }

  __device__ __forceinline__ RowSum sumOf(u32 token) const {
    return {addendOf(token), static_cast<u8*>(a.out) + static_cast<u64>(token) * a.rowBytes};
  }
};

// Brings the received rows of each block of `most` rows to where peers read them.
__device__ __forceinline__ void copyBlocks(const LowLatencyCombineArguments& a, u32 blocks, u32 most) {
  const u32 vectors = a.rowBytes / 16;
  const u64 blockVectors = static_cast<u64>(most) * vectors;
  const uint4* from = static_cast<const uint4*>(a.y);
  uint4* to = reinterpret_cast<uint4*>(combineRowsAt(a, a.rank));
  for (u32 block = 0; block < blocks; ++block) {
    const u64 count = static_cast<u64>(static_cast<const u32*>(a.counts)[block]) * vectors;
    const u64 first = block * blockVectors;
#pragma unroll 4
    for (u64 at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) {
      to[first + at] = from[first + at];
    }
  }
}

__device__ __forceinline__ bool always() { return true; }

// All threads call this: this rank's rows to where they are read. Rows are added up before mayWrite(), which each thread calls once;
// false when it says so.
template <class Permission>
__device__ __forceinline__ bool bringRows(const LowLatencyCombineArguments& a, const Permission& mayWrite) {
  if (lowLatencyTravels == lowLatencyTravelsRankSums) {
    const u32 lane = laneIndex();
    // What came from a rank that is away has nowhere to go.
    const u32 arrived = lane < a.ranks && isIn(a, lane) ? static_cast<const u32*>(a.counts)[lane] : 0;
    const u32 items = __reduce_add_sync(0xffffffffu, arrived);
    return sumRows<true>(items, a.rowBytes, ChoicesHere{a, arrived}, always, mayWrite);
  }
  if (!mayWrite()) return false;
  const bool isRankMajor = lowLatencyTravels == lowLatencyTravelsRankMajor;
  if (a.inPlace == 0) copyBlocks(a, isRankMajor ? a.ranks : a.expertsPerRank, isRankMajor ? a.maxTokens : a.capacity);
  return true;
}

// The sums of this rank's tokens, once areRowsHere(), which each thread calls once; false when it says so. Before that only what
// this rank's dispatch left is read: where its rows went.
template <class Arrival>
__device__ __forceinline__ bool addUp(const LowLatencyCombineArguments& a, const Arrival& areRowsHere) {
  if (lowLatencyTravels != lowLatencyTravelsChoices) {
    return sumRows<false>(a.tokens, a.rowBytes, RanksOfToken{a}, areRowsHere, always);
  }
  // The rank of a choice tells where it lies, together with the rows.
  return areRowsHere() && sumRows<true>(a.tokens, a.rowBytes, ChoicesOfToken{a}, always, always);
}

// All threads call this. False when the block must leave.
__device__ __forceinline__ bool send(const LowLatencyCombineArguments& a, const LowLatencyBlock& own, u32 number,
                                     const WaitScope& scope) {
  const u32 uses = own.combineUses[a.result];
  // Nothing is written before the buffer is free. The last warp waits, which has least to add up.
  const u32 peer = threadIdx.x + lanesPerWarp - blockDim.x;
  const bool isFree = peer >= a.ranks || isBufferFree(a, peer, uses, scope);
  if constexpr (lowLatencySumsShow) {
    // Peers read only the number of the call from it, so no fence is needed.
    if (isLastBlock() && peer < a.ranks) {
      storeRelaxedSystem(&flagsAt(a.peers[peer], a.rank)->combineCalls[number % lowLatencyCalls], callCell(number, a.call));
    }
    return bringRows(a, [&]() { return !__syncthreads_or(!isFree); });
  }
  if (!bringRows(a, [&]() { return !__syncthreads_or(!isFree); })) return false;
  __syncthreads();
  // Rows that are in place an earlier kernel wrote: one block says so for all.
  if (a.inPlace != 0 && !isLastBlock()) return true;
  if (threadIdx.x >= a.ranks) return true;
  LowLatencyFlags* flags = flagsAt(a.peers[threadIdx.x], a.rank);
  if (isLastBlock()) flags->combineCalls[number % lowLatencyCalls] = callCell(number, a.call);
  // ORDER: publishes what this block wrote.
  addReleaseSystem(&flags->combined, a.inPlace != 0 ? lowLatencyUnit : blockShare());
  return true;
}

// Whether the next kernel tells that this one has read what it needs. Not behind a hook, where the next one may come much later, nor
// where a peer may wait for it alone, outside of the calls that all make (nextCombineBuffer).
__device__ __forceinline__ bool isToldLater(const LowLatencyCombineArguments& a) {
  return lowLatencyTravels == lowLatencyTravelsRankSums && (a.phases & lowLatencyPhaseSend) != 0;
}

// One thread calls this, when all others have read what they need of it.
__device__ __forceinline__ void keep(const LowLatencyCombineArguments& a, LowLatencyBlock& own, u32 number) {
  if ((a.phases & lowLatencyPhaseReceive) != 0 && isToldLater(a)) own.owed = owedResult(a.result);
  if ((a.phases & lowLatencyPhaseSend) == 0) return;
  own.combines = number;
  own.combineUses[a.result] += 1;
  own.combineOf[a.result] = number;
}

__device__ __forceinline__ void receive(const LowLatencyCombineArguments& a, LowLatencyBlock& own, u32 number,
                                        const WaitScope& scope) {
  const u32 r = threadIdx.x - keeping;
  if constexpr (lowLatencyAcrossHosts) {
    if (!awaitHosts(a, number, own.combineUses[a.result], scope)) return;
    letSuccessorStart();
    if (!addHosts(a, number, scope)) return;
  } else if constexpr (lowLatencySumsShow) {
    // The last warp, which has least to add up, does this.
    if (r < lanesPerWarp) {
      if (!__all_sync(0xffffffffu, r >= a.ranks || checkCall(a, r, number, scope))) return;
      // The last block of each peer has started, and blocks start in order: all blocks of the peers have their multiprocessors.
      letSuccessorStart();
      if (r == 0) keep(a, own, number);
    }
    if (!takeSums(a, number, scope) || isToldLater(a)) return;
  } else {
    const auto areRowsHere = [&]() {
      const bool isHere = threadIdx.x >= a.ranks || awaitSums(a, threadIdx.x, number, scope);
      if (__syncthreads_or(!isHere)) return false;
      letSuccessorStart();
      // The last warp, which has least to add up, does this: it takes a while.
      if (threadIdx.x == keeping) keep(a, own, number);
      if (r < a.ranks) checkCall(a, r, number, scope);
      return true;
    };
    if (!addUp(a, areRowsHere) || isToldLater(a)) return;
  }
  giveUpRead<lowLatencySumsShow>({a.peers, a.ranks, a.rank},
                                 [&](LowLatencyFlags* flags) { return &flags->taken[a.result]; });
  if constexpr (lowLatencyAcrossHosts) freeHostSums(a, scope);
}

// Where ranks come and go, by the first warp of the first block: who gets rows, once what an earlier combine left in the memory of
// this result is read.
__device__ __forceinline__ bool awaitBuffer(const LowLatencyCombineArguments& a, LowLatencyMeeting& meeting, const WaitScope& scope,
                                            LowLatencyPresence& presence) {
  const LowLatencyFlags* flags = flagsAt(a.peers[a.rank], laneIndex());
  const auto isFree = [&](const LowLatencyPresence& seen) {
    if (a.before == 0 || !seen.takesPart(a.beforeDispatch)) return true;
    return epochReached(loadAcquireSystem(&flags->taken[a.result]), a.before);
  };
  return awaitMembers(a, meeting, scope, {a.dispatch, waitWord(lowLatencyWaitCombineSlot, a.call)}, presence, isFree);
}

__device__ inline void decideCombineSend(LowLatencyCombineArguments& a, LowLatencyMeeting& meeting, const WaitScope& scope) {
  LowLatencyPresence presence;
  const bool isFree = awaitBuffer(a, meeting, scope, presence);
  // Others have sent no rows here that count.
  const u32 sentTo = __ldcg(&static_cast<const LowLatencyElastic*>(a.elastic)->sentTo[a.dispatch % lowLatencyResults]);
  const bool isPeer = (sentTo >> laneIndex() & 1u) != 0;
  const u32 active =
      __ballot_sync(0xffffffffu, isFree && isPeer && presence.takesPart(a.dispatch) && presence.window != 0);
  tellDecision(a, meeting, 0, isFree, active, 0, 0, presence);
}

// The same: whose rows or sums can be read.
__device__ inline void decideCombineReceive(LowLatencyCombineArguments& a, LowLatencyMeeting& meeting, const WaitScope& scope) {
  constexpr u32 all = 0xffffffffu;
  const u32 lane = laneIndex();
  const u32 channel = waitWord(lowLatencyWaitCombineRows, a.call);
  const LowLatencyFlags* flags = flagsAt(a.peers[a.rank], lane);
  const u32 sentTo = __ldcg(&static_cast<const LowLatencyElastic*>(a.elastic)->sentTo[a.dispatch % lowLatencyResults]);
  const bool isPeer = (sentTo >> lane & 1u) != 0;
  const u64 began = globalTimer();
  bool isHere = false;
  const auto hasCome = [&](const LowLatencyPresence& seen) {
    if (!isPeer || isHere) return true;
    isHere = epochReached(loadAcquireSystem(&flags->combined), a.number);
    if (!isHere) return !seen.takesPart(a.dispatch);
    if (a.waitStats != nullptr) static_cast<u64*>(a.waitStats)[lane] += globalTimer() - began;
    return true;
  };
  LowLatencyPresence presence;
  bool isIn = awaitMembers(a, meeting, scope, {a.dispatch, channel}, presence, hasCome);
  bool isSame = true;
  if (isIn && isHere) {
    const u64 cell = loadCell(&flags->combineCalls[a.dispatch % lowLatencyCalls]);
    isHere = static_cast<u32>(cell) == a.number;
    isSame = isSameCall({a.peers, a.ranks, a.rank}, cell, a.number, a.call, scope, {lane, channel});
  }
  isIn = isIn && __all_sync(all, isSame);
  const u32 active = __ballot_sync(all, isIn && isHere && presence.window != 0);
  const u32 told = __ballot_sync(all, isIn && presence.hears());
  if (lane < a.ranks) static_cast<u32*>(a.activeMask)[lane] = active >> lane & 1u;
  tellDecision(a, meeting, 1, isIn, active, told, 0, presence);
}

// Choices of each of this rank's tokens whose experts are on ranks without rows.
__device__ __forceinline__ void countDropped(const LowLatencyCombineArguments& a) {
  for (u32 token = blockIdx.x * blockDim.x + threadIdx.x; token < a.tokens; token += gridDim.x * blockDim.x) {
    u32 dropped = 0;
    for (u32 j = 0; j < a.topkColumns; ++j) {
      const i32 expert = static_cast<const i32*>(a.keptChoices)[static_cast<u64>(token) * a.topkColumns + j];
      if (expert >= 0 && !isIn(a, static_cast<u32>(expert) / a.expertsPerRank)) ++dropped;
    }
    static_cast<u32*>(a.droppedChoices)[token] = dropped;
  }
}

// All threads call this. Which rows are added up, and where windows are, depends on who takes part: nothing of it before the decision.
__device__ __forceinline__ void combineAmongMembers(LowLatencyCombineArguments& a, LowLatencyMeeting& meeting,
                                                    const WaitScope& scope) {
  if ((a.phases & lowLatencyPhaseBuffer) != 0) {
    LowLatencyPresence presence;
    if (threadIdx.x < lanesPerWarp) awaitBuffer(a, meeting, scope, presence);
    return;
  }
  const u32 r = threadIdx.x;
  if ((a.phases & lowLatencyPhaseSend) != 0) {
    if (!meetMembers(a, meeting, 0, [&]() { decideCombineSend(a, meeting, scope); })) return;
    bringRows(a, always);
    if (areAllBlocksDone(a, meeting, 0) && r < a.ranks && isIn(a, r)) {
      LowLatencyFlags* flags = flagsAt(a.peers[r], a.rank);
      flags->combineCalls[a.dispatch % lowLatencyCalls] = callCell(a.number, a.call);
      storeReleaseSystem(&flags->combined, a.number);
    }
  }
  if ((a.phases & lowLatencyPhaseReceive) == 0) return;
  if (!meetMembers(a, meeting, 1, [&]() { decideCombineReceive(a, meeting, scope); })) return;
  // No block waits behind this decision.
  letSuccessorStart();
  addUp(a, always);
  countDropped(a);
  if (areAllBlocksDone(a, meeting, 1) && r < a.ranks && (a.told >> r & 1u) != 0) {
    storeReleaseSystem(&flagsAt(a.peers[r], a.rank)->taken[a.result], a.number);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(lowLatencyThreads, 1)
    lowLatencyCombine(const __grid_constant__ LowLatencyCombineArguments a) {
  awaitPredecessor();
  WEFTLINE_TRACE_KERNEL();
  LowLatencyBlock& own = static_cast<LowLatencyBlock*>(a.blocks)[blockIdx.x];
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLowLatencyCombine, a.rank, a.timeoutNs, sharedWaits()};
  const bool sends = (a.phases & lowLatencyPhaseSend) != 0;
  const u32 number = sends ? own.combines + 1 : own.combineOf[a.result];
  __syncthreads();
  if constexpr (lowLatencyIsElastic) {
    __shared__ LowLatencyCombineArguments changing;
    __shared__ LowLatencyMeeting meeting;
    copyArguments(changing, a);
    combineAmongMembers(changing, meeting, scope);
    return;
  }
  // The last warp, which has least to add up, does this.
  if (blockIdx.x == 0 && threadIdx.x + lanesPerWarp >= blockDim.x) {
    tellOwed({a.peers, a.ranks, a.rank}, own, own.owed, laneIndex());
  }
  if ((a.phases & lowLatencyPhaseBuffer) != 0) {
    if (threadIdx.x < a.ranks) isBufferFree(a, threadIdx.x, own.combineUses[a.result], scope);
    return;
  }
  if (sends && !send(a, own, number, scope)) return;
  WEFTLINE_TRACE_BEGIN("ep.combine.rows");
  if ((a.phases & lowLatencyPhaseReceive) != 0) {
    receive(a, own, number, scope);
  } else if (threadIdx.x == keeping) {
    keep(a, own, number);
  }
  WEFTLINE_TRACE_END("ep.combine.rows");
}
