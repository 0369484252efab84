// Collectives that reduce: through slots in the windows, or between tensors that all ranks have mapped. WEFTLINE_FORMAT is one
// of the reductionFormat constants.
#include "weftline/abi.cuh"
#include "weftline/collectives/direct-reductions.cuh"
#include "weftline/collectives/meeting.cuh"
#include "weftline/collectives/staged-reductions.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 mostThreads = 512;

using Of = ReducedOf<WEFTLINE_FORMAT>;

}  // namespace

extern "C" __global__ void __launch_bounds__(mostThreads, 1)
    collectiveReductions(const __grid_constant__ CollectiveArguments a) {
  __shared__ Tensors tensors;
  __shared__ ReducedRun runs[2];
  CollectiveBlock& own = static_cast<CollectiveBlock*>(a.blocks)[blockIdx.x];
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelCollectiveReductions, a.rank, a.timeoutNs, sharedWaits()};
  u32 step = own.steps;
  bool isDirect = false;
  __syncthreads();
  if (a.opens != 0) {
    if (!meet(a, ++step, tellsTensors, scope)) return;
    bool isInPlace = false;
    isDirect = __syncthreads_and(threadIdx.x >= a.ranks || readTensors(a, tensors, threadIdx.x, step, isInPlace));
  }
  const u32 tells = a.opens != 0 ? tellsNothing : tellsCall;
  bool isGood;
  if (isDirect) {
    reduceDirectly<Of>(a, tensors, runs[0]);
    isGood = meet(a, ++step, tellsNothing, scope);
  } else if (a.twoPhases != 0) {
    isGood = stageInTwoPhases<Of>(a, runs, step, tells, scope);
  } else {
    isGood = stageInOnePhase<Of>(a, runs, step, tells, scope);
  }
  if (isGood && threadIdx.x == 0) own.steps = step;
}
