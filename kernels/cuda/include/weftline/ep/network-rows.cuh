// The rows of a dispatch that cross hosts. A token goes to each other host once: its rank packs a record of it, chunk by chunk,
// into its network window; the forwarder there brings what has come to all ranks of its host.
//
// A record: row | choices | scales | weights | source token | its row at each rank there, -1 for none. A cached dispatch
// leaves out all but row and scales; the handle has the rest. Warps copy with plain loads and stores, which fill the link to
// host memory. All warps of all blocks take part, and the rows of a chunk are spread over them.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/ep/dispatch-rows.cuh"
#include "weftline/ep/network-chunks.cuh"
#include "weftline/ep/network-copy.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Offsets in a record.
struct RecordShape {
  u32 scalesAt;
  u32 weightsAt;
  u32 sourceAt;
  u32 placesAt;
  bool isReplay;

  __device__ __forceinline__ explicit RecordShape(const EpDispatchArguments& a) : isReplay(a.counts == 0) {
    const u32 columns = a.topk == nullptr ? 0 : a.topkColumns;
    scalesAt = a.rowBytes + columns * a.indexBytes;
    weightsAt = scalesAt + a.scaleBytes;
    sourceAt = weightsAt + (a.weights == nullptr ? 0 : columns * 4);
    placesAt = sourceAt + 4;
  }

  // Bytes of a record for a host with so many ranks.
  __device__ __forceinline__ u32 stride(u32 ranks) const { return ((isReplay ? sourceAt : placesAt + ranks * 4) + 15) & ~15u; }
};

__device__ __forceinline__ ServedRows servedRowsOf(const EpDispatchArguments& a, const RecordShape& shape) {
  return {static_cast<const EpPlan*>(a.plan)->servedTokens, shape.stride(a.ranks)};
}

// What goes with the row into one record. `row`: lane r holds the row at rank r of the group, or -1.
__device__ __forceinline__ void packBeside(const EpDispatchArguments& a, const RecordShape& shape, u8* record, u32 token,
                                           i32 row, u32 wayRanks, u32 localIndex) {
  const u32 lane = laneIndex();
  const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
  if (a.topk != nullptr && lane < a.topkColumns) {
    if (a.indexBytes == 8) reinterpret_cast<i64*>(record + a.rowBytes)[lane] = static_cast<const i64*>(a.topk)[cell];
    else reinterpret_cast<i32*>(record + a.rowBytes)[lane] = static_cast<const i32*>(a.topk)[cell];
    if (a.weights != nullptr) reinterpret_cast<f32*>(record + shape.weightsAt)[lane] = static_cast<const f32*>(a.weights)[cell];
  }
  const f32* scales = static_cast<const f32*>(a.scales) + static_cast<u64>(token) * (a.scaleBytes / 4);
  for (u32 group = lane; group < a.scaleBytes / 4; group += lanesPerWarp) {
    reinterpret_cast<f32*>(record + shape.scalesAt)[group] = scales[group];
  }
  if (shape.isReplay) return;
  if (lane == 0) *reinterpret_cast<u32*>(record + shape.sourceAt) = token;
  if ((wayRanks >> lane) & 1) reinterpret_cast<i32*>(record + shape.placesAt)[localIndex] = row;
}

// All warps call this: this rank's tokens that go to other hosts. Neighbours go to different blocks, so that chunks are complete one
// after the other. False for a lane when its queue stayed full: the block must leave.
__device__ __forceinline__ bool packRows(const EpDispatchArguments& a, const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  const EpPlan& plan = *static_cast<const EpPlan*>(a.plan);
  const RecordShape shape(a);
  const u32 lane = laneIndex();
  const u32 destinations = destinationsOf<true>(a);
  // Lane r has to do with rank r of the group, and lane w with way w.
  const u32 wayOfRank = lane < a.groupRanks && network.hostOf[lane] != network.host
                            ? (network.hostOf[lane] + network.hosts - network.host - 1) % network.hosts
                            : network.ways;
  const u32 localIndex = lane < a.groupRanks ? network.localIndexOf[lane] : 0;
  const i32 firstRow = lane < a.groupRanks ? static_cast<i32>(__ldcg(&plan.firstRow[lane])) : 0;
  const bool isWay = lane < network.ways;
  const u32 stride = isWay ? shape.stride(network.wayRanks[lane]) : 16;
  const Chunks chunks(network, isWay ? __ldcg(&plan.sentTokens[lane]) : 0, stride);
  const ChunkTarget target = targetOfWay(network, lane);
  const u32 step = gridDim.x * (blockDim.x / lanesPerWarp);
  bool isPushed = true;
  for (u32 token = blockIdx.x + threadIdx.x / lanesPerWarp * gridDim.x; token < a.tokens; token += step) {
    const i32* places = static_cast<const i32*>(a.rowTable) + static_cast<u64>(token) * destinations;
    const i32 place = isWay ? places[a.groupRanks + lane] : -1;
    const u32 holders = __ballot_sync(0xffffffffu, place >= 0);
    if (holders == 0) continue;
    const i32 rankPlace = lane < a.groupRanks ? places[lane] : -1;
    const i32 row = rankPlace < 0 ? -1 : rankPlace + firstRow;
    const u64 record = reinterpret_cast<u64>(networkAt(network, target.source)) + static_cast<u64>(place < 0 ? 0 : place) * stride;
    copyRowToAll(static_cast<const u8*>(a.x) + static_cast<u64>(token) * a.rowBytes, record, holders, a.rowBytes);
    for (u32 rest = holders; rest != 0; rest &= rest - 1) {
      const u32 way = __ffs(rest) - 1;
      u8* of = reinterpret_cast<u8*>(__shfl_sync(0xffffffffu, record, way));
      packBeside(a, shape, of, token, row, __ballot_sync(0xffffffffu, wayOfRank == way), localIndex);
    }
    __syncwarp();
    if (place >= 0) {
      isPushed = rowIsReady(network, chunks, stride, place, target, scope, a.openingCall, networkPhaseRows) && isPushed;
    }
    __syncwarp();
  }
  return isPushed;
}

// One row that has come from the source of that slot, to the ranks of this host that need it.
__device__ __forceinline__ void forwardRow(const EpDispatchArguments& a, const EpNetwork& network, const RecordShape& shape,
                                           u32 stride, u32 slot, u32 index) {
  const u32 lane = laneIndex();
  const u8* record = inSlot(network, slot) + static_cast<u64>(index) * stride;
  i32* kept = static_cast<i32*>(a.forwardPlaces) + (static_cast<u64>(slot) * network.maxTokens + index) * a.ranks + lane;
  BesideRow beside = {-1, 0, reinterpret_cast<const f32*>(record + shape.scalesAt), 0};
  i32 row = -1;
  if (lane < a.ranks) {
    row = shape.isReplay ? *kept : __ldcg(reinterpret_cast<const i32*>(record + shape.placesAt) + lane);
    if (!hasRow(network, row)) row = -1;
    if (!shape.isReplay) *kept = row;
  }
  if (a.topk != nullptr && lane < a.topkColumns) {
    beside.expert = a.indexBytes == 8 ? __ldcg(reinterpret_cast<const i64*>(record + a.rowBytes) + lane)
                                      : __ldcg(reinterpret_cast<const i32*>(record + a.rowBytes) + lane);
    if (a.weights != nullptr) beside.weight = __ldcg(reinterpret_cast<const f32*>(record + shape.weightsAt) + lane);
  }
  if (!shape.isReplay) beside.token = __ldcg(reinterpret_cast<const u32*>(record + shape.sourceAt));
  const u32 holders = __ballot_sync(0xffffffffu, row >= 0);
  const u64 to = lane < a.ranks ? reinterpret_cast<u64>(windowAt(a, lane, a.rowsOffset)) + static_cast<u64>(row < 0 ? 0 : row) * a.rowBytes : 0;
  copyRowToAll(record, to, holders, a.rowBytes);
  storeBeside<true>(a, row, beside);
}

// All blocks call this. False when the block must leave.
__device__ __forceinline__ bool forwardRows(const EpDispatchArguments& a, const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  const RecordShape shape(a);
  const ServedRows served = servedRowsOf(a, shape);
  return forwardChunks(network, served, scope, a.openingCall, [&](u32 slot, u32 index) {
    forwardRow(a, network, shape, served.stride, slot, index);
  });
}

}  // namespace weftline
