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

// A sum of vectors of bf16 as it grows, in f32. Adding to -0 leaves a number as it is, +0 and -0 as well; one vector alone stays as it
// is, and no vector is zeros.
struct GrowingSum {
  static constexpr u32 perVector = Bf16Element::perVector;
  f32 sums[perVector];
  uint4 last;
  u32 count;

  __device__ __forceinline__ GrowingSum() : last(make_uint4(0, 0, 0, 0)), count(0) {
#pragma unroll
    for (u32 i = 0; i < perVector; ++i) sums[i] = -0.0f;
  }

  __device__ __forceinline__ void add(uint4 vector) {
    f32 addends[perVector];
    Bf16Element::start(addends, vector);
#pragma unroll
    for (u32 i = 0; i < perVector; ++i) sums[i] = __fadd_rn(sums[i], addends[i]);
    last = vector;
    ++count;
  }

  // A vector that is f32 already, which has to be rounded.
  __device__ __forceinline__ void addWide(uint4 low, uint4 high) {
    const u32 words[perVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (u32 i = 0; i < perVector; ++i) sums[i] = __fadd_rn(sums[i], __uint_as_float(words[i]));
    count += 2;
  }

  __device__ __forceinline__ uint4 rounded() const { return count <= 1 ? last : Bf16Element::round(sums); }
};

// The lane's vector of a token's sums at each rank whose bit is set in `ranks`, in rank order.
struct ArrivingSums {
  // How many are taken at once: as many as registers hold, of which other hosts take some.
#if __CUDA_ARCH__ >= 900
  static constexpr u32 together = lowLatencyAcrossHosts ? 2 : 4;
#else
  static constexpr u32 together = lowLatencyAcrossHosts ? 1 : 4;
#endif
  // Address of that of rank 0, or where it would be; that of rank r is r * `stride` bytes further on.
  u8* rankZero;
  u64 stride;
  u32 ranks;
  // The rank of each bit; null where it is the bit's number.
  const u32* names;
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
      return names == nullptr ? source : names[source];
    };
    const u32 channel = waitWord(lowLatencyWaitCombineRows, a.call);
    if (!awaitWords({a.peers, a.ranks, a.rank}, number, scope, channel, isMissing, load, source)) return false;
    visit([&](u32 rank, u32) {
      if (isInRow) storeEmpty(wordsOf(rank));
    });
    return true;
  }

  // Takes those of all ranks and adds them. False when the warp must leave.
  __device__ __forceinline__ bool addTo(GrowingSum& sum, const LowLatencyCombineArguments& a, bool isInRow, u32 number,
                                        const WaitScope& scope) {
#pragma unroll 1
    while (ranks != 0) {
      if (!take(a, isInRow, number, scope)) return false;
#pragma unroll
      for (u32 j = 0; j < together; ++j) {
        if (ranks == 0) continue;
        ranks &= ranks - 1;
        sum.add(values[j]);
      }
    }
    return true;
  }
};

// One thread per peer calls this, while others add up: a peer in another call ends the use of the object, whatever the sums are. Where sums
// show by themselves that they are here, it waits for the peer's call. False when the peer cannot go on.
__device__ __forceinline__ bool checkCall(const LowLatencyCombineArguments& a, u32 r, u32 number, const WaitScope& scope) {
  const bool isTimed = lowLatencySumsShow && a.waitStats != nullptr && blockIdx.x == 0;
  const u64 began = isTimed ? globalTimer() : 0;
  const LowLatencyRanks all = {a.peers, a.ranks, a.rank};
  const WaitFor whom = {r, waitWord(lowLatencyWaitCombineRows, a.call)};
  const u64* cell = &flagsAt(a.peers[a.rank], r)->combineCalls[number % lowLatencyCalls];
  u64 call = 0;
  if (!awaitCall(all, number, scope, whom, [&]() { return call = loadRelaxedSystem(cell); })) return false;
  if (isTimed) static_cast<u64*>(a.waitStats)[r] += globalTimer() - began;
  return isSameCall(all, call, number, a.call, scope, whom);
}

// Where rows have flags, one thread per peer calls this: those of a combine can be read. False when the peer cannot go on.
__device__ __forceinline__ bool awaitSums(const LowLatencyCombineArguments& a, u32 r, u32 number, const WaitScope& scope) {
  const bool isTimed = a.waitStats != nullptr && blockIdx.x == 0;
  const u64 began = isTimed ? globalTimer() : 0;
  const FailingWord combined = {&flagsAt(a.peers[a.rank], r)->combined};
  const WaitFor whom = {r, waitWord(lowLatencyWaitCombineRows, a.call)};
  if (!awaitPeer({a.peers, a.ranks, a.rank}, combined, number, scope, whom)) return false;
  if (isTimed) static_cast<u64*>(a.waitStats)[r] += globalTimer() - began;
  return true;
}

// All warps add up the sums of this rank's tokens and round as sumAt() does. False when the warp must leave.
__device__ __forceinline__ bool takeSums(const LowLatencyCombineArguments& a, u32 number, const WaitScope& scope) {
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
    sums.names = nullptr;
    sums.rankZero = rows + place;
    sums.stride = static_cast<u64>(a.maxTokens) * a.rowBytes;
    GrowingSum sum;
    if (!sums.addTo(sum, a, isInRow, number, scope)) return false;
    if (isInRow) *reinterpret_cast<uint4*>(static_cast<u8*>(a.out) + place) = sum.rounded();
    if (++part < parts) continue;
    part = 0;
    ++token;
  }
  return true;
}

}  // namespace weftline
