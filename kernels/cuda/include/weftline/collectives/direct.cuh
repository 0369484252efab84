// Collectives that read and write the tensors of peers where they lie, in one go: ranks meet before it, when all tensors are
// ready, and after it.
#pragma once
#include "weftline/collectives/meeting.cuh"
#include "weftline/collectives/move-range.cuh"

namespace weftline {

// What the ranks have told of their tensors, in shared memory. Null where a tensor is not registered and not this rank's.
struct Tensors {
  u8* inputs[collectiveMaxRanks];
  u8* outputs[collectiveMaxRanks];
  // Start, for allToAllv, of this rank's part in the output of each.
  u64 places[collectiveMaxRanks];
  u64 mostBytes[collectiveMaxRanks];
};

__device__ __forceinline__ u8* mappedAt(const CollectiveArguments& a, u32 id, u32 owner, u64 offset) {
  if (id == 0) return nullptr;
  return static_cast<u8* const*>(a.registrations)[id * collectiveMaxRanks + owner] + offset;
}

// One thread per rank calls this, after the opening step: whether this rank's tensors can be used by all as the call needs it.
__device__ inline bool readTensors(const CollectiveArguments& a, Tensors& tensors, u32 rank, u32 step, bool& isInPlace) {
  u32 inputId = a.inputId;
  u32 outputId = a.outputId;
  u64 inputOffset = a.inputOffset;
  u64 outputOffset = a.outputOffset;
  if (rank != a.rank) {
    const CollectiveRecord* record = recordAt(a, a.rank, step, rank);
    inputId = __ldcg(&record->inputId);
    outputId = __ldcg(&record->outputId);
    inputOffset = __ldcg(&record->inputOffset);
    outputOffset = __ldcg(&record->outputOffset);
    if (a.shape == collectiveShapeAllToAllv) {
      tensors.places[rank] = __ldcg(&record->recvOffset);
      tensors.mostBytes[rank] = __ldcg(&record->mostBytes);
    }
    tensors.inputs[rank] = mappedAt(a, inputId, rank, inputOffset);
    tensors.outputs[rank] = mappedAt(a, outputId, rank, outputOffset);
  } else {
    u64 most = 0;
    if (a.shape == collectiveShapeAllToAllv) {
      for (u32 to = 0; to < a.ranks; ++to) most = max(most, a.sendBytes[to]);
    }
    tensors.places[rank] = a.recvOffsets[rank];
    tensors.mostBytes[rank] = most;
    tensors.inputs[rank] = inputOf(a);
    tensors.outputs[rank] = outputOf(a);
  }
  isInPlace = inputId != 0 && inputId == outputId && inputOffset == outputOffset;
  switch (a.shape) {
    case collectiveShapeBroadcast:
      return rank == a.root ? inputId != 0 : outputId != 0;
    case collectiveShapeReduce:
      return inputId != 0 && (rank != a.root || outputId != 0);
    case collectiveShapeReduceScatter:
      return inputId != 0;
    case collectiveShapeAllReduce:
      return inputId != 0 && outputId != 0;
    default:
      return outputId != 0;
  }
}

// Runs that blocks divide among themselves: each block has a share of one of them, or, of few blocks, each some of them.
template <class Move>
__device__ __forceinline__ void divideRuns(u32 runs, Move move) {
  if (runs == 0) return;
  if (gridDim.x < runs) {
    for (u32 run = blockIdx.x; run < runs; run += gridDim.x) move(run, shareOfBlock());
    return;
  }
  const u32 run = blockIdx.x % runs;
  const u32 blocks = gridDim.x / runs + (run < gridDim.x % runs ? 1 : 0);
  move(run, shareOfBlocks(blockIdx.x / runs, blocks));
}

// A part of this rank to each, its own among them unless it is in place.
__device__ inline void pushDirectly(const CollectiveArguments& a, const Tensors& tensors) {
  const u32 self = a.rank;
  const Span own = outgoing(a, self);
  const bool isThere = inputOf(a) + own.at == outputOf(a) + incoming(a, self).at;
  const u32 first = isThere ? 1 : 0;
  divideRuns(a.ranks - first, [&](u32 run, const Share& share) {
    const u32 to = (self + first + run) % a.ranks;
    const Span span = outgoing(a, to);
    const u64 at = a.shape == collectiveShapeAllToAllv ? tensors.places[to] : self * a.bytes;
    copyRange(tensors.outputs[to] + at, inputOf(a) + span.at, span.bytes, share);
  });
}

// allToAll in place: of each two ranks one exchanges the first half of their parts, and the other the second.
__device__ inline void swapDirectly(const CollectiveArguments& a, const Tensors& tensors) {
  divideRuns(a.ranks - 1, [&](u32 run, const Share& share) {
    const u32 peer = (a.rank + 1 + run) % a.ranks;
    const Span half = partOf(a.bytes, 2, a.rank < peer ? 0 : 1);
    swapRange(outputOf(a) + peer * a.bytes + half.at, tensors.outputs[peer] + a.rank * a.bytes + half.at, half.bytes, share);
  });
}

// Each rank but the root reads a part of what it has, and writes it to all of these.
__device__ inline void broadcastDirectly(const CollectiveArguments& a, const Tensors& tensors, u8* (&targets)[collectiveMaxRanks]) {
  const Share share = shareOfBlocks(blockIdx.x, gridDim.x);
  if (a.rank == a.root) {
    if (a.input != a.output) copyRange(outputOf(a), inputOf(a), a.bytes, share);
    return;
  }
  const u32 readers = a.ranks - 1;
  const Span part = partOf(a.bytes, readers, (a.rank + a.ranks - a.root) % a.ranks - 1);
  if (threadIdx.x < readers) {
    const u32 reader = (a.root + 1 + threadIdx.x) % a.ranks;
    targets[threadIdx.x] = tensors.outputs[reader] + part.at;
  }
  __syncthreads();
  spreadRange(targets, readers, tensors.inputs[a.root] + part.at, part.bytes, share);
}

}  // namespace weftline
