// The layer's combine: each rank pulls the rows of its tokens from their experts' ranks and sums them in the order of the
// token's choices. With local combine every rank first sums the rows that it holds of one token, so that one travels.
#include "weftline/abi.cuh"
#include "weftline/copy/stage-pair.cuh"
#include "weftline/ep/gather-sum.cuh"
#include "weftline/ep/network-choice-sums.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

// The dtype of the tokens.
using Element = ElementOf<WEFTLINE_ELEMENT>;

constexpr bool hosts = WEFTLINE_HOSTS != 0;
constexpr u32 barrierBytes = 1024;
constexpr u32 allLanes = 0xffffffffu;

// Sums on one host. An item is a token of this rank; lane k has to do with its choice k.
struct ChoiceRows {
  struct Place {
    i32 rank;
    i32 row;
  };

  const LayerCombineArguments& a;

  __device__ __forceinline__ Place placeAt(u32 token) const {
    if (laneIndex() >= a.topkColumns || token >= a.tokens) return {-1, -1};
    const u64 cell = static_cast<u64>(token) * a.topkColumns + laneIndex();
    return {static_cast<const i32*>(a.rankTable)[cell], static_cast<const i32*>(a.rowTable)[cell]};
  }

  __device__ __forceinline__ const u8* rowAt(const Place& place) const {
    // Behind a dispatch that failed the numbers are not rows yet.
    bool mine = place.rank >= 0 && static_cast<u32>(place.row) < a.capacityRows;
    if (a.onePerRank != 0) {
      const u32 lanes = __match_any_sync(allLanes, place.rank);
      mine = mine && (lanes & ((1u << laneIndex()) - 1)) == 0;
    }
    if (!mine) return nullptr;
    const u8* rows = static_cast<const u8*>(a.outputs[place.rank]) + a.rowsOffset;
    return rows + static_cast<u64>(place.row) * a.rowBytes;
  }

  __device__ __forceinline__ u8* outAt(u32 token, const u8*) const {
    return static_cast<u8*>(a.out) + static_cast<u64>(token) * a.rowBytes;
  }

  __device__ __forceinline__ void begin(u32) const {}
};

// An item is a token that has several rows here; their sum replaces the first.
struct RepeatedRows {
  using Place = i32;

  const LayerSumArguments& a;
  // Repeated tokens, received rows.
  u32 count;
  u32 rows;

  __device__ __forceinline__ Place placeAt(u32 index) const {
    if (laneIndex() >= a.topkColumns || index >= count) return -1;
    const u64 first = static_cast<const u32*>(a.repeated)[index];
    // Only what an interrupted dispatch left can be out of range.
    if (first >= rows) return -1;
    const i32 row = static_cast<const i32*>(a.duplicates)[first * a.topkColumns + laneIndex()];
    return row >= 0 && static_cast<u32>(row) < rows ? row : -1;
  }

  __device__ __forceinline__ const u8* rowAt(Place row) const {
    return row < 0 ? nullptr : static_cast<const u8*>(a.rows) + static_cast<u64>(row) * a.rowBytes;
  }

  __device__ __forceinline__ u8* outAt(u32, const u8* row) const {
    const u32 lanes = __ballot_sync(allLanes, row != nullptr);
    const u64 first = __shfl_sync(allLanes, reinterpret_cast<u64>(row), lanes == 0 ? 0 : __ffs(lanes) - 1);
    return reinterpret_cast<u8*>(first);
  }

  __device__ __forceinline__ void begin(u32) const {}
};

// False when the block must leave.
__device__ __forceinline__ bool combineOnHost(const LayerCombineArguments& a, u8* memory, const RankBarrier& opening,
                                              const WaitScope& scope) {
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barriers = makeStageBarriers(memory);
  if (!enterTogether(opening, scope)) return false;
  // ORDER: peers wrote their rows before they arrived; the copy engine reads them after.
  fenceProxyAsync();
  const GatherShape shape = {a.tokens, a.rowBytes, a.stageBytes, a.partBytes};
  WEFTLINE_TRACE_BEGIN("layer.combine.rows");
  gatherSums<Element>(shape, ChoiceRows{a}, memory + barrierBytes + warp * gatherBytes(shape), barriers);
  WEFTLINE_TRACE_END("layer.combine.rows");
  return true;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(512, 1) layerSumRepeated(const __grid_constant__ LayerSumArguments a) {
  WEFTLINE_TRACE_KERNEL();
  extern __shared__ __align__(128) u8 shared[];
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barriers = makeStageBarriers(shared);
  __syncthreads();
  // How many a bounded dispatch has brought is known here alone.
  const LayerPlan* plan = static_cast<const LayerPlan*>(a.plan);
  const u32 count = plan == nullptr ? a.count : min(plan->repeated, a.count);
  const u32 rows = plan == nullptr ? a.recvRows : min(plan->recvRows, a.recvRows);
  const GatherShape shape = {count, a.rowBytes, a.stageBytes, a.partBytes};
  u8* memory = shared + barrierBytes + warp * gatherBytes(shape);
  WEFTLINE_TRACE_BEGIN("layer.combine.duplicates");
  gatherSums<Element>(shape, RepeatedRows{a, count, rows}, memory, barriers);
  WEFTLINE_TRACE_END("layer.combine.duplicates");
}

extern "C" __global__ void __launch_bounds__(512, 1) layerCombine(const __grid_constant__ LayerCombineArguments a) {
  WEFTLINE_TRACE_KERNEL();
  extern __shared__ __align__(128) u8 shared[];
  if (hasLeftEarly(a.lastEpoch)) return;
  const u32 rank = hosts ? networkOf(a).rank : a.rank;
  const u32* names = hosts ? networkOf(a).localRanks : nullptr;
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLayerCombine, rank, a.timeoutNs, sharedWaits()};
  const u32 epoch = firstEpoch(a.openingEpoch, a.lastEpoch);
  const RankBarrier opening = {a.peers, a.ranks, a.rank, epoch, a.openingCall, names};
  bool isSummed;
  if constexpr (hosts) isSummed = combineAcrossHosts<Element>(a, opening, scope);
  else isSummed = combineOnHost(a, shared, opening, scope);
  if (!isSummed) return noteFailure(a.lastEpoch);
  WEFTLINE_TRACE_BEGIN("layer.closing");
  const RankBarrier closing = {a.peers, a.ranks, a.rank, numberAfter(epoch), a.closingCall, names};
  const bool arrived = leaveTogether(closing, static_cast<u32*>(a.counter), a.lastEpoch, scope);
  WEFTLINE_TRACE_END("layer.closing");
  if constexpr (hosts) {
    const u32* sent = static_cast<const LayerRoute*>(a.route)->sentTokens;
    if (!arrived || threadIdx.x != 0) return;
    countNetworkCall(networkOf(a));
    takeSums(networkOf(a), {sent, sumStrideOf<Element>(a)});
  }
}
