// Parts of rows in a rank's slots, on their way to the places of their experts.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/low-latency/arriving-words.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/number-rows.cuh"
#include "weftline/low-latency/send-vectors.cuh"
#include "weftline/types.cuh"

namespace weftline {

__device__ __forceinline__ const u8* windowOf(const LowLatencyDispatchArguments& a) {
  return static_cast<const u8*>(a.peers[a.rank]);
}

// A row that may have come: of a token of a rank, which perhaps went elsewhere.
struct SlotRow {
  u32 rank;
  u32 token;

  // `countOf`: rows of a rank's slot.
  template <class CountOf>
  __device__ __forceinline__ SlotRow(const LowLatencyDispatchArguments& a, u32 row, const CountOf& countOf) : rank(0), token(row) {
    for (u32 count; rank + 1 < a.ranks && token >= (count = countOf(rank)); ++rank) token -= count;
  }

  // Among the rows of the slot.
  __device__ __forceinline__ u32 place(const LowLatencyDispatchArguments& a) const { return rank * a.maxTokens + token; }
};

// Lane j has choice j of a row here, or none. It is on its way.
__device__ __forceinline__ LowLatencyChoice choiceOf(const LowLatencyDispatchArguments& a, u32 row, u32 number) {
  if (laneIndex() >= a.topkColumns) return {noExpert, 0, 0.0f, number};
  const auto* choices = reinterpret_cast<const LowLatencyChoice*>(windowOf(a) + a.choicesOffset);
  u64 low;
  u64 high;
  loadRelaxedSystem(choices + static_cast<u64>(row) * a.topkColumns + laneIndex(), low, high);
  return {static_cast<i32>(low), static_cast<u32>(low >> 32), __uint_as_float(static_cast<u32>(high)),
          static_cast<u32>(high >> 32)};
}

// What a row is a multiple of.
template <u32 rows>
struct RowVectorOf {
  using Vector = uint4;
};
template <>
struct RowVectorOf<lowLatencyRowsFp8Narrow> {
  using Vector = uint2;
};
using RowVector = RowVectorOf<WEFTLINE_ROWS>::Vector;

// Words of scales that a part of a row has with it: those of its own columns.
struct PartScales {
  u32 first;
  u32 end;

  __device__ __forceinline__ PartScales(const LowLatencyDispatchArguments& a, u32 part, u32 each) {
    const u32 groups = groupsOf(each);
    const u32 words = scaleWordsOf(a);
    const bool isPacked = a.scaleKind == lowLatencyScaleUe8m0;
    // Number of packed ones that begin in the part.
    first = isPacked ? (part * groups + 3) / 4 : part * groups;
    end = min(isPacked ? ((part + 1) * groups + 3) / 4 : (part + 1) * groups, words);
  }

  // Groups of columns in a part of rows of fp8, each one byte.
  __device__ __forceinline__ static u32 groupsOf(u32 each) { return each * lanesPerWarp * sizeof(RowVector) / fp8Group; }
};

// One part of one row, by a warp: `each` vectors per lane, at most 4, and the scales of their columns. Lane j has choice j.
struct RowPart {
  static constexpr u32 most = 4;
  u32 part;
  u32 each;
  // The lane's first vector in the window, the next ones each lanesPerWarp further on; and how many it has.
  RowVector* from;
  u32 count;
  // The lane's word of scales in the window; null if it has none.
  u32* scaleFrom;
  RowVector values[most];
  u32 scale;

  // `row`: in the window.
  __device__ __forceinline__ RowPart(const LowLatencyDispatchArguments& a, u32 row, u32 itsPart, u32 vectors, u32 rowVectors)
      : part(itsPart), each(vectors), scaleFrom(nullptr) {
    const u32 first = part * each * lanesPerWarp + laneIndex();
    u8* window = static_cast<u8*>(a.peers[a.rank]);
    from = reinterpret_cast<RowVector*>(window + a.rowsOffset) + static_cast<u64>(row) * rowVectors + first;
    count = first >= rowVectors ? 0 : min(each, (rowVectors - first + lanesPerWarp - 1) / lanesPerWarp);
    if constexpr (!lowLatencyIsBf16) {
      const PartScales scales(a, part, each);
      const u32 word = scales.first + (laneIndex() & (1u << wordBits(each)) - 1);
      u32* of = reinterpret_cast<u32*>(window + a.scalesOffset) + static_cast<u64>(row) * scaleWordsOf(a);
      if (word < scales.end) scaleFrom = of + word;
    }
    if constexpr (lowLatencyRowsShow) {
#pragma unroll
      for (RowVector& words : values) makeEmpty(words);
      scale = lowLatencyEmpty;
    }
  }

  // Begins to load all of it.
  __device__ __forceinline__ void load() {
#pragma unroll
    for (u32 i = 0; i < most; ++i) {
      if (i >= count) continue;
      if constexpr (lowLatencyRowsShow) loadWordsSystem(from + i * lanesPerWarp, values[i]);
      else values[i] = __ldcg(from + i * lanesPerWarp);
    }
    if (scaleFrom != nullptr) scale = lowLatencyRowsShow ? loadRelaxedSystem(scaleFrom) : __ldcg(scaleFrom);
  }

  // Where words show that rows have come: whether some of what the lane has loaded had not.
  __device__ __forceinline__ bool isMissing(const LowLatencyDispatchArguments& a) const {
    bool isMissing = false;
#pragma unroll
    for (u32 i = 0; i < most; ++i) isMissing |= i < count && hasEmptyWord(values[i]);
    if (scaleFrom == nullptr) return isMissing;
    // The bytes of exponents come one by one, and none of them is 255.
    return isMissing ||
           (a.scaleKind == lowLatencyScaleUe8m0 ? __vcmpeq4(scale, lowLatencyEmpty) != 0 : scale == lowLatencyEmpty);
  }

  // Stores the empty word in its place, once all of it has been loaded.
  __device__ __forceinline__ void empty() const {
    // Lanes with the same word of scales must all have loaded it.
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < most; ++i) {
      if (i < count) storeEmpty(from + i * lanesPerWarp);
    }
    if (scaleFrom != nullptr) storeEmpty(scaleFrom);
  }

  // Copies to all places of the row; `index`: that of the lane's choice, or -1.
  __device__ __forceinline__ void store(const LowLatencyDispatchArguments& a, const LowLatencyChoice& choice, i32 index,
                                        u32 rowVectors) const {
    RowVector* rows = static_cast<RowVector*>(a.rows) + part * each * lanesPerWarp + laneIndex();
    for (u32 found = __ballot_sync(0xffffffffu, index >= 0); found != 0; found &= found - 1) {
      RowVector* to = rows + static_cast<u64>(__shfl_sync(0xffffffffu, index, __ffs(found) - 1)) * rowVectors;
#pragma unroll
      for (u32 i = 0; i < most; ++i) {
        if (i < count) to[i * lanesPerWarp] = values[i];
      }
    }
    if constexpr (!lowLatencyIsBf16) storeScales(a, static_cast<u32>(choice.expert), index);
  }

  // Neighbouring scales of a row lie far apart: a lane for each of them and each choice.
  __device__ __forceinline__ void storeScales(const LowLatencyDispatchArguments& a, u32 expert, i32 index) const {
    const PartScales scales(a, part, each);
    const u32 bits = wordBits(each);
    const u32 word = scales.first + (laneIndex() & (1u << bits) - 1);
    const u32 words = scaleWordsOf(a);
#pragma unroll 1
    for (u32 first = 0; first < a.topkColumns << bits; first += lanesPerWarp) {
      const u32 column = (first + laneIndex()) >> bits;
      const i32 to = __shfl_sync(0xffffffffu, index, column);
      const u32 of = __shfl_sync(0xffffffffu, expert, column);
      if (column >= a.topkColumns || to < 0 || word >= scales.end) continue;
      const u64 block = (static_cast<u64>(of) * words + word) * a.capacity;
      static_cast<u32*>(a.scales)[block + (static_cast<u32>(to) - of * a.capacity)] = scale;
    }
  }

  // Stores what goes beside the row; called with its first part.
  __device__ __forceinline__ static void storeBeside(const LowLatencyDispatchArguments& a, const SlotRow& row,
                                                     const LowLatencyChoice& choice, i32 index) {
    if (laneIndex() < a.topkColumns && a.rowOf != nullptr) {
      const u64 cell = static_cast<u64>(row.place(a)) * a.topkColumns + laneIndex();
      static_cast<i32*>(a.rowOf)[cell] = choice.expert < 0 ? lowLatencyElsewhere : index < 0 ? lowLatencyLeftOut : index;
      static_cast<f32*>(a.rowWeights)[cell] = choice.weight;
    }
    if (index >= 0) static_cast<u32*>(a.sources)[index] = row.token;
  }

  // Room for as many words as a part has, or a few more.
  __device__ __forceinline__ static u32 wordBits(u32 each) {
    constexpr u32 least = sizeof(RowVector) == 16 ? 2 : 1;
    return least + (each > 1 ? 1 : 0) + (each > 2 ? 1 : 0);
  }
};

// Vectors per lane and part of a row of `small` parts of one vector: what takes all warps least time, a part costing as much as
// two vectors before its first.
__device__ __forceinline__ u32 vectorsPerPart(u32 rows, u32 small, u32 warps) {
  constexpr u32 partCost = 2;
  const Divisor byWarps(warps);
  u32 best = 1;
  u32 least = 0xffffffffu;
#pragma unroll
  for (u32 each = 1; each <= RowPart::most; ++each) {
    const u32 items = rows * ((small + each - 1) / each);
    const u32 cost = byWarps.quotient(items + warps - 1) * (each + partCost);
    if (cost >= least) continue;
    least = cost;
    best = each;
  }
  return best;
}

}  // namespace weftline
