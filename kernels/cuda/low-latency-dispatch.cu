// Low-latency dispatch: rows go to slots that are known without a word of the receivers, which give them their places. One
// launch sends and receives, or two do, and between them nothing runs.
#include "weftline/abi.cuh"
#include "weftline/launch-order.cuh"
#include "weftline/low-latency/elastic-dispatch.cuh"
#include "weftline/low-latency/place-rows.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/send-rows.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 mostThreads = 1024;

// Rows by rank stay where they came until the second dispatch after their own begins: now. By one thread per peer.
__device__ __forceinline__ void giveUpHeld(const LowLatencyDispatchArguments& a, const LowLatencyBlock& own, u32 peer) {
  LowLatencyFlags* flags = flagsAt(a.peers[peer], a.rank);
  const u32 share = blockShare();
  if (own.slotBefore != 0 && own.slotBefore - 1 != a.slot && own.held[own.slotBefore - 1] != 0) {
    addReleaseSystem(&flags->released[own.slotBefore - 1], share);
  }
  // A graph may use one slot again and again.
  if (own.held[a.slot] != 0) addReleaseSystem(&flags->released[a.slot], share);
}

// By all threads. False when the block must leave.
__device__ __forceinline__ bool send(const LowLatencyDispatchArguments& a, LowLatencyBlock& own, LowLatencySendShared& shared,
                                     u32 number, const WaitScope& scope) {
  const u32 uses = own.sent[a.slot];
  // A warp of its own for each, so that nobody who counts waits with them.
  const u32 releasing = threadIdx.x - 2 * lanesPerWarp;
  if (a.rankMajor != 0 && releasing < a.ranks) giveUpHeld(a, own, releasing);
  const auto areSlotsFree = [&]() {
    const u32 peer = threadIdx.x - lanesPerWarp;
    if (peer >= a.ranks) return true;
    return awaitPeer({a.peers, a.ranks, a.rank}, &flagsAt(a.peers[a.rank], peer)->released[a.slot], uses, scope,
                     {peer, waitWord(lowLatencyWaitSlot, a.call)});
  };
  if (!sendRows(a, shared, number, scope, areSlotsFree)) return false;
  if (isLastBlock()) tellCounts(a, shared, number);
  __syncthreads();
  // ORDER: publishes what this block wrote.
  if (threadIdx.x < a.ranks) addReleaseSystem(&flagsAt(a.peers[threadIdx.x], a.rank)->arrived, blockShare());
  return true;
}

// By all threads, once all rows are here.
__device__ __forceinline__ void place(const LowLatencyDispatchArguments& a, LowLatencyPlaceShared& shared, u32 number,
                                      const WaitScope& scope) {
  if (a.rankMajor != 0) {
    fillRankTails(a, shared);
    return;
  }
  const auto plan = [&]() { planPlaces(a, shared, number, scope); };
  const u32 rowBytes = a.format == lowLatencyFormatBf16 ? a.hidden * 2 : a.hidden;
  if (rowBytes % 16 == 0) placeRows<uint4>(a, shared, rowBytes, plan);
  else placeRows<uint2>(a, shared, rowBytes, plan);
  fillExpertTails(a, shared);
}

__device__ __forceinline__ bool receive(const LowLatencyDispatchArguments& a, LowLatencyPlaceShared& shared, u32 number,
                                        const WaitScope& scope) {
  const bool isHere = threadIdx.x >= a.ranks || awaitRows(a, shared, threadIdx.x, number, scope);
  if (__syncthreads_or(!isHere)) return false;
  letSuccessorStart();
  place(a, shared, number, scope);
  if (a.rankMajor != 0) return true;
  // The slots have been read.
  __syncthreads();
  if (threadIdx.x < a.ranks) addReleaseSystem(&flagsAt(a.peers[threadIdx.x], a.rank)->released[a.slot], blockShare());
  return true;
}

// By one thread, as the last thing.
__device__ __forceinline__ void keep(const LowLatencyDispatchArguments& a, LowLatencyBlock& own, u32 number) {
  if ((a.phases & lowLatencyPhaseSend) != 0) {
    own.dispatches = number;
    own.sent[a.slot] += 1;
    own.dispatchOf[a.slot] = number;
    if (own.slotBefore != 0) own.held[own.slotBefore - 1] = 0;
    own.held[a.slot] = 0;
    own.slotBefore = own.lastSlot;
    own.lastSlot = a.slot + 1;
  }
  if ((a.phases & lowLatencyPhaseReceive) != 0 && a.rankMajor != 0) own.held[a.slot] = 1;
}

// By all threads, where ranks come and go. Before a decision only this rank's own tokens are read; rows are numbered, and slots
// read, behind the decision about them.
__device__ __forceinline__ void dispatchAmongMembers(LowLatencyDispatchArguments& a, LowLatencyMeeting& meeting,
                                                     LowLatencySendShared& sending, LowLatencyPlaceShared& placing,
                                                     const WaitScope& scope) {
  if ((a.phases & lowLatencyPhaseSend) != 0) {
    const auto areSlotsFree = [&]() {
      return meetMembers(a, meeting, 0, [&]() { decideSend(a, meeting, scope); });
    };
    if (!sendRows(a, sending, a.number, scope, areSlotsFree)) return;
    if (isLastBlock()) tellCounts(a, sending, a.number);
    if (areAllBlocksDone(a, meeting, 0)) tellSent(a);
  }
  if ((a.phases & lowLatencyPhaseReceive) == 0) return;
  if (!meetMembers(a, meeting, 1, [&]() { decideReceive(a, meeting, scope); })) return;
  // No block waits behind this decision.
  letSuccessorStart();
  if (threadIdx.x < a.ranks) placing.arrived[threadIdx.x] = meeting.rows[threadIdx.x];
  __syncthreads();
  place(a, placing, a.number, scope);
  if (a.rankMajor == 0 && areAllBlocksDone(a, meeting, 1)) tellReleased(a, a.slot, a.number);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(mostThreads, 1)
    lowLatencyDispatch(const __grid_constant__ LowLatencyDispatchArguments a) {
  awaitPredecessor();
  WEFTLINE_TRACE_KERNEL();
  __shared__ LowLatencySendShared sending;
  __shared__ LowLatencyPlaceShared placing;
  LowLatencyBlock& own = static_cast<LowLatencyBlock*>(a.blocks)[blockIdx.x];
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLowLatencyDispatch, a.rank, a.timeoutNs, sharedWaits()};
  const bool sends = (a.phases & lowLatencyPhaseSend) != 0;
  const u32 number = sends ? own.dispatches + 1 : own.dispatchOf[a.slot];
  if constexpr (lowLatencyIsElastic) {
    __shared__ LowLatencyDispatchArguments changing;
    __shared__ LowLatencyMeeting meeting;
    copyArguments(changing, a);
    dispatchAmongMembers(changing, meeting, sending, placing, scope);
    return;
  }
  // Without sending there is no synchronisation before the first wait.
  if (!sends) __syncthreads();
  WEFTLINE_TRACE_BEGIN("ep.dispatch.rows");
  if (sends && !send(a, own, sending, number, scope)) return;
  WEFTLINE_TRACE_END("ep.dispatch.rows");
  if ((a.phases & lowLatencyPhaseReceive) != 0 && !receive(a, placing, number, scope)) return;
  __syncthreads();
  if (threadIdx.x == 0) keep(a, own, number);
}
