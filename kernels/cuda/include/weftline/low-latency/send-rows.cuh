// The first half of a low-latency dispatch: each token once to each rank that holds one of its experts, quantised on the way.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/low-latency/arriving-words.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/number-rows.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/send-vectors.cuh"
#include "weftline/types.cuh"

namespace weftline {

// The weight of this lane's choice of a token.
__device__ __forceinline__ f32 weightAt(const LowLatencyDispatchArguments& a, u32 token) {
  if (a.weights == nullptr || token >= a.tokens || laneIndex() >= a.topkColumns) return 0.0f;
  return static_cast<const f32*>(a.weights)[static_cast<u64>(token) * a.topkColumns + laneIndex()];
}

// What goes beside the rows of a token, by a warp. Lane j has choice j, and its weight. Rows by expert stand where their token does,
// and the choices of all tokens go to all ranks: a rank sees from them which tokens have none of its experts.
__device__ inline void sendBeside(const LowLatencyDispatchArguments& a, const LowLatencySendShared& shared, u32 first, u32 local,
                                  f32 weight, u32 number) {
  // Ranks at once, as many as there are lanes for.
  const Divisor byColumns(a.topkColumns);
  const u32 together = byColumns.quotient(lanesPerWarp);
  const u32 rankOfLane = byColumns.quotient(laneIndex());
  const u32 column = laneIndex() - rankOfLane * a.topkColumns;
  const i32 expert = shared.choices[local][column];
  const u32 place = shared.places[local][column];
  weight = __shfl_sync(0xffffffffu, weight, column);
  const u32 token = first + local;
#pragma unroll 1
  for (u32 firstRank = 0; firstRank < a.ranks; firstRank += together) {
    const u32 r = firstRank + rankOfLane;
    if (rankOfLane >= together || r >= a.ranks) continue;
    const i32 row = lowLatencyIsRankMajor ? shared.rows[0][local][r] : static_cast<i32>(token);
    if (row < 0 || (lowLatencyIsMasked && (a.active >> r & 1u) == 0)) continue;
    if (lowLatencyIsRankMajor && column == 0) *reinterpret_cast<u32*>(slotOf(a, r, a.rank, a.sourcesOffset, row, 4)) = token;
    const i32 ofRank = expert - static_cast<i32>(r * a.expertsPerRank);
    const bool isThere = expert >= 0 && ofRank >= 0 && ofRank < static_cast<i32>(a.expertsPerRank);
    const i32 chosen = isThere ? ofRank : noExpert;
    const u32 bytes = !lowLatencyIsRankMajor ? sizeof(LowLatencyChoice) : a.indexBytes;
    u8* at = slotOf(a, r, a.rank, a.choicesOffset, row, a.topkColumns * bytes) + column * bytes;
    if constexpr (!lowLatencyIsRankMajor) {
      if (expert == badExpert) continue;
      // The fields of a LowLatencyChoice.
      storeRelaxedSystem(at, static_cast<u32>(chosen) | static_cast<u64>(place) << 32,
                         __float_as_uint(weight) | static_cast<u64>(number) << 32);
      continue;
    }
    if (bytes == 8) *reinterpret_cast<int2*>(at) = make_int2(chosen, chosen >> 31);
    else *reinterpret_cast<i32*>(at) = chosen;
    if (a.weights == nullptr) continue;
    reinterpret_cast<f32*>(slotOf(a, r, a.rank, a.weightsOffset, row, a.topkColumns * 4))[column] = isThere ? weight : 0.0f;
  }
}

// Address where rank r learns what each source sends to each of its experts, by number of the dispatch. It needs no free slot, because no rank is
// ahead of another by as many dispatches as there are places.
__device__ __forceinline__ u64* countsAt(const LowLatencyDispatchArguments& a, u32 r, u32 number) {
  return reinterpret_cast<u64*>(static_cast<u8*>(a.peers[r]) + a.countsOffset) +
         static_cast<u64>(number % lowLatencyCalls) * a.experts;
}

// All threads of the last block call this: that the call has begun, and how many rows come.
__device__ inline void tellCounts(const LowLatencyDispatchArguments& a, const LowLatencySendShared& shared, u32 number) {
  if (!lowLatencyIsRankMajor) {
    const ExpertRank rankOf(a);
    for (u32 expert = threadIdx.x; expert < a.experts; expert += lowLatencyThreads) {
      const u32 r = rankOf(static_cast<i32>(expert));
      if (lowLatencyIsMasked && (a.active >> r & 1u) == 0) continue;
      u64* counts = countsAt(a, r, number) + static_cast<u64>(a.rank) * a.expertsPerRank;
      storeRelaxedSystem(counts + (expert - r * a.expertsPerRank), callCell(number, allToExperts()[expert]));
    }
  }
  const u32 r = threadIdx.x;
  if (r >= a.ranks) return;
  if (lowLatencyIsMasked && (a.active >> r & 1u) == 0) return;
  LowLatencyFlags* flags = flagsAt(a.peers[r], a.rank);
  tellDispatch(flags, number, a.call, lowLatencyIsRankMajor ? shared.ranks[r] : a.tokens);
  // Nothing stands behind it: whoever counts on rows that do not show by themselves waits for their own count.
  if (lowLatencyRowsShow) addRelaxedSystem(&flags->arrived, lowLatencyUnit);
}

// Rows by expert, by the threads that number of a block that does: choices, places and weights of its tokens, of which a warp has
// loaded what concerns the first one that it sends.
__device__ __forceinline__ void numberTokens(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared,
                                             const BlockShare& own, i32 chosen, f32 weight, u32 number, const WaitScope& scope) {
  constexpr u32 warps = lowLatencyNumbering / lanesPerWarp;
  const u32 warp = numberingThread() / lanesPerWarp;
#pragma unroll 1
  for (u32 first = own.begin; first < own.end; first += lowLatencyBatch) {
    const u32 count = min(own.end - first, lowLatencyBatch);
    if (first != own.begin) {
      // A warp stores the choices of the same tokens of each batch as it has just sent, which all its lanes must have read.
      __syncwarp();
      chosen = warp < count ? laneChoice(a, first + warp) : noExpert;
      weight = weightAt(a, first + warp);
    }
#pragma unroll 1
    for (u32 local = warp; local < count; local += warps) {
      if (local != warp) chosen = laneChoice(a, first + local);
      shared.choices[local][laneIndex()] = chosen;
    }
    meetNumbering();
    if (warp == 0) numberChoices(a, shared, first, count, number, scope);
    meetNumbering();
#pragma unroll 1
    for (u32 local = warp; local < count; local += warps) {
      if (local != warp) weight = weightAt(a, first + local);
      sendBeside(a, shared, first, local, weight, number);
    }
  }
}

// All threads of a block call this: the last one of those that send waits until slots are free, for it has least to do.
template <class AwaitSlots>
__device__ __forceinline__ void awaitSlots(LowLatencySendShared& shared, const AwaitSlots& areSlotsFree) {
  if (threadIdx.x / lanesPerWarp != lowLatencySending / lanesPerWarp - 1) return;
  const bool isFree = __all_sync(0xffffffffu, areSlotsFree());
  if (laneIndex() == 0) shared.isFree = isFree;
}

// Rows by expert, by all threads of a block that numbers. False when the block must leave.
template <class AwaitSlots>
__device__ __forceinline__ bool numberRows(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 number,
                                           const WaitScope& scope, const AwaitSlots& areSlotsFree) {
  const BlockShare own(a.tokens, numberers());
  const u32 count = min(own.end - own.begin, lowLatencyBatch);
  // On its way before anything else.
  const u32 warp = numberingThread() / lanesPerWarp;
  const i32 chosen = isNumbering() && warp < count ? laneChoice(a, own.begin + warp) : noExpert;
  const f32 weight = isNumbering() ? weightAt(a, own.begin + warp) : 0.0f;
  countChoices(a, own.begin != own.end ? own.begin : 0, [&]() {
    if (!isLastBlock()) awaitSlots(shared, areSlotsFree);
  });
  if (isLastBlock()) {
    // Before it waits: others can plan with it before rows come.
    tellCounts(a, shared, number);
    awaitSlots(shared, areSlotsFree);
    __syncthreads();
  }
  // Nothing is written to slots before they are free.
  if (!shared.isFree) return false;
  if (isNumbering()) numberTokens(a, shared, own, chosen, weight, number, scope);
  return true;
}

// Rows by expert, by all threads of a block that sends. False when the block must leave.
template <class AwaitSlots>
__device__ __forceinline__ bool sendTokens(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared,
                                           const SendVectors& vectors, const AwaitSlots& areSlotsFree) {
  if (!isSending()) {
    awaitSending();
    return shared.isFree;
  }
  const BlockShare own(a.tokens, senders());
  const u32 warp = threadIdx.x / lanesPerWarp;
  const SendVectors::Place firstPlace = vectors.firstPlace();
  const ExpertRank rankOf(a);
  u32 first = own.begin;
  u32 count = min(own.end - first, lowLatencyBatch);
  // On its way before anything else.
  uint4 value = vectors.load(first, count, firstPlace);
  i32 chosen = warp < count ? laneChoice(a, first + warp) : noExpert;
  // One block alone has waited when it numbered.
  if (gridDim.x > 1) awaitSlots(shared, areSlotsFree);
  u32 turn = 0;
  u32 half = 0;
#pragma unroll 1
  for (;;) {
    SendVectors::Place place = firstPlace;
    SendVectors::Place scalePlace = vectors.firstPlace(threadIdx.x * lanesPerGroup);
    uint4 next = vectors.load(first, count, vectors.after(place));
    if (warp < count) {
      const u32 token = first + warp;
      keepRows(a, shared.rows[half][warp], rankOf.ofLanes(chosen), static_cast<i32>(token), token);
    }
    // At least once, to learn whether slots are free.
    const u32 end = turn + max(vectors.turns(count), 1u);
#pragma unroll 1
    for (; turn < end; ++turn) {
      const uint4 encoded = vectors.encode(value);
      vectors.keepScale(shared.scales[turn % 2], encoded);
      meetSending();
      if (turn == 0) letOthersGoOn();
      // Nothing is written to slots before they are free.
      if (!shared.isFree) return false;
      vectors.sendScale(shared.scales[turn % 2], shared.rows[half], count, scalePlace);
      if (place.local < count) vectors.send(shared.rows[half][place.local], place.vector, encoded);
      place = vectors.after(place);
      scalePlace = vectors.after(scalePlace);
      value = next;
      next = vectors.load(first, count, vectors.after(place));
    }
    first += lowLatencyBatch;
    if (first >= own.end) return true;
    count = min(own.end - first, lowLatencyBatch);
    half ^= 1;
    value = vectors.load(first, count, firstPlace);
    chosen = warp < count ? laneChoice(a, first + warp) : noExpert;
  }
}

// Rows by rank, by all threads: each batch of tokens is numbered, then sent.
template <class AwaitSlots>
__device__ __forceinline__ bool sendByRank(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared,
                                           const BlockShare& own, const SendVectors& vectors, u32 number,
                                           const WaitScope& scope, const AwaitSlots& areSlotsFree) {
  constexpr u32 warps = lowLatencyNumbering / lanesPerWarp;
  const u32 numberingWarp = numberingThread() / lanesPerWarp;
  const ExpertRank rankOf(a);
  // On its way before anything else.
  uint4 value = vectors.load(own.begin, min(own.end - own.begin, lowLatencyBatch), vectors.firstPlace());
  if (threadIdx.x < lowLatencyMostRanks) shared.ranks[threadIdx.x] = 0;
  __syncthreads();
  if (own.begin != own.end || isLastBlock()) countRanks(a, shared, own.begin, rankOf);
  const bool isFree = areSlotsFree();
  u32 first = own.begin;
#pragma unroll 1
  do {
    const u32 count = min(own.end - first, lowLatencyBatch);
    SendVectors::Place place = vectors.firstPlace();
    if (first != own.begin) value = vectors.load(first, count, place);
    uint4 next = vectors.load(first, count, vectors.after(place));
    // Behind the counts, or behind the rows of the batch before.
    __syncthreads();
    if (threadIdx.x < lanesPerWarp) numberRanks(a, shared, first, count, rankOf);
    if (isNumbering()) {
      for (u32 local = numberingWarp; local < count; local += warps) {
        shared.choices[local][laneIndex()] = laneChoice(a, first + local);
      }
      meetNumbering();
      if (numberingWarp == 0) numberChoices(a, shared, first, count, number, scope);
    }
    uint4 encoded = vectors.encode(value);
    // Nothing is written to peers before their slots are free.
    if (__syncthreads_or(!isFree)) return false;
    if (isNumbering()) {
      for (u32 local = numberingWarp; local < count; local += warps) {
        sendBeside(a, shared, first, local, weightAt(a, first + local), number);
      }
    } else {
#pragma unroll 1
      while (place.local < count) {
        vectors.send(shared.rows[0][place.local], place.vector, encoded);
        place = vectors.after(place);
        encoded = vectors.encode(next);
        next = vectors.load(first, count, vectors.after(place));
      }
    }
    first += lowLatencyBatch;
  } while (first < own.end);
  if (isLastBlock()) tellCounts(a, shared, number);
  return true;
}

// Rows by expert, by all threads: numbers, rows, or both in a grid of one block. False when the block must leave.
template <class AwaitSlots>
__device__ __forceinline__ bool sendByExpert(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared,
                                             const SendVectors& vectors, u32 number, const WaitScope& scope,
                                             const AwaitSlots& areSlotsFree) {
  if (numberers().isIn() && !numberRows(a, shared, number, scope, areSlotsFree)) return false;
  return !senders().isIn() || sendTokens(a, shared, vectors, areSlotsFree);
}

// All threads call this. areSlotsFree() says whether the slots at all peers are free: one warp of each block asks, or all threads where
// ranks are elastic or rows stand by rank. False when the block must leave.
template <class AwaitSlots>
__device__ __forceinline__ bool sendRows(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 number,
                                         const WaitScope& scope, const AwaitSlots& areSlotsFree) {
  const SendVectors vectors(a);
  if constexpr (lowLatencyIsRankMajor) {
    return sendByRank(a, shared, BlockShare(a.tokens), vectors, number, scope, areSlotsFree);
  } else if constexpr (lowLatencyIsElastic) {
    if (!areSlotsFree()) return false;
    return sendByExpert(a, shared, vectors, number, scope, [] { return true; });
  } else {
    return sendByExpert(a, shared, vectors, number, scope, areSlotsFree);
  }
}

}  // namespace weftline
