// Rows that the caller chose for a layer's dispatch: checked against the blocks of their experts, and that none stays empty.
//
// One block, three barriers: all know whose places are good; every row knows whether it was taken; all know whether
// every row was. Nothing of it is needed in the usual case, so nothing of it is hurried.
#include "weftline/abi.cuh"
#include "weftline/ep/exchange-record.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 threads = 1024;
constexpr u32 noCell = 0xffffffffu;

struct Shared {
  u32 badCell;
  u32 empty;
  u32 status;
  u32 detail;
  u32 culprit;
};

__device__ __forceinline__ i32* takenAt(const LayerPlaceArguments& a, u32 rank) {
  return reinterpret_cast<i32*>(static_cast<u8*>(a.outputs[rank]) + a.sourceOffset);
}

// All threads call this. False after a deadline, or when a peer is in another call: the caller must leave.
__device__ bool meet(const LayerPlaceArguments& a, u32 index, const WaitScope& scope) {
  __syncthreads();
  u32 status = epStatusGood;
  if (threadIdx.x < a.ranks) {
    const RankBarrier barrier = {a.peers, a.ranks, a.rank, a.epochs[index], a.calls[index]};
    signalRank(barrier, threadIdx.x);
    status = awaitRank(barrier, threadIdx.x, scope);
  }
  if (status != epStatusGood) noteFailure(a.lastEpoch);
  return !__syncthreads_or(status != epStatusGood);
}

// Tells every rank how a step went here.
__device__ void tell(const LayerPlaceArguments& a, const ExchangeRecords& records, u32 word, u32 value) {
  if (threadIdx.x < a.ranks) records.at(threadIdx.x, a.rank)[word] = value;
}

// One thread: the first rank whose word is not zero decides; all read the same words.
__device__ void judge(const LayerPlaceArguments& a, const ExchangeRecords& records, u32 word, u32 status,
                      Shared& shared) {
  if (threadIdx.x == 0) {
    for (u32 source = 0; source < a.ranks && shared.status == epStatusGood; ++source) {
      const u32 value = records.received(a.rank, source, word);
      if (value == 0) continue;
      shared.status = status;
      shared.culprit = source;
      shared.detail = value - 1;
    }
  }
  __syncthreads();
}

// Rows of the expert's rank instead of those of all; the first place outside its expert's block is kept.
__device__ void takePlaces(const LayerPlaceArguments& a, Shared& shared) {
  const u32* starts = static_cast<const u32*>(a.blockStarts);
  const u64 cells = static_cast<u64>(a.tokens) * a.topkColumns;
  for (u64 cell = threadIdx.x; cell < cells; cell += threads) {
    const i32 rank = static_cast<const i32*>(a.rankTable)[cell];
    if (rank < 0) continue;
    const u32 expert = static_cast<u32>(integerAt(a.topk, a.indexBytes, cell));
    const i64 place = integerAt(a.places, a.placeBytes, cell);
    if (place < static_cast<i64>(starts[expert]) || place >= static_cast<i64>(starts[expert + 1])) {
      atomicMin(&shared.badCell, static_cast<u32>(cell));
      continue;
    }
    const u32 row = static_cast<u32>(place) - starts[static_cast<u32>(rank) * a.expertsPerRank];
    static_cast<i32*>(a.rowTable)[cell] = static_cast<i32>(row);
  }
}

__device__ void markTaken(const LayerPlaceArguments& a) {
  const u64 cells = static_cast<u64>(a.tokens) * a.topkColumns;
  for (u64 cell = threadIdx.x; cell < cells; cell += threads) {
    const i32 rank = static_cast<const i32*>(a.rankTable)[cell];
    if (rank >= 0) takenAt(a, static_cast<u32>(rank))[static_cast<i32*>(a.rowTable)[cell]] = 0;
  }
}

__device__ void findEmpty(const LayerPlaceArguments& a, Shared& shared) {
  const volatile i32* taken = takenAt(a, a.rank);
  const u32 rows = static_cast<const LayerPlan*>(a.plan)->recvRows;
  for (u32 row = threadIdx.x; row < rows; row += threads) {
    if (taken[row] < 0) shared.empty = 1;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(threads) layerPlace(const __grid_constant__ LayerPlaceArguments a) {
  WEFTLINE_TRACE_KERNEL();
  __shared__ Shared shared;
  if (hasLeftEarly(a.lastEpoch)) return;
  const ExchangeRecords records = {a.peers, a.exchangeOffset, a.ranks, a.recordWords, a.sequence};
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLayerPlace, a.rank, a.timeoutNs, sharedWaits()};
  if (threadIdx.x == 0) shared = {noCell, 0, epStatusGood, 0, 0};
  WEFTLINE_TRACE_BEGIN("layer.dispatch.places");
  const u32 rows = static_cast<const LayerPlan*>(a.plan)->recvRows;
  for (u32 row = threadIdx.x; row < rows; row += threads) takenAt(a, a.rank)[row] = -1;
  __syncthreads();
  takePlaces(a, shared);
  __syncthreads();
  tell(a, records, layerRecordBadPlace, shared.badCell == noCell ? 0 : shared.badCell + 1);
  if (!meet(a, 0, scope)) return;
  judge(a, records, layerRecordBadPlace, epStatusBadPlace, shared);
  if (shared.status == epStatusGood) markTaken(a);
  if (!meet(a, 1, scope)) return;
  if (shared.status == epStatusGood) findEmpty(a, shared);
  __syncthreads();
  tell(a, records, layerRecordEmptyRow, shared.empty);
  if (!meet(a, 2, scope)) return;
  if (threadIdx.x == 0) static_cast<EpLastEpoch*>(a.lastEpoch)->number = a.epochs[2];
  judge(a, records, layerRecordEmptyRow, epStatusEmptyRow, shared);
  WEFTLINE_TRACE_END("layer.dispatch.places");
  if (threadIdx.x == 0) {
    LayerHostPlan* host = static_cast<LayerHostPlan*>(a.hostPlan);
    host->status = shared.status;
    host->detail = shared.detail;
    host->culprit = shared.culprit;
    // ORDER: the words above are in host memory before the sequence number.
    fenceSystem();
    storeReleaseSystem(&host->placeSequence, a.sequence);
  }
}
