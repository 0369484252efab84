// The rows of a layer's dispatch that cross hosts. A token goes to each other host once, as a record; the forwarder there writes
// its row to all its experts.
//
// A record: row | by choice its row there, -1 for none | by choice the index of its rank there | by rank there the number of the
// token's list | weights.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/ep/choice-places.cuh"
#include "weftline/ep/network-chunks.cuh"
#include "weftline/ep/network-copy.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Offsets in a record for a host with so many ranks.
struct ChoiceRecord {
  u32 rowsAt;
  u32 ranksAt;
  u32 repeatsAt;
  u32 weightsAt;
  u32 stride;

  __device__ __forceinline__ ChoiceRecord(const LayerDispatchArguments& a, u32 ranks)
      : rowsAt(a.rowBytes),
        ranksAt(rowsAt + a.topkColumns * 4),
        repeatsAt(ranksAt + a.topkColumns * 4),
        weightsAt(repeatsAt + ranks * 4),
        stride((weightsAt + a.topkColumns * a.weightBytes + 15) & ~15u) {}
};

__device__ __forceinline__ ServedRows servedRowsOf(const LayerDispatchArguments& a) {
  return {static_cast<const LayerRoute*>(a.route)->servedTokens, ChoiceRecord(a, a.ranks).stride};
}

// The way to the host of a rank of the group; `network.ways` for this host.
__device__ __forceinline__ u32 wayOfRank(const EpNetwork& network, u32 rank) {
  return (network.hostOf[rank] + network.hosts - network.host - 1) % network.hosts;
}

// Lane w: the token's place among what goes way w, -1 for none; it then stands in the table for combine.
__device__ __forceinline__ i32 placeOnWay(const LayerDispatchArguments& a, u32 token) {
  if (laneIndex() >= a.ways) return -1;
  i32* cell = static_cast<i32*>(a.wayTable) + static_cast<u64>(token) * a.ways + laneIndex();
  if (*cell < 0) return -1;
  *cell += static_cast<i32>(countsBefore<true>(a, token)[a.groupRanks + a.experts + laneIndex()]);
  return *cell;
}

// What one lane knows of a token: choice k of it, and its list at rank r of the group.
struct PackedChoice {
  u32 way;
  i32 index;
  i32 row;
  i32 repeat;
};

__device__ __forceinline__ void packChoice(const LayerDispatchArguments& a, const EpNetwork& network, u8* record, u32 token,
                                           u32 way, const PackedChoice& mine) {
  const u32 lane = laneIndex();
  const ChoiceRecord shape(a, network.wayRanks[way]);
  if (lane < a.topkColumns) {
    const bool there = mine.way == way;
    const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
    reinterpret_cast<i32*>(record + shape.rowsAt)[lane] = there ? mine.row : -1;
    reinterpret_cast<i32*>(record + shape.ranksAt)[lane] = there ? mine.index : -1;
    if (a.weightBytes == 4) reinterpret_cast<u32*>(record + shape.weightsAt)[lane] = static_cast<const u32*>(a.weights)[cell];
    if (a.weightBytes == 2) reinterpret_cast<u16*>(record + shape.weightsAt)[lane] = static_cast<const u16*>(a.weights)[cell];
  }
  if (lane < a.groupRanks && wayOfRank(network, lane) == way) {
    reinterpret_cast<i32*>(record + shape.repeatsAt)[network.localIndexOf[lane]] = mine.repeat;
  }
}

// The blocks that send call this: this rank's tokens that go to other hosts. A token is packed by the warp that then sends it within the
// host, for that replaces the numbers in the tables. False for a lane when its queue stayed full: the block must leave.
__device__ __forceinline__ bool packChoices(const LayerDispatchArguments& a, const WaitScope& scope) {
  if (blockIdx.x >= a.sendBlocks) return true;
  const EpNetwork& network = networkOf(a);
  const u32 lane = laneIndex();
  const bool isWay = lane < a.ways;
  const u32 stride = isWay ? ChoiceRecord(a, network.wayRanks[lane]).stride : 16;
  const Chunks chunks(network, isWay ? static_cast<const LayerRoute*>(a.route)->sentTokens[lane] : 0, stride);
  const ChunkTarget target = targetOfWay(network, lane);
  const u32 step = a.sendBlocks * (blockDim.x / lanesPerWarp);
  bool isPushed = true;
  for (u32 token = blockIdx.x + threadIdx.x / lanesPerWarp * a.sendBlocks; token < a.tokens; token += step) {
    const i32 place = placeOnWay(a, token);
    const u32 holders = __ballot_sync(0xffffffffu, place >= 0);
    if (holders == 0) continue;
    PackedChoice mine = {a.ways, -1, -1, -1};
    if (lane < a.topkColumns) {
      const i32 rank = static_cast<const i32*>(a.rankTable)[static_cast<u64>(token) * a.topkColumns + lane];
      mine.row = choiceRow<true>(a, token, rank);
      if (rank >= 0) {
        mine.way = wayOfRank(network, static_cast<u32>(rank));
        mine.index = static_cast<i32>(network.localIndexOf[rank]);
      }
    }
    if (lane < a.groupRanks) mine.repeat = repeatNumber<true>(a, token, lane);
    const u64 record = reinterpret_cast<u64>(networkAt(network, target.source)) + static_cast<u64>(place < 0 ? 0 : place) * stride;
    copyRowToAll(static_cast<const u8*>(a.x) + static_cast<u64>(token) * a.rowBytes, record, holders, a.rowBytes);
    for (u32 rest = holders; rest != 0; rest &= rest - 1) {
      const u32 way = __ffs(rest) - 1;
      packChoice(a, network, reinterpret_cast<u8*>(__shfl_sync(0xffffffffu, record, way)), token, way, mine);
    }
    __syncwarp();
    if (place >= 0) {
      isPushed = rowIsReady(network, chunks, stride, place, target, scope, a.closingCall, networkPhaseRows) && isPushed;
    }
    __syncwarp();
  }
  return isPushed;
}

// One row that has come from the source of that slot, to all its experts on this host.
__device__ __forceinline__ void forwardChoice(const LayerDispatchArguments& a, const EpNetwork& network,
                                              const ChoiceRecord& shape, u32 slot, u32 index) {
  const u32 lane = laneIndex();
  const u8* record = inSlot(network, slot) + static_cast<u64>(index) * shape.stride;
  ChoicePlace place = {-1, -1, -1};
  if (lane < a.topkColumns) {
    place.row = __ldcg(reinterpret_cast<const i32*>(record + shape.rowsAt) + lane);
    place.rank = __ldcg(reinterpret_cast<const i32*>(record + shape.ranksAt) + lane);
    if (!hasChoiceRow(a, place.rank, place.row)) place.rank = place.row = -1;
    const u64 cell = (static_cast<u64>(slot) * network.maxTokens + index) * a.topkColumns + lane;
    static_cast<i32*>(a.forwardRows)[cell] = place.row;
    static_cast<i32*>(a.forwardRanks)[cell] = place.rank;
  }
  if (lane < a.ranks) {
    place.repeat = __ldcg(reinterpret_cast<const i32*>(record + shape.repeatsAt) + lane);
    // A token that is repeated has two rows at least.
    if (static_cast<u32>(place.repeat) >= a.capacityRows / 2) place.repeat = -1;
  }
  u64 to = 0;
  if (place.rank >= 0) {
    to = reinterpret_cast<u64>(outputAt(a, static_cast<u32>(place.rank), a.rowsOffset)) + static_cast<u64>(place.row) * a.rowBytes;
  }
  copyRowToAll(record, to, __ballot_sync(0xffffffffu, place.rank >= 0), a.rowBytes);
  sendWeight(a, place, record + shape.weightsAt + lane * a.weightBytes);
  sendLists(a, place);
}

// All blocks call this. False when the block must leave.
__device__ __forceinline__ bool forwardChoices(const LayerDispatchArguments& a, const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  const ChoiceRecord shape(a, a.ranks);
  return forwardChunks(network, servedRowsOf(a), scope, a.closingCall,
                       [&](u32 slot, u32 index) { forwardChoice(a, network, shape, slot, index); });
}

}  // namespace weftline
