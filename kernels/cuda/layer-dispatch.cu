// The layer's dispatch: each row travels once to every rank that needs it; the ranks copy it to its other experts there.
//
// A warp per token. The bulk copy engine brings the row into shared memory and stores it to the row of the token's first
// choice at each rank; lane k writes what belongs to choice k meanwhile. layerCopyRows, behind the closing barrier, copies
// the rows of tokens that a rank got once but has several experts for: memory is several times as fast as the links.
#include "weftline/abi.cuh"
#include "weftline/bulk-copy.cuh"
#include "weftline/exchange-record.cuh"
#include "weftline/rank-barrier.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 barrierBytes = 1024;
constexpr u32 allLanes = 0xffffffffu;

// Lane k: of the token's choice k, its rank or -1 and its row there. Lane r: number of the token's list at rank r, or -1.
struct Place {
  i32 rank;
  i32 row;
  i32 repeat;
};

__device__ __forceinline__ u8* output(const LayerDispatchArguments& a, u32 rank, u64 offset) {
  return static_cast<u8*>(a.outputs[rank]) + offset;
}

__device__ __forceinline__ Place placeAt(const LayerDispatchArguments& a, u32 token) {
  Place place = {-1, -1, -1};
  if (token >= a.tokens) return place;
  const u32 lane = laneIndex();
  const u32 bins = a.ranks + a.experts;
  const u32* before = static_cast<const u32*>(a.tileCounts) + static_cast<u64>(token / (a.tileWords * 32)) * bins;
  const u32* firstRows = static_cast<const u32*>(a.firstRows);
  if (lane < a.topkColumns) {
    const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
    place.rank = static_cast<const i32*>(a.rankTable)[cell];
    place.row = static_cast<const i32*>(a.rowTable)[cell];
    if (place.rank >= 0 && a.placed == 0) {
      const u32 bin = a.ranks + static_cast<u32>(integerAt(a.topk, a.indexBytes, cell));
      place.row += static_cast<i32>(firstRows[bin] + before[bin]);
    }
  }
  if (lane < a.ranks) {
    place.repeat = static_cast<const i32*>(a.repeatTable)[static_cast<u64>(token) * a.ranks + lane];
    if (place.repeat >= 0) place.repeat += static_cast<i32>(firstRows[lane] + before[lane]);
  }
  return place;
}

// At every rank that the token goes to: the rows of its choices there, by the first of them, lane k writing column k.
__device__ void sendLists(const LayerDispatchArguments& a, const Place& place) {
  const u32 lane = laneIndex();
  for (u32 r = 0; r < a.ranks; ++r) {
    const i32 repeat = __shfl_sync(allLanes, place.repeat, r);
    const u32 lanes = __ballot_sync(allLanes, place.rank == static_cast<i32>(r));
    if (lanes == 0 || (repeat < 0 && a.localCombine == 0)) continue;
    const i32 first = __shfl_sync(allLanes, place.row, __ffs(lanes) - 1);
    i32* duplicates = reinterpret_cast<i32*>(output(a, r, a.duplicatesOffset));
    const bool here = (lanes >> lane) & 1;
    if (lane < a.topkColumns) duplicates[static_cast<u64>(first) * a.topkColumns + lane] = here ? place.row : -1;
    if (repeat >= 0 && lane == 0) reinterpret_cast<i32*>(output(a, r, a.repeatedOffset))[repeat] = first;
    if (a.localCombine == 0) continue;
    if (here) reinterpret_cast<i32*>(output(a, r, a.firstRowOffset))[place.row] = first;
    for (u32 others = lanes & (lanes - 1); others != 0; others &= others - 1) {
      const i32 row = __shfl_sync(allLanes, place.row, __ffs(others) - 1);
      if (lane < a.topkColumns) duplicates[static_cast<u64>(row) * a.topkColumns + lane] = -1;
    }
  }
}

__device__ void sendChoices(const LayerDispatchArguments& a, u32 token, const Place& place) {
  const u32 lane = laneIndex();
  const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
  if (lane < a.topkColumns) static_cast<i32*>(a.rowTable)[cell] = place.row;
  if (place.rank >= 0 && a.weightBytes != 0) {
    u8* weights = output(a, static_cast<u32>(place.rank), a.weightsOffset);
    if (a.weightBytes == 4) reinterpret_cast<u32*>(weights)[place.row] = static_cast<const u32*>(a.weights)[cell];
    else reinterpret_cast<u16*>(weights)[place.row] = static_cast<const u16*>(a.weights)[cell];
  }
  sendLists(a, place);
}

// The part of a row in `stage` to its places. Beginning with the next rank spreads the load over the links.
__device__ __forceinline__ void storePart(const LayerDispatchArguments& a, const Place& place, const u8* stage, u32 at,
                                          u32 bytes) {
  for (u32 step = 1, r = a.rank; step <= a.ranks; ++step) {
    r = r + 1 == a.ranks ? 0 : r + 1;
    u32 lanes = __ballot_sync(allLanes, place.rank == static_cast<i32>(r));
    // Others copy what they get once; rows that stay here are written straight away, unless layerCopyRows will.
    if (r != a.rank || a.localCombine != 0) lanes &= ~(lanes - 1);
    for (; lanes != 0; lanes &= lanes - 1) {
      const i32 row = __shfl_sync(allLanes, place.row, __ffs(lanes) - 1);
      warpStoreRow(output(a, r, a.rowsOffset) + static_cast<u64>(row) * a.rowBytes + at, stage, bytes);
    }
  }
  warpCommitStores();
}

__device__ void sendRows(const LayerDispatchArguments& a, u8* stage, u64* barrier) {
  const u32 step = gridDim.x * (blockDim.x / lanesPerWarp);
  const u32 firstToken = blockIdx.x + (threadIdx.x / lanesPerWarp) * gridDim.x;
  Place next = placeAt(a, firstToken);
  u32 phase = 0;
  for (u32 token = firstToken; token < a.tokens; token += step) {
    const Place place = next;
    const u8* source = static_cast<const u8*>(a.x) + static_cast<u64>(token) * a.rowBytes;
    for (u32 at = 0; at < a.rowBytes; at += a.stageBytes) {
      const u32 bytes = min(a.stageBytes, a.rowBytes - at);
      // The stores of the part before must have read the stage.
      warpWaitStoresRead<0>();
      warpLoadRow(stage, source + at, bytes, barrier);
      if (at == 0) {
        // Asked for one token ahead, while the row is on its way.
        next = placeAt(a, token + step);
        sendChoices(a, token, place);
      }
      warpWaitRow(barrier, phase & 1);
      ++phase;
      storePart(a, place, stage, at, bytes);
    }
  }
  warpWaitStoresWritten();
}

// The rows of a repeated token here, lane k that of choice k or -1; `index` counts the tokens.
__device__ __forceinline__ i32 duplicateAt(const LayerCopyArguments& a, u32 index, u32 count, u32 rows) {
  if (index >= count || laneIndex() >= a.topkColumns) return -1;
  const u32 first = static_cast<const u32*>(a.repeated)[index];
  // Only what an interrupted dispatch left can be out of range.
  if (first >= rows) return -1;
  const i32 row = static_cast<const i32*>(a.duplicates)[static_cast<u64>(first) * a.topkColumns + laneIndex()];
  return row >= 0 && static_cast<u32>(row) < rows ? row : -1;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(896, 1) layerDispatch(const __grid_constant__ LayerDispatchArguments a) {
  extern __shared__ __align__(128) u8 shared[];
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barrier = reinterpret_cast<u64*>(shared) + warp;
  if (laneIndex() == 0) warpRowBarrierInit(barrier);
  // A plan that failed moves nothing; every rank's has failed alike.
  if (static_cast<const LayerPlan*>(a.plan)->status != epStatusGood) return;
  __syncthreads();
  sendRows(a, shared + barrierBytes + static_cast<u64>(warp) * a.stageBytes, barrier);
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLayerDispatch, a.rank, a.timeoutNs};
  leaveTogether({a.peers, a.ranks, a.rank, a.closingEpoch, a.closingCall}, static_cast<u32*>(a.counter), scope);
}

// A warp per token that has several rows here and came once: its first row is read once and stored to the others.
extern "C" __global__ void __launch_bounds__(896, 1) layerCopyRows(const __grid_constant__ LayerCopyArguments a) {
  extern __shared__ __align__(128) u8 shared[];
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barrier = reinterpret_cast<u64*>(shared) + warp;
  u8* stage = shared + barrierBytes + static_cast<u64>(warp) * a.stageBytes;
  if (laneIndex() == 0) warpRowBarrierInit(barrier);
  const LayerPlan* plan = static_cast<const LayerPlan*>(a.plan);
  if (plan->status != epStatusGood) return;
  __syncthreads();
  // ORDER: peers wrote the rows before the barrier that ended the kernel before; the copy engine reads them now.
  fenceProxyAsync();
  const u32 count = plan->repeated;
  const u32 rows = plan->recvRows;
  const u32 step = gridDim.x * (blockDim.x / lanesPerWarp);
  const u32 firstIndex = blockIdx.x + warp * gridDim.x;
  i32 next = duplicateAt(a, firstIndex, count, rows);
  u32 phase = 0;
  for (u32 index = firstIndex; index < count; index += step) {
    const i32 row = next;
    const u32 lanes = __ballot_sync(allLanes, row >= 0);
    if (lanes == 0) {
      next = duplicateAt(a, index + step, count, rows);
      continue;
    }
    const i32 first = __shfl_sync(allLanes, row, __ffs(lanes) - 1);
    u8* base = static_cast<u8*>(a.rows);
    for (u32 at = 0; at < a.rowBytes; at += a.stageBytes) {
      const u32 bytes = min(a.stageBytes, a.rowBytes - at);
      warpWaitStoresRead<0>();
      warpLoadRow(stage, base + static_cast<u64>(first) * a.rowBytes + at, bytes, barrier);
      // Asked for one token ahead, while the row is on its way.
      if (at == 0) next = duplicateAt(a, index + step, count, rows);
      warpWaitRow(barrier, phase & 1);
      ++phase;
      for (u32 others = lanes & (lanes - 1); others != 0; others &= others - 1) {
        const i32 other = __shfl_sync(allLanes, row, __ffs(others) - 1);
        warpStoreRow(base + static_cast<u64>(other) * a.rowBytes + at, stage, bytes);
      }
      warpCommitStores();
    }
  }
  warpWaitStoresWritten();
}
