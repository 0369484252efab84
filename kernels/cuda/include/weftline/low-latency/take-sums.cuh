// The second half of a low-latency combine where words show that sums have come: the sums of all ranks are added up part by part as
// they come.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/ep/element.cuh"
#include "weftline/low-latency/arriving-words.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/sum-rows.cuh"
#include "weftline/types.cuh"

namespace weftline {

// The lane's vector of a token's sums at each rank whose bit is set in `ranks`, in rank order.
struct ArrivingSums {
  // How many are taken at once: as many as registers hold.
  static constexpr u32 together = 4;
  // Address of that of rank 0, or where it would be; that of rank r is r * `stride` bytes further on.
  u8* rankZero;
  u64 stride;
  u32 ranks;
  uint4 values[together];

  // Calls visit(rank, j) for the first `together` ranks; j counts them.
  template <class Visit>
  __device__ __forceinline__ void visit(const Visit& visit) const {
    u32 rest = ranks;
#pragma unroll
    for (u32 j = 0; j < together; ++j) {
      if (rest == 0) continue;
      visit(__ffs(rest) - 1, j);
      rest &= rest - 1;
    }
  }

  __device__ __forceinline__ uint4* wordsOf(u32 rank) const { return reinterpret_cast<uint4*>(rankZero + rank * stride); }

  // Waits for the vectors of those ranks, loads them and stores the empty word in their place. False when the warp must leave.
  __device__ __forceinline__ bool take(const LowLatencyCombineArguments& a, bool isInRow, u32 number, const WaitScope& scope) {
#pragma unroll
    for (u32 j = 0; j < together; ++j) values[j] = make_uint4(0, 0, 0, 0);
    visit([&](u32, u32 j) {
      if (isInRow) makeEmpty(values[j]);
    });
    const auto isMissing = [&]() {
      bool isMissing = false;
#pragma unroll
      for (u32 j = 0; j < together; ++j) isMissing |= hasEmptyWord(values[j]);
      return isMissing;
    };
    const auto load = [&]() {
      visit([&](u32 rank, u32 j) {
        if (hasEmptyWord(values[j])) loadWordsSystem(wordsOf(rank), values[j]);
      });
    };
    // The last one that is missing.
    const auto source = [&]() {
      u32 source = 0;
      visit([&](u32 rank, u32 j) {
        if (hasEmptyWord(values[j])) source = rank;
      });
      return source;
    };
    const u32 channel = waitWord(lowLatencyWaitCombineRows, a.call);
    if (!awaitWords({a.peers, a.ranks, a.rank}, number, scope, channel, isMissing, load, source)) return false;
    visit([&](u32 rank, u32) {
      if (isInRow) storeEmpty(wordsOf(rank));
    });
    return true;
  }
};

// All warps add up the sums of this rank's tokens and round as sumAt() does. False when the warp must leave.
__device__ __forceinline__ bool takeSums(const LowLatencyCombineArguments& a, u32 number, const WaitScope& scope) {
  constexpr u32 perVector = Bf16Element::perVector;
  const u32 lane = laneIndex();
  const u32 parts = (a.rowBytes + lowLatencyPartBytes - 1) / lowLatencyPartBytes;
  const WarpRun mine(a.tokens * parts);
  u32 token = Divisor(parts).quotient(mine.first);
  u32 part = mine.first - token * parts;
#pragma unroll 1
  for (u32 work = mine.first; work < mine.end; ++work) {
    const i32* sentRows = static_cast<const i32*>(a.sentRows) + static_cast<u64>(token) * a.ranks;
    const u32 at = part * lowLatencyPartBytes + lane * 16;
    const bool isInRow = at < a.rowBytes;
    const u64 place = static_cast<u64>(token) * a.rowBytes + at;
    u8* rows = static_cast<u8*>(a.peers[a.rank]) + a.rowsOffset;
    ArrivingSums sums;
    sums.ranks = __ballot_sync(0xffffffffu, lane < a.ranks && sentRows[lane < a.ranks ? lane : 0] >= 0);
    sums.rankZero = rows + place;
    sums.stride = static_cast<u64>(a.maxTokens) * a.rowBytes;
    const bool isOne = (sums.ranks & (sums.ranks - 1)) == 0;
    // Adding to -0 leaves a number as it is, +0 and -0 as well.
    f32 sum[perVector];
#pragma unroll
    for (u32 i = 0; i < perVector; ++i) sum[i] = -0.0f;
    uint4 total = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    while (sums.ranks != 0) {
      if (!sums.take(a, isInRow, number, scope)) return false;
      total = sums.values[0];
#pragma unroll
      for (u32 j = 0; j < ArrivingSums::together; ++j) {
        if (sums.ranks == 0) continue;
        sums.ranks &= sums.ranks - 1;
        f32 addends[perVector];
        Bf16Element::start(addends, sums.values[j]);
#pragma unroll
        for (u32 i = 0; i < perVector; ++i) sum[i] = __fadd_rn(sum[i], addends[i]);
      }
    }
    if (!isOne) total = Bf16Element::round(sum);
    if (isInRow) *reinterpret_cast<uint4*>(static_cast<u8*>(a.out) + place) = total;
    if (++part < parts) continue;
    part = 0;
    ++token;
  }
  return true;
}

}  // namespace weftline
