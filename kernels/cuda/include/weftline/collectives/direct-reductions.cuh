// Reductions that read and write the tensors of peers where they lie: no rank computes what another one does.
#pragma once
#include "weftline/collectives/direct.cuh"
#include "weftline/collectives/reduce-range.cuh"

namespace weftline {

// The root of a reduce of two ranks does all of it: the same bytes cross the link either way, and a link that carries only
// what one side reads carries more than one with reads and writes.
__device__ __forceinline__ Span reducedPart(const CollectiveArguments& a) {
  if (a.shape == collectiveShapeReduceScatter) return {a.rank * a.bytes, a.bytes};
  if (a.shape == collectiveShapeReduce && a.ranks == 2) return {0, a.rank == a.root ? a.bytes : 0};
  return partOf(a.bytes, a.ranks, a.rank);
}

// Each rank reduces a part of the inputs of all, and writes it to whoever gets it. In place nobody else reads what it writes.
template <class Of>
__device__ inline void reduceDirectly(const CollectiveArguments& a, const Tensors& tensors, ReducedRun& run) {
  const bool isScattered = a.shape == collectiveShapeReduceScatter;
  const Span part = reducedPart(a);
  const u32 targets = a.shape == collectiveShapeAllReduce ? a.ranks : 1;
  if (threadIdx.x < a.ranks) {
    const u32 target = a.shape == collectiveShapeReduce ? a.root : (a.rank + threadIdx.x) % a.ranks;
    run.sources[threadIdx.x] = tensors.inputs[threadIdx.x] + part.at;
    run.targets[threadIdx.x] = isScattered ? outputOf(a) : tensors.outputs[target] + part.at;
  }
  __syncthreads();
  reduceRange<Of>(run, a.ranks, targets, a.reduction, part.bytes, shareOfBlocks(blockIdx.x, gridDim.x));
}

}  // namespace weftline
