// A layer's combine across hosts: a rank sums its host's rows of the tokens that came through it, in f32 in the order of their
// choices, and sends one row per token back; the source adds hosts in their order: of its own host the choices' rows one by one,
// of another host its one row.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/ep/network-chunks.cuh"
#include "weftline/ep/network-meeting.cuh"
#include "weftline/ep/row-sum.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

namespace weftline {

__device__ __forceinline__ const EpNetwork& networkOf(const LayerCombineArguments& a) {
  return *static_cast<const EpNetwork*>(a.network);
}

// Bytes of a sum on the network.
template <class Element>
__device__ __forceinline__ u32 sumStrideOf(const LayerCombineArguments& a) {
  return networkOf(a).isWide != 0 ? a.rowBytes * RowSum<Element>::widening : a.rowBytes;
}

// Lane k: the row of choice k at the rank of this host with that index, or null. With local combine a rank's first row is the sum
// of its rows.
__device__ __forceinline__ const u8* choiceRowAt(const LayerCombineArguments& a, i32 rank, i32 row) {
  bool mine = rank >= 0;
  if (a.onePerRank != 0) {
    const u32 lanes = __match_any_sync(0xffffffffu, rank);
    mine = mine && (lanes & ((1u << laneIndex()) - 1)) == 0;
  }
  if (!mine) return nullptr;
  return static_cast<const u8*>(a.outputs[rank]) + a.rowsOffset + static_cast<u64>(row) * a.rowBytes;
}

// Adds the rows that lanes have, in their order.
template <class Element>
__device__ __forceinline__ void addRows(RowSum<Element>& sum, const u8* row) {
  for (u32 rest = __ballot_sync(0xffffffffu, row != nullptr); rest != 0; rest &= rest - 1) {
    sum.add(reinterpret_cast<const u8*>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(row), __ffs(rest) - 1)));
  }
}

template <class Element>
__device__ __forceinline__ void sumChoices(const LayerCombineArguments& a, const EpNetwork& network, u32 slot, u32 index,
                                           u32 stride) {
  using Sum = RowSum<Element>;
  i32 rank = -1;
  i32 row = -1;
  if (laneIndex() < a.topkColumns) {
    const u64 cell = (static_cast<u64>(slot) * network.maxTokens + index) * a.topkColumns + laneIndex();
    rank = static_cast<const i32*>(a.forwardRanks)[cell];
    row = static_cast<const i32*>(a.forwardRows)[cell];
    if (!hasChoiceRow(a, rank, row)) rank = -1;
  }
  const u8* mine = choiceRowAt(a, rank, row);
  u8* out = inSlot(network, slot) + static_cast<u64>(index) * stride;
  for (u32 begin = 0; begin < a.rowBytes; begin += Sum::depth * Sum::partBytes) {
    Sum sum(begin, a.rowBytes);
    addRows(sum, mine);
    if (network.isWide != 0) sum.storeWide(out);
    else sum.store(out);
  }
}

// This rank's tokens, for addUpTokens().
template <class Element>
struct OwnChoices {
  const LayerCombineArguments& a;

  __device__ __forceinline__ i32 wayPlaceAt(u32 token, u32 way) const {
    return static_cast<const i32*>(a.wayTable)[static_cast<u64>(token) * networkOf(a).ways + way];
  }

  __device__ __forceinline__ void addUp(u32 token) const {
    using Sum = RowSum<Element>;
    const EpNetwork& network = networkOf(a);
    i32 rank = -1;
    i32 row = -1;
    if (laneIndex() < a.topkColumns) {
      const u64 cell = static_cast<u64>(token) * a.topkColumns + laneIndex();
      rank = static_cast<const i32*>(a.rankTable)[cell];
      row = static_cast<const i32*>(a.rowTable)[cell];
      if (rank >= 0) rank = network.hostOf[rank] == network.host ? static_cast<i32>(network.localIndexOf[rank]) : -1;
    }
    const u8* mine = choiceRowAt(a, rank, row);
    const i32 place = laneIndex() < network.ways ? wayPlaceAt(token, laneIndex()) : -1;
    const u64 far = place < 0 ? 0 : reinterpret_cast<u64>(outSlot(network, laneIndex())) + static_cast<u64>(place) * sumStrideOf<Element>(a);
    u8* out = static_cast<u8*>(a.out) + static_cast<u64>(token) * a.rowBytes;
    for (u32 begin = 0; begin < a.rowBytes; begin += Sum::depth * Sum::partBytes) {
      Sum sum(begin, a.rowBytes);
      for (u32 host = 0; host < network.hosts; ++host) {
        if (host == network.host) {
          addRows(sum, mine);
          continue;
        }
        const u32 way = (host + network.hosts - network.host - 1) % network.hosts;
        const u8* sumThere = reinterpret_cast<const u8*>(__shfl_sync(0xffffffffu, far, way));
        if (sumThere == nullptr) continue;
        if (network.isWide != 0) sum.addWide(sumThere);
        else sum.add(sumThere);
      }
      sum.store(out);
    }
  }
};

// All blocks call this: everything between the beginning of the call and the closing barrier. False when the block must leave.
template <class Element>
__device__ __forceinline__ bool combineAcrossHosts(const LayerCombineArguments& a, const RankBarrier& opening,
                                                   const WaitScope& scope) {
  __shared__ u32 needed[epMaxWays];
  const EpNetwork& network = networkOf(a);
  const LayerRoute& route = *static_cast<const LayerRoute*>(a.route);
  const u32 stride = sumStrideOf<Element>(a);
  const NetworkCall call = nextNetworkCall(network, a.openingCall);
  // What this block's waits share is ready for all its threads.
  __syncthreads();
  if (blockIdx.x == 0 && !sendHeader(network, call, scope)) return false;
  if (!enterTogether(opening, scope)) return false;
  // A source that has begun this call has taken the sums of the call before, which lie where those of this one will.
  if (!awaitSources(network, call, scope)) return false;
  WEFTLINE_TRACE_BEGIN("ep.combine.host-sums");
  const bool isSent = sendSums(network, {route.servedTokens, stride}, scope, a.openingCall, [&](u32 slot, u32 index) {
    sumChoices<Element>(a, network, slot, index, stride);
  });
  WEFTLINE_TRACE_END("ep.combine.host-sums");
  if (!__syncthreads_and(isSent)) return false;
  WEFTLINE_TRACE_BEGIN("ep.combine.own-sums");
  const bool isSummed = addUpTokens(network, {route.sentTokens, stride}, a.tokens, needed, scope, a.openingCall, OwnChoices<Element>{a});
  WEFTLINE_TRACE_END("ep.combine.own-sums");
  return isSummed;
}

}  // namespace weftline
