// The first half of a low-latency dispatch: each token once to each rank that holds one of its experts, quantised on the way.
//
// Every block counts the choices of all tokens before its own, so that it knows the rows of its own without a word of the other
// blocks. The last one then knows the counts of all, and tells the receivers.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/fp8.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Tokens of a block that are numbered, and then sent, together.
constexpr u32 lowLatencyBatch = 8;
constexpr u32 columnsPerVector = 8;
constexpr u32 lanesPerGroup = fp8Group / columnsPerVector;

struct LowLatencySendShared {
  // By expert and by rank: how many of the tokens so far go there.
  u32* experts;
  u32 ranks[epMaxRanks];
  // Of the tokens of a batch: row at each rank or -1; expert of each choice or -1, and row among this rank's for it.
  i32 rows[lowLatencyBatch][epMaxRanks];
  i32 choices[lowLatencyBatch][lanesPerWarp];
  u32 places[lowLatencyBatch][lanesPerWarp];
};

constexpr i32 noExpert = -1;
constexpr i32 badExpert = -2;

__device__ __forceinline__ i32 choiceAt(const LowLatencyDispatchArguments& a, u64 cell) {
  const i64 expert = a.indexBytes == 8 ? static_cast<const i64*>(a.topk)[cell] : static_cast<const i32*>(a.topk)[cell];
  return expert >= noExpert && expert < static_cast<i64>(a.experts) ? static_cast<i32>(expert) : badExpert;
}

// Where this rank's slot of a region begins at rank r, in elements of `bytes`, row by row.
__device__ __forceinline__ u8* slotAt(const LowLatencyDispatchArguments& a, u32 r, u64 offset, u64 row, u64 bytes) {
  return static_cast<u8*>(a.peers[r]) + offset + (static_cast<u64>(a.rank) * a.maxTokens + row) * bytes;
}

// By all threads: the choices of tokens 0 to end - 1.
__device__ __forceinline__ void countBefore(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 end) {
  constexpr u32 together = 8;
  for (u32 token = threadIdx.x; token < end; token += blockDim.x) {
    u32 ranks = 0;
    for (u32 first = 0; first < a.topkColumns; first += together) {
      i32 experts[together];
#pragma unroll
      for (u32 j = 0; j < together; ++j) {
        experts[j] = first + j < a.topkColumns ? choiceAt(a, static_cast<u64>(token) * a.topkColumns + first + j) : noExpert;
      }
#pragma unroll
      for (u32 j = 0; j < together; ++j) {
        if (experts[j] < 0) continue;
        if (a.rankMajor == 0) atomicAdd(&shared.experts[experts[j]], 1u);
        ranks |= 1u << (static_cast<u32>(experts[j]) / a.expertsPerRank);
      }
    }
    for (; ranks != 0; ranks &= ranks - 1) atomicAdd(&shared.ranks[__ffs(ranks) - 1], 1u);
  }
}

// By one warp: the rows of tokens first to first + count - 1, in token order. Lane j has choice j, lane r has rank r.
__device__ inline void numberBatch(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 first, u32 count,
                                   u32 number, const WaitScope& scope) {
  const u32 lane = laneIndex();
  const bool isColumn = lane < a.topkColumns;
  u32 rows = lane < a.ranks ? shared.ranks[lane] : 0;
  for (u32 local = 0; local < count; ++local) {
    const u32 token = first + local;
    const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
    const i32 expert = isColumn ? choiceAt(a, cell) : noExpert;
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
      place = shared.experts[expert];
      shared.experts[expert] = place + 1;
    }
    u32 ranks = __reduce_or_sync(0xffffffffu, isGood ? 1u << (static_cast<u32>(expert) / a.expertsPerRank) : 0u);
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

// A warp per token and rank: what goes beside the row. Lane j has choice j.
__device__ inline void sendBeside(const LowLatencyDispatchArguments& a, const LowLatencySendShared& shared, u32 first,
                                  u32 count) {
  const u32 lane = laneIndex();
  for (u32 pair = threadIdx.x / lanesPerWarp; pair < count * a.ranks; pair += blockDim.x / lanesPerWarp) {
    const u32 local = pair / a.ranks;
    const u32 r = pair - local * a.ranks;
    const i32 row = shared.rows[local][r];
    if (row < 0) continue;
    if (lane == 0) *reinterpret_cast<u32*>(slotAt(a, r, a.sourcesOffset, row, 4)) = first + local;
    if (lane >= a.topkColumns) continue;
    const i32 expert = shared.choices[local][lane];
    const i32 ofRank = expert - static_cast<i32>(r * a.expertsPerRank);
    const bool isThere = expert >= 0 && ofRank >= 0 && ofRank < static_cast<i32>(a.expertsPerRank);
    const i32 chosen = isThere ? ofRank : noExpert;
    if (a.rankMajor == 0) {
      reinterpret_cast<int2*>(slotAt(a, r, a.choicesOffset, row, a.topkColumns * 8))[lane] =
          make_int2(chosen, static_cast<i32>(shared.places[local][lane]));
    } else if (a.indexBytes == 8) {
      reinterpret_cast<i64*>(slotAt(a, r, a.choicesOffset, row, a.topkColumns * 8))[lane] = chosen;
    } else {
      reinterpret_cast<i32*>(slotAt(a, r, a.choicesOffset, row, a.topkColumns * 4))[lane] = chosen;
    }
    if (a.weights == nullptr) continue;
    const f32 weight = static_cast<const f32*>(a.weights)[static_cast<u64>(first + local) * a.topkColumns + lane];
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

  __device__ __forceinline__ uint4 load(u32 first, u32 count, u32 item) const {
    const u32 local = item / padded;
    const u32 vector = item - local * padded;
    if (local >= count || vector >= perRow) return make_uint4(0, 0, 0, 0);
    return static_cast<const uint4*>(a.x)[static_cast<u64>(first + local) * perRow + vector];
  }

  // Beginning with the next rank spreads the load over the links.
  template <class Store>
  __device__ __forceinline__ void toRanks(const LowLatencySendShared& shared, u32 local, const Store& store) const {
    for (u32 step = 1, r = a.rank; step <= a.ranks; ++step) {
      r = r + 1 == a.ranks ? 0 : r + 1;
      const i32 row = shared.rows[local][r];
      if (row >= 0) store(r, static_cast<u32>(row));
    }
  }

  __device__ __forceinline__ void send(const LowLatencySendShared& shared, u32 item, uint4 value) const {
    const u32 local = item / padded;
    const u32 vector = item - local * padded;
    const bool isInRow = vector < perRow;
    if (a.format == lowLatencyFormatBf16) {
      if (!isInRow) return;
      toRanks(shared, local, [&](u32 r, u32 row) {
        reinterpret_cast<uint4*>(slotAt(a, r, a.rowsOffset, row, a.hidden * 2ull))[vector] = value;
      });
      return;
    }
    // The lanes of a group are all here: rows are padded to whole groups.
    const u32 lanes = 0xffffu << (laneIndex() & 16u);
    u32 most = max(max(magnitudeOf(value.x), magnitudeOf(value.y)), max(magnitudeOf(value.z), magnitudeOf(value.w)));
#pragma unroll
    for (u32 step = lanesPerGroup / 2; step > 0; step /= 2) most = max(most, __shfl_xor_sync(lanes, most, step));
    if (!isInRow) return;
    const Fp8Scale scale = fp8ScaleOf(most, a.format != lowLatencyFormatF32);
    const uint2 codes = make_uint2(toE4m3(make_uint2(value.x, value.y), scale.factor),
                                   toE4m3(make_uint2(value.z, value.w), scale.factor));
    const bool isFirst = vector % lanesPerGroup == 0;
    toRanks(shared, local, [&](u32 r, u32 row) {
      reinterpret_cast<uint2*>(slotAt(a, r, a.rowsOffset, row, a.hidden))[vector] = codes;
      if (isFirst) storeScale(a, r, row, vector / lanesPerGroup, scale.stored);
    });
  }
};

// By all threads; `isFree`: slots at all peers are, as every thread knows once it has called it. False when the block must leave.
template <class AwaitSlots>
__device__ bool sendRows(const LowLatencyDispatchArguments& a, LowLatencySendShared& shared, u32 number,
                         const WaitScope& scope, const AwaitSlots& areSlotsFree) {
  const u64 tokens = a.tokens;
  const u32 begin = static_cast<u32>(tokens * blockIdx.x / gridDim.x);
  const u32 end = static_cast<u32>(tokens * (blockIdx.x + 1) / gridDim.x);
  const SendVectors vectors(a);
  // On its way while the block counts.
  const uint4 head = vectors.load(begin, min(end - begin, lowLatencyBatch), threadIdx.x);
  for (u32 expert = threadIdx.x; expert < a.experts && a.rankMajor == 0; expert += blockDim.x) shared.experts[expert] = 0;
  if (threadIdx.x < epMaxRanks) shared.ranks[threadIdx.x] = 0;
  __syncthreads();
  // The last block tells the counts of all tokens, even if none is its own.
  if (begin < end || isLastBlock()) countBefore(a, shared, begin);
  const bool isFree = areSlotsFree();
  for (u32 first = begin; first < end; first += lowLatencyBatch) {
    const u32 count = min(end - first, lowLatencyBatch);
    // Behind the counts, or behind the rows of the batch before.
    __syncthreads();
    if (threadIdx.x < lanesPerWarp) numberBatch(a, shared, first, count, number, scope);
    // Nothing is written to peers before their slots are free.
    if (__syncthreads_or(!isFree)) return false;
    sendBeside(a, shared, first, count);
    for (u32 item = threadIdx.x; item < count * vectors.padded; item += blockDim.x) {
      const bool isHead = first == begin && item == threadIdx.x;
      vectors.send(shared, item, isHead ? head : vectors.load(first, count, item));
    }
  }
  return !__syncthreads_or(!isFree);
}

// By all threads of the last block, behind its rows.
__device__ inline void tellCounts(const LowLatencyDispatchArguments& a, const LowLatencySendShared& shared, u32 number) {
  if (a.rankMajor == 0) {
    for (u32 expert = threadIdx.x; expert < a.experts; expert += blockDim.x) {
      const u32 r = expert / a.expertsPerRank;
      if (lowLatencyIsElastic && (a.active >> r & 1u) == 0) continue;
      const u64 cell = static_cast<u64>(a.rank) * a.expertsPerRank + (expert - r * a.expertsPerRank);
      reinterpret_cast<u32*>(static_cast<u8*>(a.peers[r]) + a.countsOffset)[cell] = shared.experts[expert];
    }
  }
  if (threadIdx.x >= a.ranks) return;
  if (lowLatencyIsElastic && (a.active >> threadIdx.x & 1u) == 0) return;
  LowLatencyFlags* flags = flagsAt(a.peers[threadIdx.x], a.rank);
  flags->rows[number % lowLatencyCalls] = shared.ranks[threadIdx.x];
  flags->calls[number % lowLatencyCalls] = callCell(number, a.call);
}

}  // namespace weftline
