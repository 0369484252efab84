// One reduction of a Communicator across hosts: all inputs are there when it begins, and it waits for nobody. WEFTLINE_FORMAT
// is one of the reductionFormat constants.
#include "weftline/abi.cuh"
#include "weftline/collectives/reduce-range.cuh"
#include "weftline/types.cuh"

using namespace weftline;

extern "C" __global__ void __launch_bounds__(512, 1) collectiveRuns(const __grid_constant__ CollectiveRunArguments a) {
  __shared__ ReducedRunOf<collectiveMaxRanksAcrossHosts, 1> run;
  for (u32 source = threadIdx.x; source < a.count; source += blockDim.x) run.sources[source] = static_cast<const u8*>(a.sources[source]);
  if (threadIdx.x == 0) run.targets[0] = static_cast<u8*>(a.target);
  __syncthreads();
  reduceRange<ReducedOf<WEFTLINE_FORMAT>>(run, a.count, 1, a.reduction, a.bytes, shareOfBlocks(blockIdx.x, gridDim.x));
}
