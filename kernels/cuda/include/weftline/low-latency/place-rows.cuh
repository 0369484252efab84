// The second half of a low-latency dispatch: rows that came are copied to the places of their experts, or stay where they are.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/send-rows.cuh"
#include "weftline/types.cuh"

namespace weftline {

// [ranks, experts of this rank]: rows of an expert before those of a rank.
__device__ __forceinline__ u32* firstOfRank() { return sharedExperts(); }

// By expert: the rows of all ranks.
__device__ __forceinline__ u32* offeredRows() { return sharedExperts() + epMaxExperts; }

struct LowLatencyPlaceShared {
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
  u64 call = 0;
  u32 rows = 0;
  const auto look = [&]() {
    call = loadCell(&flags->calls[number % lowLatencyCalls]);
    rows = __ldcg(&flags->rows[number % lowLatencyCalls]);
  };
  if (!awaitPeer(all, &flags->arrived, number, scope, whom, look)) return false;
  if (!isSameCall(all, call, number, a.call, scope, whom)) return false;
  if (isTimed) static_cast<u64*>(a.waitStats)[r] += globalTimer() - began;
  shared.arrived[r] = rows;
  if (blockIdx.x == 0) static_cast<u32*>(a.arrived)[r] = rows;
  return true;
}

// What an expert got, by one thread of one block.
__device__ __noinline__ void tellExpert(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared, u32 expert,
                                        u32 number, WaitScope scope) {
  const u32 offered = offeredRows()[expert];
  const u32 kept = min(offered, a.capacity);
  static_cast<u32*>(a.counts)[expert] = kept;
  static_cast<u32*>(a.dropped)[expert] = offered - kept;
  if (offered != kept) addRelaxedGpu(static_cast<u64*>(a.droppedRows), offered - kept);
  if (a.expertStats != nullptr) static_cast<u32*>(a.expertStats)[expert] += offered;
  const u32 all = a.rank * a.expertsPerRank + expert;
  for (u32 r = 0; r < a.ranks; ++r) {
    const u32 begin = firstOfRank()[r * a.expertsPerRank + expert];
    const u32 end = r + 1 < a.ranks ? firstOfRank()[(r + 1) * a.expertsPerRank + expert] : offered;
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
      if (r < a.ranks) firstOfRank()[r * a.expertsPerRank + expert] = run;
      run += rows[r];
    }
    offeredRows()[expert] = run;
  }
  __syncthreads();
  // The last threads, whose warp has least to copy.
  for (u32 at = blockDim.x - 1 - threadIdx.x; at * gridDim.x + blockIdx.x < a.expertsPerRank; at += blockDim.x) {
    tellExpert(a, shared, at * gridDim.x + blockIdx.x, number, scope);
  }
}

// A row that came, and the place of each of its choices here. Lane j has choice j.
struct ArrivedRow {
  u32 rank;
  // Among the rows of the slot.
  u64 from;
  int2 choice;

  // The choice is on its way.
  __device__ __forceinline__ ArrivedRow(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared, u32 row)
      : rank(0), choice(make_int2(noExpert, 0)) {
    for (; rank + 1 < a.ranks && row >= shared.arrived[rank]; ++rank) row -= shared.arrived[rank];
    from = static_cast<u64>(rank) * a.maxTokens + row;
    if (laneIndex() >= a.topkColumns) return;
    const int2* choices = reinterpret_cast<const int2*>(static_cast<const u8*>(a.peers[a.rank]) + a.choicesOffset);
    choice = __ldcg(choices + from * a.topkColumns + laneIndex());
  }

  // Once planPlaces() is done: the lane's row in [experts, C], or -1.
  __device__ __forceinline__ i32 index(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared) const {
    if (choice.x < 0) return -1;
    const u32 expert = static_cast<u32>(choice.x);
    const u32 place = firstOfRank()[rank * a.expertsPerRank + expert] + static_cast<u32>(choice.y);
    return place < a.capacity ? static_cast<i32>(expert * a.capacity + place) : -1;
  }
};

// One part of one row, by a warp: `each` vectors per lane, at most 4. Vector: what a row is a multiple of.
template <class Vector>
struct RowPart {
  static constexpr u32 most = 4;
  u32 first;
  Vector values[most];

  // On their way.
  __device__ __forceinline__ RowPart(const LowLatencyDispatchArguments& a, const ArrivedRow& row, u32 part, u32 each,
                                     u32 rowVectors)
      : first(part * each * lanesPerWarp + laneIndex()) {
    const Vector* from = reinterpret_cast<const Vector*>(static_cast<const u8*>(a.peers[a.rank]) + a.rowsOffset) +
                         row.from * rowVectors;
#pragma unroll
    for (u32 i = 0; i < most; ++i) {
      const u32 at = first + i * lanesPerWarp;
      if (i < each && at < rowVectors) values[i] = __ldcg(from + at);
    }
  }

  // To all places of the row; `index`: one of the lane, or -1.
  __device__ __forceinline__ void store(const LowLatencyDispatchArguments& a, i32 index, u32 each, u32 rowVectors) const {
    Vector* rows = static_cast<Vector*>(a.rows);
    for (u32 found = __ballot_sync(0xffffffffu, index >= 0); found != 0; found &= found - 1) {
      const u64 to = static_cast<u64>(__shfl_sync(0xffffffffu, index, __ffs(found) - 1)) * rowVectors;
#pragma unroll
      for (u32 i = 0; i < most; ++i) {
        const u32 at = first + i * lanesPerWarp;
        if (i < each && at < rowVectors) rows[to + at] = values[i];
      }
    }
  }
};

// What goes with a row, by a warp; `index`: place of the lane's choice, or -1.
__device__ inline void copyBeside(const LowLatencyDispatchArguments& a, const ArrivedRow& row, i32 index) {
  const u8* window = static_cast<const u8*>(a.peers[a.rank]);
  const u32 lane = laneIndex();
  const u32 words = scaleWordsOf(a);
  const u32* scales = reinterpret_cast<const u32*>(window + a.scalesOffset) + row.from * words;
  u32 scale = lane < words ? __ldcg(scales + lane) : 0;
  const u32 source = __ldcg(reinterpret_cast<const u32*>(window + a.sourcesOffset) + row.from);
  if (lane < a.topkColumns && a.rowOf != nullptr) {
    const u64 cell = row.from * a.topkColumns + lane;
    static_cast<i32*>(a.rowOf)[cell] = index;
    static_cast<f32*>(a.rowWeights)[cell] = __ldcg(reinterpret_cast<const f32*>(window + a.weightsOffset) + cell);
  }
  if (index >= 0) static_cast<u32*>(a.sources)[index] = source;
  const u32 expert = static_cast<u32>(row.choice.x);
  const u32 place = static_cast<u32>(index) - expert * a.capacity;
  for (u32 first = 0; first < words;) {
    const u32 word = first + lane;
    first += lanesPerWarp;
    const u32 next = first + lane < words ? __ldcg(scales + first + lane) : 0;
    for (u32 found = __ballot_sync(0xffffffffu, index >= 0); found != 0; found &= found - 1) {
      const u64 block = static_cast<u64>(__shfl_sync(0xffffffffu, expert, __ffs(found) - 1)) * words;
      const u32 column = __shfl_sync(0xffffffffu, place, __ffs(found) - 1);
      if (word < words) static_cast<u32*>(a.scales)[(block + word) * a.capacity + column] = scale;
    }
    scale = next;
  }
}

// Vectors per lane and part of a row of `small` parts of one vector: what takes all warps least time, a part costing as much as
// two vectors before its first.
__device__ __forceinline__ u32 vectorsPerPart(u32 rows, u32 small, u32 warps) {
  constexpr u32 partCost = 2;
  const Divisor byWarps(warps);
  u32 best = 1;
  u32 least = 0xffffffffu;
#pragma unroll
  for (u32 each = 1; each <= 4; ++each) {
    const u32 items = rows * ((small + each - 1) / each + 1);
    const u32 cost = byWarps.quotient(items + warps - 1) * (each + partCost);
    if (cost >= least) continue;
    least = cost;
    best = each;
  }
  return best;
}

// By all blocks, a warp per part of a row. Those of the first round are on their way while `plan` runs, by all threads. The waits
// have covered them: only rows of ranks that have told how many they sent are read, and stay until this kernel releases them. A
// warp without a part may look at a choice of any rank, for nothing.
template <class Vector, class Plan>
__device__ __forceinline__ void placeRows(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared,
                                          u32 rowBytes, const Plan& plan) {
  const u32 rowVectors = rowBytes / sizeof(Vector);
  u32 rows = 0;
  for (u32 r = 0; r < a.ranks; ++r) rows += shared.arrived[r];
  const u32 blockWarps = blockDim.x / lanesPerWarp;
  const u32 small = (rowVectors + lanesPerWarp - 1) / lanesPerWarp;
  const u32 each = vectorsPerPart(rows, small, gridDim.x * blockWarps);
  // What goes beside a row is a part of its own.
  const u32 parts = Divisor(each).quotient(small + each - 1) + 1;
  const Divisor byParts(parts);
  const BlockShare share(rows * parts);
  bool isPlanned = false;
#pragma unroll 1
  for (u32 round = share.begin; round < share.end || !isPlanned; round += blockWarps) {
    const u32 item = round + threadIdx.x / lanesPerWarp;
    const bool isMine = item < share.end;
    const u32 rowOfItem = isMine ? byParts.quotient(item) : 0;
    const u32 part = item - rowOfItem * parts;
    const bool isBeside = part + 1 == parts;
    const ArrivedRow row(a, shared, rowOfItem);
    const RowPart<Vector> values(a, row, isMine ? part : parts, each, rowVectors);
    if (!isPlanned) plan();
    isPlanned = true;
    if (!isMine) continue;
    const i32 index = row.index(a, shared);
    if (isBeside) copyBeside(a, row, index);
    else values.store(a, index, each, rowVectors);
  }
}

// By all blocks: rows behind those that came name no token.
__device__ inline void fillExpertTails(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared) {
  for (u32 expert = blockIdx.x; expert < a.expertsPerRank; expert += gridDim.x) {
    i32* sources = static_cast<i32*>(a.sources) + static_cast<u64>(expert) * a.capacity;
    for (u32 row = offeredRows()[expert] + threadIdx.x; row < a.capacity; row += blockDim.x) sources[row] = -1;
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
