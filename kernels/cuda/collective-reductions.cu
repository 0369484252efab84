// Collectives that reduce: through slots in the windows, or between tensors that all ranks have mapped. WEFTLINE_FORMAT is one
// of the reductionFormat constants.
#include "weftline/abi.cuh"
#include "weftline/collectives/direct-reductions.cuh"
#include "weftline/collectives/meeting.cuh"
#include "weftline/collectives/staged-reductions.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 mostThreads = 512;

using Of = ReducedOf<WEFTLINE_FORMAT>;

// All threads call this. False when the block must leave.
__device__ inline bool runReduction(const CollectiveArguments& a, Tensors& tensors, ReducedRun (&runs)[2], u32& step,
                                    const WaitScope& scope) {
  if (a.opens != 0) {
    if (!meet(a, ++step, tellsTensors, scope)) return false;
    bool isInPlace = false;
    const u32 rank = threadIdx.x;
    if (__syncthreads_and(rank >= a.ranks || readTensors(a, tensors, rank, step, isInPlace))) {
      if (!areStillHere(a, scope)) return false;
      reduceDirectly<Of>(a, tensors, runs[0]);
      return meet(a, ++step, tellsNothing, scope);
    }
  }
  const u32 tells = a.opens != 0 ? tellsNothing : tellsCall;
  if (a.twoPhases != 0) return stageInTwoPhases<Of>(a, runs, step, tells, scope);
  return stageInOnePhase<Of>(a, runs, step, tells, scope);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(mostThreads, 1)
    collectiveReductions(const __grid_constant__ CollectiveArguments a) {
  WEFTLINE_TRACE_KERNEL();
  __shared__ Tensors tensors;
  __shared__ ReducedRun runs[2];
  CollectiveBlock& own = static_cast<CollectiveBlock*>(a.blocks)[blockIdx.x];
  if (own.failed != 0) return;
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelCollectiveReductions, a.rank, a.timeoutNs, sharedWaits()};
  u32 step = own.steps;
  __syncthreads();
  const bool isGood = runReduction(a, tensors, runs, step, scope);
  if (threadIdx.x == 0) keepSteps(own, step, isGood);
}
