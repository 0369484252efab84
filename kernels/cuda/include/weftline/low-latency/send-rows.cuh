// The first half of a low-latency dispatch: each token once to each rank that holds one of its experts, quantised on the way.
//
// Every block counts the choices of all tokens before its own, so that it knows the rows of its own without a word of the other
// blocks. The last one then knows the counts of all, and tells the receivers.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/fp8.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Tokens of a block that are numbered, and then sent, together.
constexpr u32 lowLatencyBatch = 8;
constexpr u32 columnsPerVector = 8;
constexpr u32 lanesPerGroup = fp8Group / columnsPerVector;

// Shared memory for numbers by expert: of the sending half, then of the receiving one. A function, so that the compiler sees that
// it is shared memory.
__device__ __forceinline__ u32* sharedExperts() {
  __shared__ u32 numbers[2 * epMaxExperts];
  return numbers;
}

// How many of the tokens so far go to each expert.
__device__ __forceinline__ u32* sentToExperts() { return sharedExperts(); }

struct LowLatencySendShared {
  // The same by rank.
  u32 ranks[epMaxRanks];
  // Of the tokens of a batch: row at each rank or -1; expert of each choice or -1, and row among this rank's for it.
  i32 rows[lowLatencyBatch][epMaxRanks];
  i32 choices[lowLatencyBatch][lanesPerWarp];
  u32 places[lowLatencyBatch][lanesPerWarp];
};

constexpr i32 noExpert = -1;
constexpr i32 badExpert = -2;

__device__ __forceinline__ i32 choiceAt(const LowLatencyDispatchArguments& a, u64 cell) {
  const bool isWide = a.indexBytes == 8;
  const i32* words = static_cast<const i32*>(a.topk) + (isWide ? cell * 2 : cell);
  const i32 expert = words[0];
  const i32 high = isWide ? words[1] : expert >> 31;
  return expert >= noExpert && expert < static_cast<i32>(a.experts) && high == expert >> 31 ? expert : badExpert;
}

// Which rank has an expert, by a multiplication: exact, for there are at most epMaxExperts.
struct ExpertRank {
  u32 factor;

  __device__ __forceinline__ explicit ExpertRank(const LowLatencyDispatchArguments& a)
      : factor(a.expertsPerRank == 1 ? 0 : 0xffffffffu / a.expertsPerRank + 1) {}

  __device__ __forceinline__ u32 operator()(i32 expert) const {
    const u32 number = static_cast<u32>(expert);
    return factor == 0 ? number : __umulhi(number, factor);
  }
};

// Where this rank's slot of a region begins at rank r, in elements of `bytes`, row by row.
__device__ __forceinline__ u8* slotAt(const LowLatencyDispatchArguments& a, u32 r, u64 offset, u64 row, u64 bytes) {
  return static_cast<u8*>(a.peers[r]) + offset + (static_cast<u64>(a.rank) * a.maxTokens + row) * bytes;
}

// By all threads: counts the choices of tokens 0 to begin - 1, and keeps those of `own` tokens from there on for numberBatch().
__device__ __forceinline__ void countBefore(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 begin,
                                            u32 own, ExpertRank rankOf) {
  constexpr u32 together = 8;
  for (u32 token = threadIdx.x; token < begin + own; token += blockDim.x) {
    u32 ranks = 0;
    for (u32 first = 0; first < a.topkColumns; first += together) {
      i32 experts[together];
#pragma unroll
      for (u32 j = 0; j < together; ++j) {
        experts[j] = first + j < a.topkColumns ? choiceAt(a, static_cast<u64>(token) * a.topkColumns + first + j) : noExpert;
      }
#pragma unroll
      for (u32 j = 0; j < together; ++j) {
        if (token >= begin) {
          if (first + j < a.topkColumns) shared.choices[token - begin][first + j] = experts[j];
          continue;
        }
        if (experts[j] < 0) continue;
        if (a.rankMajor == 0) atomicAdd(&sentToExperts()[experts[j]], 1u);
        ranks |= 1u << rankOf(experts[j]);
      }
    }
    for (; ranks != 0; ranks &= ranks - 1) atomicAdd(&shared.ranks[__ffs(ranks) - 1], 1u);
  }
}

// By one warp: the rows of tokens first to first + count - 1, in token order. Lane j has choice j, lane r has rank r. `isKept`:
// countBefore() left their choices.
__device__ inline void numberBatch(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 first, u32 count,
                                   bool isKept, ExpertRank rankOf, u32 number, const WaitScope& scope) {
  const u32 lane = laneIndex();
  const bool isColumn = lane < a.topkColumns;
  u32 rows = lane < a.ranks ? shared.ranks[lane] : 0;
  for (u32 local = 0; local < count; ++local) {
    const u32 token = first + local;
    const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
    const i32 expert = !isColumn ? noExpert : isKept ? shared.choices[local][lane] : choiceAt(a, cell);
    const u32 equals = __match_any_sync(0xffffffffu, expert);
    const bool isBad = expert == badExpert || (expert >= 0 && static_cast<u32>(__ffs(equals)) - 1 != lane);
    const u32 bad = __ballot_sync(0xffffffffu, isBad);
    if (bad != 0 && lane == static_cast<u32>(__ffs(bad)) - 1) {
      failCall({a.peers, a.ranks, a.rank}, scope, {a.rank, waitWord(lowLatencyWaitRows, a.call)},
               {lowLatencyFailureBadChoice, number, static_cast<u32>(cell), 0});
    }
    const bool isGood = expert >= 0 && !isBad;
    if constexpr (lowLatencyIsElastic) {
      if (isColumn) static_cast<i32*>(a.keptChoices)[cell] = isGood ? expert : noExpert;
    }
    u32 place = 0;
    if (isGood && a.rankMajor == 0) {
      place = sentToExperts()[expert];
      sentToExperts()[expert] = place + 1;
    }
    u32 ranks = __reduce_or_sync(0xffffffffu, isGood ? 1u << rankOf(expert) : 0u);
    if constexpr (lowLatencyIsElastic) ranks &= a.active;
    if (lane < a.ranks) {
      const i32 row = (ranks >> lane & 1u) != 0 ? static_cast<i32>(rows++) : -1;
      shared.rows[local][lane] = row;
      static_cast<i32*>(a.sentRows)[static_cast<u64>(token) * a.ranks + lane] = row;
    }
    shared.choices[local][lane] = isGood ? expert : noExpert;
    shared.places[local][lane] = place;
    if (isColumn && a.sentPlaces != nullptr) {
      static_cast<int2*>(a.sentPlaces)[cell] = make_int2(isGood ? expert : noExpert, static_cast<i32>(place));
    }
    // The next token may have the same experts in other lanes.
    __syncwarp();
  }
  if (lane < a.ranks) shared.ranks[lane] = rows;
}

// The weight of this lane's choice of a token of a batch.
__device__ __forceinline__ f32 weightAt(const LowLatencyDispatchArguments& a, u32 first, u32 count, u32 local) {
  if (a.weights == nullptr || local >= count || laneIndex() >= a.topkColumns) return 0.0f;
  return static_cast<const f32*>(a.weights)[static_cast<u64>(first + local) * a.topkColumns + laneIndex()];
}

// A warp per token, the last ones: the first have most of the rows' vectors.
__device__ __forceinline__ u32 besideToken() { return blockDim.x / lanesPerWarp - 1 - threadIdx.x / lanesPerWarp; }

// What goes beside the rows of a token, by its warp. Lane j has choice j, and its weight.
__device__ inline void sendBeside(const LowLatencyDispatchArguments& a, const LowLatencySendShared& shared, u32 first,
                                  u32 local, f32 weight) {
  const u32 lane = laneIndex();
  const i32 expert = shared.choices[local][lane];
  const i32 place = static_cast<i32>(shared.places[local][lane]);
#pragma unroll 1
  for (u32 r = 0; r < a.ranks; ++r) {
    const i32 row = shared.rows[local][r];
    if (row < 0) continue;
    if (lane == 0) *reinterpret_cast<u32*>(slotAt(a, r, a.sourcesOffset, row, 4)) = first + local;
    if (lane >= a.topkColumns) continue;
    const i32 ofRank = expert - static_cast<i32>(r * a.expertsPerRank);
    const bool isThere = expert >= 0 && ofRank >= 0 && ofRank < static_cast<i32>(a.expertsPerRank);
    const i32 chosen = isThere ? ofRank : noExpert;
    const u32 bytes = a.rankMajor == 0 ? 8 : a.indexBytes;
    u8* at = slotAt(a, r, a.choicesOffset, row, a.topkColumns * bytes) + lane * bytes;
    if (bytes == 8) *reinterpret_cast<int2*>(at) = make_int2(chosen, a.rankMajor == 0 ? place : chosen >> 31);
    else *reinterpret_cast<i32*>(at) = chosen;
    if (a.weights == nullptr) continue;
    reinterpret_cast<f32*>(slotAt(a, r, a.weightsOffset, row, a.topkColumns * 4))[lane] = isThere ? weight : 0.0f;
  }
}

__device__ __forceinline__ u32 scaleWordsOf(const LowLatencyDispatchArguments& a) {
  if (a.format == lowLatencyFormatBf16) return 0;
  const u32 groups = (a.hidden + fp8Group - 1) / fp8Group;
  return a.format == lowLatencyFormatUe8m0 ? (groups + 3) / 4 : groups;
}

// Rows by rank have the scales of a group side by side, as the result has them; others those of a row.
__device__ __forceinline__ void storeScale(const LowLatencyDispatchArguments& a, u32 r, u32 row, u32 group, f32 stored) {
  const u32 words = scaleWordsOf(a);
  const bool isPacked = a.format == lowLatencyFormatUe8m0;
  const u32 word = isPacked ? group / 4 : group;
  const u64 block = static_cast<u64>(a.rank) * a.maxTokens * words;
  const u64 index = block + (a.rankMajor != 0 ? static_cast<u64>(word) * a.maxTokens + row : static_cast<u64>(row) * words + word);
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

  __device__ __forceinline__ Place firstPlace() const {
    Place place = {0, threadIdx.x};
    wrap(place);
    return place;
  }

  __device__ __forceinline__ Place after(Place place) const {
    place.vector += blockDim.x;
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
  __device__ __forceinline__ void toRanks(const LowLatencySendShared& shared, u32 local, const Store& store) const {
#pragma unroll 1
    for (u32 step = 1, r = a.rank; step <= a.ranks; ++step) {
      r = r + 1 == a.ranks ? 0 : r + 1;
      const i32 row = shared.rows[local][r];
      if (row >= 0) store(r, static_cast<u32>(row));
    }
  }

  // What is sent of a vector: of fp8 its codes in x and y, and the scale of its group in z. By the lanes of whole groups.
  __device__ __forceinline__ uint4 encode(uint4 value) const {
    if (a.format == lowLatencyFormatBf16) return value;
    const u32 lanes = 0xffffu << (laneIndex() & 16u);
    u32 most = magnitudeOf(value);
#pragma unroll
    for (u32 step = lanesPerGroup / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(lanes, most, step));
    const Fp8Scale scale = fp8ScaleOf(most, a.format != lowLatencyFormatF32);
    return make_uint4(toE4m3(make_uint2(value.x, value.y), scale.factor),
                      toE4m3(make_uint2(value.z, value.w), scale.factor), __float_as_uint(scale.stored), 0);
  }

  __device__ __forceinline__ void send(const LowLatencySendShared& shared, Place place, uint4 encoded) const {
    const u32 local = place.local;
    const u32 vector = place.vector;
    if (vector >= perRow) return;
    if (a.format == lowLatencyFormatBf16) {
      toRanks(shared, local, [&](u32 r, u32 row) {
        reinterpret_cast<uint4*>(slotAt(a, r, a.rowsOffset, row, a.hidden * 2ull))[vector] = encoded;
      });
      return;
    }
    const bool isFirst = vector % lanesPerGroup == 0;
    toRanks(shared, local, [&](u32 r, u32 row) {
      reinterpret_cast<uint2*>(slotAt(a, r, a.rowsOffset, row, a.hidden))[vector] = make_uint2(encoded.x, encoded.y);
      if (isFirst) storeScale(a, r, row, vector / lanesPerGroup, __uint_as_float(encoded.z));
    });
  }
};

// By all threads; `isFree`: slots at all peers are, as every thread knows once it has called it. False when the block must leave.
template <class AwaitSlots>
__device__ bool sendRows(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 number,
                         const WaitScope& scope, const AwaitSlots& areSlotsFree) {
  const BlockShare own(a.tokens);
  const SendVectors vectors(a);
  const SendVectors::Place firstPlace = vectors.firstPlace();
  const u32 head = min(own.end - own.begin, lowLatencyBatch);
  // On its way while the block counts.
  uint4 value = vectors.load(own.begin, head, firstPlace);
  f32 weight = weightAt(a, own.begin, head, besideToken());
  const ExpertRank rankOf(a);
  for (u32 expert = threadIdx.x; expert < a.experts && a.rankMajor == 0; expert += blockDim.x) sentToExperts()[expert] = 0;
  if (threadIdx.x < epMaxRanks) shared.ranks[threadIdx.x] = 0;
  __syncthreads();
  // The last block tells the counts of all tokens, even if none is its own.
  if (head != 0 || isLastBlock()) countBefore(a, shared, own.begin, head, rankOf);
  const bool isFree = areSlotsFree();
  if (head == 0 && __syncthreads_or(!isFree)) return false;
#pragma unroll 1
  for (u32 first = own.begin; first < own.end; first += lowLatencyBatch) {
    const u32 count = min(own.end - first, lowLatencyBatch);
    const bool isHead = first == own.begin;
    SendVectors::Place place = firstPlace;
    if (!isHead) {
      value = vectors.load(first, count, place);
      weight = weightAt(a, first, count, besideToken());
    }
    uint4 next = vectors.load(first, count, vectors.after(place));
    // Behind the counts, or behind the rows of the batch before.
    __syncthreads();
    if (threadIdx.x < lanesPerWarp) numberBatch(a, shared, first, count, isHead, rankOf, number, scope);
    // While that warp numbers.
    uint4 encoded = vectors.encode(value);
    // Nothing is written to peers before their slots are free.
    if (__syncthreads_or(!isFree)) return false;
    if (besideToken() < count) sendBeside(a, shared, first, besideToken(), weight);
#pragma unroll 1
    while (place.local < count) {
      vectors.send(shared, place, encoded);
      place = vectors.after(place);
      if (place.local >= count) break;
      encoded = vectors.encode(next);
      next = vectors.load(first, count, vectors.after(place));
    }
  }
  return true;
}

// By all threads of the last block, which has numbered its tokens.
__device__ inline void tellCounts(const LowLatencyDispatchArguments& a, const LowLatencySendShared& shared, u32 number) {
  if (a.rankMajor == 0) {
    for (u32 expert = threadIdx.x; expert < a.experts; expert += blockDim.x) {
      const u32 r = expert / a.expertsPerRank;
      if (lowLatencyIsElastic && (a.active >> r & 1u) == 0) continue;
      const u64 cell = static_cast<u64>(a.rank) * a.expertsPerRank + (expert - r * a.expertsPerRank);
      reinterpret_cast<u32*>(static_cast<u8*>(a.peers[r]) + a.countsOffset)[cell] = sentToExperts()[expert];
    }
  }
  if (threadIdx.x >= a.ranks) return;
  if (lowLatencyIsElastic && (a.active >> threadIdx.x & 1u) == 0) return;
  LowLatencyFlags* flags = flagsAt(a.peers[threadIdx.x], a.rank);
  flags->rows[number % lowLatencyCalls] = shared.ranks[threadIdx.x];
  flags->calls[number % lowLatencyCalls] = callCell(number, a.call);
}

}  // namespace weftline
