// The second half of a low-latency dispatch: rows that came are copied to the places of their experts, or stay where they are.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/send-rows.cuh"
#include "weftline/types.cuh"

namespace weftline {

struct LowLatencyPlaceShared {
  // [ranks, experts of this rank]: rows of an expert before those of a rank; behind it, by expert, those of all ranks.
  u32* first;
  u32* offered;
  // Rows that came from each rank.
  u32 arrived[epMaxRanks];
};

// By one thread per rank, `r` its index: until its rows are here. False when the block must leave.
__device__ inline bool awaitRows(const LowLatencyDispatchArguments& a, LowLatencyPlaceShared& shared, u32 r, u32 number,
                                 const WaitScope& scope) {
  const LowLatencyRanks all = {a.peers, a.ranks, a.rank};
  const LowLatencyFlags* flags = flagsAt(a.peers[a.rank], r);
  const WaitFor whom = {r, waitWord(lowLatencyWaitRows, a.call)};
  const bool isTimed = a.waitStats != nullptr && blockIdx.x == 0;
  const u64 began = isTimed ? globalTimer() : 0;
  if (!awaitPeer(all, &flags->arrived, number, scope, whom)) return false;
  if (!isSameCall(all, loadCell(&flags->calls[number % lowLatencyCalls]), number, a.call, scope, whom)) return false;
  if (isTimed) static_cast<u64*>(a.waitStats)[r] += globalTimer() - began;
  const u32 rows = __ldcg(&flags->rows[number % lowLatencyCalls]);
  shared.arrived[r] = rows;
  if (blockIdx.x == 0) static_cast<u32*>(a.arrived)[r] = rows;
  return true;
}

// What an expert got, by one thread of one block.
__device__ inline void tellExpert(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared, u32 expert,
                                  u32 number, const WaitScope& scope) {
  const u32 offered = shared.offered[expert];
  const u32 kept = min(offered, a.capacity);
  static_cast<u32*>(a.counts)[expert] = kept;
  static_cast<u32*>(a.dropped)[expert] = offered - kept;
  if (offered != kept) addRelaxedSystem(static_cast<u64*>(a.droppedRows), offered - kept);
  if (a.expertStats != nullptr) static_cast<u32*>(a.expertStats)[expert] += offered;
  const u32 all = a.rank * a.expertsPerRank + expert;
  for (u32 r = 0; r < a.ranks; ++r) {
    const u32 begin = shared.first[r * a.expertsPerRank + expert];
    const u32 end = r + 1 < a.ranks ? shared.first[(r + 1) * a.expertsPerRank + expert] : offered;
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

// By all threads: where the rows of each rank begin among those of each expert.
__device__ inline void planPlaces(const LowLatencyDispatchArguments& a, LowLatencyPlaceShared& shared, u32 number,
                                  const WaitScope& scope) {
  const u32* counts = reinterpret_cast<const u32*>(static_cast<const u8*>(a.peers[a.rank]) + a.countsOffset);
  for (u32 expert = threadIdx.x; expert < a.expertsPerRank; expert += blockDim.x) {
    u32 rows[epMaxRanks];
#pragma unroll
    for (u32 r = 0; r < epMaxRanks; ++r) {
      const bool isHere = r < a.ranks && (!lowLatencyIsElastic || (a.active >> r & 1u) != 0);
      rows[r] = isHere ? __ldcg(counts + r * a.expertsPerRank + expert) : 0;
    }
    u32 run = 0;
#pragma unroll
    for (u32 r = 0; r < epMaxRanks; ++r) {
      if (r < a.ranks) shared.first[r * a.expertsPerRank + expert] = run;
      run += rows[r];
    }
    shared.offered[expert] = run;
    if (expert % gridDim.x == blockIdx.x) tellExpert(a, shared, expert, number, scope);
  }
  __syncthreads();
}

// Of a row: who sent it, and the place of each of its choices here. Lane j has choice j.
struct PlacedRow {
  u64 from;
  // Row in [experts, C], or -1; its expert, and its row there.
  i32 index;
  u32 expert;
  u32 place;

  __device__ __forceinline__ PlacedRow(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared, u32 row)
      : from(0), index(-1), expert(0), place(0) {
    u32 r = 0;
    for (; r + 1 < a.ranks && row >= shared.arrived[r]; ++r) row -= shared.arrived[r];
    from = static_cast<u64>(r) * a.maxTokens + row;
    if (laneIndex() >= a.topkColumns) return;
    const int2* choices = reinterpret_cast<const int2*>(static_cast<const u8*>(a.peers[a.rank]) + a.choicesOffset);
    const int2 choice = __ldcg(choices + from * a.topkColumns + laneIndex());
    if (choice.x < 0) return;
    expert = static_cast<u32>(choice.x);
    place = shared.first[r * a.expertsPerRank + expert] + static_cast<u32>(choice.y);
    if (place < a.capacity) index = static_cast<i32>(expert * a.capacity + place);
  }
};

// One part of one row, by a warp. Vector: what a row is a multiple of; `each` vectors per lane, at most 4.
template <class Vector>
__device__ __forceinline__ void copyPart(const LowLatencyDispatchArguments& a, const PlacedRow& row, u32 part, u32 each,
                                         u32 rowVectors) {
  constexpr u32 most = 4;
  const Vector* from = reinterpret_cast<const Vector*>(static_cast<const u8*>(a.peers[a.rank]) + a.rowsOffset) +
                       row.from * rowVectors;
  Vector* rows = static_cast<Vector*>(a.rows);
  const u32 first = part * each * lanesPerWarp + laneIndex();
  Vector values[most];
#pragma unroll
  for (u32 i = 0; i < most; ++i) {
    const u32 at = first + i * lanesPerWarp;
    if (i < each && at < rowVectors) values[i] = __ldcg(from + at);
  }
  for (u32 found = __ballot_sync(0xffffffffu, row.index >= 0); found != 0; found &= found - 1) {
    const u64 to = static_cast<u64>(__shfl_sync(0xffffffffu, row.index, __ffs(found) - 1)) * rowVectors;
#pragma unroll
    for (u32 i = 0; i < most; ++i) {
      const u32 at = first + i * lanesPerWarp;
      if (i < each && at < rowVectors) rows[to + at] = values[i];
    }
  }
}

// What goes with a row, by a warp.
__device__ inline void copyBeside(const LowLatencyDispatchArguments& a, const PlacedRow& row) {
  const u8* window = static_cast<const u8*>(a.peers[a.rank]);
  const u32 lane = laneIndex();
  const u32 source = __ldcg(reinterpret_cast<const u32*>(window + a.sourcesOffset) + row.from);
  if (row.index >= 0) static_cast<u32*>(a.sources)[row.index] = source;
  if (lane < a.topkColumns && a.rowOf != nullptr) {
    const u64 cell = row.from * a.topkColumns + lane;
    static_cast<i32*>(a.rowOf)[cell] = row.index;
    static_cast<f32*>(a.rowWeights)[cell] = __ldcg(reinterpret_cast<const f32*>(window + a.weightsOffset) + cell);
  }
  const u32 words = scaleWordsOf(a);
  const u32* scales = reinterpret_cast<const u32*>(window + a.scalesOffset) + row.from * words;
  for (u32 first = 0; first < words; first += lanesPerWarp) {
    const u32 word = first + lane;
    const u32 value = word < words ? __ldcg(scales + word) : 0;
    for (u32 found = __ballot_sync(0xffffffffu, row.index >= 0); found != 0; found &= found - 1) {
      const u32 expert = __shfl_sync(0xffffffffu, row.expert, __ffs(found) - 1);
      const u32 place = __shfl_sync(0xffffffffu, row.place, __ffs(found) - 1);
      if (word < words) {
        static_cast<u32*>(a.scales)[(static_cast<u64>(expert) * words + word) * a.capacity + place] = value;
      }
    }
  }
}

// Vectors per lane and part of a row of `small` parts of one vector: what takes all warps least time, a part costing as much as
// two vectors before its first.
__device__ __forceinline__ u32 vectorsPerPart(u32 rows, u32 small, u32 warps) {
  constexpr u32 partCost = 2;
  u32 best = 1;
  u32 least = 0xffffffffu;
#pragma unroll
  for (u32 each = 1; each <= 4; ++each) {
    const u32 items = rows * ((small + each - 1) / each + 1);
    const u32 cost = (items + warps - 1) / warps * (each + partCost);
    if (cost >= least) continue;
    least = cost;
    best = each;
  }
  return best;
}

// By all blocks, a warp per part of a row.
template <class Vector>
__device__ inline void placeRows(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared, u32 rowBytes) {
  const u32 rowVectors = rowBytes / sizeof(Vector);
  u32 rows = 0;
  for (u32 r = 0; r < a.ranks; ++r) rows += shared.arrived[r];
  const u32 warps = gridDim.x * (blockDim.x / lanesPerWarp);
  const u32 small = (rowVectors + lanesPerWarp - 1) / lanesPerWarp;
  const u32 each = vectorsPerPart(rows, small, warps);
  // What goes beside a row is a part of its own.
  const u32 parts = (small + each - 1) / each + 1;
  const u32 items = rows * parts;
  for (u32 item = blockIdx.x + (threadIdx.x / lanesPerWarp) * gridDim.x; item < items; item += warps) {
    const u32 row = item / parts;
    const u32 part = item - row * parts;
    const PlacedRow placed(a, shared, row);
    if (part + 1 == parts) copyBeside(a, placed);
    else copyPart<Vector>(a, placed, part, each, rowVectors);
  }
}

// By all blocks: rows behind those that came name no token.
__device__ inline void fillExpertTails(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared) {
  const u32 cells = a.expertsPerRank * a.capacity;
  for (u32 cell = blockIdx.x * blockDim.x + threadIdx.x; cell < cells; cell += gridDim.x * blockDim.x) {
    const u32 expert = cell / a.capacity;
    if (cell - expert * a.capacity >= shared.offered[expert]) static_cast<i32*>(a.sources)[cell] = -1;
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
