// Prepares a layer's dispatch: the number of every (token, choice) among its expert's, what all ranks send to all, and where
// this rank's rows begin at each.
//
// A block takes a tile of tokens at a time and keeps a bit per (token, bin) in shared memory, so that counting the bits
// below a token numbers it, in token order and without depending on which thread was first. A token that chooses an expert
// more than once has one bit of it; in a tile with such tokens the choices of those below are read again. The last block to end adds
// the tiles up and meets the peers. Dispatch adds the beginnings to the numbers.
#include "weftline/abi.cuh"
#include "weftline/ep/block-scan.cuh"
#include "weftline/ep/choice-numbers.cuh"
#include "weftline/ep/exchange-record.cuh"
#include "weftline/ep/layer-failure.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/ep/network-meeting.cuh"
#include "weftline/ep/token-layout.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr bool hosts = WEFTLINE_HOSTS != 0;
// Ranks of a group.
constexpr u32 mostRanks = Destinations<hosts>::most;
constexpr u32 threads = 512;
constexpr u32 warps = threads / lanesPerWarp;

struct Shared {
  u32 last;
  // A token of the tile chooses an expert more than once.
  u32 repeats;
  u32 status;
  u32 detail;
  u32 culprit;
  u32 extent;
  u32 headers[mostRanks][epRecordHeaderWords];
  u32 recvRows[mostRanks];
  u32 warpSums[warps];
  // With several hosts, the ranks of each other host as bits, and those of this one.
  u32 ways[hosts ? epMaxWays : 1];
  u32 ownRanks;
};

// Counts of a tile: per rank of the group the tokens that go there more than once, then per expert its choices, then per way the tokens
// that go to that host.
__device__ __forceinline__ u32 binsBeforeWays(const LayerPrepareArguments& a) { return a.groupRanks + a.experts; }
__device__ __forceinline__ u32 binCount(const LayerPrepareArguments& a) { return binsBeforeWays(a) + (hosts ? a.ways : 0); }

__device__ __forceinline__ const EpNetwork& networkOf(const LayerPrepareArguments& a) {
  return *static_cast<const EpNetwork*>(a.network);
}

__device__ void numberTile(const LayerPrepareArguments& a, u32 tile, u32* bits, Shared& shared) {
  const u32 bins = binCount(a);
  const u32 warp = threadIdx.x / lanesPerWarp;
  const u32 token = tile * a.tileWords * 32 + threadIdx.x;
  const bool here = warp < a.tileWords && token < a.tokens;
  for (u32 index = threadIdx.x; index < a.tileWords * bins; index += threads) bits[index] = 0;
  if (threadIdx.x == 0) shared.repeats = 0;
  __syncthreads();
  if (warp < a.tileWords) {
    TokenRanks ranks = {0, 0};
    if (here) ranks = markChoices(a, token, bits + warp * bins, &shared.repeats);
    if constexpr (hosts) {
      if (a.localCombine == 0) ranks.again &= shared.ownRanks;
      for (u32 way = 0; way < a.ways; ++way) {
        const u32 goes = __ballot_sync(0xffffffffu, (ranks.once & shared.ways[way]) != 0);
        if (laneIndex() == 0) bits[warp * bins + binsBeforeWays(a) + way] = goes;
      }
    }
#pragma unroll
    for (u32 r = 0; r < mostRanks; ++r) {
      const u32 repeat = __ballot_sync(0xffffffffu, (ranks.again >> r) & 1);
      if (r < a.groupRanks && laneIndex() == 0) bits[warp * bins + r] = repeat;
    }
  }
  __syncthreads();
  const bool hasRepeats = shared.repeats != 0;
  const u32 tileFirst = tile * a.tileWords * 32;
  u32* counts = static_cast<u32*>(a.tileCounts) + static_cast<u64>(tile) * bins;
  for (u32 bin = threadIdx.x; bin < bins; bin += threads) {
    u32 count = 0;
    for (u32 word = 0; word < a.tileWords; ++word) count += __popc(bits[word * bins + bin]);
    if (hasRepeats && bin >= a.groupRanks && bin < binsBeforeWays(a)) {
      count += repeatsBefore(a, bits, bins, tileFirst, bin - a.groupRanks, a.tileWords * 32);
    }
    counts[bin] = count;
  }
  if (here) {
    const u64 first = static_cast<u64>(token) * a.topkColumns;
#pragma unroll 4
    for (u32 j = 0; j < a.topkColumns; ++j) {
      const i64 expert = choiceAt(a, first + j);
      const bool none = expert < 0 || expert >= static_cast<i64>(a.experts);
      i32 number = none ? -1 : numberOf(bits, bins, a.groupRanks + static_cast<u32>(expert));
      if (hasRepeats && !none) {
        number += static_cast<i32>(repeatsBefore(a, bits, bins, tileFirst, static_cast<u32>(expert), threadIdx.x) +
                                   choicesOf(a, token, expert, j));
      }
      static_cast<i32*>(a.rowTable)[first + j] = number;
    }
    for (u32 r = 0; r < a.groupRanks; ++r) {
      const bool repeats = (bits[warp * bins + r] >> laneIndex()) & 1;
      static_cast<i32*>(a.repeatTable)[static_cast<u64>(token) * a.groupRanks + r] = repeats ? numberOf(bits, bins, r) : -1;
    }
    for (u32 way = 0; hosts && way < a.ways; ++way) {
      const u32 bin = binsBeforeWays(a) + way;
      const bool goes = (bits[warp * bins + bin] >> laneIndex()) & 1;
      static_cast<i32*>(a.wayTable)[static_cast<u64>(token) * a.ways + way] = goes ? numberOf(bits, bins, bin) : -1;
    }
  }
  __syncthreads();
}

// Turns each tile's counts into those of all tiles before it; leaves the sums of all in `totals`.
__device__ void addTiles(const LayerPrepareArguments& a, u32* totals) {
  const u32 bins = binCount(a);
  const u32 tileTokens = a.tileWords * 32;
  const u32 tiles = (a.tokens + tileTokens - 1) / tileTokens;
  constexpr u32 ahead = 8;
  for (u32 bin = threadIdx.x; bin < bins; bin += threads) {
    // Other blocks wrote them during this kernel.
    volatile u32* counts = static_cast<volatile u32*>(a.tileCounts) + bin;
    u32 sum = 0;
    for (u32 tile = 0; tile < tiles; tile += ahead) {
      u32 count[ahead];
#pragma unroll
      for (u32 i = 0; i < ahead; ++i) count[i] = tile + i < tiles ? counts[static_cast<u64>(tile + i) * bins] : 0;
#pragma unroll
      for (u32 i = 0; i < ahead; ++i) {
        if (tile + i < tiles) counts[static_cast<u64>(tile + i) * bins] = sum;
        sum += count[i];
      }
    }
    counts[static_cast<u64>(tiles) * bins] = sum;
    totals[bin] = sum;
  }
  __syncthreads();
}

// `copy`: for other hosts, or null.
__device__ void publish(const LayerPrepareArguments& a, const ExchangeRecords& records, const u32* totals, u32* copy) {
  for (u32 index = threadIdx.x; index < epRecordHeaderWords + binCount(a); index += threads) {
    u32 word = 0;
    if (index >= epRecordHeaderWords) word = totals[index - epRecordHeaderWords];
    else if (index == layerRecordWeightBytes) word = a.weightBytes;
    else if (index == layerRecordScattered) word = a.scattered;
    else if (index == layerRecordBounded) word = a.rowBound != 0;
    else if (index == layerRecordNumTokens) word = a.tokens;
    else if (index == layerRecordRowBound) word = a.rowBound;
    else if (hosts && index == layerRecordCall) word = a.call;
    else if (index == layerRecordBadChoice) {
      const u32 complement = *(static_cast<volatile u32*>(a.counter) + 1);
      word = complement == 0 ? 0 : ~complement + 1;
    }
    for (u32 peer = 0; peer < a.ranks; ++peer) records.at(peer, a.groupRank)[index] = word;
    if (copy != nullptr) copy[index] = word;
  }
  __syncthreads();
}

// One thread: the same answer at every rank, because all read the same records.
__device__ void judge(const LayerPrepareArguments& a, Shared& shared) {
  for (u32 source = 0; source < a.groupRanks; ++source) {
    const u32 bad = shared.headers[source][layerRecordBadChoice];
    if (bad == 0) continue;
    shared.status = epStatusBadChoice;
    shared.culprit = source;
    shared.detail = bad - 1;
    return;
  }
  for (u32 word = layerRecordWeightBytes; word <= layerRecordBounded; ++word) {
    for (u32 source = 1; source < a.groupRanks; ++source) {
      if (shared.headers[source][word] == shared.headers[0][word]) continue;
      shared.status = epStatusMismatch;
      shared.culprit = source;
      shared.detail = word;
      return;
    }
  }
  for (u32 r = 0; r < a.groupRanks; ++r) {
    const u32 bound = shared.headers[r][layerRecordRowBound];
    if (bound == 0 && shared.recvRows[r] > a.capacityRows) shared.status = epStatusGrow;
    if (bound == 0 || shared.recvRows[r] <= bound) continue;
    shared.status = epStatusCapacity;
    shared.culprit = r;
    shared.detail = shared.recvRows[r];
    shared.extent = bound;
    return;
  }
}

// `starts` becomes the row where each expert's block begins when all outputs are numbered as one.
__device__ void plan(const LayerPrepareArguments& a, const ExchangeRecords& records, u32* starts, Shared& shared) {
  const u32 expertsPerRank = a.experts / a.groupRanks;
  for (u32 index = threadIdx.x; index < a.groupRanks * epRecordHeaderWords; index += threads) {
    const u32 source = index / epRecordHeaderWords;
    const u32 word = index % epRecordHeaderWords;
    shared.headers[source][word] = records.received(a.rank, source, word);
  }
  u32* firstRows = static_cast<u32*>(a.firstRows);
  for (u32 bin = threadIdx.x; bin < binsBeforeWays(a); bin += threads) {
    LayerPlan* repeated = bin == a.groupRank ? static_cast<LayerPlan*>(a.plan) : nullptr;
    u32 total = 0;
    u32 before = 0;
#pragma unroll
    for (u32 source = 0; source < mostRanks; ++source) {
      if (source >= a.groupRanks) break;
      const u32 count = records.received(a.rank, source, epRecordHeaderWords + bin);
      if (repeated != nullptr) repeated->repeatedFirst[source] = total;
      total += count;
      if (source < a.groupRank) before += count;
    }
    firstRows[bin] = before;
    if (bin >= a.groupRanks) starts[bin - a.groupRanks] = total;
    if (repeated != nullptr) repeated->repeated = total;
  }
  __syncthreads();
  const u32 all = scanCounts<threads>(starts, a.experts, shared.warpSums);
  if (threadIdx.x < a.groupRanks) {
    const u32 end = (threadIdx.x + 1) * expertsPerRank;
    shared.recvRows[threadIdx.x] = (end == a.experts ? all : starts[end]) - starts[threadIdx.x * expertsPerRank];
  }
  __syncthreads();
  u32* blockStarts = static_cast<u32*>(a.blockStarts);
  for (u32 expert = threadIdx.x; expert < a.experts; expert += threads) {
    const u32 owner = expert / expertsPerRank;
    firstRows[a.groupRanks + expert] += starts[expert] - starts[owner * expertsPerRank];
    blockStarts[expert] = starts[expert];
    if (owner == a.groupRank) {
      const u32 next = expert + 1 == a.experts ? all : starts[expert + 1];
      static_cast<u32*>(a.hostExperts)[expert - owner * expertsPerRank] = next - starts[expert];
      if (a.recvCounts != nullptr) static_cast<u32*>(a.recvCounts)[expert - owner * expertsPerRank] = next - starts[expert];
    }
  }
  if (threadIdx.x < a.groupRanks) {
    static_cast<u32*>(a.numInputTokens)[threadIdx.x] = shared.headers[threadIdx.x][layerRecordNumTokens];
  }
  if (threadIdx.x == 0) {
    blockStarts[a.experts] = all;
    judge(a, shared);
  }
  __syncthreads();
}

__device__ void report(const LayerPrepareArguments& a, const Shared& shared, u32 sequence) {
  LayerPlan* plan = static_cast<LayerPlan*>(a.plan);
  LayerHostPlan* host = static_cast<LayerHostPlan*>(a.hostPlan);
  if (threadIdx.x < a.groupRanks) host->recvRows[threadIdx.x] = shared.recvRows[threadIdx.x];
  if (threadIdx.x == 0) {
    plan->status = shared.status;
    plan->sequence = sequence;
    plan->recvRows = shared.recvRows[a.groupRank];
    host->status = shared.status;
    host->detail = shared.detail;
    host->culprit = shared.culprit;
    host->repeated = plan->repeated;
    if (a.rowBound != 0) keepFailure(host, {shared.status, shared.detail, shared.culprit, shared.extent}, sequence);
    static_cast<u32*>(a.counter)[0] = 0;
    static_cast<u32*>(a.counter)[1] = 0;
    for (u32 r = 0; r < a.ranks; ++r) static_cast<u32*>(a.counter)[2 + layerSections + r] = 0;
  }
  __syncthreads();
  // ORDER: everything above, by any thread of the block, is in host memory before the sequence number.
  if (threadIdx.x == 0) {
    fenceSystem();
    storeReleaseSystem(&host->sequence, sequence);
  }
}

// What the block that ends last does before the ranks of this host meet: the record also crosses to other hosts, and those of
// the sources that this rank serves come in.
__device__ void meetHosts(const LayerPrepareArguments& a, const NetworkCall& call, const ExchangeRecords& records,
                          const u32* totals, const WaitScope& scope, Shared& shared) {
  const EpNetwork& network = networkOf(a);
  LayerRoute* route = static_cast<LayerRoute*>(a.route);
  const u32 words = epRecordHeaderWords + binCount(a);
  if (threadIdx.x < a.ways) route->sentTokens[threadIdx.x] = totals[binsBeforeWays(a) + threadIdx.x];
  if (!sendRecord(network, call, words * 4, scope) && threadIdx.x == 0) shared.status = epStatusTimeout;
  __syncthreads();
  spreadRecords(network, call, records, a.ranks, words, {&shared.status, &shared.culprit}, scope);
  if (shared.status != epStatusGood || threadIdx.x >= network.served) return;
  const u32 word = epRecordHeaderWords + binsBeforeWays(a) + network.servedWay[threadIdx.x];
  route->servedTokens[threadIdx.x] = records.received(a.rank, network.servedRank[threadIdx.x], word);
}

// The block that ends last calls this.
__device__ void exchange(const LayerPrepareArguments& a, u32* words, Shared& shared) {
  const u32 sequence = a.sequence != 0 ? a.sequence : numberAfter(__ldcg(&static_cast<const LayerPlan*>(a.plan)->sequence));
  const u32 epoch = firstEpoch(a.epoch, a.lastEpoch);
  const ExchangeRecords records = {a.peers, a.exchangeOffset, a.groupRanks, a.recordWords, sequence};
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLayerPrepare, a.groupRank, a.timeoutNs};
  addTiles(a, words);
  if constexpr (hosts) {
    const NetworkCall call = nextNetworkCall(networkOf(a), a.call);
    publish(a, records, words, reinterpret_cast<u32*>(networkAt(networkOf(a), recordOutOffset(networkOf(a), call.number))));
    meetHosts(a, call, records, words, scope, shared);
  } else {
    publish(a, records, words, nullptr);
  }
  // A rank that has not heard of those it serves does not tell the others that it has.
  if (threadIdx.x < a.ranks && (!hosts || shared.status == epStatusGood)) {
    const u32* names = hosts ? networkOf(a).localRanks : nullptr;
    const RankBarrier barrier = {a.peers, a.ranks, a.rank, epoch, a.call, names};
    signalRank(barrier, threadIdx.x);
    const u32 status = awaitRank(barrier, threadIdx.x, scope);
    if (status != epStatusGood) {
      atomicMax(&shared.status, status);
      if (status == epStatusOtherCall) shared.culprit = hosts ? names[threadIdx.x] : threadIdx.x;
    }
  }
  __syncthreads();
  if (shared.status == epStatusGood) plan(a, records, words, shared);
  else noteFailure(a.lastEpoch);
  if (threadIdx.x == 0) {
    static_cast<EpLastEpoch*>(a.lastEpoch)->number = epoch;
    if constexpr (hosts) countNetworkCall(networkOf(a));
  }
  report(a, shared, sequence);
}

}  // namespace

// Dynamic shared memory: a word per bin for each of the tile's words.
extern "C" __global__ void __launch_bounds__(threads) layerPrepare(const __grid_constant__ LayerPrepareArguments a) {
  WEFTLINE_TRACE_KERNEL();
  extern __shared__ __align__(128) u32 bits[];
  __shared__ Shared shared;
  if (hasLeftEarly(a.lastEpoch)) return;
  if (threadIdx.x == 0) {
    shared.status = epStatusGood;
    shared.detail = 0;
    shared.culprit = 0;
    shared.extent = 0;
  }
  if (threadIdx.x < mostRanks) shared.recvRows[threadIdx.x] = 0;
  if constexpr (hosts) {
    const EpNetwork& network = networkOf(a);
    if (threadIdx.x < a.ways) shared.ways[threadIdx.x] = ranksOfWay(network, threadIdx.x);
    if (threadIdx.x == 0) {
      shared.ownRanks = 0;
      for (u32 index = 0; index < a.ranks; ++index) shared.ownRanks |= 1u << network.localRanks[index];
    }
  }
  const u64 cells = static_cast<u64>(a.maxTokens) * a.topkColumns;
  for (u64 cell = static_cast<u64>(a.tokens) * a.topkColumns + blockIdx.x * threads + threadIdx.x; cell < cells;
       cell += static_cast<u64>(gridDim.x) * threads) {
    static_cast<i32*>(a.rowTable)[cell] = -1;
  }
  WEFTLINE_TRACE_BEGIN("layer.dispatch.counts");
  for (u32 tile = blockIdx.x; tile * a.tileWords * 32 < a.tokens; tile += gridDim.x) numberTile(a, tile, bits, shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    // ORDER: this block's counts, then its arrival; the last block sees those of all.
    fenceGpu();
    shared.last = fetchAddAcquireReleaseGpu(static_cast<u32*>(a.counter), 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (shared.last != 0) exchange(a, bits, shared);
  WEFTLINE_TRACE_END("layer.dispatch.counts");
}
