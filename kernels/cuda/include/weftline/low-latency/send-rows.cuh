// The first half of a low-latency dispatch: each token once to each rank that holds one of its experts, quantised on the way.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/fp8.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/number-rows.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Where this rank's slot of a region begins at rank r, in elements of `bytes`, row by row.
__device__ __forceinline__ u8* slotAt(const LowLatencyDispatchArguments& a, u32 r, u64 offset, u64 row, u64 bytes) {
  return static_cast<u8*>(a.peers[r]) + offset + (static_cast<u64>(a.rank) * a.maxTokens + row) * bytes;
}

// The weight of this lane's choice of a token.
__device__ __forceinline__ f32 weightAt(const LowLatencyDispatchArguments& a, u32 token) {
  if (a.weights == nullptr || token >= a.tokens || laneIndex() >= a.topkColumns) return 0.0f;
  return static_cast<const f32*>(a.weights)[static_cast<u64>(token) * a.topkColumns + laneIndex()];
}

// What goes beside the rows of a token, by a warp. Lane j has choice j, and its weight. Rows by expert stand where their token does,
// and the choices of all tokens go to all ranks: a rank sees from them which tokens have none of its experts.
__device__ inline void sendBeside(const LowLatencyDispatchArguments& a, const LowLatencySendShared& shared, u32 first, u32 local,
                                  f32 weight) {
  // As many ranks at once as there are lanes for.
  const Divisor byColumns(a.topkColumns);
  const u32 together = byColumns.quotient(lanesPerWarp);
  const u32 rankOfLane = byColumns.quotient(laneIndex());
  const u32 column = laneIndex() - rankOfLane * a.topkColumns;
  const i32 expert = shared.choices[local][column];
  const i32 place = static_cast<i32>(shared.places[local][column]);
  weight = __shfl_sync(0xffffffffu, weight, column);
  const u32 token = first + local;
#pragma unroll 1
  for (u32 firstRank = 0; firstRank < a.ranks; firstRank += together) {
    const u32 r = firstRank + rankOfLane;
    if (rankOfLane >= together || r >= a.ranks) continue;
    const i32 row = lowLatencyIsRankMajor ? shared.rows[0][local][r] : static_cast<i32>(token);
    if (row < 0 || (lowLatencyIsElastic && (a.active >> r & 1u) == 0)) continue;
    if (lowLatencyIsRankMajor && column == 0) *reinterpret_cast<u32*>(slotAt(a, r, a.sourcesOffset, row, 4)) = token;
    const i32 ofRank = expert - static_cast<i32>(r * a.expertsPerRank);
    const bool isThere = expert >= 0 && ofRank >= 0 && ofRank < static_cast<i32>(a.expertsPerRank);
    const i32 chosen = isThere ? ofRank : noExpert;
    const u32 bytes = !lowLatencyIsRankMajor ? 8 : a.indexBytes;
    u8* at = slotAt(a, r, a.choicesOffset, row, a.topkColumns * bytes) + column * bytes;
    if (bytes == 8) *reinterpret_cast<int2*>(at) = make_int2(chosen, !lowLatencyIsRankMajor ? place : chosen >> 31);
    else *reinterpret_cast<i32*>(at) = chosen;
    if (a.weights == nullptr || (!lowLatencyIsRankMajor && !isThere)) continue;
    reinterpret_cast<f32*>(slotAt(a, r, a.weightsOffset, row, a.topkColumns * 4))[column] = isThere ? weight : 0.0f;
  }
}

__device__ __forceinline__ u32 scaleWordsOf(const LowLatencyDispatchArguments& a) {
  if (lowLatencyIsBf16) return 0;
  const u32 groups = (a.hidden + fp8Group - 1) / fp8Group;
  return a.scaleKind == lowLatencyScaleUe8m0 ? (groups + 3) / 4 : groups;
}

// Rows by rank have the scales of a group side by side, as the result has them; others those of a row.
__device__ __forceinline__ void storeScale(const LowLatencyDispatchArguments& a, u32 r, u32 row, u32 group, f32 stored) {
  const u32 words = scaleWordsOf(a);
  const bool isPacked = a.scaleKind == lowLatencyScaleUe8m0;
  const u32 word = isPacked ? group / 4 : group;
  const u64 block = static_cast<u64>(a.rank) * a.maxTokens * words;
  const u64 index = block + (lowLatencyIsRankMajor ? static_cast<u64>(word) * a.maxTokens + row : static_cast<u64>(row) * words + word);
  u8* at = static_cast<u8*>(a.peers[r]) + a.scalesOffset + index * 4;
  if (!isPacked) {
    *reinterpret_cast<f32*>(at) = stored;
    return;
  }
  at[group % 4] = static_cast<u8>(__float_as_uint(stored) >> 23);
  if ((group + 1) * fp8Group < a.hidden) return;
  for (u32 byte = group % 4 + 1; byte < 4; ++byte) at[byte] = 0;
}

// A vector of 8 columns for each thread and step; those of a group of columns are neighbours.
struct SendVectors {
  const LowLatencyDispatchArguments& a;
  u32 perRow;
  // With what fills the last group of columns.
  u32 padded;

  __device__ __forceinline__ explicit SendVectors(const LowLatencyDispatchArguments& arguments)
      : a(arguments), perRow(arguments.hidden / columnsPerVector),
        padded((perRow + lanesPerGroup - 1) / lanesPerGroup * lanesPerGroup) {}

  // Of a batch: which vector of which token.
  struct Place {
    u32 local;
    u32 vector;
  };

  // None for those that number.
  __device__ __forceinline__ Place firstPlace() const { return firstPlace(threadIdx.x); }

  __device__ __forceinline__ Place firstPlace(u32 thread) const {
    Place place = {thread < lowLatencySending ? 0 : lowLatencyBatch, thread};
    wrap(place);
    return place;
  }

  __device__ __forceinline__ Place after(Place place) const {
    place.vector += lowLatencySending;
    wrap(place);
    return place;
  }

  __device__ __forceinline__ void wrap(Place& place) const {
#pragma unroll 1
    for (; place.vector >= padded; place.vector -= padded) ++place.local;
  }

  __device__ __forceinline__ uint4 load(u32 first, u32 count, Place place) const {
    if (place.local >= count || place.vector >= perRow) return make_uint4(0, 0, 0, 0);
    return static_cast<const uint4*>(a.x)[static_cast<u64>(first + place.local) * perRow + place.vector];
  }

  // Beginning with the next rank spreads the load over the links.
  template <class Store>
  __device__ __forceinline__ void toRanks(const i32 (&rows)[epMaxRanks], const Store& store) const {
#pragma unroll 1
    for (u32 step = 1, r = a.rank; step <= a.ranks; ++step) {
      r = r + 1 == a.ranks ? 0 : r + 1;
      const i32 row = rows[r];
      if (row >= 0) store(r, static_cast<u32>(row));
    }
  }

  // What is sent of a vector: of fp8 its codes in x and y, and the scale of its group in z. By the lanes of whole groups.
  __device__ __forceinline__ uint4 encode(uint4 value) const {
    if (lowLatencyIsBf16) return value;
    const u32 lanes = 0xffffu << (laneIndex() & 16u);
    u32 most = magnitudeOf(value);
#pragma unroll
    for (u32 step = lanesPerGroup / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(lanes, most, step));
    const Fp8Scale scale = fp8ScaleOf(most, a.scaleKind != lowLatencyScaleF32);
    return make_uint4(toE4m3(make_uint2(value.x, value.y), scale.factor),
                      toE4m3(make_uint2(value.z, value.w), scale.factor), __float_as_uint(scale.stored), 0);
  }

  __device__ __forceinline__ void send(const i32 (&rows)[epMaxRanks], u32 vector, uint4 encoded, bool hasScale) const {
    if (vector >= perRow) return;
    if (lowLatencyIsBf16) {
      toRanks(rows, [&](u32 r, u32 row) {
        reinterpret_cast<uint4*>(slotAt(a, r, a.rowsOffset, row, a.hidden * 2ull))[vector] = encoded;
      });
      return;
    }
    const bool isFirst = hasScale && vector % lanesPerGroup == 0;
    toRanks(rows, [&](u32 r, u32 row) {
      reinterpret_cast<uint2*>(slotAt(a, r, a.rowsOffset, row, a.hidden))[vector] = make_uint2(encoded.x, encoded.y);
      if (isFirst) storeScale(a, r, row, vector / lanesPerGroup, __uint_as_float(encoded.z));
    });
  }

  // `rows`: of the tokens first to first + count - 1. The vector at `place` is encoded, and the next one on its way. `hasScale`: the
  // scale of the first one goes with it.
  __device__ __forceinline__ void sendBatch(const i32 (&rows)[lowLatencyBatch][epMaxRanks], u32 first, u32 count, Place place,
                                            uint4 encoded, uint4 next, bool hasScale) const {
#pragma unroll 1
    while (place.local < count) {
      send(rows[place.local], place.vector, encoded, hasScale);
      hasScale = true;
      place = after(place);
      if (place.local >= count) break;
      encoded = encode(next);
      next = load(first, count, after(place));
    }
  }

  // Scales of all first vectors side by side: one by one, each of them would cross a link in a packet of its own. By the threads that
  // send, around their synchronisation.
  __device__ __forceinline__ void keepScale(f32 (&scales)[lowLatencySending / lanesPerGroup], uint4 encoded) const {
    if (!lowLatencyIsBf16 && threadIdx.x % lanesPerGroup == 0) {
      scales[threadIdx.x / lanesPerGroup] = __uint_as_float(encoded.z);
    }
  }

  __device__ __forceinline__ void sendScales(const f32 (&scales)[lowLatencySending / lanesPerGroup],
                                             const i32 (&rows)[lowLatencyBatch][epMaxRanks], u32 count) const {
    if (lowLatencyIsBf16 || threadIdx.x >= lowLatencySending / lanesPerGroup) return;
    const Place place = firstPlace(threadIdx.x * lanesPerGroup);
    if (place.local >= count || place.vector >= perRow) return;
    toRanks(rows[place.local], [&](u32 r, u32 row) {
      storeScale(a, r, row, place.vector / lanesPerGroup, scales[threadIdx.x]);
    });
  }
};

// Rows by expert, by the threads that number: choices, places and weights of the block's tokens. False when the block must leave.
__device__ __forceinline__ bool numberTokens(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared,
                                             const BlockShare& own, u32 number, const WaitScope& scope) {
  constexpr u32 warps = lowLatencyNumbering / lanesPerWarp;
  const u32 warp = numberingThread() / lanesPerWarp;
  u32 first = own.begin;
  u32 count = min(own.end - first, lowLatencyBatch);
  i32 chosen = warp < count ? laneChoice(a, first + warp) : noExpert;
  f32 weight = weightAt(a, first + warp);
  // The last block tells the counts of all tokens, even if none is its own.
  countChoices(a, count != 0 || isLastBlock() ? first : 0);
#pragma unroll 1
  for (bool isHead = true;; isHead = false) {
#pragma unroll 1
    for (u32 local = warp; local < count; local += warps) {
      if (local != warp) chosen = laneChoice(a, first + local);
      shared.choices[local][laneIndex()] = chosen;
    }
    meetNumbering();
    if (warp == 0) numberChoices(a, shared, first, count, number, scope);
    meetNumbering();
    if (isHead) {
      awaitSending();
      if (!shared.isFree) return false;
    }
#pragma unroll 1
    for (u32 local = warp; local < count; local += warps) {
      if (local != warp) weight = weightAt(a, first + local);
      sendBeside(a, shared, first, local, weight);
    }
    first += lowLatencyBatch;
    if (first >= own.end) return true;
    // A warp stores the choices of the same tokens of each batch as it has just sent, which all its lanes must have read.
    __syncwarp();
    count = min(own.end - first, lowLatencyBatch);
    chosen = warp < count ? laneChoice(a, first + warp) : noExpert;
    weight = weightAt(a, first + warp);
  }
}

// Rows by expert, by the other threads: the rows themselves.
template <class AwaitSlots>
__device__ __forceinline__ bool sendTokens(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared,
                                           const BlockShare& own, const SendVectors& vectors,
                                           const AwaitSlots& areSlotsFree) {
  const u32 warp = threadIdx.x / lanesPerWarp;
  const SendVectors::Place firstPlace = vectors.firstPlace();
  u32 first = own.begin;
  u32 count = min(own.end - first, lowLatencyBatch);
  // On its way before anything else.
  uint4 value = vectors.load(first, count, firstPlace);
  i32 chosen = warp < count ? laneChoice(a, first + warp) : noExpert;
  const ExpertRank rankOf(a);
  // The last warp, which has least to send.
  if (warp == lowLatencySending / lanesPerWarp - 1) {
    const bool isFree = __all_sync(0xffffffffu, areSlotsFree());
    if (laneIndex() == 0) shared.isFree = isFree;
  }
  u32 half = 0;
#pragma unroll 1
  for (;;) {
    SendVectors::Place place = firstPlace;
    uint4 next = vectors.load(first, count, vectors.after(place));
    if (warp < count) {
      const u32 token = first + warp;
      keepRows(a, shared.rows[half][warp], rankOf.ofLanes(chosen), static_cast<i32>(token), token);
    }
    const uint4 encoded = vectors.encode(value);
    vectors.keepScale(shared.scales[half], encoded);
    meetSending();
    if (first == own.begin) {
      letNumberingGoOn();
      // Nothing is written to peers before their slots are free.
      if (!shared.isFree) return false;
    }
    vectors.sendScales(shared.scales[half], shared.rows[half], count);
    vectors.sendBatch(shared.rows[half], first, count, place, encoded, next, false);
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
  if (threadIdx.x < epMaxRanks) shared.ranks[threadIdx.x] = 0;
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
        sendBeside(a, shared, first, local, weightAt(a, first + local));
      }
    } else {
      vectors.sendBatch(shared.rows[0], first, count, place, encoded, next, true);
    }
    first += lowLatencyBatch;
  } while (first < own.end);
  return true;
}

// By all threads. areSlotsFree() says whether the slots at all peers are free; the warps that send ask it, or all threads where ranks
// come and go or rows stand by rank. False when the block must leave.
template <class AwaitSlots>
__device__ __forceinline__ bool sendRows(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 number,
                                         const WaitScope& scope, const AwaitSlots& areSlotsFree) {
  const BlockShare own(a.tokens);
  const SendVectors vectors(a);
  if constexpr (lowLatencyIsRankMajor) {
    return sendByRank(a, shared, own, vectors, number, scope, areSlotsFree);
  } else if constexpr (lowLatencyIsElastic) {
    if (!areSlotsFree()) return false;
    if (isNumbering()) return numberTokens(a, shared, own, number, scope);
    return sendTokens(a, shared, own, vectors, [] { return true; });
  } else {
    if (isNumbering()) return numberTokens(a, shared, own, number, scope);
    return sendTokens(a, shared, own, vectors, areSlotsFree);
  }
}

// By all threads that number of the last block, which has numbered its tokens.
__device__ inline void tellCounts(const LowLatencyDispatchArguments& a, const LowLatencySendShared& shared, u32 number) {
  if (!lowLatencyIsRankMajor) {
    const ExpertRank rankOf(a);
    for (u32 expert = numberingThread(); expert < a.experts; expert += lowLatencyNumbering) {
      const u32 r = rankOf(static_cast<i32>(expert));
      if (lowLatencyIsElastic && (a.active >> r & 1u) == 0) continue;
      const u64 cell = static_cast<u64>(a.rank) * a.expertsPerRank + (expert - r * a.expertsPerRank);
      reinterpret_cast<u32*>(static_cast<u8*>(a.peers[r]) + a.countsOffset)[cell] = sentToExperts()[expert];
    }
  }
  const u32 r = numberingThread();
  if (r >= a.ranks) return;
  if (lowLatencyIsElastic && (a.active >> r & 1u) == 0) return;
  LowLatencyFlags* flags = flagsAt(a.peers[r], a.rank);
  flags->rows[number % lowLatencyCalls] = lowLatencyIsRankMajor ? shared.ranks[r] : a.tokens;
  flags->calls[number % lowLatencyCalls] = callCell(number, a.call);
}

}  // namespace weftline
