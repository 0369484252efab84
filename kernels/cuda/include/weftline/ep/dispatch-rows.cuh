// The rows of a dispatch within a host: each is read once and written to its final place at every rank that needs it.
//
// A warp per token. The first warps of a block move rows: the bulk copy engine brings a row into shared memory and stores
// it to each destination. Six are enough to store what an SM can store; the other warps write scales, choices, weights and
// token indices.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/copy/bulk-copy.cuh"
#include "weftline/copy/stage-pair.cuh"
#include "weftline/ep/dispatch-plan.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Memory of a rank of this host, by index.
__device__ __forceinline__ u8* windowAt(const EpDispatchArguments& a, u32 index, u64 offset) {
  return static_cast<u8*>(a.peers[index]) + offset;
}

// Lane r: the token's row in its source's numbering at rank r of this host, -1 where it does not go (and for other lanes).
template <bool hosts>
__device__ __forceinline__ i32 placeAt(const EpDispatchArguments& a, TokenRange range, u32 token) {
  if (laneIndex() >= a.ranks || token >= range.end) return -1;
  const u64 row = static_cast<u64>(token) * destinationsOf<hosts>(a);
  return static_cast<const i32*>(a.rowTable)[row + groupRankOf<hosts>(a, laneIndex())];
}

// Lane r: where this rank's rows begin at rank r of this host.
template <bool hosts>
__device__ __forceinline__ i32 firstRowAt(const EpDispatchArguments& a) {
  if (laneIndex() >= a.ranks) return 0;
  return static_cast<i32>(static_cast<const EpPlan*>(a.plan)->firstRow[groupRankOf<hosts>(a, laneIndex())]);
}

// What goes with one row: lane j has choice and weight j.
struct BesideRow {
  i64 expert;
  f32 weight;
  const f32* scales;
  u32 token;
};

// `row`: lane r holds the row at rank r of this host, or -1.
template <bool hosts>
__device__ __forceinline__ void storeBeside(const EpDispatchArguments& a, i32 row, const BesideRow& beside) {
  const u32 lane = laneIndex();
  const bool column = lane < a.topkColumns && a.topk != nullptr;
  // Replays bring no choices, and the handle has the token indices.
  if (a.recvSource != nullptr && row >= 0) {
    reinterpret_cast<i32*>(windowAt(a, lane, a.sourceOffset))[row] = static_cast<i32>(beside.token);
  }
  if (a.topk == nullptr && a.scaleBytes == 0) return;
  for (u32 r = 0; r < a.ranks; ++r) {
    const i32 place = __shfl_sync(0xffffffffu, row, r);
    if (place < 0) continue;
    f32* target = reinterpret_cast<f32*>(windowAt(a, r, a.scalesOffset) + static_cast<u64>(place) * a.scaleBytes);
    for (u32 group = lane; group < a.scaleBytes / 4; group += lanesPerWarp) target[group] = beside.scales[group];
    if (!column) continue;
    const i64 local = beside.expert - static_cast<i64>(groupRankOf<hosts>(a, r)) * a.expertsPerRank;
    const bool mine = beside.expert >= 0 && local >= 0 && local < a.expertsPerRank;
    const u64 choice = static_cast<u64>(place) * a.topkColumns + lane;
    u8* choices = windowAt(a, r, a.topkOffset);
    if (a.indexBytes == 8) reinterpret_cast<i64*>(choices)[choice] = mine ? local : -1;
    else reinterpret_cast<i32*>(choices)[choice] = mine ? static_cast<i32>(local) : -1;
    if (a.weights != nullptr) reinterpret_cast<f32*>(windowAt(a, r, a.weightsOffset))[choice] = mine ? beside.weight : 0.0f;
  }
}

template <bool hosts>
__device__ void sendChoices(const EpDispatchArguments& a, u32 token, i32 row) {
  const u32 lane = laneIndex();
  const u64 cell = static_cast<u64>(token) * a.topkColumns + lane;
  BesideRow beside = {-1, 0, static_cast<const f32*>(a.scales) + static_cast<u64>(token) * (a.scaleBytes / 4), token};
  if (lane < a.topkColumns && a.topk != nullptr) {
    beside.expert = a.indexBytes == 8 ? static_cast<const i64*>(a.topk)[cell] : static_cast<const i32*>(a.topk)[cell];
    if (a.weights != nullptr) beside.weight = static_cast<const f32*>(a.weights)[cell];
  }
  storeBeside<hosts>(a, row, beside);
}

// Rows that the copy engine cannot move (no multiple of 16 bytes): 8 bytes per lane and step.
__device__ __forceinline__ void sendRowPlain(const EpDispatchArguments& a, u32 token, i32 row) {
  const u64* source = reinterpret_cast<const u64*>(static_cast<const u8*>(a.x) + static_cast<u64>(token) * a.rowBytes);
  for (u32 r = 0; r < a.ranks; ++r) {
    const i32 place = __shfl_sync(0xffffffffu, row, r);
    if (place < 0) continue;
    u64* target = reinterpret_cast<u64*>(windowAt(a, r, a.rowsOffset) + static_cast<u64>(place) * a.rowBytes);
    for (u32 index = laneIndex(); index < a.rowBytes / 8; index += lanesPerWarp) target[index] = source[index];
  }
}

// The part of a row in `stage` to all its places. Beginning with the next rank spreads the load over the links.
__device__ __forceinline__ void storePart(const EpDispatchArguments& a, i32 row, const u8* stage, u32 at, u32 bytes) {
  for (u32 step = 1, r = a.rank; step <= a.ranks; ++step) {
    r = r + 1 == a.ranks ? 0 : r + 1;
    const i32 place = __shfl_sync(0xffffffffu, row, r);
    if (place < 0) continue;
    warpStoreRow(windowAt(a, r, a.rowsOffset) + static_cast<u64>(place) * a.rowBytes + at, stage, bytes);
  }
  warpCommitStores();
}

// A part of a token's row and where it goes.
struct SentPart {
  u32 token;
  u32 at;
  // Lane r: the row at rank r of this host, or -1.
  i32 row;
};

// The parts of the rows that a warp sends, one after the other. Places are read one token ahead, so that the warp does not
// wait for them.
template <bool hosts>
struct SentParts {
  const EpDispatchArguments& a;
  TokenRange range;
  i32 firstRow;
  i32 nextPlace;
  SentPart part;

  __device__ __forceinline__ SentParts(const EpDispatchArguments& arguments, TokenRange tokens, u32 warp)
      : a(arguments), range(tokens), firstRow(firstRowAt<hosts>(arguments)), part{tokens.first + warp, 0, -1} {
    nextPlace = placeAt<hosts>(a, range, part.token);
    takePlace();
    skipAbsent();
  }

  __device__ __forceinline__ void advance() {
    part.at += a.stageBytes;
    if (part.at >= a.rowBytes) nextToken();
  }

  __device__ __forceinline__ void nextToken() {
    part.at = 0;
    part.token += a.rowWarps;
    takePlace();
    skipAbsent();
  }

 private:
  __device__ __forceinline__ void takePlace() {
    part.row = nextPlace < 0 ? -1 : nextPlace + firstRow;
    nextPlace = placeAt<hosts>(a, range, part.token + a.rowWarps);
  }

  // Skips tokens that go to no rank of this host.
  __device__ __forceinline__ void skipAbsent() {
    while (part.token < range.end && __ballot_sync(0xffffffffu, part.row >= 0) == 0) {
      part.token += a.rowWarps;
      takePlace();
    }
  }
};

__device__ __forceinline__ u32 bytesOf(const EpDispatchArguments& a, const SentPart& part) {
  return min(a.stageBytes, a.rowBytes - part.at);
}

// The warps that move rows call this. `memory`: the warp's two stages of a.stageBytes.
template <bool hosts>
__device__ void sendRows(const EpDispatchArguments& a, TokenRange range, u32 warp, u8* memory, u64* barriers) {
  SentParts<hosts> next(a, range, warp);
  if (a.rowBytes % 16 != 0) {
    for (; next.part.token < range.end; next.nextToken()) sendRowPlain(a, next.part.token, next.part.row);
    return;
  }
  StagePair stages(memory, barriers, a.stageBytes);
  const auto loadNext = [&](u32 stage) {
    const SentPart& part = next.part;
    if (part.token >= range.end) return;
    const u8* source = static_cast<const u8*>(a.x) + static_cast<u64>(part.token) * a.rowBytes + part.at;
    warpLoadRow(stages.at(stage), source, bytesOf(a, part), &barriers[stage]);
  };
  loadNext(stages.current);
#pragma unroll 1
  for (SentPart part = next.part; part.token < range.end; part = next.part, stages.swap()) {
    next.advance();
    // The stores of the part before must have read its stage.
    warpWaitStoresRead<0>();
    loadNext(stages.current ^ 1);
    stages.await();
    storePart(a, part.row, stages.at(stages.current), part.at, bytesOf(a, part));
  }
  warpWaitStoresWritten();
}

// The other warps call this.
template <bool hosts>
__device__ void sendAllChoices(const EpDispatchArguments& a, TokenRange range, u32 warp) {
  if (a.recvSource == nullptr && a.topk == nullptr && a.scaleBytes == 0) return;
  const u32 warps = blockDim.x / lanesPerWarp - a.rowWarps;
  const i32 firstRow = firstRowAt<hosts>(a);
  for (u32 token = range.first + warp - a.rowWarps; token < range.end; token += warps) {
    const i32 place = placeAt<hosts>(a, range, token);
    sendChoices<hosts>(a, token, place < 0 ? -1 : place + firstRow);
  }
}

// Marks the rows beyond the received ones, which only a worst-case result has.
__device__ __forceinline__ void fillTail(const EpDispatchArguments& a) {
  const u32 first = static_cast<const EpPlan*>(a.plan)->numRecvTokens;
  const u32 step = gridDim.x * blockDim.x;
  for (u32 row = first + blockIdx.x * blockDim.x + threadIdx.x; row < a.worstRows; row += step) {
    reinterpret_cast<i32*>(windowAt(a, a.rank, a.sourceOffset))[row] = -1;
    for (u32 j = 0; j < a.topkColumns && a.topk != nullptr; ++j) {
      const u64 cell = static_cast<u64>(row) * a.topkColumns + j;
      u8* choice = windowAt(a, a.rank, a.topkOffset) + cell * a.indexBytes;
      if (a.indexBytes == 8) *reinterpret_cast<i64*>(choice) = -1;
      else *reinterpret_cast<i32*>(choice) = -1;
      if (a.weights != nullptr) reinterpret_cast<f32*>(windowAt(a, a.rank, a.weightsOffset))[cell] = 0.0f;
    }
  }
}

// The peers' words arrived during this kernel; loads go past the first-level cache.
__device__ __forceinline__ void keepSources(const EpDispatchArguments& a) {
  const u32 rows = a.worstRows != 0 ? a.worstRows : static_cast<const EpPlan*>(a.plan)->numRecvTokens;
  const u8* from = windowAt(a, a.rank, a.sourceOffset);
  const u32 vectors = rows / 4;
#pragma unroll 8
  for (u32 index = threadIdx.x; index < vectors; index += blockDim.x) {
    static_cast<uint4*>(a.recvSource)[index] = __ldcg(reinterpret_cast<const uint4*>(from) + index);
  }
  for (u32 row = vectors * 4 + threadIdx.x; row < rows; row += blockDim.x) {
    static_cast<u32*>(a.recvSource)[row] = __ldcg(reinterpret_cast<const u32*>(from) + row);
  }
}

}  // namespace weftline
