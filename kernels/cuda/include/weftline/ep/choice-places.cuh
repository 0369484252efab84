// Places of the choices of a token in a layer's dispatch, and what goes with its rows: lists by which the ranks that hold several
// of them know which belong together.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/ep/exchange-record.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Lane k: of the token's choice k, its rank or -1 and its row there. Lane r: number of the token's list at rank r, or -1. Ranks by
// index on the host that the rows go to.
struct ChoicePlace {
  i32 rank;
  i32 row;
  i32 repeat;
};

// Memory of a rank of this host, by index.
__device__ __forceinline__ u8* outputAt(const LayerDispatchArguments& a, u32 index, u64 offset) {
  return static_cast<u8*>(a.outputs[index]) + offset;
}

__device__ __forceinline__ const EpNetwork& networkOf(const LayerDispatchArguments& a) {
  return *static_cast<const EpNetwork*>(a.network);
}

// A rank of this host by index: its rank in the group.
template <bool hosts>
__device__ __forceinline__ u32 groupRankOf(const LayerDispatchArguments& a, u32 index) {
  if constexpr (hosts) return networkOf(a).localRanks[index];
  else return index;
}

// A rank of the group: its index on this host, -1 if it is on another.
template <bool hosts>
__device__ __forceinline__ i32 localIndexOf(const LayerDispatchArguments& a, i32 rank) {
  if constexpr (!hosts) return rank;
  const EpNetwork& network = networkOf(a);
  return rank >= 0 && network.hostOf[rank] == network.host ? static_cast<i32>(network.localIndexOf[rank]) : -1;
}

template <bool hosts>
__device__ __forceinline__ u32 binsOf(const LayerDispatchArguments& a) {
  return a.groupRanks + a.experts + (hosts ? a.ways : 0);
}

// What came before the tile of a token, by bin.
template <bool hosts>
__device__ __forceinline__ const u32* countsBefore(const LayerDispatchArguments& a, u32 token) {
  return static_cast<const u32*>(a.tileCounts) + static_cast<u64>(token / (a.tileWords * 32)) * binsOf<hosts>(a);
}

// Lane k: the row of choice k, at whatever rank of the group it is; -1 for none.
template <bool hosts>
__device__ __forceinline__ i32 choiceRow(const LayerDispatchArguments& a, u32 token, i32 rank) {
  const u64 cell = static_cast<u64>(token) * a.topkColumns + laneIndex();
  const i32 row = static_cast<const i32*>(a.rowTable)[cell];
  if (rank < 0 || a.placed != 0) return row;
  const u32 bin = a.groupRanks + static_cast<u32>(integerAt(a.topk, a.indexBytes, cell));
  return row + static_cast<i32>(static_cast<const u32*>(a.firstRows)[bin] + countsBefore<hosts>(a, token)[bin]);
}

// The number of the token's list at a rank of the group, or -1.
template <bool hosts>
__device__ __forceinline__ i32 repeatNumber(const LayerDispatchArguments& a, u32 token, u32 rank) {
  const i32 repeat = static_cast<const i32*>(a.repeatTable)[static_cast<u64>(token) * a.groupRanks + rank];
  if (repeat < 0) return -1;
  return repeat + static_cast<i32>(static_cast<const u32*>(a.firstRows)[rank] + countsBefore<hosts>(a, token)[rank]);
}

// Places on this host.
template <bool hosts>
__device__ __forceinline__ ChoicePlace placeAt(const LayerDispatchArguments& a, u32 token) {
  ChoicePlace place = {-1, -1, -1};
  if (token >= a.tokens) return place;
  const u32 lane = laneIndex();
  if (lane < a.topkColumns) {
    const i32 rank = static_cast<const i32*>(a.rankTable)[static_cast<u64>(token) * a.topkColumns + lane];
    place.row = choiceRow<hosts>(a, token, rank);
    place.rank = localIndexOf<hosts>(a, rank);
  }
  if (lane < a.ranks) place.repeat = repeatNumber<hosts>(a, token, groupRankOf<hosts>(a, lane));
  return place;
}

// At every rank that the token goes to: the rows of its choices there, by the first of them, lane k writing column k.
__device__ __forceinline__ void sendLists(const LayerDispatchArguments& a, const ChoicePlace& place) {
  const u32 lane = laneIndex();
  for (u32 r = 0; r < a.ranks; ++r) {
    const i32 repeat = __shfl_sync(0xffffffffu, place.repeat, r);
    const u32 lanes = __ballot_sync(0xffffffffu, place.rank == static_cast<i32>(r));
    if (lanes == 0) continue;
    const i32 first = __shfl_sync(0xffffffffu, place.row, __ffs(lanes) - 1);
    i32* duplicates = reinterpret_cast<i32*>(outputAt(a, r, a.duplicatesOffset));
    const bool here = (lanes >> lane) & 1;
    if (lane < a.topkColumns) duplicates[static_cast<u64>(first) * a.topkColumns + lane] = here ? place.row : -1;
    if (repeat >= 0 && lane == 0) reinterpret_cast<i32*>(outputAt(a, r, a.repeatedOffset))[repeat] = first;
    if (here) reinterpret_cast<i32*>(outputAt(a, r, a.firstRowOffset))[place.row] = first;
    for (u32 others = lanes & (lanes - 1); others != 0; others &= others - 1) {
      const i32 row = __shfl_sync(0xffffffffu, place.row, __ffs(others) - 1);
      if (lane < a.topkColumns) duplicates[static_cast<u64>(row) * a.topkColumns + lane] = -1;
    }
  }
}

// Lane k: the weight of choice k, `from` in any memory, beside its row.
__device__ __forceinline__ void sendWeight(const LayerDispatchArguments& a, const ChoicePlace& place, const void* from) {
  if (place.rank < 0 || a.weightBytes == 0) return;
  u8* weights = outputAt(a, static_cast<u32>(place.rank), a.weightsOffset);
  if (a.weightBytes == 4) reinterpret_cast<u32*>(weights)[place.row] = __ldcg(static_cast<const u32*>(from));
  else reinterpret_cast<u16*>(weights)[place.row] = __ldcg(static_cast<const u16*>(from));
}

}  // namespace weftline
