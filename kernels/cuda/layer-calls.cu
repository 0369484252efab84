// Small kernels of EPAll2AllLayer: a barrier of all ranks on a stream, and tables of i32 as tables of i64.
#include "weftline/abi.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/ep/network-meeting.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

// One block.
extern "C" __global__ void __launch_bounds__(32) layerBarrier(const __grid_constant__ LayerBarrierArguments a) {
  WEFTLINE_TRACE_KERNEL();
  if (hasLeftEarly(a.lastEpoch)) return;
  const EpNetwork* network = static_cast<const EpNetwork*>(a.network);
  const u32 rank = network == nullptr ? a.rank : network->rank;
  const u32* names = network == nullptr ? nullptr : network->localRanks;
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLayerBarrier, rank, a.timeoutNs, sharedWaits()};
  const u32 epoch = firstEpoch(a.epoch, a.lastEpoch);
  const RankBarrier barrier = {a.peers, a.ranks, a.rank, epoch, a.call, names};
  // ORDER: what this stream wrote before reaches peers before the arrival; what it reads behind the barrier comes after.
  fenceSystem();
  bool arrived;
  if (a.acrossHosts == 0) arrived = enterTogether(barrier, scope);
  else arrived = enterAcrossHosts(*network, nextNetworkCall(*network, a.call), barrier, scope);
  if (!arrived) noteFailure(a.lastEpoch);
  if (threadIdx.x == 0) {
    static_cast<EpLastEpoch*>(a.lastEpoch)->number = epoch;
    if (a.acrossHosts != 0) countNetworkCall(*network);
  }
  fenceSystem();
}

extern "C" __global__ void __launch_bounds__(256) layerWiden(const __grid_constant__ LayerWidenArguments a) {
  for (u32 index = blockIdx.x * blockDim.x + threadIdx.x; index < a.count; index += gridDim.x * blockDim.x) {
    static_cast<i64*>(a.to)[index] = static_cast<const i32*>(a.from)[index];
  }
}
