// What a rank sends to the others through slots in their windows, piece by piece. Tensors may lie anywhere.
#pragma once
#include "weftline/collectives/meeting.cuh"
#include "weftline/collectives/move-range.cuh"

namespace weftline {

// How a run is cut: each block has a piece of it in each step.
struct Pieces {
  u64 each;
  u64 steps;

  // Most bytes from one rank to another. One step at least, so that the ranks meet.
  __device__ __forceinline__ Pieces(const CollectiveArguments& a, u64 most) {
    const u64 fair = ((most + gridDim.x - 1) / gridDim.x + 127) & ~static_cast<u64>(127);
    each = max(static_cast<u64>(128), min(static_cast<u64>(a.slotBytes), fair));
    steps = max(static_cast<u64>(1), (most + each * gridDim.x - 1) / (each * gridDim.x));
  }

  __device__ __forceinline__ u64 begin(u64 step) const { return (step * gridDim.x + blockIdx.x) * each; }

  __device__ __forceinline__ u64 lengthOf(u64 begin, u64 bytes) const { return begin < bytes ? min(each, bytes - begin) : 0; }
};

// A piece of what goes to each peer, into its slot there.
__device__ inline void pushPieces(const CollectiveArguments& a, const Pieces& pieces, u64 begin, u32 step) {
  for (u32 k = 1; k < a.ranks; ++k) {
    const u32 to = (a.rank + k) % a.ranks;
    const Span span = outgoing(a, to);
    const u64 length = pieces.lengthOf(begin, span.bytes);
    if (length != 0) copyRange(slotAt(a, to, step, a.rank), inputOf(a) + span.at + begin, length, shareOfBlock());
  }
}

__device__ inline void takePieces(const CollectiveArguments& a, const Pieces& pieces, u64 begin, u32 step) {
  for (u32 k = 0; k < a.ranks; ++k) {
    const u32 from = (a.rank + a.ranks - k) % a.ranks;
    const Span span = incoming(a, from);
    const u64 length = pieces.lengthOf(begin, span.bytes);
    if (length == 0) continue;
    u8* to = outputOf(a) + span.at + begin;
    const u8* source = from == a.rank ? inputOf(a) + outgoing(a, from).at + begin : slotAt(a, a.rank, step, from);
    if (source != to) copyRange(to, source, length, shareOfBlock());
  }
}

// All threads call this: one step for each piece. `tells`: at the first step. False when the block must leave.
__device__ inline bool stageCopies(const CollectiveArguments& a, u64 most, u32& step, u32 tells, const WaitScope& scope) {
  const Pieces pieces(a, most);
  for (u64 piece = 0; piece < pieces.steps; ++piece, tells = tellsNothing) {
    ++step;
    pushPieces(a, pieces, pieces.begin(piece), step);
    if (!meet(a, step, tells, scope)) return false;
    takePieces(a, pieces, pieces.begin(piece), step);
  }
  return true;
}

}  // namespace weftline
