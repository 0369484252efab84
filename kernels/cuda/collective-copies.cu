// Collectives that move and do not reduce: through slots in the windows, or between tensors that all ranks have mapped.
#include "weftline/abi.cuh"
#include "weftline/collectives/direct.cuh"
#include "weftline/collectives/meeting.cuh"
#include "weftline/collectives/staged.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 mostThreads = 512;

// One thread per peer calls this, after the opening step of allToAllv: both sides say the same of what goes between them.
__device__ inline bool agreesOnCounts(const CollectiveArguments& a, u32 peer, u32 step, const WaitScope& scope) {
  const CollectiveRecord* record = recordAt(a, a.rank, step, peer);
  const u64 sends = __ldcg(&record->sendBytes);
  const u64 gets = __ldcg(&record->recvBytes);
  if (sends == a.recvBytes[peer] && gets == a.sendBytes[peer]) return true;
  const bool isSender = gets != a.sendBytes[peer];
  // Detail: the dtype, and in bit 0 whether the rank that tells is the one that sends.
  const u32 detail = a.dtype << 1 | (isSender ? 1 : 0);
  failCollective(ranksOf(a), scope, collectiveFailureOtherCounts, peer, detail, isSender ? a.sendBytes[peer] : sends,
                 isSender ? gets : a.recvBytes[peer]);
  return false;
}

// All threads call this. False when the block must leave.
__device__ inline bool runCopies(const CollectiveArguments& a, Tensors& tensors, u8* (&targets)[collectiveMaxRanks], u32& step,
                                 const WaitScope& scope) {
  if (a.opens == 0) return stageCopies(a, a.bytes, step, tellsCall, scope);
  if (!meet(a, ++step, tellsTensors, scope)) return false;
  const u32 rank = threadIdx.x;
  const bool isRank = rank < a.ranks;
  const bool isVariable = a.shape == collectiveShapeAllToAllv;
  if (isVariable && __syncthreads_or(isRank && rank != a.rank && !agreesOnCounts(a, rank, step, scope))) return false;
  bool isInPlace = false;
  const bool isMapped = !isRank || readTensors(a, tensors, rank, step, isInPlace);
  const u32 inPlace = __syncthreads_count(isRank && isInPlace);
  const bool swaps = a.shape == collectiveShapeAllToAll && inPlace == a.ranks;
  const bool mixes = a.shape == collectiveShapeAllToAll && inPlace != 0 && !swaps;
  const bool isDirect = __syncthreads_and(isMapped) && !mixes;
  if (!isDirect) {
    u64 most = a.bytes;
    if (isVariable) {
      most = 0;
      for (u32 from = 0; from < a.ranks; ++from) most = max(most, tensors.mostBytes[from]);
    }
    return stageCopies(a, most, step, tellsNothing, scope);
  }
  if (!areStillHere(a, scope)) return false;
  if (a.shape == collectiveShapeBroadcast) broadcastDirectly(a, tensors, targets);
  else if (swaps) swapDirectly(a, tensors);
  else pushDirectly(a, tensors);
  return meet(a, ++step, tellsNothing, scope);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(mostThreads, 1)
    collectiveCopies(const __grid_constant__ CollectiveArguments a) {
  WEFTLINE_TRACE_KERNEL();
  __shared__ Tensors tensors;
  __shared__ u8* targets[collectiveMaxRanks];
  CollectiveBlock& own = static_cast<CollectiveBlock*>(a.blocks)[blockIdx.x];
  if (own.failed != 0) return;
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelCollectiveCopies, a.rank, a.timeoutNs, sharedWaits()};
  u32 step = own.steps;
  __syncthreads();
  const bool isGood = runCopies(a, tensors, targets, step, scope);
  if (threadIdx.x == 0) keepSteps(own, step, isGood);
}
