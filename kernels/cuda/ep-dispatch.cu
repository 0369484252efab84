// Dispatch: counts and exchanges what goes where, unless a handle knows; then each row is read once and written to its
// final place at every rank that needs it. No ring, no credit, nothing for receivers to do.
//
// In a group on several hosts rows to other hosts go first, by way of a rank there, which this one is for others.
#include "weftline/abi.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/copy/stage-pair.cuh"
#include "weftline/ep/dispatch-plan.cuh"
#include "weftline/ep/dispatch-rows.cuh"
#include "weftline/ep/network-rows.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 barrierBytes = 1024;
constexpr bool hosts = WEFTLINE_HOSTS != 0;

// Before rows of this host move: false when the block must leave.
__device__ __forceinline__ bool enterReplay(const EpDispatchArguments& a, u32 epoch, const WaitScope& scope) {
  const RankBarrier opening = barrierOf<hosts>(a, epoch, a.openingCall);
  if constexpr (hosts) return enterAcrossHosts(networkOf(a), nextNetworkCall(networkOf(a), a.openingCall), opening, scope);
  else return enterTogether(opening, scope);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(mostDispatchWarps * 32, 1)
    epDispatch(const __grid_constant__ EpDispatchArguments a) {
  WEFTLINE_TRACE_KERNEL();
  extern __shared__ __align__(128) u8 dynamic[];
  __shared__ DispatchShared<hosts> shared;
  if (hasLeftEarly(a.lastEpoch)) return;
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barriers = makeStageBarriers(dynamic);
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelEpDispatch, a.groupRank, a.timeoutNs, sharedWaits()};
  const u32 epoch = firstEpoch(a.openingEpoch, a.lastEpoch);
  u32 status = epStatusGood;
  if (a.counts != 0) {
    WEFTLINE_TRACE_BEGIN("ep.dispatch.counts");
    status = prepareDispatch<WEFTLINE_COLUMNS, hosts>(a, shared, dynamic + barrierBytes, scope);
    WEFTLINE_TRACE_END("ep.dispatch.counts");
    // The ranks have not met.
    if (status == epStatusTimeout || status == epStatusOtherCall) return noteFailure(a.lastEpoch);
  } else {
    if (!enterReplay(a, epoch, scope)) return noteFailure(a.lastEpoch);
    // Nobody filled in the places of the rows that a dispatch which failed did not forward.
    if constexpr (hosts) status = static_cast<const EpPlan*>(a.plan)->status;
  }
  // A plan that failed moves nothing; every rank's has failed alike, and all meet at the end as they always do.
  if (status == epStatusGood) {
    if (a.worstRows != 0) fillTail(a);
    if constexpr (hosts) {
      WEFTLINE_TRACE_BEGIN("ep.dispatch.queue");
      const bool isPacked = packRows(a, scope);
      WEFTLINE_TRACE_END("ep.dispatch.queue");
      if (!__syncthreads_and(isPacked)) return noteFailure(a.lastEpoch);
    }
    const TokenRange range = tokensOfBlock(a.tokens);
    u8* stages = dynamic + barrierBytes + static_cast<u64>(warp) * stagesPerWarp * a.stageBytes;
    WEFTLINE_TRACE_BEGIN("ep.dispatch.rows");
    if (warp < a.rowWarps) sendRows<hosts>(a, range, warp, stages, barriers);
    else sendAllChoices<hosts>(a, range, warp);
    WEFTLINE_TRACE_END("ep.dispatch.rows");
    if constexpr (hosts) {
      WEFTLINE_TRACE_BEGIN("ep.dispatch.forward");
      const bool isForwarded = forwardRows(a, scope);
      WEFTLINE_TRACE_END("ep.dispatch.forward");
      if (!isForwarded) return noteFailure(a.lastEpoch);
    }
  }
  const RankBarrier closing = barrierOf<hosts>(a, numberAfter(epoch), a.closingCall);
  WEFTLINE_TRACE_BEGIN("ep.closing");
  const bool arrived = leaveTogether(closing, static_cast<u32*>(a.counter), a.lastEpoch, scope);
  WEFTLINE_TRACE_END("ep.closing");
  if (!arrived) return;
  if constexpr (hosts) {
    if (threadIdx.x == 0) {
      countNetworkCall(networkOf(a));
      if (status == epStatusGood) takeRows(networkOf(a), servedRowsOf(a, RecordShape(a)));
    }
  }
  if (status != epStatusGood) return;
  if (a.recvSource != nullptr) keepSources(a);
}
