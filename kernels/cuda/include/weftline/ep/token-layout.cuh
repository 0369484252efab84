// The ranks and other hosts that a token goes to, and its place among the tokens that go there: counting, then
// numbering. Destinations are the ranks of the group, then the ways, each another host.
//
// A block takes consecutive tokens in tiles of one per thread. Ballots count and number a tile, so that the order is that
// of the tokens without an atomic.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/types.cuh"

namespace weftline {

constexpr u32 noBadCell = 0xffffffffu;

// What the ranks of each token come from: its choices, or marks [T, ranks] that somebody made of them.
struct Routing {
  const void* topk;
  const void* membership;
  u32 topkColumns;
  u32 indexBytes;
  u32 experts;
  u32 ranks;
};

// The ranks of other hosts as bits, by way: a token that goes to any of them goes that way, once.
struct Ways {
  const u32* ranks;
  u32 count;
};

// What is compiled for a group on one host, and for one on several: the most destinations, and a word with a bit for each.
template <bool hosts>
struct Destinations {
  static constexpr u32 most = epMaxRanks;
  using Mask = u8;
};
template <>
struct Destinations<true> {
  static constexpr u32 most = epMaxGroupRanks;
  using Mask = u32;
};

// Consecutive tokens of one block.
struct TokenRange {
  u32 first;
  u32 end;
};

__device__ __forceinline__ TokenRange tokensOfBlock(u32 tokens) {
  const u32 each = (tokens + gridDim.x - 1) / gridDim.x;
  const u32 first = min(tokens, each * blockIdx.x);
  return {first, min(tokens, first + each)};
}

// What an i32 cannot hold becomes a value that no expert has.
__device__ __forceinline__ i32 choiceAt(const Routing& routing, u64 cell) {
  if (routing.indexBytes != 8) return static_cast<const i32*>(routing.topk)[cell];
  const i64 value = static_cast<const i64*>(routing.topk)[cell];
  return static_cast<i64>(static_cast<i32>(value)) == value ? static_cast<i32>(value) : -2;
}

// The ranks of a token as bits. Its choices are counted in `experts`; the first bad one of all is kept in `badCell`.
// `columns`: most choices of a token; a constant, so that they stay in registers.
template <u32 columns>
__device__ __forceinline__ u32 ranksFromChoices(const Routing& routing, u32 token, u32* experts, u32* badCell) {
  const u64 first = static_cast<u64>(token) * routing.topkColumns;
  i32 choices[columns];
#pragma unroll
  for (u32 j = 0; j < columns; ++j) choices[j] = j < routing.topkColumns ? choiceAt(routing, first + j) : -1;
  const u32 expertsPerRank = routing.experts / routing.ranks;
  u32 mask = 0;
#pragma unroll
  for (u32 j = 0; j < columns; ++j) {
    const i32 expert = choices[j];
    if (expert == -1) continue;
    if (static_cast<u32>(expert) >= routing.experts) {
      atomicMin(badCell, static_cast<u32>(first + j));
      continue;
    }
    atomicAdd(&experts[expert], 1u);
    mask |= 1u << (static_cast<u32>(expert) / expertsPerRank);
  }
  return mask;
}

__device__ __forceinline__ u32 ranksFromMarks(const Routing& routing, u32 token) {
  const u8* marks = static_cast<const u8*>(routing.membership) + static_cast<u64>(token) * routing.ranks;
  u32 mask = 0;
  for (u32 r = 0; r < routing.ranks; ++r) mask |= marks[r] != 0 ? 1u << r : 0u;
  return mask;
}

// The bits of the ways of a token that goes to these ranks, behind those of the ranks.
__device__ __forceinline__ u32 waysOfRanks(const Ways& ways, u32 ranks, u32 mask) {
  u32 bits = 0;
  for (u32 way = 0; way < ways.count; ++way) bits |= (mask & ways.ranks[way]) != 0 ? 1u << (ranks + way) : 0u;
  return bits;
}

// All threads call this: counts the block's tokens per destination and their choices per expert, and keeps the destinations of each
// token. `counts`, `experts` and `badCell` are in shared memory, cleared; all are complete after the caller's synchronisation.
template <u32 columns, bool hosts>
__device__ void countTokens(const Routing& routing, const Ways& ways, TokenRange range, u32* counts, u32* experts,
                            u32* badCell, typename Destinations<hosts>::Mask* masks) {
  constexpr u32 most = Destinations<hosts>::most;
  u32 mine = 0;
  for (u32 tile = range.first; tile < range.end; tile += blockDim.x) {
    const u32 token = tile + threadIdx.x;
    const bool here = token < range.end;
    u32 mask = 0;
    if (here) {
      mask = routing.topk != nullptr ? ranksFromChoices<columns>(routing, token, experts, badCell)
                                     : ranksFromMarks(routing, token);
      if constexpr (hosts) mask |= waysOfRanks(ways, routing.ranks, mask);
      masks[token - range.first] = static_cast<typename Destinations<hosts>::Mask>(mask);
    }
#pragma unroll
    for (u32 d = 0; d < most; ++d) {
      const u32 ballot = __ballot_sync(0xffffffffu, (mask >> d) & 1);
      if (laneIndex() == d) mine += __popc(ballot);
    }
  }
  if (laneIndex() < most && mine != 0) atomicAdd(&counts[laneIndex()], mine);
}

// All threads call this: rowTable[token][d] becomes the token's number among those that go to destination d, counted from carry[d],
// or -1. `carry` (shared, per destination) grows by the block's counts; `warpRows` is shared memory of a word per warp and
// destination.
template <bool hosts>
__device__ void numberTokens(const typename Destinations<hosts>::Mask* masks, TokenRange range, u32 destinations, u32* carry,
                             u32 (*warpRows)[Destinations<hosts>::most], i32* rowTable) {
  constexpr u32 most = Destinations<hosts>::most;
  const u32 warp = threadIdx.x / lanesPerWarp;
  const u32 warps = blockDim.x / lanesPerWarp;
  const u32 below = (1u << laneIndex()) - 1;
  for (u32 tile = range.first; tile < range.end; tile += blockDim.x) {
    const u32 token = tile + threadIdx.x;
    const u32 mask = token < range.end ? masks[token - range.first] : 0;
    u32 ballots[most];
#pragma unroll
    for (u32 d = 0; d < most; ++d) {
      ballots[d] = __ballot_sync(0xffffffffu, (mask >> d) & 1);
      if (laneIndex() == d) warpRows[warp][d] = __popc(ballots[d]);
    }
    __syncthreads();
    // A warp per destination turns the warps' counts into their first rows. There are at most as many warps as lanes.
    for (u32 d = warp; d < destinations; d += warps) {
      const u32 count = laneIndex() < warps ? warpRows[laneIndex()][d] : 0;
      const u32 through = warpInclusiveSum(count);
      const u32 first = carry[d];
      __syncwarp();
      if (laneIndex() < warps) warpRows[laneIndex()][d] = first + through - count;
      if (laneIndex() == lanesPerWarp - 1) carry[d] = first + through;
    }
    __syncthreads();
    if (token < range.end) {
#pragma unroll
      for (u32 d = 0; d < most; ++d) {
        if (d >= destinations) break;
        const bool goes = (mask >> d) & 1;
        const i32 row = goes ? static_cast<i32>(warpRows[warp][d] + __popc(ballots[d] & below)) : -1;
        rowTable[static_cast<u64>(token) * destinations + d] = row;
      }
    }
    __syncthreads();
  }
}

}  // namespace weftline
