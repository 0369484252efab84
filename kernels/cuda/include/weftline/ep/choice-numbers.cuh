// The numbers of a layer's choices among those of their experts: a bit per (token, bin) of a tile of tokens, in shared memory, where
// word w of a bin has the tokens of warp w. The first bins are ranks, then come experts.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/ep/exchange-record.cuh"
#include "weftline/types.cuh"

namespace weftline {

__device__ __forceinline__ i64 choiceAt(const LayerPrepareArguments& a, u64 cell) {
  return integerAt(a.topk, a.indexBytes, cell);
}

__device__ __forceinline__ bool isDropped(const LayerPrepareArguments& a, i64 expert) {
  return expert == -1 || expert == static_cast<i64>(a.experts);
}

// The ranks of the group that a token goes to, as bits.
struct TokenRanks {
  // It goes there, and it goes there more than once.
  u32 once;
  u32 again;
};

// Sets the token's bits, and `repeats` if it chooses an expert more than once. The first bad choice of all is kept.
__device__ inline TokenRanks markChoices(const LayerPrepareArguments& a, u32 token, u32* word, u32* repeats) {
  const u32 expertsPerRank = a.experts / a.groupRanks;
  const u32 bit = 1u << laneIndex();
  u32 once = 0;
  u32 again = 0;
#pragma unroll 4
  for (u32 j = 0; j < a.topkColumns; ++j) {
    const u64 cell = static_cast<u64>(token) * a.topkColumns + j;
    const i64 expert = choiceAt(a, cell);
    i32 rank = -1;
    if (!isDropped(a, expert)) {
      if (expert < 0 || expert >= static_cast<i64>(a.experts)) {
        // Kept as its complement, so that zero is "none".
        atomicMax(static_cast<u32*>(a.counter) + 1, ~static_cast<u32>(cell));
      } else {
        if ((atomicOr(&word[a.groupRanks + static_cast<u32>(expert)], bit) & bit) != 0) *repeats = 1;
        rank = static_cast<i32>(static_cast<u32>(expert) / expertsPerRank);
        again |= once & (1u << rank);
        once |= 1u << rank;
      }
    }
    static_cast<i32*>(a.rankTable)[cell] = rank;
  }
  // A rank writes its own tokens' rows itself, as the forwarder does on other hosts; only local combine must know which belong
  // together.
  if (a.localCombine == 0) again &= ~(1u << a.groupRank);
  return {once, again};
}

// How many of the tile's tokens before this thread's have the bin's bit.
__device__ __forceinline__ i32 numberOf(const u32* bits, u32 bins, u32 bin) {
  const u32 warp = threadIdx.x / lanesPerWarp;
  u32 count = __popc(bits[warp * bins + bin] & ((1u << laneIndex()) - 1));
  for (u32 before = 0; before < warp; ++before) count += __popc(bits[before * bins + bin]);
  return static_cast<i32>(count);
}

// How many of the token's first `columns` choices name the expert.
__device__ inline u32 choicesOf(const LayerPrepareArguments& a, u32 token, i64 expert, u32 columns) {
  u32 count = 0;
  for (u32 j = 0; j < columns; ++j) count += choiceAt(a, static_cast<u64>(token) * a.topkColumns + j) == expert ? 1 : 0;
  return count;
}

// How many more choices than tokens of the tile name the expert, of the tokens before `end`, a place in the tile.
__device__ __noinline__ u32 repeatsBefore(const LayerPrepareArguments& a, const u32* bits, u32 bins, u32 tileFirst, u32 expert,
                                       u32 end) {
  u32 count = 0;
  for (u32 word = 0; word * 32 < end; ++word) {
    u32 tokens = bits[word * bins + a.groupRanks + expert];
    if (end - word * 32 < 32) tokens &= (1u << (end - word * 32)) - 1;
    for (; tokens != 0; tokens &= tokens - 1) {
      count += choicesOf(a, tileFirst + word * 32 + __ffs(tokens) - 1, expert, a.topkColumns) - 1;
    }
  }
  return count;
}

}  // namespace weftline
