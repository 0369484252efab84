// Reductions through slots in the windows, piece by piece: one step for each piece, or two where each rank reduces a part for all.
#pragma once
#include "weftline/collectives/meeting.cuh"
#include "weftline/collectives/reduce-range.cuh"
#include "weftline/collectives/staged.cuh"

namespace weftline {

// Adds its own piece and those in its slots. One thread calls this; `run` is one that no thread reads any more.
__device__ __forceinline__ void setSources(const CollectiveArguments& a, ReducedRun& run, const u8* own, u32 step) {
  for (u32 from = 0; from < a.ranks; ++from) run.sources[from] = from == a.rank ? own : slotAt(a, a.rank, step, from);
}

// What a thread keeps of its own piece while it waits for that of the other rank.
constexpr u32 keptVectors = 8;

// allReduce of two ranks: a piece that the registers of a block hold is read once, for the peer and for the sum.
__device__ __forceinline__ bool canKeep(const CollectiveArguments& a, u64 begin, u64 length) {
#if __CUDA_ARCH__ < 900
  // Registers spill there.
  return false;
#else
  const u64 all = addressBits(inputOf(a) + begin) | addressBits(outputOf(a) + begin) | length;
  return a.shape == collectiveShapeAllReduce && a.ranks == 2 && (all & 15) == 0 && length <= keptVectors * blockDim.x * 16;
#endif
}

// All threads call this. The slots are those of any other way, so that the peer may choose another.
template <class Of>
__device__ inline bool reduceKept(const CollectiveArguments& a, u64 begin, u64 length, u32 step, u32 tells, const WaitScope& scope) {
  const u32 peer = 1 - a.rank;
  const u32 vectors = static_cast<u32>(length / 16);
  const uint4* input = reinterpret_cast<const uint4*>(inputOf(a) + begin);
  uint4* output = reinterpret_cast<uint4*>(outputOf(a) + begin);
  uint4* there = reinterpret_cast<uint4*>(slotAt(a, peer, step, a.rank));
  const uint4* here = reinterpret_cast<const uint4*>(slotAt(a, a.rank, step, peer));
  // More at once spill.
  constexpr u32 atOnce = 4;
  uint4 kept[keptVectors];
#pragma unroll
  for (u32 part = 0; part < keptVectors; ++part) {
    const u32 index = threadIdx.x + part * blockDim.x;
    if (index < vectors) kept[part] = __ldcg(input + index);
  }
#pragma unroll
  for (u32 part = 0; part < keptVectors; ++part) {
    const u32 index = threadIdx.x + part * blockDim.x;
    if (index < vectors) there[index] = kept[part];
  }
  if (!meet(a, step, tells, scope)) return false;
#pragma unroll
  for (u32 first = 0; first < keptVectors; first += atOnce) {
    uint4 others[atOnce];
#pragma unroll
    for (u32 part = 0; part < atOnce; ++part) {
      const u32 index = threadIdx.x + (first + part) * blockDim.x;
      if (index < vectors) others[part] = __ldcg(here + index);
    }
#pragma unroll
    for (u32 part = 0; part < atOnce; ++part) {
      const u32 index = threadIdx.x + (first + part) * blockDim.x;
      if (index >= vectors) continue;
      typename Of::Value sums[Of::perVector];
      typename Of::Value values[Of::perVector];
      // Either order of two gives the same bytes.
      Of::unpack(sums, kept[first + part]);
      Of::unpack(values, others[part]);
      combineAll(sums, values, a.reduction);
      output[index] = Of::pack(sums);
    }
  }
  return true;
}

// All threads call this. `tells`: at the first step. False when the block must leave.
template <class Of>
__device__ inline bool stageInOnePhase(const CollectiveArguments& a, ReducedRun (&runs)[2], u32& step, u32 tells,
                                       const WaitScope& scope) {
  const Pieces pieces(a, a.bytes);
  const bool gets = a.shape != collectiveShapeReduce || a.rank == a.root;
  for (u64 piece = 0; piece < pieces.steps; ++piece, tells = tellsNothing) {
    ++step;
    const u64 begin = pieces.begin(piece);
    const u64 length = pieces.lengthOf(begin, a.bytes);
    if (canKeep(a, begin, length)) {
      if (!reduceKept<Of>(a, begin, length, step, tells, scope)) return false;
      continue;
    }
    ReducedRun& run = runs[step & 1];
    pushPieces(a, pieces, begin, step);
    if (threadIdx.x == 0) {
      setSources(a, run, inputOf(a) + outgoing(a, a.rank).at + begin, step);
      run.targets[0] = outputOf(a) + begin;
    }
    if (!meet(a, step, tells, scope)) return false;
    if (gets) reduceRange<Of>(run, a.ranks, 1, a.reduction, length, shareOfBlock());
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
