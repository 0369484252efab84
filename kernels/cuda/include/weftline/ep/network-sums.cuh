// Combine across hosts: a rank sums its host's rows of the tokens that came through it, in f32 in rank order, and sends one row
// per token back; the source adds biases, then hosts in their order: of its own host the ranks' rows one by one, of another
// host its one row.
//
// What crosses the network for a token: the sum, bf16 or f32 | f32 sums of the weights.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/ep/network-chunks.cuh"
#include "weftline/ep/network-meeting.cuh"
#include "weftline/ep/row-sum.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

namespace weftline {

__device__ __forceinline__ const EpNetwork& networkOf(const EpCombineArguments& a) {
  return *static_cast<const EpNetwork*>(a.network);
}

// Bytes of a sum on the network.
__device__ __forceinline__ u32 sumBytesOf(const EpCombineArguments& a) {
  return networkOf(a).isWide != 0 ? a.rowBytes * 2 : a.rowBytes;
}

__device__ __forceinline__ u32 sumStrideOf(const EpCombineArguments& a) {
  return (sumBytesOf(a) + (a.outWeights == nullptr ? 0 : a.topkColumns * 4) + 15) & ~15u;
}

using Sum = RowSum<Bf16Element>;

// What one lane adds to the token of its warp.
struct Addend {
  // Null for none.
  const u8* row;
  const f32* weights;
};

// The sum of the weights of all lanes in `holders`, in their order: lane j has that of choice j.
__device__ __forceinline__ f32 sumWeights(const EpCombineArguments& a, u32 holders, const f32* weights) {
  f32 sum = 0;
  for (u32 rest = holders; rest != 0; rest &= rest - 1) {
    const f32* from = reinterpret_cast<const f32*>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(weights), __ffs(rest) - 1));
    if (laneIndex() < a.topkColumns) sum += __ldcg(from + laneIndex());
  }
  return sum;
}

// Row `index` of what came from the source of that slot: the sum of this host's rows, to host memory.
__device__ __forceinline__ void sumForSource(const EpCombineArguments& a, const EpNetwork& network, u32 slot, u32 index,
                                             u32 stride) {
  const u32 lane = laneIndex();
  Addend mine = {nullptr, nullptr};
  if (lane < a.ranks) {
    const u64 cell = (static_cast<u64>(slot) * network.maxTokens + index) * a.ranks + lane;
    const i32 place = static_cast<const i32*>(a.forwardPlaces)[cell];
    const u8* window = static_cast<const u8*>(a.peers[lane]);
    if (hasRow(network, place)) {
      mine.row = window + a.rowsOffset + static_cast<u64>(place) * a.rowBytes;
      mine.weights = reinterpret_cast<const f32*>(window + a.weightsOffset) + static_cast<u64>(place) * a.topkColumns;
    }
  }
  const u32 holders = __ballot_sync(0xffffffffu, mine.row != nullptr);
  u8* out = inSlot(network, slot) + static_cast<u64>(index) * stride;
  for (u32 begin = 0; begin < a.rowBytes; begin += Sum::depth * Sum::partBytes) {
    Sum sum(begin, a.rowBytes);
    for (u32 rest = holders; rest != 0; rest &= rest - 1) {
      sum.add(reinterpret_cast<const u8*>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(mine.row), __ffs(rest) - 1)));
    }
    if (network.isWide != 0) sum.storeWide(out);
    else sum.store(out);
  }
  if (a.outWeights == nullptr) return;
  const f32 weight = sumWeights(a, holders, mine.weights);
  if (lane < a.topkColumns) reinterpret_cast<f32*>(out + sumBytesOf(a))[lane] = weight;
}

// What a lane has to do with this rank's tokens: lanes in the order in which rows are added, hosts ascending, a lane for each
// rank of the own host, one for each other host.
struct OwnAddends {
  bool exists;
  bool isFar;
  // Column of the row table.
  u32 column;
  const u8* rows;
  const u8* weights;
  u32 rowStride;
  u32 weightStride;
  // Row of place 0.
  u32 firstRow;

  __device__ __forceinline__ explicit OwnAddends(const EpCombineArguments& a)
      : exists(false), isFar(false), column(0), rows(nullptr), weights(nullptr), rowStride(0), weightStride(0),
        firstRow(0) {
    const EpNetwork& network = networkOf(a);
    const u32 lane = laneIndex();
    if (lane >= a.ranks + network.ways) return;
    exists = true;
    isFar = lane < network.host || lane >= network.host + a.ranks;
    if (isFar) {
      const u32 host = lane < network.host ? lane : lane + 1 - a.ranks;
      const u32 way = (host + network.hosts - network.host - 1) % network.hosts;
      column = network.ranks + way;
      rows = outSlot(network, way);
      weights = rows + sumBytesOf(a);
      rowStride = sumStrideOf(a);
      weightStride = rowStride;
    } else {
      const u32 index = lane - network.host;
      const u32 rank = network.localRanks[index];
      column = rank;
      rows = static_cast<const u8*>(a.peers[index]) + a.rowsOffset;
      weights = static_cast<const u8*>(a.peers[index]) + a.weightsOffset;
      rowStride = a.rowBytes;
      weightStride = a.topkColumns * 4;
      firstRow = static_cast<const EpPlan*>(a.plan)->firstRow[rank];
    }
  }

  // The token's place in the lane's rows, -1 for none.
  __device__ __forceinline__ i32 placeOf(const EpCombineArguments& a, u32 token) const {
    if (!exists || token >= a.tokens) return -1;
    const EpNetwork& network = networkOf(a);
    return static_cast<const i32*>(a.rowTable)[static_cast<u64>(token) * (network.ranks + network.ways) + column];
  }

  __device__ __forceinline__ Addend at(i32 place) const {
    if (place < 0) return {nullptr, nullptr};
    const u64 row = static_cast<u64>(firstRow) + static_cast<u32>(place);
    return {rows + row * rowStride, reinterpret_cast<const f32*>(weights + row * weightStride)};
  }
};

// One of this rank's tokens, whose rows are all there.
__device__ __forceinline__ void addUpToken(const EpCombineArguments& a, const OwnAddends& lane, u32 token, i32 place) {
  const Addend mine = lane.at(place);
  const u32 holders = __ballot_sync(0xffffffffu, mine.row != nullptr);
  const u32 wide = __ballot_sync(0xffffffffu, lane.isFar && networkOf(a).isWide != 0);
  const u64 offset = static_cast<u64>(token) * a.rowBytes;
  for (u32 begin = 0; begin < a.rowBytes; begin += Sum::depth * Sum::partBytes) {
    Sum sum(begin, a.rowBytes);
    if (a.bias0 != nullptr) sum.add(static_cast<const u8*>(a.bias0) + offset);
    if (a.bias1 != nullptr) sum.add(static_cast<const u8*>(a.bias1) + offset);
    for (u32 rest = holders; rest != 0; rest &= rest - 1) {
      const u32 from = __ffs(rest) - 1;
      const u8* row = reinterpret_cast<const u8*>(__shfl_sync(0xffffffffu, reinterpret_cast<u64>(mine.row), from));
      if ((wide >> from) & 1) sum.addWide(row);
      else sum.add(row);
    }
    sum.store(static_cast<u8*>(a.out) + offset);
  }
  if (a.outWeights == nullptr) return;
  const f32 weight = sumWeights(a, holders, mine.weights);
  if (laneIndex() < a.topkColumns) {
    static_cast<f32*>(a.outWeights)[static_cast<u64>(token) * a.topkColumns + laneIndex()] = weight;
  }
}

// This rank's tokens, for addUpTokens().
struct OwnTokens {
  const EpCombineArguments& a;
  const OwnAddends lane;

  __device__ __forceinline__ explicit OwnTokens(const EpCombineArguments& arguments) : a(arguments), lane(arguments) {}

  __device__ __forceinline__ i32 wayPlaceAt(u32 token, u32 way) const {
    const EpNetwork& network = networkOf(a);
    return static_cast<const i32*>(a.rowTable)[static_cast<u64>(token) * (network.ranks + network.ways) + network.ranks + way];
  }

  __device__ __forceinline__ void addUp(u32 token) const { addUpToken(a, lane, token, lane.placeOf(a, token)); }
};

// All blocks call this: everything between the beginning of the call and the closing barrier. False when the block must leave.
__device__ __forceinline__ bool combineAcrossHosts(const EpCombineArguments& a, const RankBarrier& opening,
                                                   const WaitScope& scope) {
  __shared__ u32 needed[epMaxWays];
  const EpNetwork& network = networkOf(a);
  const NetworkCall call = nextNetworkCall(network, a.openingCall);
  // What this block's waits share is ready for all its threads.
  __syncthreads();
  if (blockIdx.x == 0 && !sendHeader(network, call, scope)) return false;
  if (!enterTogether(opening, scope)) return false;
  // A source that has begun this call has taken the sums of the call before, which lie where those of this one will.
  if (!awaitSources(network, call, scope)) return false;
  // The plan of a dispatch that failed says nothing of rows; every rank's has failed alike, and all meet at the end.
  if (static_cast<const EpPlan*>(a.plan)->status != epStatusGood) return true;
  WEFTLINE_TRACE_BEGIN("ep.combine.host-sums");
  const EpPlan& plan = *static_cast<const EpPlan*>(a.plan);
  const u32 stride = sumStrideOf(a);
  const bool isSent = sendSums(network, {plan.servedTokens, stride}, scope, a.openingCall,
                               [&](u32 slot, u32 index) { sumForSource(a, network, slot, index, stride); });
  WEFTLINE_TRACE_END("ep.combine.host-sums");
  if (!__syncthreads_and(isSent)) return false;
  WEFTLINE_TRACE_BEGIN("ep.combine.own-sums");
  const bool isSummed = addUpTokens(network, {plan.sentTokens, stride}, a.tokens, needed, scope, a.openingCall, OwnTokens(a));
  WEFTLINE_TRACE_END("ep.combine.own-sums");
  return isSummed;
}

}  // namespace weftline
