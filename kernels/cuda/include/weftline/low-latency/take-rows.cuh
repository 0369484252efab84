// The second half of a low-latency dispatch where words show that rows have come: each part of a row is copied to its places as soon
// as it has come, while others are on their way.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/low-latency/arriving-words.cuh"
#include "weftline/low-latency/place-rows.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/row-part.cuh"
#include "weftline/types.cuh"

namespace weftline {

// LowLatencyPlaceShared::arrived of a rank that has not told its number of tokens.
constexpr u32 notKnown = 0xffffffffu;

// LowLatencyPlaceShared::plan.
constexpr u32 planNone = 0;
constexpr u32 planDone = 1;
constexpr u32 planFailed = 2;

// The last warps, which have least to place: those that plan, and one before them that reads what each rank tells of its call.
constexpr u32 lowLatencyAsking = lowLatencyPlanning + lanesPerWarp;
__device__ __forceinline__ void meetAsking() { meetThreads<4, lowLatencyAsking>(); }

// These warps call this. Each thread of the first one calls goOn() when all peers are in this call.
template <class GoOn>
__device__ __forceinline__ void plan(const LowLatencyDispatchArguments& a, LowLatencyPlaceShared& shared, u32 number,
                                     const WaitScope& scope, const GoOn& goOn) {
  const u32 r = threadIdx.x + lowLatencyAsking - blockDim.x;
  bool isDone;
  if (r < lanesPerWarp) {
    isDone = __all_sync(0xffffffffu, r >= a.ranks || readArrival(a, shared, r, number, scope));
  } else {
    isDone = planPlaces(a, number, scope);
  }
  if (!isDone) shared.isOut = true;
  meetAsking();
  if (r == 0) storeReleaseBlock(&shared.plan, shared.isOut ? planFailed : planDone);
  if (shared.isOut) return;
  if (r < lanesPerWarp) goOn();
  tellExperts(a, shared, number, scope, shared.placers, lowLatencyAsking);
}

// Any thread may wait for the plan. False when the block must leave. It needs no deadline of its own: the threads that plan have one.
__device__ __forceinline__ bool awaitPlan(const LowLatencyPlaceShared& shared) {
  u32 plan;
  while ((plan = loadAcquireBlock(&shared.plan)) == planNone) {
  }
  return plan == planDone;
}

// A warp takes a part of a row and the choices of its token, once they have come. There are no choices, and no row comes, if the token
// has no expert here or the source has no such token. False when the warp must leave.
__device__ __forceinline__ bool takePart(const LowLatencyDispatchArguments& a, const LowLatencyPlaceShared& shared,
                                         const SlotRow& row, u32 number, const WaitScope& scope, LowLatencyChoice& choice,
                                         RowPart& values) {
  const auto load = [&]() {
    if (choice.number != number) choice = choiceOf(a, row.place(a), number);
    // Asked also when the numbers match: a record left by a dispatch 2^32 calls ago has the same number.
    const u32 tokens = loadAcquireBlock(&shared.arrived[row.rank]);
    if (tokens != notKnown && row.token >= tokens) choice = {noExpert, 0, 0.0f, number};
    values.load();
  };
  const auto isMissing = [&]() {
    const bool isChoiceHere = choice.number == number;
    const bool isRowSent = __any_sync(0xffffffffu, isChoiceHere && choice.expert >= 0);
    return !isChoiceHere || (isRowSent && values.isMissing(a));
  };
  choice.number = number - 1;
  const u32 channel = waitWord(lowLatencyWaitRows, a.call);
  const auto source = [&]() { return row.rank; };
  if (!awaitWords({a.peers, a.ranks, a.rank}, number, scope, channel, isMissing, load, source)) return false;
  if (__any_sync(0xffffffffu, choice.expert >= 0)) values.empty();
  return awaitPlan(shared);
}

// The blocks that place call this; a warp takes one part of a row at a time. Each thread of one warp calls goOn() when all peers are in
// this call. False when the block, or the warp, must leave.
template <class GoOn>
__device__ __forceinline__ bool takeRows(const LowLatencyDispatchArguments& a, LowLatencyPlaceShared& shared, u32 number,
                                         const WaitScope& scope, const GoOn& goOn) {
  if (blockDim.x - threadIdx.x <= lowLatencyAsking) plan(a, shared, number, scope, goOn);
  const PlaceShape shape(a, shared.placers);
  // First as if other ranks had as many tokens as this one, so that no warp waits before it begins; then the tokens that they have
  // beyond that.
  bool isFirst = true;
  u32 rows = a.ranks * a.tokens;
  const auto rowsOf = [&](u32 r) { return isFirst ? a.tokens : max(shared.arrived[r], a.tokens) - a.tokens; };
#pragma unroll 1
  for (;;) {
    WarpParts mine(rows * shape.parts(), shared.placers);
#pragma unroll 1
    for (; mine.first < mine.end; mine.first += blockDim.x / lanesPerWarp) {
      PlaceItem item(a, shape, mine.first, mine.end, rowsOf);
      if (!isFirst) item.row.token += a.tokens;
      LowLatencyChoice choice;
      RowPart values(a, item.row.place(a), item.part, shape.each, shape.rowVectors);
      if (!takePart(a, shared, item.row, number, scope, choice, values)) return false;
      const i32 index = placeOf(a, item.row.rank, choice);
      values.store(a, choice, index, shape.rowVectors);
      const bool isToken = item.row.token < shared.arrived[item.row.rank];
      if (item.part == 0 && isToken) RowPart::storeBeside(a, item.row, choice, index);
    }
    if (!isFirst) return true;
    if (!awaitPlan(shared)) return false;
    isFirst = false;
    rows = 0;
    for (u32 r = 0; r < a.ranks; ++r) rows += rowsOf(r);
    if (rows == 0) return true;
  }
}

}  // namespace weftline
