// Reductions through slots in the windows, piece by piece: one step for each piece, or two where each rank reduces a part for all.
#pragma once
#include "weftline/collectives/meeting.cuh"
#include "weftline/collectives/reduce-range.cuh"
#include "weftline/collectives/staged.cuh"

namespace weftline {

// Its own piece and those in its slots. By one thread; `run` is one that no thread reads any more.
__device__ __forceinline__ void setSources(const CollectiveArguments& a, ReducedRun& run, const u8* own, u32 step) {
  for (u32 from = 0; from < a.ranks; ++from) run.sources[from] = from == a.rank ? own : slotAt(a, a.rank, step, from);
}

// By all threads. `tells`: at the first step. False when the block must leave.
template <class Of>
__device__ inline bool stageInOnePhase(const CollectiveArguments& a, ReducedRun (&runs)[2], u32& step, u32 tells,
                                       const WaitScope& scope) {
  const Pieces pieces(a, a.bytes);
  const bool gets = a.shape != collectiveShapeReduce || a.rank == a.root;
  for (u64 piece = 0; piece < pieces.steps; ++piece, tells = tellsNothing) {
    ++step;
    const u64 begin = pieces.begin(piece);
    ReducedRun& run = runs[step & 1];
    pushPieces(a, pieces, begin, step);
    if (threadIdx.x == 0) {
      setSources(a, run, inputOf(a) + outgoing(a, a.rank).at + begin, step);
      run.targets[0] = outputOf(a) + begin;
    }
    if (!meet(a, step, tells, scope)) return false;
    if (gets) reduceRange<Of>(run, a.ranks, 1, a.reduction, pieces.lengthOf(begin, a.bytes), shareOfBlock());
  }
  return true;
}

// allReduce: each rank reduces its part of the tensor, and puts the result to all.
template <class Of>
__device__ inline bool stageInTwoPhases(const CollectiveArguments& a, ReducedRun (&runs)[2], u32& step, u32 tells,
                                        const WaitScope& scope) {
  const Pieces pieces(a, partOf(a.bytes, a.ranks, 0).bytes);
  const Span own = partOf(a.bytes, a.ranks, a.rank);
  for (u64 piece = 0; piece < pieces.steps; ++piece, tells = tellsNothing) {
    const u64 begin = pieces.begin(piece);
    ++step;
    for (u32 k = 1; k < a.ranks; ++k) {
      const u32 to = (a.rank + k) % a.ranks;
      const Span part = partOf(a.bytes, a.ranks, to);
      const u64 length = pieces.lengthOf(begin, part.bytes);
      if (length != 0) copyRange(slotAt(a, to, step, a.rank), inputOf(a) + part.at + begin, length, shareOfBlock());
    }
    ReducedRun& run = runs[piece & 1];
    if (threadIdx.x == 0) {
      setSources(a, run, inputOf(a) + own.at + begin, step);
      run.targets[0] = outputOf(a) + own.at + begin;
      for (u32 k = 1; k < a.ranks; ++k) run.targets[k] = slotAt(a, (a.rank + k) % a.ranks, step + 1, a.rank);
    }
    if (!meet(a, step, tells, scope)) return false;
    ++step;
    reduceRange<Of>(run, a.ranks, a.ranks, a.reduction, pieces.lengthOf(begin, own.bytes), shareOfBlock());
    if (!meet(a, step, tellsNothing, scope)) return false;
    for (u32 k = 1; k < a.ranks; ++k) {
      const u32 from = (a.rank + a.ranks - k) % a.ranks;
      const Span part = partOf(a.bytes, a.ranks, from);
      const u64 length = pieces.lengthOf(begin, part.bytes);
      if (length != 0) copyRange(outputOf(a) + part.at + begin, slotAt(a, a.rank, step, from), length, shareOfBlock());
    }
  }
  return true;
}

}  // namespace weftline
