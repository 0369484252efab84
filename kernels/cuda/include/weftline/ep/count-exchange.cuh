// The count exchange of a dispatch: every rank's record in every window, what they add up to, and what the host is told.
//
// All ranks read the same records, so all judge alike: when one of them cannot dispatch, none does.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/ep/exchange-record.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/collective/rank-barrier.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Shared memory of the one block that exchanges. `most`: ranks of the group.
template <u32 most>
struct ExchangeState {
  // Number of the dispatch.
  u32 sequence;
  u32 status;
  u32 detail;
  u32 culprit;
  u32 extent;
  // Rows that ranks 0..s together send to d, at [s * ranks + d].
  u32 matrix[most * most];
  u32 headers[most][epRecordHeaderWords];
  u32 counts[most][most];
};

__device__ __forceinline__ ExchangeRecords recordsOf(const EpDispatchArguments& a, u32 sequence) {
  return {a.peers, a.exchangeOffset, a.groupRanks, a.recordWords, sequence};
}

// Words of a record before its counts per expert; behind those are the tokens per way of its sender.
__device__ __forceinline__ u32 wordsBeforeExperts(const EpDispatchArguments& a) { return epRecordHeaderWords + a.groupRanks; }
__device__ __forceinline__ u32 wordsBeforeWays(const EpDispatchArguments& a) { return wordsBeforeExperts(a) + a.experts; }
__device__ __forceinline__ u32 wordsOfRecord(const EpDispatchArguments& a) {
  return wordsBeforeWays(a) + (a.hosts == 0 ? 0 : a.hosts - 1);
}

// Writes this rank's record into every window of its host, and to `copy` unless that is null. `counts` in shared memory, per
// rank of the group, then per way; `experts` in global memory.
__device__ __forceinline__ void publishRecord(const EpDispatchArguments& a, const ExchangeRecords& records, const u32* counts,
                                              const u32* experts, u32 badCell, u32* copy) {
  const u32 beforeExperts = wordsBeforeExperts(a);
  const u32 beforeWays = wordsBeforeWays(a);
  for (u32 index = threadIdx.x; index < wordsOfRecord(a); index += blockDim.x) {
    u32 word = 0;
    if (index >= beforeWays) word = counts[a.groupRanks + index - beforeWays];
    else if (index >= beforeExperts) word = __ldcg(experts + index - beforeExperts);
    else if (index >= epRecordHeaderWords) word = counts[index - epRecordHeaderWords];
    else if (index == epRecordCall) word = a.openingCall;
    else if (index == epRecordTopk) word = a.topk == nullptr ? 0 : a.topkColumns;
    else if (index == epRecordRowBytes) word = a.rowBytes;
    else if (index == epRecordScaleBytes) word = a.scaleBytes;
    else if (index == epRecordIndexBytes) word = a.topk == nullptr ? 0 : a.indexBytes;
    else if (index == epRecordWeightBytes) word = a.weights == nullptr ? 0 : 4;
    else if (index == epRecordNumTokens) word = a.tokens;
    else if (index == epRecordRowBound) word = a.worstRows;
    else if (index == epRecordBadCell) word = badCell;
    for (u32 peer = 0; peer < a.ranks; ++peer) records.at(peer, a.groupRank)[index] = word;
    if (copy != nullptr) copy[index] = word;
  }
}

// One thread calls this, when something is known to be wrong: the first thing in a fixed order.
template <u32 most>
__device__ __forceinline__ void findFault(const EpDispatchArguments& a, ExchangeState<most>& state) {
  for (u32 source = 0; source < a.groupRanks; ++source) {
    const u32 bad = state.headers[source][epRecordBadCell];
    if (bad == 0xffffffffu) continue;
    state.status = epStatusBadChoice;
    state.culprit = source;
    state.detail = bad;
    state.extent = state.headers[source][epRecordTopk];
    return;
  }
  for (u32 word = epRecordTopk; word <= epRecordWeightBytes; ++word) {
    for (u32 source = 1; source < a.groupRanks; ++source) {
      if (state.headers[source][word] == state.headers[0][word]) continue;
      state.status = epStatusMismatch;
      state.culprit = source;
      state.detail = word;
      return;
    }
  }
  for (u32 d = 0; d < a.groupRanks; ++d) {
    const u32 bound = state.headers[d][epRecordRowBound];
    const u32 rows = state.matrix[(a.groupRanks - 1) * a.groupRanks + d];
    if (bound == 0 || rows <= bound) continue;
    state.status = epStatusCapacity;
    state.culprit = d;
    state.detail = rows;
    state.extent = bound;
    return;
  }
}

// All threads call this, behind the barrier: reads all records, adds up, and judges.
template <u32 most>
__device__ __forceinline__ void readRecords(const EpDispatchArguments& a, ExchangeState<most>& state) {
  const ExchangeRecords records = recordsOf(a, state.sequence);
  const u32 words = epRecordHeaderWords + a.groupRanks;
  // The loads of a thread, mostly one, are all under way together.
  for (u32 index = threadIdx.x; index < a.groupRanks * words; index += blockDim.x) {
    const u32 source = index / words;
    const u32 word = index - source * words;
    const u32 value = records.received(a.rank, source, word);
    if (word < epRecordHeaderWords) state.headers[source][word] = value;
    else state.counts[source][word - epRecordHeaderWords] = value;
  }
  __syncthreads();
  bool fault = false;
  if (threadIdx.x < a.groupRanks) {
    const u32 r = threadIdx.x;
    u32 sum = 0;
    for (u32 source = 0; source < a.groupRanks; ++source) {
      sum += state.counts[source][r];
      state.matrix[source * a.groupRanks + r] = sum;
    }
    const u32 bound = state.headers[r][epRecordRowBound];
    fault = (bound != 0 && sum > bound) || state.headers[r][epRecordBadCell] != 0xffffffffu;
    for (u32 word = epRecordTopk; word <= epRecordWeightBytes; ++word) {
      fault = fault || state.headers[r][word] != state.headers[0][word];
    }
  }
  if (!__syncthreads_or(fault)) return;
  if (threadIdx.x == 0) findFault(a, state);
  __syncthreads();
}

template <u32 most>
__device__ __forceinline__ u32 rowsHere(const EpDispatchArguments& a, const ExchangeState<most>& state) {
  return state.status == epStatusGood ? state.matrix[(a.groupRanks - 1) * a.groupRanks + a.groupRank] : 0;
}

// All threads call this: the plan for the blocks of this dispatch and for later kernels. The caller publishes it.
template <u32 most>
__device__ __forceinline__ void writePlan(const EpDispatchArguments& a, const ExchangeState<most>& state) {
  EpPlan* plan = static_cast<EpPlan*>(a.plan);
  if (threadIdx.x < a.groupRanks) {
    plan->firstRow[threadIdx.x] = a.groupRank == 0 ? 0 : state.matrix[(a.groupRank - 1) * a.groupRanks + threadIdx.x];
  }
  if (threadIdx.x == 0) {
    plan->status = state.status;
    plan->numRecvTokens = rowsHere(a, state);
  }
}

// All threads call this: what the host waits for, in its memory; the sequence number last.
template <u32 most>
__device__ __forceinline__ void tellHost(const EpDispatchArguments& a, const ExchangeState<most>& state) {
  EpHostPlan* host = static_cast<EpHostPlan*>(a.hostPlan);
  const ExchangeRecords records = recordsOf(a, state.sequence);
  if (threadIdx.x == 0) {
    host->numRecvTokens = rowsHere(a, state);
    if (isJudged(state.status) && loadRelaxedSystem(&host->failedSequence) == 0) {
      host->status = state.status;
      host->detail = state.detail;
      host->culprit = state.culprit;
      host->extent = state.extent;
      // ORDER: publishes the reason.
      storeReleaseSystem(&host->failedSequence, state.sequence);
    }
  }
  for (u32 cell = threadIdx.x; cell < a.groupRanks * a.groupRanks; cell += blockDim.x) {
    host->rankPrefixMatrix[cell] = state.matrix[cell];
  }
  if (state.status == epStatusGood) {
    for (u32 local = threadIdx.x; local < a.expertsPerRank; local += blockDim.x) {
      const u32 word = wordsBeforeExperts(a) + a.groupRank * a.expertsPerRank + local;
      u32 count = 0;
#pragma unroll
      for (u32 source = 0; source < most; ++source) {
        if (source < a.groupRanks) count += records.received(a.rank, source, word);
      }
      static_cast<u32*>(a.hostExperts)[local] = count;
    }
  }
  if (threadIdx.x + 1 < a.hosts) {
    host->wayTokens[threadIdx.x] = records.received(a.rank, a.groupRank, wordsBeforeWays(a) + threadIdx.x);
  }
  __syncthreads();
  // ORDER: everything above, by any thread of the block, is in host memory before the sequence number.
  if (threadIdx.x == 0) {
    fenceSystem();
    storeReleaseSystem(&host->sequence, state.sequence);
  }
}

}  // namespace weftline
