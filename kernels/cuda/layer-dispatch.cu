// The layer's dispatch: each row travels once to every rank that needs it; the ranks copy it to its other experts there.
//
// Some blocks send, a warp per token. The bulk copy engine brings its row into shared memory and stores it to the row of
// the token's first choice at each rank; lane k writes what belongs to choice k meanwhile. Memory is several times as fast
// as the links, so the other blocks copy, meanwhile, the rows of tokens that came once and have several experts here: a
// source says of each section of its tokens when it has gone. Blocks that have sent everything help to copy.
#include "weftline/abi.cuh"
#include "weftline/copy/bulk-copy.cuh"
#include "weftline/ep/choice-places.cuh"
#include "weftline/ep/network-choices.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 barrierBytes = 1024;
constexpr u32 allLanes = 0xffffffffu;
constexpr bool hosts = WEFTLINE_HOSTS != 0;

__device__ void sendChoices(const LayerDispatchArguments& a, u32 token, const ChoicePlace& place) {
  const u32 lane = laneIndex();
  const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
  if (lane < a.topkColumns) static_cast<i32*>(a.rowTable)[cell] = place.row;
  sendWeight(a, place, static_cast<const u8*>(a.weights) + cell * a.weightBytes);
  sendLists(a, place);
}

// The part of a row in `stage` to its places. Beginning with the next rank spreads the load over the links.
__device__ __forceinline__ void storePart(const LayerDispatchArguments& a, const ChoicePlace& place, const u8* stage, u32 at,
                                          u32 bytes) {
  for (u32 step = 1, r = a.rank; step <= a.ranks; ++step) {
    r = r + 1 == a.ranks ? 0 : r + 1;
    u32 lanes = __ballot_sync(allLanes, place.rank == static_cast<i32>(r));
    // Others copy what they get once; rows that stay here are written straight away, and so are all where nobody copies.
    if (r != a.rank && a.copies != 0) lanes &= ~(lanes - 1);
    for (; lanes != 0; lanes &= lanes - 1) {
      const i32 row = __shfl_sync(allLanes, place.row, __ffs(lanes) - 1);
      warpStoreRow(outputAt(a, r, a.rowsOffset) + static_cast<u64>(row) * a.rowBytes + at, stage, bytes);
    }
  }
  warpCommitStores();
}

// Sections are tiles, whose counts say how many repeated tokens stand before. The last sections may be empty.
__device__ __forceinline__ u32 tilesBefore(const LayerDispatchArguments& a, u32 section) {
  const u32 tileTokens = a.tileWords * 32;
  const u32 tiles = (a.tokens + tileTokens - 1) / tileTokens;
  const u32 each = (tiles + layerSections - 1) / layerSections;
  return min(section * each, tiles);
}

__device__ __forceinline__ u64* sectionWord(const LayerDispatchArguments& a, u32 owner, u32 source, u32 section) {
  u64* words = reinterpret_cast<u64*>(static_cast<u8*>(a.peers[owner]) + a.sectionOffset);
  return words + source * layerSections + section;
}

__device__ __forceinline__ u64 numberOf(const LayerDispatchArguments& a) {
  return static_cast<const LayerPlan*>(a.plan)->sequence;
}

// Every warp that sends calls this, when its tokens of the section have gone: the last one tells all ranks.
__device__ void endSection(const LayerDispatchArguments& a, u32 section) {
  warpWaitStoresWritten();
  u32 last = 0;
  if (laneIndex() == 0) {
    u32* arrived = static_cast<u32*>(a.counter) + 2 + section;
    // ORDER: all of this warp's writes, then the count; the last warp's release publishes those of all.
    fenceSystem();
    last = fetchAddAcquireReleaseGpu(arrived, 1) == a.sendBlocks * (blockDim.x / lanesPerWarp) - 1;
    if (last != 0) *arrived = 0;
  }
  last = __shfl_sync(allLanes, last, 0);
  __syncwarp();
  if (last == 0 || laneIndex() >= a.ranks) return;
  const u64 cell = static_cast<u64>(tilesBefore(a, section + 1)) * binsOf<hosts>(a) + groupRankOf<hosts>(a, laneIndex());
  const u64 repeated = static_cast<const u32*>(a.tileCounts)[cell];
  storeReleaseSystem(sectionWord(a, laneIndex(), a.rank, section), repeated << 32 | numberOf(a));
}

// `phase` counts what the warp's barrier has seen.
__device__ void sendRows(const LayerDispatchArguments& a, u8* stage, u64* barrier, u32& phase) {
  const u32 step = a.sendBlocks * (blockDim.x / lanesPerWarp);
  u32 token = blockIdx.x + threadIdx.x / lanesPerWarp * a.sendBlocks;
  ChoicePlace next = placeAt<hosts>(a, token);
  for (u32 section = 0; section < layerSections; ++section) {
    const u32 end = min(tilesBefore(a, section + 1) * a.tileWords * 32, a.tokens);
    for (; token < end; token += step) {
      const ChoicePlace place = next;
      const u8* source = static_cast<const u8*>(a.x) + static_cast<u64>(token) * a.rowBytes;
      for (u32 at = 0; at < a.rowBytes; at += a.stageBytes) {
        const u32 bytes = min(a.stageBytes, a.rowBytes - at);
        // The stores of the part before must have read the stage.
        warpWaitStoresRead<0>();
        warpLoadRow(stage, source + at, bytes, barrier);
        if (at == 0) {
          // Asked for one token ahead, while the row is on its way.
          next = placeAt<hosts>(a, token + step);
          sendChoices(a, token, place);
        }
        warpWaitRow(barrier, phase & 1);
        ++phase;
        storePart(a, place, stage, at, bytes);
      }
    }
    endSection(a, section);
  }
}

// The rows of a repeated token here, lane k that of choice k or -1; peers wrote them during this kernel.
__device__ __forceinline__ i32 duplicateAt(const LayerDispatchArguments& a, u32 index, u32 rows) {
  if (laneIndex() >= a.topkColumns) return -1;
  const u32 first = reinterpret_cast<const volatile u32*>(outputAt(a, a.rank, a.repeatedOffset))[index];
  if (first >= rows) return -1;
  const volatile i32* duplicates = reinterpret_cast<const volatile i32*>(outputAt(a, a.rank, a.duplicatesOffset));
  const i32 row = duplicates[static_cast<u64>(first) * a.topkColumns + laneIndex()];
  return row >= 0 && static_cast<u32>(row) < rows ? row : -1;
}

// The token's first row here is read once and stored to its others.
__device__ void copyToken(const LayerDispatchArguments& a, i32 row, u8* stage, u64* barrier, u32& phase) {
  const u32 lanes = __ballot_sync(allLanes, row >= 0);
  if (lanes == 0) return;
  u8* rows = outputAt(a, a.rank, a.rowsOffset);
  const u8* first = rows + static_cast<u64>(__shfl_sync(allLanes, row, __ffs(lanes) - 1)) * a.rowBytes;
  for (u32 at = 0; at < a.rowBytes; at += a.stageBytes) {
    const u32 bytes = min(a.stageBytes, a.rowBytes - at);
    warpWaitStoresRead<0>();
    warpLoadRow(stage, first + at, bytes, barrier);
    warpWaitRow(barrier, phase & 1);
    ++phase;
    for (u32 others = lanes & (lanes - 1); others != 0; others &= others - 1) {
      const i32 other = __shfl_sync(allLanes, row, __ffs(others) - 1);
      warpStoreRow(rows + static_cast<u64>(other) * a.rowBytes + at, stage, bytes);
    }
    warpCommitStores();
  }
}

// Lane s takes the next of source s's repeated tokens, of which every warp of this GPU takes some.
__device__ __forceinline__ u32 takeToken(const LayerDispatchArguments& a) {
  u32* taken = static_cast<u32*>(a.counter) + 2 + layerSections;
  return laneIndex() < a.ranks && laneIndex() != a.rank ? atomicAdd(&taken[laneIndex()], 1u) : 0;
}

// False when a source's section did not come in time.
__device__ bool copyRows(const LayerDispatchArguments& a, u8* stage, u64* barrier, u32& phase,
                         const WaitScope& scope) {
  const LayerPlan* plan = static_cast<const LayerPlan*>(a.plan);
  const u32 first = laneIndex() < a.ranks ? plan->repeatedFirst[groupRankOf<hosts>(a, laneIndex())] : 0;
  u32* taken = static_cast<u32*>(a.counter) + 2 + layerSections;
  const u32 sequence = plan->sequence;
  // Lane s: the token of source s that this warp will copy next, kept until its section has come.
  u32 mine = takeToken(a);
  for (u32 section = 0; section < layerSections; ++section) {
    // This rank has written its own rows itself.
    for (u32 source = (a.rank + 1) % a.ranks; source != a.rank; source = (source + 1) % a.ranks) {
      const u64* cell = sectionWord(a, a.rank, source, section);
      u64 word = 0;
      const bool came =
          laneIndex() != 0 || waitForEpoch(cell, sequence, &word, scope, {groupRankOf<hosts>(a, source), a.closingCall});
      if (!__all_sync(allLanes, came)) {
        // The copy engine may still read this block's shared memory, which is another block's once this one leaves.
        warpWaitStoresWritten();
        return false;
      }
      __syncwarp();
      const u32 end = __shfl_sync(allLanes, static_cast<u32>(word >> 32), 0);
      // ORDER: the source wrote rows before it said so; the copy engine reads them after.
      fenceProxyAsync();
      const u32 start = __shfl_sync(allLanes, first, source);
      for (u32 token = __shfl_sync(allLanes, mine, source); token < end;
           token = __shfl_sync(allLanes, mine, source)) {
        // The next one is asked for while this one is copied.
        if (laneIndex() == source) mine = atomicAdd(&taken[source], 1u);
        copyToken(a, duplicateAt(a, start + token, plan->recvRows), stage, barrier, phase);
      }
    }
  }
  warpWaitStoresWritten();
  return true;
}

// All blocks call this: marks the rows beyond the received ones, which only the result of a bounded dispatch has.
__device__ void fillTail(const LayerDispatchArguments& a) {
  const u32 first = static_cast<const LayerPlan*>(a.plan)->recvRows;
  const u32 step = gridDim.x * blockDim.x;
  for (u32 row = first + blockIdx.x * blockDim.x + threadIdx.x; row < a.rowBound; row += step) {
    reinterpret_cast<i32*>(outputAt(a, a.rank, a.firstRowOffset))[row] = -1;
    u8* weights = outputAt(a, a.rank, a.weightsOffset);
    if (a.weightBytes == 4) reinterpret_cast<u32*>(weights)[row] = 0;
    else if (a.weightBytes == 2) reinterpret_cast<u16*>(weights)[row] = 0;
    i32* duplicates = reinterpret_cast<i32*>(outputAt(a, a.rank, a.duplicatesOffset)) + static_cast<u64>(row) * a.topkColumns;
    for (u32 j = 0; j < a.topkColumns; ++j) duplicates[j] = -1;
  }
}

__device__ bool leave(const LayerDispatchArguments& a, const WaitScope& scope) {
  const u32* names = hosts ? networkOf(a).localRanks : nullptr;
  const RankBarrier closing = {a.peers, a.ranks, a.rank, firstEpoch(a.closingEpoch, a.lastEpoch), a.closingCall, names};
  return leaveTogether(closing, static_cast<u32*>(a.counter), a.lastEpoch, scope);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(hosts ? 512 : 896, 1)
    layerDispatch(const __grid_constant__ LayerDispatchArguments a) {
  WEFTLINE_TRACE_KERNEL();
  extern __shared__ __align__(128) u8 shared[];
  if (hasLeftEarly(a.lastEpoch)) return;
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barrier = reinterpret_cast<u64*>(shared) + warp;
  if (laneIndex() == 0) warpRowBarrierInit(barrier);
  // A plan that failed moves nothing; every rank's has failed alike. If no host waits for that, the ranks meet as they always do.
  const u32 status = static_cast<const LayerPlan*>(a.plan)->status;
  const bool moves = status == epStatusGood;
  if (!moves && (a.rowBound == 0 || !isJudged(status))) return;
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLayerDispatch, a.groupRank, a.timeoutNs, sharedWaits()};
  __syncthreads();
  u8* stage = shared + barrierBytes + static_cast<u64>(warp) * a.stageBytes;
  u32 phase = 0;
  if (!moves) {
    leave(a, scope);
    return;
  }
  if (a.rowBound != 0) fillTail(a);
  if constexpr (hosts) {
    WEFTLINE_TRACE_BEGIN("ep.dispatch.queue");
    const bool isPacked = packChoices(a, scope);
    WEFTLINE_TRACE_END("ep.dispatch.queue");
    if (!__syncthreads_and(isPacked)) return noteFailure(a.lastEpoch);
  }
  WEFTLINE_TRACE_BEGIN("layer.dispatch.rows");
  if (blockIdx.x < a.sendBlocks) sendRows(a, stage, barrier, phase);
  WEFTLINE_TRACE_END("layer.dispatch.rows");
  WEFTLINE_TRACE_BEGIN("layer.dispatch.duplicates");
  const bool good = a.copies == 0 || copyRows(a, stage, barrier, phase, scope);
  WEFTLINE_TRACE_END("layer.dispatch.duplicates");
  if (__syncthreads_or(!good)) return noteFailure(a.lastEpoch);
  if constexpr (hosts) {
    WEFTLINE_TRACE_BEGIN("ep.dispatch.forward");
    const bool isForwarded = forwardChoices(a, scope);
    WEFTLINE_TRACE_END("ep.dispatch.forward");
    if (!isForwarded) return noteFailure(a.lastEpoch);
  }
  WEFTLINE_TRACE_BEGIN("layer.closing");
  const bool arrived = leave(a, scope);
  WEFTLINE_TRACE_END("layer.closing");
  if constexpr (hosts) {
    if (arrived && threadIdx.x == 0) takeRows(networkOf(a), servedRowsOf(a));
  }
}
