// Before a layer's dispatch: the number of every (token, choice) among its expert's, what all ranks send to all, and where
// this rank's rows begin at each.
//
// A block takes a tile of tokens at a time and keeps a bit per (token, bin) in shared memory, so that counting the bits
// below a token numbers it, in token order and without depending on which thread was first. The last block to end adds
// the tiles up and meets the peers. Dispatch adds the beginnings to the numbers.
#include "weftline/abi.cuh"
#include "weftline/ep/exchange-record.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 threads = 512;
constexpr u32 warps = threads / lanesPerWarp;

struct Shared {
  u32 last;
  u32 status;
  u32 detail;
  u32 culprit;
  u32 headers[epMaxRanks][epRecordHeaderWords];
  u32 recvRows[epMaxRanks];
  u32 warpSums[warps];
};

// Of a tile: per rank the tokens that go there more than once, then per expert its choices.
__device__ __forceinline__ u32 binCount(const LayerPrepareArguments& a) { return a.ranks + a.experts; }

__device__ __forceinline__ i64 choiceAt(const LayerPrepareArguments& a, u64 cell) {
  return integerAt(a.topk, a.indexBytes, cell);
}

__device__ __forceinline__ bool isDropped(const LayerPrepareArguments& a, i64 expert) {
  return expert == -1 || expert == static_cast<i64>(a.experts);
}

// Sets the token's bits; returns the ranks that it goes to more than once. The first bad choice of all is kept.
__device__ u32 markChoices(const LayerPrepareArguments& a, u32 token, u32* word) {
  const u32 expertsPerRank = a.experts / a.ranks;
  const u32 bit = 1u << laneIndex();
  u32 once = 0;
  u32 again = 0;
#pragma unroll 4
  for (u32 j = 0; j < a.topkColumns; ++j) {
    const u64 cell = static_cast<u64>(token) * a.topkColumns + j;
    const i64 expert = choiceAt(a, cell);
    i32 rank = -1;
    if (!isDropped(a, expert)) {
      const bool inRange = expert >= 0 && expert < static_cast<i64>(a.experts);
      const bool bad = !inRange || (atomicOr(&word[a.ranks + static_cast<u32>(expert)], bit) & bit) != 0;
      if (bad) {
        // Kept as its complement, so that zero is "none".
        atomicMax(static_cast<u32*>(a.counter) + 1, ~static_cast<u32>(cell));
      } else {
        rank = static_cast<i32>(static_cast<u32>(expert) / expertsPerRank);
        again |= once & (1u << rank);
        once |= 1u << rank;
      }
    }
    static_cast<i32*>(a.rankTable)[cell] = rank;
  }
  // A rank writes its own tokens' rows itself; only local combine must know which belong together.
  return a.localCombine != 0 ? again : again & ~(1u << a.rank);
}

// How many of the tile's tokens before this thread's have the bin's bit.
__device__ __forceinline__ i32 numberOf(const u32* bits, u32 bins, u32 bin) {
  const u32 warp = threadIdx.x / lanesPerWarp;
  u32 count = __popc(bits[warp * bins + bin] & ((1u << laneIndex()) - 1));
  for (u32 before = 0; before < warp; ++before) count += __popc(bits[before * bins + bin]);
  return static_cast<i32>(count);
}

__device__ void numberTile(const LayerPrepareArguments& a, u32 tile, u32* bits) {
  const u32 bins = binCount(a);
  const u32 warp = threadIdx.x / lanesPerWarp;
  const u32 token = tile * a.tileWords * 32 + threadIdx.x;
  const bool here = warp < a.tileWords && token < a.tokens;
  for (u32 index = threadIdx.x; index < a.tileWords * bins; index += threads) bits[index] = 0;
  __syncthreads();
  if (warp < a.tileWords) {
    const u32 again = here ? markChoices(a, token, bits + warp * bins) : 0;
#pragma unroll
    for (u32 r = 0; r < epMaxRanks; ++r) {
      const u32 repeat = __ballot_sync(0xffffffffu, (again >> r) & 1);
      if (r < a.ranks && laneIndex() == 0) bits[warp * bins + r] = repeat;
    }
  }
  __syncthreads();
  u32* counts = static_cast<u32*>(a.tileCounts) + static_cast<u64>(tile) * bins;
  for (u32 bin = threadIdx.x; bin < bins; bin += threads) {
    u32 count = 0;
    for (u32 word = 0; word < a.tileWords; ++word) count += __popc(bits[word * bins + bin]);
    counts[bin] = count;
  }
  if (here) {
    const u64 first = static_cast<u64>(token) * a.topkColumns;
#pragma unroll 4
    for (u32 j = 0; j < a.topkColumns; ++j) {
      const i64 expert = choiceAt(a, first + j);
      const bool none = expert < 0 || expert >= static_cast<i64>(a.experts);
      const i32 number = none ? -1 : numberOf(bits, bins, a.ranks + static_cast<u32>(expert));
      static_cast<i32*>(a.rowTable)[first + j] = number;
    }
    for (u32 r = 0; r < a.ranks; ++r) {
      const bool repeats = (bits[warp * bins + r] >> laneIndex()) & 1;
      static_cast<i32*>(a.repeatTable)[static_cast<u64>(token) * a.ranks + r] = repeats ? numberOf(bits, bins, r) : -1;
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

__device__ void publish(const LayerPrepareArguments& a, const ExchangeRecords& records, const u32* totals) {
  for (u32 index = threadIdx.x; index < epRecordHeaderWords + binCount(a); index += threads) {
    u32 word = 0;
    if (index >= epRecordHeaderWords) word = totals[index - epRecordHeaderWords];
    else if (index == layerRecordWeightBytes) word = a.weightBytes;
    else if (index == layerRecordScattered) word = a.scattered;
    else if (index == layerRecordNumTokens) word = a.tokens;
    else if (index == layerRecordBadChoice) {
      const u32 complement = *(static_cast<volatile u32*>(a.counter) + 1);
      word = complement == 0 ? 0 : ~complement + 1;
    }
    for (u32 peer = 0; peer < a.ranks; ++peer) records.at(peer, a.rank)[index] = word;
  }
  __syncthreads();
}

// Replaces the counts by the sums of those before them; returns the sum of all. `values` in shared memory.
__device__ u32 scanCounts(u32* values, u32 count, Shared& shared) {
  const u32 each = (count + threads - 1) / threads;
  const u32 first = min(threadIdx.x * each, count);
  const u32 end = min(first + each, count);
  u32 sum = 0;
  for (u32 index = first; index < end; ++index) sum += values[index];
  u32 inclusive = sum;
#pragma unroll
  for (u32 distance = 1; distance < lanesPerWarp; distance *= 2) {
    const u32 other = __shfl_up_sync(0xffffffffu, inclusive, distance);
    if (laneIndex() >= distance) inclusive += other;
  }
  const u32 warp = threadIdx.x / lanesPerWarp;
  if (laneIndex() == lanesPerWarp - 1) shared.warpSums[warp] = inclusive;
  __syncthreads();
  u32 before = 0;
  u32 total = 0;
  for (u32 w = 0; w < warps; ++w) {
    if (w < warp) before += shared.warpSums[w];
    total += shared.warpSums[w];
  }
  u32 run = before + inclusive - sum;
  for (u32 index = first; index < end; ++index) {
    const u32 value = values[index];
    values[index] = run;
    run += value;
  }
  __syncthreads();
  return total;
}

// One thread: the same answer at every rank, because all read the same records.
__device__ void judge(const LayerPrepareArguments& a, Shared& shared) {
  for (u32 source = 0; source < a.ranks; ++source) {
    const u32 bad = shared.headers[source][layerRecordBadChoice];
    if (bad == 0) continue;
    shared.status = epStatusBadChoice;
    shared.culprit = source;
    shared.detail = bad - 1;
    return;
  }
  for (u32 word = layerRecordWeightBytes; word <= layerRecordScattered; ++word) {
    for (u32 source = 1; source < a.ranks; ++source) {
      if (shared.headers[source][word] == shared.headers[0][word]) continue;
      shared.status = epStatusMismatch;
      shared.culprit = source;
      shared.detail = word;
      return;
    }
  }
  for (u32 r = 0; r < a.ranks; ++r) {
    if (shared.recvRows[r] > a.capacityRows) shared.status = epStatusGrow;
  }
}

// `starts` becomes the row where each expert's block begins when all outputs are numbered as one.
__device__ void plan(const LayerPrepareArguments& a, const ExchangeRecords& records, u32* starts, Shared& shared) {
  const u32 expertsPerRank = a.experts / a.ranks;
  if (threadIdx.x < a.ranks * epRecordHeaderWords) {
    const u32 source = threadIdx.x / epRecordHeaderWords;
    const u32 word = threadIdx.x % epRecordHeaderWords;
    shared.headers[source][word] = records.received(a.rank, source, word);
  }
  u32* firstRows = static_cast<u32*>(a.firstRows);
  for (u32 bin = threadIdx.x; bin < binCount(a); bin += threads) {
    LayerPlan* repeated = bin == a.rank ? static_cast<LayerPlan*>(a.plan) : nullptr;
    u32 total = 0;
    u32 before = 0;
#pragma unroll
    for (u32 source = 0; source < epMaxRanks; ++source) {
      if (source >= a.ranks) break;
      const u32 count = records.received(a.rank, source, epRecordHeaderWords + bin);
      if (repeated != nullptr) repeated->repeatedFirst[source] = total;
      total += count;
      if (source < a.rank) before += count;
    }
    firstRows[bin] = before;
    if (bin >= a.ranks) starts[bin - a.ranks] = total;
    if (repeated != nullptr) repeated->repeated = total;
  }
  __syncthreads();
  const u32 all = scanCounts(starts, a.experts, shared);
  if (threadIdx.x < a.ranks) {
    const u32 end = (threadIdx.x + 1) * expertsPerRank;
    shared.recvRows[threadIdx.x] = (end == a.experts ? all : starts[end]) - starts[threadIdx.x * expertsPerRank];
  }
  __syncthreads();
  u32* blockStarts = static_cast<u32*>(a.blockStarts);
  for (u32 expert = threadIdx.x; expert < a.experts; expert += threads) {
    const u32 owner = expert / expertsPerRank;
    firstRows[a.ranks + expert] += starts[expert] - starts[owner * expertsPerRank];
    blockStarts[expert] = starts[expert];
    if (owner == a.rank) {
      const u32 next = expert + 1 == a.experts ? all : starts[expert + 1];
      static_cast<u32*>(a.hostExperts)[expert - owner * expertsPerRank] = next - starts[expert];
    }
  }
  if (threadIdx.x < a.ranks) {
    static_cast<u32*>(a.numInputTokens)[threadIdx.x] = shared.headers[threadIdx.x][layerRecordNumTokens];
  }
  if (threadIdx.x == 0) {
    blockStarts[a.experts] = all;
    judge(a, shared);
  }
  __syncthreads();
}

__device__ void report(const LayerPrepareArguments& a, const Shared& shared) {
  LayerPlan* plan = static_cast<LayerPlan*>(a.plan);
  LayerHostPlan* host = static_cast<LayerHostPlan*>(a.hostPlan);
  if (threadIdx.x < a.ranks) host->recvRows[threadIdx.x] = shared.recvRows[threadIdx.x];
  if (threadIdx.x == 0) {
    plan->status = shared.status;
    plan->recvRows = shared.recvRows[a.rank];
    host->status = shared.status;
    host->detail = shared.detail;
    host->culprit = shared.culprit;
    host->repeated = plan->repeated;
    static_cast<u32*>(a.counter)[0] = 0;
    static_cast<u32*>(a.counter)[1] = 0;
    for (u32 r = 0; r < a.ranks; ++r) static_cast<u32*>(a.counter)[2 + layerSections + r] = 0;
  }
  __syncthreads();
  // ORDER: everything above, by any thread of the block, is in host memory before the sequence number.
  if (threadIdx.x == 0) {
    fenceSystem();
    storeReleaseSystem(&host->sequence, a.sequence);
  }
}

// By the block that ends last.
__device__ void exchange(const LayerPrepareArguments& a, u32* words, Shared& shared) {
  const ExchangeRecords records = {a.peers, a.exchangeOffset, a.ranks, a.recordWords, a.sequence};
  addTiles(a, words);
  publish(a, records, words);
  if (threadIdx.x < a.ranks) {
    const RankBarrier barrier = {a.peers, a.ranks, a.rank, a.epoch, a.call};
    const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLayerPrepare, a.rank, a.timeoutNs};
    signalRank(barrier, threadIdx.x);
    const u32 status = awaitRank(barrier, threadIdx.x, scope);
    if (status != epStatusGood) {
      atomicMax(&shared.status, status);
      if (status == epStatusOtherCall) shared.culprit = threadIdx.x;
    }
  }
  __syncthreads();
  if (shared.status == epStatusGood) plan(a, records, words, shared);
  report(a, shared);
}

}  // namespace

// Dynamic shared memory: a word per bin for each of the tile's words.
extern "C" __global__ void __launch_bounds__(threads) layerPrepare(const __grid_constant__ LayerPrepareArguments a) {
  extern __shared__ __align__(128) u32 bits[];
  __shared__ Shared shared;
  if (threadIdx.x == 0) {
    shared.status = epStatusGood;
    shared.detail = 0;
    shared.culprit = 0;
  }
  if (threadIdx.x < epMaxRanks) shared.recvRows[threadIdx.x] = 0;
  const u64 cells = static_cast<u64>(a.maxTokens) * a.topkColumns;
  for (u64 cell = static_cast<u64>(a.tokens) * a.topkColumns + blockIdx.x * threads + threadIdx.x; cell < cells;
       cell += static_cast<u64>(gridDim.x) * threads) {
    static_cast<i32*>(a.rowTable)[cell] = -1;
  }
  WEFTLINE_TRACE_BEGIN("layer.dispatch.counts");
  for (u32 tile = blockIdx.x; tile * a.tileWords * 32 < a.tokens; tile += gridDim.x) numberTile(a, tile, bits);
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
