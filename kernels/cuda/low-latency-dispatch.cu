// Low-latency dispatch: rows go to slots that are known without a word of the receivers, which give them their places. One
// launch sends and receives, or two do, and between them nothing runs.
#include "weftline/abi.cuh"
#include "weftline/launch-order.cuh"
#include "weftline/low-latency/elastic-dispatch.cuh"
#include "weftline/low-latency/place-rows.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/send-rows.cuh"
#include "weftline/low-latency/take-rows.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

// The first thread of those that wait for free slots: the last of the warps that send, which has least to do.
constexpr u32 awaitingSlots = lowLatencySending - lanesPerWarp;
// The one that counts calls on, of the last warps, which have least to place.
constexpr u32 keeping = lowLatencyThreads - lowLatencyAsking;

// What this dispatch gives up: what the kernel before has read, and rows by rank, which stay where they came until the second
// dispatch after their own begins. Bits of LowLatencyBlock::owed.
__device__ __forceinline__ u32 givenUp(const LowLatencyDispatchArguments& a, const LowLatencyBlock& own) {
  u32 owed = own.owed;
  if (!lowLatencyIsRankMajor || (a.phases & lowLatencyPhaseSend) == 0) return owed;
  if (own.slotBefore != 0 && own.held[own.slotBefore - 1] != 0) owed |= owedSlot(own.slotBefore - 1);
  // A graph may use one slot again and again.
  if (own.held[a.slot] != 0) owed |= owedSlot(a.slot);
  return owed;
}

// All threads call this. False when the block must leave.
__device__ __forceinline__ bool send(const LowLatencyDispatchArguments& a, LowLatencyBlock& own, LowLatencySendShared& shared,
                                     u32 number, const WaitScope& scope) {
  const u32 uses = own.sent[a.slot];
  const auto areSlotsFree = [&]() {
    const u32 peer = threadIdx.x - awaitingSlots;
    // The rank that stands here for one on another host waits for its slots.
    if (peer >= a.ranks || (lowLatencyAcrossHosts && (a.active >> peer & 1u) == 0)) return true;
    const LowLatencyFlags* flags = flagsAt(a.peers[a.rank], peer);
    return awaitPeer({a.peers, a.ranks, a.rank}, PlainWord{&flags->released[a.slot], flags}, uses, scope,
                     {peer, waitWord(lowLatencyWaitSlot, a.call)});
  };
  if (!sendRows(a, shared, number, scope, areSlotsFree)) return false;
  if constexpr (lowLatencyRowsShow) return true;
  __syncthreads();
  // ORDER: publishes what this block wrote.
  const bool isTold = threadIdx.x < a.ranks && (!lowLatencyAcrossHosts || (a.active >> threadIdx.x & 1u) != 0);
  if (isTold) addReleaseSystem(&flagsAt(a.peers[threadIdx.x], a.rank)->arrived, blockShare());
  return true;
}

// One thread calls this, when all others have read what they need of it.
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
  if ((a.phases & lowLatencyPhaseReceive) == 0) return;
  if (lowLatencyIsRankMajor) own.held[a.slot] = 1;
  else if ((a.phases & lowLatencyPhaseSend) != 0) own.owed = owedSlot(a.slot);
}

// All threads call this. areRowsHere(): all rows are, which each thread asks once; check(): what came with them is told to the block, which
// each thread calls once. False when the block must leave.
template <class AreHere, class Check>
__device__ __forceinline__ bool place(const LowLatencyDispatchArguments& a, LowLatencyPlaceShared& shared, u32 number,
                                      const WaitScope& scope, const AreHere& areRowsHere, const Check& check) {
  if constexpr (lowLatencyIsRankMajor) {
    if (!areRowsHere()) return false;
    check();
    __syncthreads();
    if (shared.isOut) return false;
    fillRankTails(a, shared);
    return true;
  }
  if (!placeRows(a, shared, number, scope, areRowsHere, check)) return false;
  tellExperts(a, shared, number, scope, allBlocks(), lowLatencyThreads);
  fillExpertTails(a, shared, allBlocks());
  return true;
}

__device__ __forceinline__ void receive(const LowLatencyDispatchArguments& a, LowLatencyBlock& own, LowLatencyPlaceShared& shared,
                                        u32 number, const WaitScope& scope) {
  const auto goOn = [&]() {
    letSuccessorStart();
    // What may still fail ends the use of the object on all ranks, and it takes a while.
    if (threadIdx.x == keeping) keep(a, own, number);
  };
  if constexpr (lowLatencyRowsShow) {
    if (!shared.placers.isIn()) {
      goOn();
    } else {
      // A peer's last block tells of its call, and blocks start in order: then all blocks of the peers have their multiprocessors.
      if (!takeRows(a, shared, number, scope, goOn)) return;
      fillExpertTails(a, shared, shared.placers);
    }
  } else {
    const auto check = [&]() {
      if (threadIdx.x < a.ranks && !readArrival(a, shared, threadIdx.x, number, scope)) shared.isOut = true;
    };
    const auto areRowsHere = [&]() {
      const bool isHere = threadIdx.x >= a.ranks || awaitRows(a, threadIdx.x, number, scope);
      if (__syncthreads_or(!isHere)) return false;
      goOn();
      return true;
    };
    if (!place(a, shared, number, scope, areRowsHere, check)) return;
  }
  // Behind a hook at once: a peer that sends next need not wait for another kernel of this rank, which may come much later.
  if (!lowLatencyIsRankMajor && (a.phases & lowLatencyPhaseSend) == 0) {
    giveUpRead<lowLatencyRowsShow>({a.peers, a.ranks, a.rank},
                                   [&](LowLatencyFlags* flags) { return &flags->released[a.slot]; });
  }
}

// All threads call this, where ranks come and go. Before a decision only this rank's own tokens are read; rows are numbered, and slots
// read, behind the decision about them.
__device__ __forceinline__ void dispatchAmongMembers(LowLatencyDispatchArguments& a, LowLatencyMeeting& meeting,
                                                     LowLatencySendShared& sending, LowLatencyPlaceShared& placing,
                                                     const WaitScope& scope) {
  if ((a.phases & lowLatencyPhaseSend) != 0) {
    const auto areSlotsFree = [&]() {
      return meetMembers(a, meeting, 0, [&]() { decideSend(a, meeting, scope); });
    };
    if (!sendRows(a, sending, a.number, scope, areSlotsFree)) return;
    if (areAllBlocksDone(a, meeting, 0)) tellSent(a);
  }
  if ((a.phases & lowLatencyPhaseReceive) == 0) return;
  const auto areRowsHere = [&]() {
    if (!meetMembers(a, meeting, 1, [&]() { decideReceive(a, meeting, scope); })) return false;
    // No block waits behind this decision.
    letSuccessorStart();
    return true;
  };
  const auto check = [&]() {
    if (threadIdx.x < a.ranks) placing.arrived[threadIdx.x] = meeting.rows[threadIdx.x];
  };
  if (!place(a, placing, a.number, scope, areRowsHere, check)) return;
  if (!lowLatencyIsRankMajor && areAllBlocksDone(a, meeting, 1)) tellReleased(a, a.slot, a.number);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(lowLatencyThreads, 1)
    lowLatencyDispatch(const __grid_constant__ LowLatencyDispatchArguments a) {
  awaitPredecessor();
  WEFTLINE_TRACE_KERNEL();
  __shared__ LowLatencySendShared sending;
  __shared__ LowLatencyPlaceShared placing;
  LowLatencyBlock& own = static_cast<LowLatencyBlock*>(a.blocks)[blockIdx.x];
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLowLatencyDispatch, a.rank, a.timeoutNs,
                           sharedWaits(awaitingSlots)};
  const bool sends = (a.phases & lowLatencyPhaseSend) != 0;
  const u32 number = sends ? own.dispatches + 1 : own.dispatchOf[a.slot];
  if (threadIdx.x == 0) {
    placing.isOut = false;
    placing.plan = planNone;
    placing.placers = placersOf(a);
  }
  if (threadIdx.x < a.ranks) placing.arrived[threadIdx.x] = notKnown;
  if constexpr (lowLatencyIsElastic) {
    __shared__ LowLatencyDispatchArguments changing;
    __shared__ LowLatencyMeeting meeting;
    copyArguments(changing, a);
    dispatchAmongMembers(changing, meeting, sending, placing, scope);
    return;
  }
  // One of the last warps, which sends nothing, does this.
  const u32 telling = threadIdx.x + lanesPerWarp - lowLatencyThreads;
  if (blockIdx.x == 0 && telling < lanesPerWarp) tellOwed({a.peers, a.ranks, a.rank}, own, givenUp(a, own), telling);
  // This comes first for those who wait.
  if (sends) __syncwarp();
  else __syncthreads();
  WEFTLINE_TRACE_BEGIN("ep.dispatch.rows");
  if (sends && !send(a, own, sending, number, scope)) return;
  WEFTLINE_TRACE_END("ep.dispatch.rows");
  if ((a.phases & lowLatencyPhaseReceive) != 0) {
    receive(a, own, placing, number, scope);
  } else if (threadIdx.x == keeping) {
    keep(a, own, number);
  }
}
