// The second half of a low-latency dispatch: rows that came are copied to the places of their experts, or stay where they are.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/low-latency/arriving-words.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/row-part.cuh"
#include "weftline/low-latency/send-rows.cuh"
#include "weftline/types.cuh"

namespace weftline {

// [ranks, experts of this rank]: how many rows an expert gets from this rank and those before. Threads that still number use the other
// half of the memory.
__device__ __forceinline__ u32* endsOfRanks() { return sharedExperts() + epMaxExperts; }

__device__ __forceinline__ u32 endOfRank(const LowLatencyDispatchArguments& a, u32 r, u32 expert) {
  return endsOfRanks()[r * a.expertsPerRank + expert];
}

__device__ __forceinline__ u32 firstOfRank(const LowLatencyDispatchArguments& a, u32 r, u32 expert) {
  return r == 0 ? 0 : endOfRank(a, r - 1, expert);
}

// Rows of all ranks.
__device__ __forceinline__ u32 offeredRows(const LowLatencyDispatchArguments& a, u32 expert) {
  return endOfRank(a, a.ranks - 1, expert);
}

struct LowLatencyPlaceShared {
  // Rows of each rank's slot: by rank those that came, by expert as many as it has tokens, wherever these went.
  u32 arrived[lowLatencyMostRanks];
  // A rank is in another call: the block must leave.
  bool isOut;
  // Where words show that rows have come: one of planNone to planFailed, and the blocks that place rows.
  u32 plan;
  BlockTeam placers;
};

// Where rows have flags, one thread per rank waits until the rows of rank `r` are here. False when the block must leave.
__device__ inline bool awaitRows(const LowLatencyDispatchArguments& a, u32 r, u32 number, const WaitScope& scope) {
  const bool isTimed = a.waitStats != nullptr && blockIdx.x == 0;
  const u64 began = isTimed ? globalTimer() : 0;
  const FailingWord arrived = {&flagsAt(a.peers[a.rank], r)->arrived};
  if (!awaitPeer({a.peers, a.ranks, a.rank}, arrived, number, scope, {r, waitWord(lowLatencyWaitRows, a.call)})) return false;
  if (isTimed) static_cast<u64*>(a.waitStats)[r] += globalTimer() - began;
  return true;
}

// One thread per rank reads what rank `r` tells of its call, for the whole block; where rows have no flags it waits for that. False
// when the block must leave.
__device__ inline bool readArrival(const LowLatencyDispatchArguments& a, LowLatencyPlaceShared& shared, u32 r, u32 number,
                                   const WaitScope& scope) {
  const bool isTimed = lowLatencyRowsShow && a.waitStats != nullptr && isLastBlock();
  const u64 began = isTimed ? globalTimer() : 0;
  const LowLatencyRanks all = {a.peers, a.ranks, a.rank};
  const LowLatencyFlags* flags = flagsAt(a.peers[a.rank], r);
  const WaitFor whom = {r, waitWord(lowLatencyWaitRows, a.call)};
  u64 call = 0;
  u64 told = 0;
  const auto look = [&]() {
    readDispatch(flags, number, call, told);
    // Both halves must be of the same dispatch.
    return static_cast<u32>(call) == static_cast<u32>(told) ? call : number - 1;
  };
  if (!awaitCall(all, number, scope, whom, look) || !isSameCall(all, call, number, a.call, scope, whom)) return false;
  const u32 rows = toldOf(told);
  storeReleaseBlock(&shared.arrived[r], rows);
  if (isLastBlock()) static_cast<u32*>(a.arrived)[r] = rows;
  if (isTimed) static_cast<u64*>(a.waitStats)[r] += globalTimer() - began;
  return true;
}

// What an expert got, by one thread of one block.
__device__ __noinline__ void tellExpert(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared, u32 expert,
                                        u32 number, WaitScope scope) {
  const u32 offered = offeredRows(a, expert);
  const u32 kept = min(offered, a.capacity);
  static_cast<u32*>(a.counts)[expert] = kept;
  static_cast<u32*>(a.dropped)[expert] = offered - kept;
  if (offered != kept) addRelaxedGpu(static_cast<u64*>(a.droppedRows), offered - kept);
  if (a.expertStats != nullptr) static_cast<u32*>(a.expertStats)[expert] += offered;
  const u32 all = a.rank * a.expertsPerRank + expert;
  for (u32 r = 0; r < a.ranks; ++r) {
    const u32 begin = firstOfRank(a, r, expert);
    const u32 end = endOfRank(a, r, expert);
    static_cast<int2*>(a.ranges)[expert * a.ranks + r] =
        make_int2(static_cast<i32>(min(begin, kept)), static_cast<i32>(min(end, kept) - min(begin, kept)));
    if (a.sharesFirstRows == 0) continue;
    if (lowLatencyIsElastic && (a.active >> r & 1u) == 0) continue;
    reinterpret_cast<u32*>(static_cast<u8*>(a.peers[r]) + a.firstRowsOffset)[all] = begin;
  }
  if (offered == kept || a.failOnOverflow == 0) return;
  failCall({a.peers, a.ranks, a.rank}, scope, {a.rank, waitWord(lowLatencyWaitRows, a.call)},
           {lowLatencyFailureOverflow, number, all, offered});
}

constexpr u32 noRank = 0xffffffffu;

// Threads of the last warps, which have no part of a row unless there are many.
constexpr u32 lowLatencyPlanning = 96;

// These threads find out where the rows of each rank begin among those of each expert. The result is visible behind a synchronisation.
// False when the block must leave.
__device__ __forceinline__ bool planPlaces(const LowLatencyDispatchArguments& a, u32 number, const WaitScope& scope) {
  constexpr u32 together = 4;
  const u64* counts = countsAt(a, a.rank, number);
  // Counts of two experts at once.
#pragma unroll 1
  for (u32 expert = threadIdx.x + lowLatencyPlanning - blockDim.x; expert < a.expertsPerRank; expert += 2 * lowLatencyPlanning) {
    const u32 other = expert + lowLatencyPlanning;
    u32 run = 0;
    u32 otherRun = 0;
#pragma unroll 1
    for (u32 first = 0; first < a.ranks; first += together) {
      u32 rows[together];
      u32 otherRows[together];
      WordWait wait;
#pragma unroll 1
      for (;;) {
        u32 late = noRank;
#pragma unroll
        for (u32 j = 0; j < together; ++j) {
          const u32 r = first + j;
          const bool isHere = r < a.ranks && (!lowLatencyIsElastic || (a.active >> r & 1u) != 0);
          const u64* of = counts + r * a.expertsPerRank;
          const u64 none = callCell(number, 0);
          const u64 cell = isHere ? loadRelaxedSystem(of + expert) : none;
          const u64 otherCell = isHere && other < a.expertsPerRank ? loadRelaxedSystem(of + other) : none;
          rows[j] = toldOf(cell);
          otherRows[j] = toldOf(otherCell);
          if (lowLatencyRowsShow && (static_cast<u32>(cell) != number || static_cast<u32>(otherCell) != number)) late = r;
        }
        if (late == noRank) break;
        const LowLatencyRanks all = {a.peers, a.ranks, a.rank};
        if (!wait.isOver(all, scope)) continue;
        endWait(all, number, scope, {late, waitWord(lowLatencyWaitRows, a.call)});
        return false;
      }
#pragma unroll
      for (u32 j = 0; j < together; ++j) {
        if (first + j >= a.ranks) break;
        u32* ends = endsOfRanks() + (first + j) * a.expertsPerRank;
        ends[expert] = run += rows[j];
        otherRun += otherRows[j];
        if (other < a.expertsPerRank) ends[other] = otherRun;
      }
    }
  }
  return true;
}

// The last `threads` of the block, whose warps have least to copy, tell what each expert got.
__device__ __forceinline__ void tellExperts(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared, u32 number,
                                            const WaitScope& scope, const BlockTeam& team, u32 threads) {
  for (u32 at = blockDim.x - 1 - threadIdx.x; at * team.count + team.index < a.expertsPerRank; at += threads) {
    tellExpert(a, shared, at * team.count + team.index, number, scope);
  }
}

// Once planPlaces() is done: the row of the lane's choice in [experts, C], or -1.
__device__ __forceinline__ i32 placeOf(const LowLatencyDispatchArguments& a, u32 rank, const LowLatencyChoice& choice) {
  if (choice.expert < 0) return -1;
  const u32 expert = static_cast<u32>(choice.expert);
  const u32 place = firstOfRank(a, rank, expert) + choice.place;
  return place < a.capacity ? static_cast<i32>(expert * a.capacity + place) : -1;
}

// How rows are divided among warps, and which one this warp begins with if other ranks have as many tokens as this one. All of it is
// found out before rows come, so that they are read as soon as they have.
struct PlaceShape {
  u32 rowVectors;
  // Vectors per lane and part.
  u32 each;
  // Words for each part of a row.
  Divisor byParts;

  __device__ __forceinline__ explicit PlaceShape(const LowLatencyDispatchArguments& a, const BlockTeam& team = allBlocks())
      : rowVectors((lowLatencyIsBf16 ? a.hidden * 2 : a.hidden) / sizeof(RowVector)),
        each(vectorsPerPart(a.tokens * a.ranks, smallParts(), team.count * (blockDim.x / lanesPerWarp))),
        byParts(Divisor(each).quotient(smallParts() + each - 1)) {}

  __device__ __forceinline__ u32 parts() const { return byParts.by; }

  __device__ __forceinline__ u32 smallParts() const { return (rowVectors + lanesPerWarp - 1) / lanesPerWarp; }
};

// The parts of a warp: `first` and, as long as they are before `end`, every other one as many further on as a block has warps.
struct WarpParts {
  u32 first;
  u32 end;

  // Neighbouring parts to one block, unless each warp has one at most: then to different blocks, for rows differ in their places.
  __device__ __forceinline__ explicit WarpParts(u32 all, const BlockTeam& team = allBlocks()) {
    const u32 warp = threadIdx.x / lanesPerWarp;
    if (all <= team.count * (blockDim.x / lanesPerWarp)) {
      first = warp * team.count + team.index;
      end = min(first + 1, all);
    } else {
      const BlockShare share(all, team);
      first = share.begin + warp;
      end = share.end;
    }
  }
};

// A part of a row; behind the last one none at all.
struct PlaceItem {
  SlotRow row;
  u32 part;

  template <class CountOf>
  __device__ __forceinline__ PlaceItem(const LowLatencyDispatchArguments& a, const PlaceShape& shape, u32 item, u32 end,
                                       const CountOf& countOf)
      : row(a, item < end ? shape.byParts.quotient(item) : 0, countOf), part(shape.parts()) {
    if (item < end) part = item - shape.byParts.quotient(item) * shape.parts();
  }
};

// Where rows have flags, by all blocks: a warp per part of a row. Each thread calls both once: areRowsHere(), false when the block
// must leave; and check(), which tells the block what came with the rows.
template <class AreHere, class Check>
__device__ __forceinline__ bool placeRows(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared, u32 number,
                                          const WaitScope& scope, const AreHere& areRowsHere, const Check& check) {
  const PlaceShape shape(a);
  const auto asHere = [&](u32) { return a.tokens; };
  const auto asCame = [&](u32 r) { return shared.arrived[r]; };
  WarpParts mine(a.ranks * a.tokens * shape.parts());
  PlaceItem item(a, shape, mine.first, mine.end, asHere);
  // The wait covers what is read from here on: slots stay until this rank gives them up.
  if (!areRowsHere()) return false;
  if (blockDim.x - threadIdx.x <= lowLatencyPlanning) planPlaces(a, number, scope);
  // Lanes go on together, also to the barrier.
  __syncwarp();
  bool isPlanned = false;
#pragma unroll 1
  for (;;) {
    const bool isMine = item.part < shape.parts();
    LowLatencyChoice choice = {noExpert, 0, 0.0f, number};
    RowPart values(a, item.row.place(a), item.part, shape.each, shape.rowVectors);
    if (isMine) {
      choice = choiceOf(a, item.row.place(a), number);
      values.load();
    }
    if (!isPlanned) {
      check();
      __syncwarp();
      __syncthreads();
      if (shared.isOut) return false;
      isPlanned = true;
      u32 rows = 0;
      bool isAsHere = true;
      for (u32 r = 0; r < a.ranks; ++r) {
        rows += asCame(r);
        isAsHere = isAsHere && asCame(r) == a.tokens;
      }
      if (!isAsHere) {
        // What was read may be of other rows.
        mine = WarpParts(rows * shape.parts());
        item = PlaceItem(a, shape, mine.first, mine.end, asCame);
        continue;
      }
    }
    if (!isMine) return true;
    const i32 index = placeOf(a, item.row.rank, choice);
    values.store(a, choice, index, shape.rowVectors);
    if (item.part == 0) RowPart::storeBeside(a, item.row, choice, index);
    mine.first += blockDim.x / lanesPerWarp;
    item = PlaceItem(a, shape, mine.first, mine.end, asCame);
  }
}

// All blocks call this: rows behind those that came name no token.
__device__ inline void fillExpertTails(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared,
                                       const BlockTeam& team) {
  for (u32 expert = team.index; expert < a.expertsPerRank; expert += team.count) {
    i32* sources = static_cast<i32*>(a.sources) + static_cast<u64>(expert) * a.capacity;
    for (u32 row = offeredRows(a, expert) + threadIdx.x; row < a.capacity; row += blockDim.x) sources[row] = -1;
  }
}

// The same where rows stay: they name no token and no expert, and weigh nothing.
__device__ inline void fillRankTails(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared) {
  u8* window = static_cast<u8*>(a.peers[a.rank]);
  const u32 rows = a.ranks * a.maxTokens;
  for (u32 row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += gridDim.x * blockDim.x) {
    const u32 r = row / a.maxTokens;
    if (row - r * a.maxTokens < shared.arrived[r]) continue;
    reinterpret_cast<i32*>(window + a.sourcesOffset)[row] = -1;
    for (u32 j = 0; j < a.topkColumns; ++j) {
      const u64 cell = static_cast<u64>(row) * a.topkColumns + j;
      if (a.indexBytes == 8) reinterpret_cast<i64*>(window + a.choicesOffset)[cell] = noExpert;
      else reinterpret_cast<i32*>(window + a.choicesOffset)[cell] = noExpert;
      if (a.weights != nullptr) reinterpret_cast<f32*>(window + a.weightsOffset)[cell] = 0.0f;
    }
  }
}

}  // namespace weftline
