// Dispatch: each row is read once and written to its final place at every rank that needs it.
//
// A warp per token. The bulk copy engine brings the row into shared memory and stores it to each destination; the lanes
// write scales, choices, weights and the token's index meanwhile. No ring, no credit, nothing for receivers to do.
#include "weftline/abi.cuh"
#include "weftline/bulk-copy.cuh"
#include "weftline/rank-barrier.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 barrierBytes = 1024;

__device__ __forceinline__ u8* window(const EpDispatchArguments& a, u32 rank, u64 offset) {
  return static_cast<u8*>(a.peers[rank]) + offset;
}

// Lane r: the token's row in its source's numbering at rank r, -1 where it does not go (and for other lanes).
__device__ __forceinline__ i32 placeAt(const EpDispatchArguments& a, u32 token) {
  if (laneIndex() >= a.ranks || token >= a.tokens) return -1;
  return static_cast<const i32*>(a.rowTable)[static_cast<u64>(token) * a.ranks + laneIndex()];
}

// `row`: lane r holds the row at rank r, or -1.
__device__ void sendChoices(const EpDispatchArguments& a, u32 token, i32 row) {
  const u32 lane = laneIndex();
  const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
  const bool column = lane < a.topkColumns && a.topk != nullptr;
  // Replays bring no choices, and the handle has the token indices.
  if (a.sendSource != 0 && row >= 0) reinterpret_cast<i32*>(window(a, lane, a.sourceOffset))[row] = static_cast<i32>(token);
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

__device__ void sendRows(const EpDispatchArguments& a, u8* stage, u64* barrier) {
  const u32 step = gridDim.x * (blockDim.x / lanesPerWarp);
  const u32 firstToken = blockIdx.x + (threadIdx.x / lanesPerWarp) * gridDim.x;
  const bool staged = a.rowBytes % 16 == 0;
  const u32 firstRow = laneIndex() < a.ranks ? static_cast<const EpPlan*>(a.plan)->firstRow[laneIndex()] : 0;
  i32 nextPlace = placeAt(a, firstToken);
  u32 phase = 0;
  for (u32 token = firstToken; token < a.tokens; token += step) {
    const i32 row = nextPlace < 0 ? -1 : nextPlace + static_cast<i32>(firstRow);
    // Asked for one token ahead, so that nobody waits for it.
    nextPlace = placeAt(a, token + step);
    if (!staged) {
      sendRowPlain(a, token, row);
      sendChoices(a, token, row);
      continue;
    }
    const u8* source = static_cast<const u8*>(a.x) + static_cast<u64>(token) * a.rowBytes;
    for (u32 at = 0; at < a.rowBytes; at += a.stageBytes) {
      const u32 bytes = min(a.stageBytes, a.rowBytes - at);
      // The stores of the row before must have read the stage.
      warpWaitStoresRead<0>();
      warpLoadRow(stage, source + at, bytes, barrier);
      if (at == 0) sendChoices(a, token, row);
      warpWaitRow(barrier, phase & 1);
      ++phase;
      storePart(a, row, stage, at, bytes);
    }
  }
  warpWaitStoresWritten();
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

}  // namespace

extern "C" __global__ void __launch_bounds__(896, 1) epDispatch(const __grid_constant__ EpDispatchArguments a) {
  extern __shared__ __align__(128) u8 shared[];
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barrier = reinterpret_cast<u64*>(shared) + warp;
  if (laneIndex() == 0) warpRowBarrierInit(barrier);
  // A plan that failed moves nothing; every rank's has failed alike.
  if (static_cast<const EpPlan*>(a.plan)->status != epStatusGood) return;
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelEpDispatch, a.rank, a.timeoutNs};
  const RankBarrier opening = {a.peers, a.ranks, a.rank, a.openingEpoch, a.openingCall};
  if (a.openingEpoch != 0 && !enterTogether(opening, scope)) return;
  __syncthreads();
  if (a.worstRows != 0) fillTail(a);
  sendRows(a, shared + barrierBytes + static_cast<u64>(warp) * a.stageBytes, barrier);
  leaveTogether({a.peers, a.ranks, a.rank, a.closingEpoch, a.closingCall}, static_cast<u32*>(a.counter), scope);
}
