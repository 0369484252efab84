// Combine: each rank pulls the rows of its tokens from all ranks that hold them, sums them in f32 in rank order after the
// biases, and rounds once to bf16. Of another host it gets one row per token, which a rank there has summed.
#include "weftline/abi.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/ep/network-sums.cuh"
#include "weftline/ep/token-rows.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr bool hosts = WEFTLINE_HOSTS != 0;
constexpr u32 mostThreads = 512;

}  // namespace

extern "C" __global__ void __launch_bounds__(mostThreads, 1) epCombine(const __grid_constant__ EpCombineArguments a) {
  WEFTLINE_TRACE_KERNEL();
  extern __shared__ __align__(128) u8 memory[];
  if (hasLeftEarly(a.lastEpoch)) return;
  const u32 rank = hosts ? networkOf(a).rank : a.rank;
  const u32* names = hosts ? networkOf(a).localRanks : nullptr;
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelEpCombine, rank, a.timeoutNs, sharedWaits()};
  const u32 epoch = firstEpoch(a.openingEpoch, a.lastEpoch);
  bool isSummed;
  if constexpr (hosts) {
    isSummed = combineAcrossHosts(a, {a.peers, a.ranks, a.rank, epoch, a.openingCall, names}, scope);
  } else {
    isSummed = combineOnHost(a, memory, epoch, scope);
  }
  if (!isSummed) return noteFailure(a.lastEpoch);
  WEFTLINE_TRACE_BEGIN("ep.closing");
  const RankBarrier closing = {a.peers, a.ranks, a.rank, numberAfter(epoch), a.closingCall, names};
  const bool arrived = leaveTogether(closing, static_cast<u32*>(a.counter), a.lastEpoch, scope);
  WEFTLINE_TRACE_END("ep.closing");
  if constexpr (hosts) {
    if (!arrived || threadIdx.x != 0) return;
    countNetworkCall(networkOf(a));
    const EpPlan& plan = *static_cast<const EpPlan*>(a.plan);
    // Behind a dispatch that failed no sums have come.
    if (plan.status == epStatusGood) takeSums(networkOf(a), {plan.sentTokens, sumStrideOf(a)});
  }
}
