// Dispatch: counts and exchanges what goes where, unless a handle knows; then each row is read once and written to its
// final place at every rank that needs it.
//
// A warp per token. The first warps of a block move rows: the bulk copy engine brings a row into shared memory and stores
// it to each destination. They are few, for what is under way beyond what the links hold only gets in its own way. The
// other warps write scales, choices, weights and token indices. No ring, no credit, nothing for receivers to do.
//
// The block that ends counting last exchanges for all: it adds up the blocks' counts, writes the record, meets the
// peers, and publishes the plan, while the others number their tokens.
#include "weftline/abi.cuh"
#include "weftline/copy/bulk-copy.cuh"
#include "weftline/ep/count-exchange.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/ep/token-layout.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 barrierBytes = 1024;
constexpr u32 mostWarps = 16;
// What waits inside a GPU outlast the wait for peers, whose record says more.
constexpr u64 graceNs = 1000000000;

struct Shared {
  ExchangeState exchange;
  u32 warpRows[mostWarps][epMaxRanks];
  // Tokens of this block per rank, then the first row of its next tile.
  u32 counts[epMaxRanks];
  u32 badCell;
  u32 last;
};

__device__ __forceinline__ u8* window(const EpDispatchArguments& a, u32 rank, u64 offset) {
  return static_cast<u8*>(a.peers[rank]) + offset;
}

// Lane r: the token's row in its source's numbering at rank r, -1 where it does not go (and for other lanes).
__device__ __forceinline__ i32 placeAt(const EpDispatchArguments& a, TokenRange range, u32 token) {
  if (laneIndex() >= a.ranks || token >= range.end) return -1;
  return static_cast<const i32*>(a.rowTable)[static_cast<u64>(token) * a.ranks + laneIndex()];
}

// Lane r: where this rank's rows begin at rank r.
__device__ __forceinline__ i32 firstRowAt(const EpDispatchArguments& a) {
  return laneIndex() < a.ranks ? static_cast<i32>(static_cast<const EpPlan*>(a.plan)->firstRow[laneIndex()]) : 0;
}

// `row`: lane r holds the row at rank r, or -1.
__device__ void sendChoices(const EpDispatchArguments& a, u32 token, i32 row) {
  const u32 lane = laneIndex();
  const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
  const bool column = lane < a.topkColumns && a.topk != nullptr;
  // Replays bring no choices, and the handle has the token indices.
  if (a.recvSource != nullptr && row >= 0) reinterpret_cast<i32*>(window(a, lane, a.sourceOffset))[row] = static_cast<i32>(token);
  if (a.topk == nullptr && a.scaleBytes == 0) return;
  i64 expert = -1;
  f32 weight = 0;
  if (column) {
    expert = a.indexBytes == 8 ? static_cast<const i64*>(a.topk)[cell] : static_cast<const i32*>(a.topk)[cell];
    if (a.weights != nullptr) weight = static_cast<const f32*>(a.weights)[cell];
  }
  const f32* scales = static_cast<const f32*>(a.scales) + static_cast<u64>(token) * (a.scaleBytes / 4);
  for (u32 r = 0; r < a.ranks; ++r) {
    const i32 place = __shfl_sync(0xffffffffu, row, r);
    if (place < 0) continue;
    f32* target = reinterpret_cast<f32*>(window(a, r, a.scalesOffset) + static_cast<u64>(place) * a.scaleBytes);
    for (u32 group = lane; group < a.scaleBytes / 4; group += lanesPerWarp) target[group] = scales[group];
    if (!column) continue;
    const i64 local = expert - static_cast<i64>(r) * a.expertsPerRank;
    const bool mine = expert >= 0 && local >= 0 && local < a.expertsPerRank;
    const u64 choice = static_cast<u64>(place) * a.topkColumns + lane;
    u8* choices = window(a, r, a.topkOffset);
    if (a.indexBytes == 8) reinterpret_cast<i64*>(choices)[choice] = mine ? local : -1;
    else reinterpret_cast<i32*>(choices)[choice] = mine ? static_cast<i32>(local) : -1;
    if (a.weights != nullptr) reinterpret_cast<f32*>(window(a, r, a.weightsOffset))[choice] = mine ? weight : 0.0f;
  }
}

// Rows that the copy engine cannot move (no multiple of 16 bytes): 8 bytes per lane and step.
__device__ void sendRowPlain(const EpDispatchArguments& a, u32 token, i32 row) {
  const u64* source = reinterpret_cast<const u64*>(static_cast<const u8*>(a.x) + static_cast<u64>(token) * a.rowBytes);
  for (u32 r = 0; r < a.ranks; ++r) {
    const i32 place = __shfl_sync(0xffffffffu, row, r);
    if (place < 0) continue;
    u64* target = reinterpret_cast<u64*>(window(a, r, a.rowsOffset) + static_cast<u64>(place) * a.rowBytes);
    for (u32 index = laneIndex(); index < a.rowBytes / 8; index += lanesPerWarp) target[index] = source[index];
  }
}

// The part of a row in `stage` to all its places. Beginning with the next rank spreads the load over the links.
__device__ __forceinline__ void storePart(const EpDispatchArguments& a, i32 row, const u8* stage, u32 at, u32 bytes) {
  for (u32 step = 1, r = a.rank; step <= a.ranks; ++step) {
    r = r + 1 == a.ranks ? 0 : r + 1;
    const i32 place = __shfl_sync(0xffffffffu, row, r);
    if (place < 0) continue;
    warpStoreRow(window(a, r, a.rowsOffset) + static_cast<u64>(place) * a.rowBytes + at, stage, bytes);
  }
  warpCommitStores();
}

// By the warps that move rows.
__device__ void sendRows(const EpDispatchArguments& a, TokenRange range, u32 warp, u8* stage, u64* barrier) {
  const u32 firstToken = range.first + warp;
  const bool staged = a.rowBytes % 16 == 0;
  const i32 firstRow = firstRowAt(a);
  i32 nextPlace = placeAt(a, range, firstToken);
  u32 phase = 0;
  for (u32 token = firstToken; token < range.end; token += a.rowWarps) {
    const i32 row = nextPlace < 0 ? -1 : nextPlace + firstRow;
    // Asked for one token ahead, so that nobody waits for it.
    nextPlace = placeAt(a, range, token + a.rowWarps);
    if (!staged) {
      sendRowPlain(a, token, row);
      continue;
    }
    const u8* source = static_cast<const u8*>(a.x) + static_cast<u64>(token) * a.rowBytes;
    for (u32 at = 0; at < a.rowBytes; at += a.stageBytes) {
      const u32 bytes = min(a.stageBytes, a.rowBytes - at);
      // The stores of the part before must have read the stage.
      warpWaitStoresRead<0>();
      warpLoadRow(stage, source + at, bytes, barrier);
      warpWaitRow(barrier, phase & 1);
      ++phase;
      storePart(a, row, stage, at, bytes);
    }
  }
  warpWaitStoresWritten();
}

// By the other warps.
__device__ void sendAllChoices(const EpDispatchArguments& a, TokenRange range, u32 warp) {
  if (a.recvSource == nullptr && a.topk == nullptr && a.scaleBytes == 0) return;
  const u32 warps = blockDim.x / lanesPerWarp - a.rowWarps;
  const i32 firstRow = firstRowAt(a);
  for (u32 token = range.first + warp - a.rowWarps; token < range.end; token += warps) {
    const i32 place = placeAt(a, range, token);
    sendChoices(a, token, place < 0 ? -1 : place + firstRow);
  }
}

// Marks the rows beyond the received ones, which only a worst-case result has.
__device__ void fillTail(const EpDispatchArguments& a) {
  const u32 first = static_cast<const EpPlan*>(a.plan)->numRecvTokens;
  const u32 step = gridDim.x * blockDim.x;
  for (u32 row = first + blockIdx.x * blockDim.x + threadIdx.x; row < a.worstRows; row += step) {
    reinterpret_cast<i32*>(window(a, a.rank, a.sourceOffset))[row] = -1;
    for (u32 j = 0; j < a.topkColumns && a.topk != nullptr; ++j) {
      const u64 cell = static_cast<u64>(row) * a.topkColumns + j;
      u8* choice = window(a, a.rank, a.topkOffset) + cell * a.indexBytes;
      if (a.indexBytes == 8) *reinterpret_cast<i64*>(choice) = -1;
      else *reinterpret_cast<i32*>(choice) = -1;
      if (a.weights != nullptr) reinterpret_cast<f32*>(window(a, a.rank, a.weightsOffset))[cell] = 0.0f;
    }
  }
}

// The peers' words arrived during this kernel; loads go past the first-level cache.
__device__ void keepSources(const EpDispatchArguments& a) {
  const u32 rows = a.worstRows != 0 ? a.worstRows : static_cast<const EpPlan*>(a.plan)->numRecvTokens;
  const u8* from = window(a, a.rank, a.sourceOffset);
  const u32 vectors = rows / 4;
#pragma unroll 8
  for (u32 index = threadIdx.x; index < vectors; index += blockDim.x) {
    static_cast<uint4*>(a.recvSource)[index] = __ldcg(reinterpret_cast<const uint4*>(from) + index);
  }
  for (u32 row = vectors * 4 + threadIdx.x; row < rows; row += blockDim.x) {
    static_cast<u32*>(a.recvSource)[row] = __ldcg(reinterpret_cast<const u32*>(from) + row);
  }
}

// Adds this block's counts to those of the GPU. True for all threads of the block that comes last.
__device__ bool addCounts(EpScratch* scratch, const EpDispatchArguments& a, Shared& shared, const u32* experts) {
  if (threadIdx.x < a.ranks) scratch->blockRows[blockIdx.x * epMaxRanks + threadIdx.x] = shared.counts[threadIdx.x];
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

// By the last block: where each block's rows begin at each rank. Leaves this rank's totals in shared.counts.
__device__ void numberBlocks(EpScratch* scratch, const EpDispatchArguments& a, Shared& shared) {
  const u32 warps = blockDim.x / lanesPerWarp;
  for (u32 r = threadIdx.x / lanesPerWarp; r < a.ranks; r += warps) {
    u32 sum = 0;
    for (u32 first = 0; first < gridDim.x; first += lanesPerWarp) {
      const u32 block = first + laneIndex();
      u32* cell = &scratch->blockRows[block * epMaxRanks + r];
      const u32 count = block < gridDim.x ? __ldcg(cell) : 0;
      const u32 through = sum + warpInclusiveSum(count);
      if (block < gridDim.x) *cell = through - count;
      sum = __shfl_sync(0xffffffffu, through, lanesPerWarp - 1);
    }
    if (laneIndex() == 0) shared.counts[r] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    scratch->tickets = 0;
    // ORDER: publishes the blocks' first rows.
    fenceGpu();
    storeReleaseGpu(&scratch->numbered, a.sequence);
  }
}

// Numbers this block's tokens into the handle's table.
__device__ void numberOwn(EpScratch* scratch, const EpDispatchArguments& a, Shared& shared, const u8* masks) {
  __syncthreads();
  if (threadIdx.x < a.ranks) shared.counts[threadIdx.x] = __ldcg(&scratch->blockRows[blockIdx.x * epMaxRanks + threadIdx.x]);
  __syncthreads();
  numberTokens(masks, tokensOfBlock(a.tokens), a.ranks, shared.counts, shared.warpRows, static_cast<i32*>(a.rowTable));
}

// By the last block.
__device__ void exchangeCounts(EpScratch* scratch, const EpDispatchArguments& a, Shared& shared, const u8* masks,
                               const WaitScope& scope) {
  numberBlocks(scratch, a, shared);
  // Without choices the counts per expert are the caller's.
  const u32* experts = a.topk != nullptr ? scratch->experts : static_cast<const u32*>(a.givenExperts);
  publishRecord(a, shared.counts, experts, ~__ldcg(&scratch->lastBadCell));
  __syncthreads();
  const RankBarrier barrier = {a.peers, a.ranks, a.rank, a.openingEpoch, a.openingCall};
  if (threadIdx.x < a.ranks) signalRank(barrier, threadIdx.x);
  // While the words are under way: the next dispatch counts from zero, and this block's own tokens.
  for (u32 expert = threadIdx.x; expert < a.experts; expert += blockDim.x) scratch->experts[expert] = 0;
  if (threadIdx.x == 0) scratch->lastBadCell = 0;
  numberOwn(scratch, a, shared, masks);
  if (threadIdx.x < a.ranks) {
    const u32 status = awaitRank(barrier, threadIdx.x, scope);
    if (status != epStatusGood) {
      atomicMax(&shared.exchange.status, status);
      if (status == epStatusOtherCall) shared.exchange.culprit = threadIdx.x;
    }
  }
  __syncthreads();
  if (shared.exchange.status == epStatusGood) readRecords(a, shared.exchange);
  writePlan(a, shared.exchange);
  __syncthreads();
  if (threadIdx.x == 0) {
    // ORDER: publishes the plan to the other blocks.
    fenceGpu();
    storeReleaseGpu(&scratch->planned, a.sequence);
  }
  tellHost(a, shared.exchange);
}

// By the other blocks; false when they must leave.
__device__ bool awaitWord(const u32* word, const EpDispatchArguments& a, WaitScope scope) {
  bool reached = true;
  scope.timeoutNs += graceNs;
  if (threadIdx.x == 0) reached = waitForEpoch(word, a.sequence, scope, {a.rank, a.openingCall});
  return __syncthreads_and(reached);
}

// Where every token goes. `memory` is what rows are staged in later. Returns an epStatus.
__device__ u32 prepare(const EpDispatchArguments& a, Shared& shared, u8* memory, const WaitScope& scope) {
  EpScratch* scratch = static_cast<EpScratch*>(a.scratch);
  u32* experts = reinterpret_cast<u32*>(memory);
  u8* masks = memory + static_cast<u64>(a.experts) * 4;
  for (u32 expert = threadIdx.x; expert < a.experts; expert += blockDim.x) experts[expert] = 0;
  if (threadIdx.x < epMaxRanks) shared.counts[threadIdx.x] = 0;
  for (u32 cell = threadIdx.x; cell < epMaxRanks * epMaxRanks; cell += blockDim.x) shared.exchange.matrix[cell] = 0;
  if (threadIdx.x == 0) {
    shared.badCell = noBadCell;
    shared.exchange.status = epStatusGood;
    shared.exchange.detail = 0;
    shared.exchange.culprit = 0;
    shared.exchange.extent = 0;
  }
  __syncthreads();
  const Routing routing = {a.topk, a.membership, a.topkColumns, a.indexBytes, a.experts, a.ranks};
  countTokens<WEFTLINE_COLUMNS>(routing, tokensOfBlock(a.tokens), shared.counts, experts, &shared.badCell, masks);
  __syncthreads();
  if (addCounts(scratch, a, shared, experts)) {
    exchangeCounts(scratch, a, shared, masks, scope);
  } else {
    if (!awaitWord(&scratch->numbered, a, scope)) return epStatusTimeout;
    // That was for blocks of this GPU; the time for the peers begins now, as it does for the block that waits for them.
    if (threadIdx.x == 0) *scope.firstWait = 0;
    numberOwn(scratch, a, shared, masks);
    if (!awaitWord(&scratch->planned, a, scope)) return epStatusTimeout;
  }
  // ORDER: what lay in the staging memory was written by ordinary stores; the copy engine writes there next.
  fenceProxyAsyncShared();
  __syncthreads();
  return __ldcg(&static_cast<const EpPlan*>(a.plan)->status);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(mostWarps * 32, 1) epDispatch(const __grid_constant__ EpDispatchArguments a) {
  extern __shared__ __align__(128) u8 dynamic[];
  __shared__ Shared shared;
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barrier = reinterpret_cast<u64*>(dynamic) + warp;
  if (laneIndex() == 0) warpRowBarrierInit(barrier);
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelEpDispatch, a.rank, a.timeoutNs, sharedWaits()};
  u32 status = epStatusGood;
  if (a.sequence != 0) {
    WEFTLINE_TRACE_BEGIN("ep.dispatch.counts");
    status = prepare(a, shared, dynamic + barrierBytes, scope);
    WEFTLINE_TRACE_END("ep.dispatch.counts");
    // The ranks have not met.
    if (status == epStatusTimeout || status == epStatusOtherCall) return;
  } else {
    const RankBarrier opening = {a.peers, a.ranks, a.rank, a.openingEpoch, a.openingCall};
    if (!enterTogether(opening, scope)) return;
  }
  // A plan that failed moves nothing; every rank's has failed alike, and all meet at the end as they always do.
  if (status == epStatusGood) {
    if (a.worstRows != 0) fillTail(a);
    const TokenRange range = tokensOfBlock(a.tokens);
    u8* stage = dynamic + barrierBytes + static_cast<u64>(warp) * a.stageBytes;
    WEFTLINE_TRACE_BEGIN("ep.dispatch.rows");
    if (warp < a.rowWarps) sendRows(a, range, warp, stage, barrier);
    else sendAllChoices(a, range, warp);
    WEFTLINE_TRACE_END("ep.dispatch.rows");
  }
  const RankBarrier closing = {a.peers, a.ranks, a.rank, a.closingEpoch, a.closingCall};
  WEFTLINE_TRACE_BEGIN("ep.closing");
  const bool arrived = leaveTogether(closing, static_cast<u32*>(a.counter), scope);
  WEFTLINE_TRACE_END("ep.closing");
  if (arrived && status == epStatusGood && a.recvSource != nullptr) keepSources(a);
}
