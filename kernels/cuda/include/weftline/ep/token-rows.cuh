// What combine sums on one host: a token's rows of the biases, then its rows at all ranks that hold it, in rank order, read
// from the peers' windows.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/copy/stage-pair.cuh"
#include "weftline/ep/gather-sum.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

namespace weftline {

// An item is a token. The first lanes hold its rows of the biases, if any (bias1 only with bias0); the next lanes hold its
// row at each rank.
struct TokenRows {
  // The token of a bias; of a rank the row in its source's numbering; -1 for none and for other lanes.
  using Place = i32;

  const EpCombineArguments& a;
  u32 biases;
  // Start of the lane's bias, or of this rank's rows at the lane's rank.
  const u8* rows;

  __device__ __forceinline__ explicit TokenRows(const EpCombineArguments& arguments)
      : a(arguments), biases((a.bias0 != nullptr) + (a.bias1 != nullptr)), rows(nullptr) {
    const u32 lane = laneIndex();
    const u32 r = lane - biases;
    if (lane < biases) {
      rows = static_cast<const u8*>(lane == 0 ? a.bias0 : a.bias1);
    } else if (r < a.ranks) {
      const u64 first = static_cast<const EpPlan*>(a.plan)->firstRow[r];
      rows = static_cast<const u8*>(a.peers[r]) + a.rowsOffset + first * a.rowBytes;
    }
  }

  __device__ __forceinline__ Place placeAt(u32 token) const {
    if (laneIndex() >= biases + a.ranks || token >= a.tokens) return -1;
    if (laneIndex() < biases) return static_cast<i32>(token);
    return static_cast<const i32*>(a.rowTable)[static_cast<u64>(token) * a.ranks + laneIndex() - biases];
  }

  __device__ __forceinline__ const u8* rowAt(Place place) const {
    return place < 0 ? nullptr : rows + static_cast<u64>(place) * a.rowBytes;
  }

  __device__ __forceinline__ u8* outAt(u32 token, const u8*) const {
    return static_cast<u8*>(a.out) + static_cast<u64>(token) * a.rowBytes;
  }

  __device__ __forceinline__ void begin(u32 token) const {
    if (a.outWeights != nullptr) sumWeights(token);
  }

  __device__ void sumWeights(u32 token) const {
    const u32 lane = laneIndex();
    if (lane >= a.topkColumns) return;
    f32 sum = 0;
    for (u32 r = 0; r < a.ranks; ++r) {
      const i32 row = static_cast<const i32*>(a.rowTable)[static_cast<u64>(token) * a.ranks + r];
      if (row < 0) continue;
      const u64 place = static_cast<u64>(static_cast<const EpPlan*>(a.plan)->firstRow[r]) + row;
      const volatile f32* weights =
          reinterpret_cast<const volatile f32*>(static_cast<const u8*>(a.peers[r]) + a.weightsOffset);
      sum += weights[place * a.topkColumns + lane];
    }
    static_cast<f32*>(a.outWeights)[static_cast<u64>(token) * a.topkColumns + lane] = sum;
  }
};

// All blocks call this; `memory`: dynamic shared memory, which begins with the barriers of the copy engine. False when the block must
// leave.
__device__ __forceinline__ bool combineOnHost(const EpCombineArguments& a, u8* memory, u32 epoch, const WaitScope& scope) {
  constexpr u32 barrierBytes = 1024;
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barriers = makeStageBarriers(memory);
  const RankBarrier opening = {a.peers, a.ranks, a.rank, epoch, a.openingCall};
  if (!enterTogether(opening, scope)) return false;
  // ORDER: peers wrote their rows before they arrived; the copy engine reads them after.
  fenceProxyAsync();
  const GatherShape shape = {a.tokens, a.rowBytes, a.stageBytes, a.partBytes};
  WEFTLINE_TRACE_BEGIN("ep.combine.rows");
  gatherSums<Bf16Element>(shape, TokenRows(a), memory + barrierBytes + warp * gatherBytes(shape), barriers);
  WEFTLINE_TRACE_END("ep.combine.rows");
  return true;
}

}  // namespace weftline
