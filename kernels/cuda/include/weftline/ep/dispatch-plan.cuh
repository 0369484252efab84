// What a dispatch does before rows move: blocks count and number their tokens, and the one that ends counting last exchanges
// for all. It adds up the blocks' counts, writes the record, meets the peers, and publishes the plan, while the others number.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/ep/count-exchange.cuh"
#include "weftline/ep/network-meeting.cuh"
#include "weftline/ep/token-layout.cuh"
#include "weftline/types.cuh"

namespace weftline {

constexpr u32 mostDispatchWarps = 16;

template <bool hosts>
struct DispatchShared {
  static constexpr u32 most = Destinations<hosts>::most;
  ExchangeState<most> exchange;
  u32 warpRows[mostDispatchWarps][most];
  // Tokens of this block per destination, then the first row of its next tile.
  u32 counts[most];
  // The ranks of each other host as bits.
  u32 ways[hosts ? epMaxWays : 1];
  u32 badCell;
  u32 last;
};

__device__ __forceinline__ const EpNetwork& networkOf(const EpDispatchArguments& a) {
  return *static_cast<const EpNetwork*>(a.network);
}

// Columns of the row table.
template <bool hosts>
__device__ __forceinline__ u32 destinationsOf(const EpDispatchArguments& a) {
  if constexpr (hosts) return a.groupRanks + a.hosts - 1;
  else return a.ranks;
}

// A rank of this host by index: its rank in the group.
template <bool hosts>
__device__ __forceinline__ u32 groupRankOf(const EpDispatchArguments& a, u32 index) {
  if constexpr (hosts) return networkOf(a).localRanks[index];
  else return index;
}

template <bool hosts>
__device__ __forceinline__ RankBarrier barrierOf(const EpDispatchArguments& a, u32 epoch, u32 call) {
  return {a.peers, a.ranks, a.rank, epoch, call, hosts ? networkOf(a).localRanks : nullptr};
}

// Adds this block's counts to those of the GPU. True for all threads of the block that comes last.
template <bool hosts>
__device__ bool addCounts(EpScratch* scratch, const EpDispatchArguments& a, DispatchShared<hosts>& shared,
                          const u32* experts) {
  if (threadIdx.x < destinationsOf<hosts>(a)) {
    scratch->blockRows[blockIdx.x * Destinations<hosts>::most + threadIdx.x] = shared.counts[threadIdx.x];
  }
  for (u32 expert = threadIdx.x; expert < a.experts; expert += blockDim.x) {
    if (experts[expert] != 0) atomicAdd(&scratch->experts[expert], experts[expert]);
  }
  // Kept upside down, so that zero stands for none.
  if (threadIdx.x == 0 && shared.badCell != noBadCell) atomicMax(&scratch->lastBadCell, ~shared.badCell);
  __syncthreads();
  if (threadIdx.x == 0) {
    // ORDER: all of this block's counts, then its ticket; the block that draws the last ticket sees the counts of all.
    fenceGpu();
    shared.last = fetchAddAcquireReleaseGpu(&scratch->tickets, 1) == gridDim.x - 1;
  }
  __syncthreads();
  return shared.last != 0;
}

// The last block calls this: where each block's rows begin at each destination. Leaves this rank's totals in shared.counts.
template <bool hosts>
__device__ void numberBlocks(EpScratch* scratch, const EpDispatchArguments& a, DispatchShared<hosts>& shared) {
  const u32 warps = blockDim.x / lanesPerWarp;
  for (u32 d = threadIdx.x / lanesPerWarp; d < destinationsOf<hosts>(a); d += warps) {
    u32 sum = 0;
    for (u32 first = 0; first < gridDim.x; first += lanesPerWarp) {
      const u32 block = first + laneIndex();
      u32* cell = &scratch->blockRows[block * Destinations<hosts>::most + d];
      const u32 count = block < gridDim.x ? __ldcg(cell) : 0;
      const u32 through = sum + warpInclusiveSum(count);
      if (block < gridDim.x) *cell = through - count;
      sum = __shfl_sync(0xffffffffu, through, lanesPerWarp - 1);
    }
    if (laneIndex() == 0) shared.counts[d] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    scratch->tickets = 0;
    // ORDER: publishes the blocks' first rows.
    fenceGpu();
    storeReleaseGpu(&scratch->numbered, shared.exchange.sequence);
  }
}

// Numbers this block's tokens into the handle's table.
template <bool hosts>
__device__ void numberOwn(EpScratch* scratch, const EpDispatchArguments& a, DispatchShared<hosts>& shared,
                          const typename Destinations<hosts>::Mask* masks) {
  const u32 destinations = destinationsOf<hosts>(a);
  __syncthreads();
  if (threadIdx.x < destinations) {
    shared.counts[threadIdx.x] = __ldcg(&scratch->blockRows[blockIdx.x * Destinations<hosts>::most + threadIdx.x]);
  }
  __syncthreads();
  numberTokens<hosts>(masks, tokensOfBlock(a.tokens), destinations, shared.counts, shared.warpRows,
                      static_cast<i32*>(a.rowTable));
}

// The last block calls this, whose record is in its network window: sends it to the forwarders. Keeps how many tokens go each way.
__device__ __forceinline__ void sendCounts(const EpDispatchArguments& a, const NetworkCall& call, DispatchShared<true>& shared,
                                           const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  if (threadIdx.x < network.ways) {
    static_cast<EpPlan*>(a.plan)->sentTokens[threadIdx.x] = shared.counts[a.groupRanks + threadIdx.x];
  }
  const bool isSent = sendRecord(network, call, wordsOfRecord(a) * 4, scope);
  if (!isSent && threadIdx.x == 0) shared.exchange.status = epStatusTimeout;
}

// A block that is not the last calls this: its part of the row table stands, which other blocks read to pack what goes to other hosts.
__device__ __forceinline__ void tellNumbered(EpScratch* scratch) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  // ORDER: all of this block's rows of the table, then its ticket.
  fenceGpu();
  addReleaseGpu(&scratch->tickets, 1);
}

// The last block, which has taken the tickets back to zero, calls this: waits for those of all others.
__device__ __forceinline__ void awaitNumbered(EpScratch* scratch, const EpDispatchArguments& a, DispatchShared<true>& shared,
                                              WaitScope scope) {
  scope.timeoutNs += graceNs;
  if (threadIdx.x == 0) {
    if (waitForEpoch(&scratch->tickets, gridDim.x - 1, scope, {a.groupRank, a.openingCall})) scratch->tickets = 0;
    else shared.exchange.status = epStatusTimeout;
  }
  __syncthreads();
}

// The last block calls this, behind readRecords(): how many tokens of each source come through this rank.
__device__ __forceinline__ void planServed(const EpDispatchArguments& a, u32 sequence) {
  const EpNetwork& network = networkOf(a);
  if (threadIdx.x >= network.served) return;
  const u32 word = wordsBeforeWays(a) + network.servedWay[threadIdx.x];
  static_cast<EpPlan*>(a.plan)->servedTokens[threadIdx.x] =
      recordsOf(a, sequence).received(a.rank, network.servedRank[threadIdx.x], word);
}

// The last block calls this.
template <bool hosts>
__device__ void exchangeCounts(EpScratch* scratch, const EpDispatchArguments& a, DispatchShared<hosts>& shared,
                               const typename Destinations<hosts>::Mask* masks, const WaitScope& scope) {
  numberBlocks<hosts>(scratch, a, shared);
  // Without choices the counts per expert are the caller's.
  const u32* experts = a.topk != nullptr ? scratch->experts : static_cast<const u32*>(a.givenExperts);
  const ExchangeRecords records = recordsOf(a, shared.exchange.sequence);
  NetworkCall call = {0, a.openingCall};
  u32* copy = nullptr;
  if constexpr (hosts) {
    call = nextNetworkCall(networkOf(a), a.openingCall);
    copy = reinterpret_cast<u32*>(networkAt(networkOf(a), recordOutOffset(networkOf(a), call.number)));
  }
  publishRecord(a, records, shared.counts, experts, ~__ldcg(&scratch->lastBadCell), copy);
  const RankBarrier barrier = barrierOf<hosts>(a, firstEpoch(a.openingEpoch, a.lastEpoch), a.openingCall);
  if constexpr (hosts) {
    sendCounts(a, call, shared, scope);
  } else {
    __syncthreads();
    if (threadIdx.x < a.ranks) signalRank(barrier, threadIdx.x);
  }
  // While the words are under way: the next dispatch counts from zero, and this block's own tokens.
  for (u32 expert = threadIdx.x; expert < a.experts; expert += blockDim.x) scratch->experts[expert] = 0;
  if (threadIdx.x == 0) scratch->lastBadCell = 0;
  numberOwn<hosts>(scratch, a, shared, masks);
  if constexpr (hosts) {
    const MeetingState state = {&shared.exchange.status, &shared.exchange.culprit};
    spreadRecords(networkOf(a), call, records, a.ranks, wordsOfRecord(a), state, scope);
  }
  // A rank that has not heard of those it serves does not tell the others that it has.
  const bool meets = !hosts || shared.exchange.status == epStatusGood;
  if (meets && threadIdx.x < a.ranks) {
    if (hosts) signalRank(barrier, threadIdx.x);
    const u32 status = awaitRank(barrier, threadIdx.x, scope);
    if (status != epStatusGood) {
      atomicMax(&shared.exchange.status, status);
      if (status == epStatusOtherCall) shared.exchange.culprit = groupRankOf<hosts>(a, threadIdx.x);
    }
  }
  __syncthreads();
  if (shared.exchange.status == epStatusGood) {
    readRecords(a, shared.exchange);
    if constexpr (hosts) planServed(a, shared.exchange.sequence);
  }
  if constexpr (hosts) awaitNumbered(scratch, a, shared, scope);
  writePlan(a, shared.exchange);
  __syncthreads();
  if (threadIdx.x == 0) {
    // ORDER: publishes the plan to the other blocks.
    fenceGpu();
    storeReleaseGpu(&scratch->planned, shared.exchange.sequence);
  }
  tellHost(a, shared.exchange);
}

// The other blocks call this; false when they must leave.
__device__ __forceinline__ bool awaitNumber(const u32* word, u32 sequence, const EpDispatchArguments& a, WaitScope scope) {
  bool reached = true;
  scope.timeoutNs += graceNs;
  if (threadIdx.x == 0) reached = waitForEpoch(word, sequence, scope, {a.groupRank, a.openingCall});
  return __syncthreads_and(reached);
}

// Finds out where every token goes. `memory` is what rows are staged in later. Returns an epStatus.
template <u32 columns, bool hosts>
__device__ u32 prepareDispatch(const EpDispatchArguments& a, DispatchShared<hosts>& shared, u8* memory,
                               const WaitScope& scope) {
  using Mask = typename Destinations<hosts>::Mask;
  constexpr u32 most = Destinations<hosts>::most;
  EpScratch* scratch = static_cast<EpScratch*>(a.scratch);
  u32* experts = reinterpret_cast<u32*>(memory);
  Mask* masks = reinterpret_cast<Mask*>(memory + static_cast<u64>(a.experts) * 4);
  for (u32 expert = threadIdx.x; expert < a.experts; expert += blockDim.x) experts[expert] = 0;
  if (threadIdx.x < most) shared.counts[threadIdx.x] = 0;
  for (u32 cell = threadIdx.x; cell < most * most; cell += blockDim.x) shared.exchange.matrix[cell] = 0;
  if constexpr (hosts) {
    const EpNetwork& network = networkOf(a);
    if (threadIdx.x < network.ways) {
      shared.ways[threadIdx.x] = ranksOfWay(network, threadIdx.x);
    }
  }
  if (threadIdx.x == 0) {
    shared.badCell = noBadCell;
    // In a graph, the one after the last; nobody publishes a plan before all blocks have drawn their tickets.
    shared.exchange.sequence = a.sequence != 0 ? a.sequence : numberAfter(__ldcg(&scratch->planned));
    shared.exchange.status = epStatusGood;
    shared.exchange.detail = 0;
    shared.exchange.culprit = 0;
    shared.exchange.extent = 0;
  }
  __syncthreads();
  const Routing routing = {a.topk, a.membership, a.topkColumns, a.indexBytes, a.experts, a.groupRanks};
  const Ways ways = {shared.ways, hosts ? a.hosts - 1 : 0};
  countTokens<columns, hosts>(routing, ways, tokensOfBlock(a.tokens), shared.counts, experts, &shared.badCell, masks);
  __syncthreads();
  if (addCounts<hosts>(scratch, a, shared, experts)) {
    exchangeCounts<hosts>(scratch, a, shared, masks, scope);
  } else {
    if (!awaitNumber(&scratch->numbered, shared.exchange.sequence, a, scope)) return epStatusTimeout;
    // That was for blocks of this GPU; the time for the peers begins now, as it does for the block that waits for them.
    if (threadIdx.x == 0) *scope.firstWait = 0;
    numberOwn<hosts>(scratch, a, shared, masks);
    if constexpr (hosts) tellNumbered(scratch);
    if (!awaitNumber(&scratch->planned, shared.exchange.sequence, a, scope)) return epStatusTimeout;
  }
  // ORDER: what lay in the staging memory was written by ordinary stores; the copy engine writes there next.
  fenceProxyAsyncShared();
  __syncthreads();
  return __ldcg(&static_cast<const EpPlan*>(a.plan)->status);
}

}  // namespace weftline
