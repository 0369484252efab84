// Combine: each rank pulls the rows of its tokens from all ranks that hold them, sums them in f32 in rank order after the
// biases, and rounds once to bf16.
#include "weftline/abi.cuh"
#include "weftline/ep/gather-sum.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 barrierBytes = 1024;

// Lane r has to do with rank r; an item is a token.
struct TokenRows {
  const EpCombineArguments& a;
  // Where this rank's rows begin at the lane's rank, and the rank's rows.
  u32 firstRow;
  const u8* rows;

  __device__ __forceinline__ explicit TokenRows(const EpCombineArguments& arguments)
      : a(arguments), firstRow(0), rows(nullptr) {
    const u32 lane = laneIndex();
    if (lane >= a.ranks) return;
    firstRow = static_cast<const EpPlan*>(a.plan)->firstRow[lane];
    rows = static_cast<const u8*>(a.peers[lane]) + a.rowsOffset;
  }

  // The row in its source's numbering, -1 for none (and for other lanes).
  __device__ __forceinline__ i32 placeAt(u32 token) const {
    if (laneIndex() >= a.ranks || token >= a.tokens) return -1;
    return static_cast<const i32*>(a.rowTable)[static_cast<u64>(token) * a.ranks + laneIndex()];
  }

  __device__ __forceinline__ const u8* rowAt(i32 place) const {
    return place < 0 ? nullptr : rows + (static_cast<u64>(firstRow) + place) * a.rowBytes;
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

}  // namespace

extern "C" __global__ void __launch_bounds__(256, 1) epCombine(const __grid_constant__ EpCombineArguments a) {
  extern __shared__ __align__(128) u8 shared[];
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barriers = reinterpret_cast<u64*>(shared) + gatherStages * warp;
  makeGatherBarriers(barriers);
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelEpCombine, a.rank, a.timeoutNs, sharedWaits()};
  const RankBarrier opening = {a.peers, a.ranks, a.rank, a.openingEpoch, a.openingCall};
  if (!enterTogether(opening, scope)) return;
  // ORDER: peers wrote their rows before they arrived; the copy engine reads them after.
  fenceProxyAsync();
  const GatherShape shape = {a.tokens, a.rowBytes, a.stageBytes, a.partBytes};
  WEFTLINE_TRACE_BEGIN("ep.combine.rows");
  u8* memory = shared + barrierBytes + warp * gatherBytes(shape);
  gatherSums<Bf16Element>(shape, TokenRows(a), {a.bias0, a.bias1}, memory, barriers);
  WEFTLINE_TRACE_END("ep.combine.rows");
  WEFTLINE_TRACE_BEGIN("ep.closing");
  leaveTogether({a.peers, a.ranks, a.rank, a.closingEpoch, a.closingCall}, static_cast<u32*>(a.counter), scope);
  WEFTLINE_TRACE_END("ep.closing");
}
