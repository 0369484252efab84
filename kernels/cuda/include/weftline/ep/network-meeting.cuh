// How ranks of several hosts meet: each sends its record to its forwarders, and waits for those of the sources that it serves.
// With a barrier of its host behind that, all ranks have begun the call.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/ep/exchange-record.cuh"
#include "weftline/ep/network-link.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Blocks that wait for others of their GPU, which wait for ranks, outlast those, whose record says more.
constexpr u64 graceNs = 1000000000;

// What a call on several hosts is called.
struct NetworkCall {
  // Number of the call among the object's, and its call word.
  u32 number;
  u32 word;
};

// Number of the object's last call over the network. No cell counts signals of this rank to itself, so its own line of `seen` keeps it.
__device__ __forceinline__ u32* lastNetworkCall(const EpNetwork& network) {
  return seenOf(network, network.rank, networkCellCalls);
}

// The call that a kernel makes. All ranks make the same calls in the same order, so all count alike, in direct launches and in graphs.
__device__ __forceinline__ NetworkCall nextNetworkCall(const EpNetwork& network, u32 word) {
  return {__ldcg(lastNetworkCall(network)) + 1, word};
}

// One thread calls this once per call, when no block of the kernel still asks for the number.
__device__ __forceinline__ void countNetworkCall(const EpNetwork& network) { ++*lastNetworkCall(network); }

// All threads of one block, which has written `bytes` of this rank's record, call this: sends it to all forwarders.
__device__ __forceinline__ bool sendRecord(const EpNetwork& network, const NetworkCall& call, u32 bytes,
                                           const WaitScope& scope) {
  bool isPushed = true;
  __syncthreads();
  for (u32 way = threadIdx.x; way < network.ways; way += blockDim.x) {
    const u64 target = recordInOffset(network, call.number, network.waySlot[way]);
    const WaitFor whom = waitForPeer(network.wayForwarder[way], {call.word, networkPhaseRecord, 0, 0});
    isPushed = putAcross(network, wayRequest(network, way, 0), 0, target, recordOutOffset(network, call.number), bytes,
                         networkCellCalls, scope, whom) && isPushed;
  }
  return __syncthreads_and(isPushed);
}

// The same for a call that has no counts: of its record only the call word says anything.
__device__ __forceinline__ bool sendHeader(const EpNetwork& network, const NetworkCall& call, const WaitScope& scope) {
  u32* record = reinterpret_cast<u32*>(networkAt(network, recordOutOffset(network, call.number)));
  if (threadIdx.x < epRecordHeaderWords) record[threadIdx.x] = threadIdx.x == epRecordCall ? call.word : 0;
  return sendRecord(network, call, epRecordHeaderWords * 4, scope);
}

// One thread calls this: waits for the record of a source that this rank serves. Returns an epStatus.
__device__ __forceinline__ u32 awaitSource(const EpNetwork& network, const NetworkCall& call, u32 slot,
                                           const WaitScope& scope) {
  const u32 source = network.servedRank[slot];
  const NetworkWait what = {call.word, networkPhaseRecord, 1, 0};
  if (!waitForCell(network, source, networkCellCalls, call.number, scope, what)) return epStatusTimeout;
  const u32* record = reinterpret_cast<const u32*>(networkAt(network, recordInOffset(network, call.number, slot)));
  const u32 other = *static_cast<const volatile u32*>(record + epRecordCall);
  if (other == call.word) return epStatusGood;
  recordTrap(scope, waitForPeer(source, what), call.word, other, trapReasonOtherCall);
  return epStatusOtherCall;
}

// All threads of a block call this; false when the caller must leave the kernel.
__device__ __forceinline__ bool awaitSources(const EpNetwork& network, const NetworkCall& call, const WaitScope& scope) {
  u32 status = epStatusGood;
  for (u32 slot = threadIdx.x; slot < network.served; slot += blockDim.x) {
    status = max(status, awaitSource(network, call, slot, scope));
  }
  return !__syncthreads_or(status != epStatusGood);
}

// What a block that exchanges records finds out: an epStatus, and the rank of the group that is to blame. In shared memory.
struct MeetingState {
  u32* status;
  u32* culprit;
};

// All threads of a block call this: waits for the records of the sources that this rank serves, and brings them into the windows of the
// `owners` ranks of its host. The caller looks at the status.
__device__ __forceinline__ void spreadRecords(const EpNetwork& network, const NetworkCall& call, const ExchangeRecords& records,
                                              u32 owners, u32 words, const MeetingState& state, const WaitScope& scope) {
  for (u32 slot = threadIdx.x; slot < network.served; slot += blockDim.x) {
    const u32 status = awaitSource(network, call, slot, scope);
    if (status == epStatusGood) continue;
    atomicMax(state.status, status);
    if (status == epStatusOtherCall) *state.culprit = network.servedRank[slot];
  }
  __syncthreads();
  if (*state.status != epStatusGood) return;
  for (u32 slot = 0; slot < network.served; ++slot) {
    const u32* record = reinterpret_cast<const u32*>(networkAt(network, recordInOffset(network, call.number, slot)));
    for (u32 index = threadIdx.x; index < words; index += blockDim.x) {
      const u32 word = __ldcg(record + index);
      for (u32 owner = 0; owner < owners; ++owner) records.at(owner, network.servedRank[slot])[index] = word;
    }
  }
  __syncthreads();
}

// The ranks of the host of each way as bits, for a rank on several hosts.
__device__ __forceinline__ u32 ranksOfWay(const EpNetwork& network, u32 way) {
  u32 ranks = 0;
  for (u32 r = 0; r < network.ranks; ++r) ranks |= network.hostOf[r] == network.wayHost[way] ? 1u << r : 0u;
  return ranks;
}

// All threads of every block of a kernel without a count exchange call this: true when all ranks of all hosts have begun the call.
__device__ __forceinline__ bool enterAcrossHosts(const EpNetwork& network, const NetworkCall& call,
                                                 const RankBarrier& barrier, WaitScope scope) {
  // What this block's waits share is ready for all its threads.
  __syncthreads();
  if (blockIdx.x == 0) {
    if (!sendHeader(network, call, scope) || !awaitSources(network, call, scope)) return false;
  } else {
    scope.timeoutNs += graceNs;
  }
  return enterTogether(barrier, scope);
}

}  // namespace weftline
