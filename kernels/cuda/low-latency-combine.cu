// Low-latency combine: the weighted sum of the experts' rows of each token, back at the token's rank. Either each rank adds up
// what it has of a token and puts one row to the token's rank, or peers read the experts' rows where they lie.
#include "weftline/abi.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/sum-rows.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 mostThreads = 1024;

__device__ __forceinline__ u8* combineRowsAt(const LowLatencyCombineArguments& a, u32 r) {
  return static_cast<u8*>(a.peers[r]) + a.rowsOffset;
}

// By one thread per peer: what an earlier combine left in the memory of this result is read.
__device__ __forceinline__ bool isBufferFree(const LowLatencyCombineArguments& a, u32 peer, u32 uses, const WaitScope& scope) {
  return awaitPeer({a.peers, a.ranks, a.rank}, &flagsAt(a.peers[a.rank], peer)->taken[a.result], uses, scope,
                   {peer, waitWord(lowLatencyWaitCombineSlot, a.call)});
}

// The rows that came, in the order of their sources: item to (source, row).
struct ArrivedRow {
  u32 block;
  u32 row;

  __device__ __forceinline__ ArrivedRow(const u32* counts, u32 item) : block(0), row(item) {
    for (; row >= counts[block]; ++block) row -= counts[block];
  }
};

// One row per (token, rank): the weighted rows of the token's experts here. Lane j has choice j.
struct ChoicesHere {
  const LowLatencyCombineArguments& a;
  const u32* arrived;

  __device__ __forceinline__ Addend addendOf(u32 item) const {
    const u32 lane = laneIndex();
    if (lane >= a.topkColumns) return {nullptr, 0};
    const ArrivedRow at(arrived, item);
    const u64 cell = (static_cast<u64>(at.block) * a.maxTokens + at.row) * a.topkColumns + lane;
    const i32 row = static_cast<const i32*>(a.rowOf)[cell];
    if (row < 0) return {nullptr, 0};
    return {static_cast<const u8*>(a.y) + static_cast<u64>(row) * a.rowBytes, static_cast<const f32*>(a.rowWeights)[cell]};
  }

  __device__ __forceinline__ u8* outOf(u32 item) const {
    const ArrivedRow at(arrived, item);
    return combineRowsAt(a, at.block) + (static_cast<u64>(a.rank) * a.maxTokens + at.row) * a.rowBytes;
  }
};

// The sums or rows of all ranks that a token went to. Lane r has rank r.
struct RanksOfToken {
  const LowLatencyCombineArguments& a;

  __device__ __forceinline__ Addend addendOf(u32 token) const {
    const u32 r = laneIndex();
    if (r >= a.ranks) return {nullptr, 0};
    const i32 row = static_cast<const i32*>(a.sentRows)[static_cast<u64>(token) * a.ranks + r];
    if (row < 0) return {nullptr, 0};
    const bool isPushed = a.travels == lowLatencyTravelsRankSums;
    const u8* rows = isPushed ? combineRowsAt(a, a.rank) : combineRowsAt(a, r);
    return {rows + (static_cast<u64>(isPushed ? r : a.rank) * a.maxTokens + row) * a.rowBytes, 0};
  }

  __device__ __forceinline__ u8* outOf(u32 token) const {
    return static_cast<u8*>(a.out) + static_cast<u64>(token) * a.rowBytes;
  }
};

// The rows of a token's choices, at whichever rank. Lane j has choice j.
struct ChoicesOfToken {
  const LowLatencyCombineArguments& a;

  __device__ __forceinline__ Addend addendOf(u32 token) const {
    const u32 lane = laneIndex();
    if (lane >= a.topkColumns) return {nullptr, 0};
    const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
    const int2 choice = static_cast<const int2*>(a.sentPlaces)[cell];
    if (choice.x < 0) return {nullptr, 0};
    const u32 expert = static_cast<u32>(choice.x);
    const u32* first = reinterpret_cast<const u32*>(static_cast<const u8*>(a.peers[a.rank]) + a.firstRowsOffset);
    const u32 place = __ldcg(first + expert) + static_cast<u32>(choice.y);
    if (place >= a.capacity) return {nullptr, 0};
    const u32 r = expert / a.expertsPerRank;
    const u64 row = static_cast<u64>(expert - r * a.expertsPerRank) * a.capacity + place;
    return {combineRowsAt(a, r) + row * a.rowBytes, static_cast<const f32*>(a.weights)[cell]};
  }

  __device__ __forceinline__ u8* outOf(u32 token) const {
    return static_cast<u8*>(a.out) + static_cast<u64>(token) * a.rowBytes;
  }
};

// Brings the received rows of each block of `most` rows to where peers read them.
__device__ __forceinline__ void copyBlocks(const LowLatencyCombineArguments& a, u32 blocks, u32 most) {
  const u32 vectors = a.rowBytes / 16;
  const u64 blockVectors = static_cast<u64>(most) * vectors;
  const uint4* from = static_cast<const uint4*>(a.y);
  uint4* to = reinterpret_cast<uint4*>(combineRowsAt(a, a.rank));
  for (u32 block = 0; block < blocks; ++block) {
    const u64 count = static_cast<u64>(static_cast<const u32*>(a.counts)[block]) * vectors;
    const u64 first = block * blockVectors;
#pragma unroll 4
    for (u64 at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) {
      to[first + at] = from[first + at];
    }
  }
}

// By all threads. False when the block must leave.
__device__ __forceinline__ bool send(const LowLatencyCombineArguments& a, const LowLatencyBlock& own, u32* arrived, u32 number,
                                     const WaitScope& scope) {
  const u32 uses = own.combineUses[a.result];
  if (a.travels == lowLatencyTravelsRankSums && threadIdx.x < a.ranks) {
    arrived[threadIdx.x] = static_cast<const u32*>(a.counts)[threadIdx.x];
  }
  const bool isFree = threadIdx.x >= a.ranks || isBufferFree(a, threadIdx.x, uses, scope);
  if (__syncthreads_or(!isFree)) return false;
  if (a.travels == lowLatencyTravelsRankSums) {
    u32 items = 0;
    for (u32 r = 0; r < a.ranks; ++r) items += arrived[r];
    sumRows<true>(items, a.rowBytes, ChoicesHere{a, arrived});
  } else if (a.inPlace == 0) {
    const bool isRankMajor = a.travels == lowLatencyTravelsRankMajor;
    copyBlocks(a, isRankMajor ? a.ranks : a.expertsPerRank, isRankMajor ? a.maxTokens : a.capacity);
  }
  __syncthreads();
  // Rows that are in place an earlier kernel wrote: one block says so for all.
  if (a.inPlace != 0 && !isLastBlock()) return true;
  if (threadIdx.x >= a.ranks) return true;
  LowLatencyFlags* flags = flagsAt(a.peers[threadIdx.x], a.rank);
  if (isLastBlock()) flags->combineCalls[number % lowLatencyCalls] = callCell(number, a.call);
  // ORDER: publishes what this block wrote.
  addReleaseSystem(&flags->combined, a.inPlace != 0 ? lowLatencyUnit : blockShare());
  return true;
}

// By one thread per peer.
__device__ __forceinline__ bool awaitSums(const LowLatencyCombineArguments& a, u32 r, u32 number, const WaitScope& scope) {
  const LowLatencyRanks all = {a.peers, a.ranks, a.rank};
  const LowLatencyFlags* flags = flagsAt(a.peers[a.rank], r);
  const WaitFor whom = {r, waitWord(lowLatencyWaitCombineRows, a.call)};
  const bool isTimed = a.waitStats != nullptr && blockIdx.x == 0;
  const u64 began = isTimed ? globalTimer() : 0;
  if (!awaitPeer(all, &flags->combined, number, scope, whom)) return false;
  if (!isSameCall(all, loadCell(&flags->combineCalls[number % lowLatencyCalls]), number, a.call, scope, whom)) return false;
  if (isTimed) static_cast<u64*>(a.waitStats)[r] += globalTimer() - began;
  return true;
}

__device__ __forceinline__ bool receive(const LowLatencyCombineArguments& a, u32 number, const WaitScope& scope) {
  const bool isHere = threadIdx.x >= a.ranks || awaitSums(a, threadIdx.x, number, scope);
  if (__syncthreads_or(!isHere)) return false;
  if (a.travels == lowLatencyTravelsChoices) sumRows<true>(a.tokens, a.rowBytes, ChoicesOfToken{a});
  else sumRows<false>(a.tokens, a.rowBytes, RanksOfToken{a});
  // All that was needed is read.
  __syncthreads();
  if (threadIdx.x < a.ranks) addReleaseSystem(&flagsAt(a.peers[threadIdx.x], a.rank)->taken[a.result], blockShare());
  return true;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(mostThreads, 1)
    lowLatencyCombine(const __grid_constant__ LowLatencyCombineArguments a) {
  WEFTLINE_TRACE_KERNEL();
  __shared__ u32 arrived[epMaxRanks];
  LowLatencyBlock& own = static_cast<LowLatencyBlock*>(a.blocks)[blockIdx.x];
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLowLatencyCombine, a.rank, a.timeoutNs, sharedWaits()};
  const bool sends = (a.phases & lowLatencyPhaseSend) != 0;
  const u32 number = sends ? own.combines + 1 : own.combineOf[a.result];
  __syncthreads();
  if ((a.phases & lowLatencyPhaseBuffer) != 0) {
    if (threadIdx.x < a.ranks) isBufferFree(a, threadIdx.x, own.combineUses[a.result], scope);
    return;
  }
  if (sends && !send(a, own, arrived, number, scope)) return;
  WEFTLINE_TRACE_BEGIN("ep.combine.rows");
  if ((a.phases & lowLatencyPhaseReceive) != 0 && !receive(a, number, scope)) return;
  WEFTLINE_TRACE_END("ep.combine.rows");
  __syncthreads();
  if (threadIdx.x != 0 || !sends) return;
  own.combines = number;
  own.combineUses[a.result] += 1;
  own.combineOf[a.result] = number;
}
