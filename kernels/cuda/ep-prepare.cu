// Before a dispatch: where every token goes, what all ranks send to all, and where this rank's rows begin at each.
//
// One block. Tokens are taken in tiles of one per thread; a ballot per rank numbers the tokens of a tile, so that rows
// are numbered in token order without an atomic.
#include "weftline/abi.cuh"
#include "weftline/rank-barrier.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

// Most choices of a token; a constant, so that they stay in registers. More of them leave room for fewer threads.
constexpr u32 columns = WEFTLINE_COLUMNS;
constexpr u32 threads = columns <= 8 ? 1024 : 512;
constexpr u32 warps = threads / lanesPerWarp;
constexpr u32 noBadCell = 0xffffffffu;

struct Shared {
  u32 warpCounts[warps][epMaxRanks];
  u32 carry[epMaxRanks];
  u32 badCell;
  u32 status;
  u32 detail;
  u32 culprit;
  u32 matrix[epMaxRanks * epMaxRanks];
  u32 headers[epMaxRanks][epRecordHeaderWords];
  u32 counts[epMaxRanks][epMaxRanks];
  u32 experts[epMaxExperts];
};

// What an i32 cannot hold becomes a value that no expert has.
__device__ __forceinline__ i32 choiceAt(const EpPrepareArguments& a, u64 cell) {
  if (a.indexBytes != 8) return static_cast<const i32*>(a.topk)[cell];
  const i64 value = static_cast<const i64*>(a.topk)[cell];
  return static_cast<i64>(static_cast<i32>(value)) == value ? static_cast<i32>(value) : -2;
}

// The ranks of a token as bits, its choices counted; the first bad choice of all is kept.
__device__ u32 ranksOfToken(const EpPrepareArguments& a, u32 token, Shared& shared) {
  const u64 first = static_cast<u64>(token) * a.topkColumns;
  i32 choices[columns];
#pragma unroll
  for (u32 j = 0; j < columns; ++j) choices[j] = j < a.topkColumns ? choiceAt(a, first + j) : -1;
  const u32 expertsPerRank = a.experts / a.ranks;
  u32 mask = 0;
#pragma unroll
  for (u32 j = 0; j < columns; ++j) {
    const i32 expert = choices[j];
    if (expert == -1) continue;
    bool bad = static_cast<u32>(expert) >= a.experts;
#pragma unroll
    for (u32 before = 0; before < j; ++before) bad = bad || choices[before] == expert;
    if (bad) {
      atomicMin(&shared.badCell, static_cast<u32>(first + j));
      continue;
    }
    atomicAdd(&shared.experts[expert], 1u);
    mask |= 1u << (static_cast<u32>(expert) / expertsPerRank);
  }
  return mask;
}

__device__ u32 ranksFromMarks(const EpPrepareArguments& a, u32 token) {
  const u8* marks = static_cast<const u8*>(a.membership) + static_cast<u64>(token) * a.ranks;
  u32 mask = 0;
  for (u32 r = 0; r < a.ranks; ++r) mask |= marks[r] != 0 ? 1u << r : 0u;
  return mask;
}

__device__ void numberRows(const EpPrepareArguments& a, Shared& shared) {
  const u32 warp = threadIdx.x / lanesPerWarp;
  const u32 below = (1u << laneIndex()) - 1;
  for (u32 tile = 0; tile < a.tokens; tile += threads) {
    const u32 token = tile + threadIdx.x;
    const bool here = token < a.tokens;
    const u32 mask = !here ? 0u : a.topk != nullptr ? ranksOfToken(a, token, shared) : ranksFromMarks(a, token);
    u32 ballots[epMaxRanks];
#pragma unroll
    for (u32 r = 0; r < epMaxRanks; ++r) {
      ballots[r] = __ballot_sync(0xffffffffu, (mask >> r) & 1);
      if (laneIndex() == r) shared.warpCounts[warp][r] = __popc(ballots[r]);
    }
    __syncthreads();
    // Thread r turns the counts of rank r into the first row of each warp.
    if (threadIdx.x < epMaxRanks) {
      u32 row = shared.carry[threadIdx.x];
      for (u32 w = 0; w < warps; ++w) {
        const u32 count = shared.warpCounts[w][threadIdx.x];
        shared.warpCounts[w][threadIdx.x] = row;
        row += count;
      }
      shared.carry[threadIdx.x] = row;
    }
    __syncthreads();
    if (here) {
      const u64 cell = static_cast<u64>(token) * a.ranks;
#pragma unroll
      for (u32 r = 0; r < epMaxRanks; ++r) {
        if (r >= a.ranks) break;
        const bool goes = (mask >> r) & 1;
        const i32 row = goes ? static_cast<i32>(shared.warpCounts[warp][r] + __popc(ballots[r] & below)) : -1;
        if (a.rowTable != nullptr) static_cast<i32*>(a.rowTable)[cell + r] = row;
        if (a.isTokenInRank != nullptr) static_cast<u8*>(a.isTokenInRank)[cell + r] = goes;
      }
    }
    __syncthreads();
  }
}

__device__ __forceinline__ u32* recordOf(const EpPrepareArguments& a, u32 owner, u32 source) {
  u8* region = static_cast<u8*>(a.peers[owner]) + a.exchangeOffset;
  return reinterpret_cast<u32*>(region) + static_cast<u64>((a.sequence & 1) * a.ranks + source) * a.recordWords;
}

__device__ void publish(const EpPrepareArguments& a, Shared& shared) {
  for (u32 index = threadIdx.x; index < epRecordHeaderWords + a.ranks + a.experts; index += threads) {
    u32 word = 0;
    if (index >= epRecordHeaderWords + a.ranks) word = shared.experts[index - epRecordHeaderWords - a.ranks];
    else if (index >= epRecordHeaderWords) word = shared.carry[index - epRecordHeaderWords];
    else if (index == epRecordTopk) word = a.topk == nullptr ? 0 : a.topkColumns;
    else if (index == epRecordRowBytes) word = a.rowBytes;
    else if (index == epRecordScaleBytes) word = a.scaleBytes;
    else if (index == epRecordIndexBytes) word = a.topk == nullptr ? 0 : a.indexBytes;
    else if (index == epRecordWeightBytes) word = a.weightBytes;
    else if (index == epRecordNumTokens) word = a.tokens;
    else if (index == epRecordRowBound) word = a.rowBound;
    else if (index == epRecordBadCell) word = shared.badCell;
    for (u32 peer = 0; peer < a.ranks; ++peer) recordOf(a, peer, a.rank)[index] = word;
  }
}

// Peers wrote these words during this kernel; volatile loads keep them out of the read-only path.
__device__ __forceinline__ u32 received(const EpPrepareArguments& a, u32 source, u32 word) {
  return *static_cast<volatile u32*>(recordOf(a, a.rank, source) + word);
}

// One thread: the same answer at every rank, because all read the same records.
__device__ void judge(const EpPrepareArguments& a, Shared& shared) {
  for (u32 source = 0; source < a.ranks; ++source) {
    const u32 bad = shared.headers[source][epRecordBadCell];
    if (bad == noBadCell) continue;
    shared.status = epStatusBadChoice;
    shared.culprit = source;
    shared.detail = bad;
    return;
  }
  for (u32 word = epRecordTopk; word <= epRecordWeightBytes; ++word) {
    const u32 first = shared.headers[0][word];
    for (u32 source = 1; source < a.ranks; ++source) {
      if (shared.headers[source][word] == first) continue;
      shared.status = epStatusMismatch;
      shared.culprit = source;
      shared.detail = word;
      return;
    }
  }
  for (u32 d = 0; d < a.ranks; ++d) {
    const u32 bound = shared.headers[d][epRecordRowBound];
    const u32 rows = shared.matrix[(a.ranks - 1) * a.ranks + d];
    if (bound == 0 || rows <= bound) continue;
    shared.status = epStatusCapacity;
    shared.culprit = d;
    shared.detail = rows;
    return;
  }
}

__device__ void plan(const EpPrepareArguments& a, Shared& shared) {
  // One load per thread, all under way together.
  const u32 words = epRecordHeaderWords + a.ranks;
  if (threadIdx.x < a.ranks * words) {
    const u32 source = threadIdx.x / words;
    const u32 word = threadIdx.x - source * words;
    const u32 value = received(a, source, word);
    if (word < epRecordHeaderWords) shared.headers[source][word] = value;
    else shared.counts[source][word - epRecordHeaderWords] = value;
  }
  __syncthreads();
  if (threadIdx.x < a.ranks) {
    u32 sum = 0;
    for (u32 source = 0; source < a.ranks; ++source) {
      sum += shared.counts[source][threadIdx.x];
      shared.matrix[source * a.ranks + threadIdx.x] = sum;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) judge(a, shared);
  __syncthreads();
}

__device__ void report(const EpPrepareArguments& a, const Shared& shared) {
  EpPlan* plan = static_cast<EpPlan*>(a.plan);
  EpHostPlan* host = static_cast<EpHostPlan*>(a.hostPlan);
  const u32 total = shared.status == epStatusGood ? shared.matrix[(a.ranks - 1) * a.ranks + a.rank] : 0;
  if (threadIdx.x < a.ranks) {
    plan->firstRow[threadIdx.x] = a.rank == 0 ? 0 : shared.matrix[(a.rank - 1) * a.ranks + threadIdx.x];
  }
  if (threadIdx.x == 0) {
    plan->status = shared.status;
    plan->numRecvTokens = total;
    host->status = shared.status;
    host->detail = shared.detail;
    host->culprit = shared.culprit;
    host->numRecvTokens = total;
  }
  if (threadIdx.x < a.ranks * a.ranks) host->rankPrefixMatrix[threadIdx.x] = shared.matrix[threadIdx.x];
  if (shared.status == epStatusGood) {
    const u32 perRank = a.experts / a.ranks;
    for (u32 local = threadIdx.x; local < perRank; local += threads) {
      u32 count = 0;
#pragma unroll
      for (u32 source = 0; source < epMaxRanks; ++source) {
        if (source < a.ranks) count += received(a, source, epRecordHeaderWords + a.ranks + a.rank * perRank + local);
      }
      static_cast<u32*>(a.hostExperts)[local] = count;
    }
  }
  __syncthreads();
  // ORDER: everything above, by any thread of the block, is in host memory before the sequence number.
  if (threadIdx.x == 0) {
    fenceSystem();
    storeReleaseSystem(&host->sequence, a.sequence);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(threads) epPrepare(const __grid_constant__ EpPrepareArguments a) {
  __shared__ Shared shared;
  // Without choices the counts per expert are the caller's.
  const u32* given = a.topk == nullptr ? static_cast<const u32*>(a.numTokensPerExpert) : nullptr;
  for (u32 expert = threadIdx.x; expert < a.experts; expert += threads) {
    shared.experts[expert] = given == nullptr ? 0 : given[expert];
  }
  if (threadIdx.x < epMaxRanks) shared.carry[threadIdx.x] = 0;
  if (threadIdx.x < epMaxRanks * epMaxRanks) shared.matrix[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    shared.badCell = noBadCell;
    shared.status = epStatusGood;
    shared.detail = 0;
    shared.culprit = 0;
  }
  __syncthreads();
  numberRows(a, shared);
  if (a.topk != nullptr && a.numTokensPerRank != nullptr && threadIdx.x < a.ranks) {
    static_cast<u32*>(a.numTokensPerRank)[threadIdx.x] = shared.carry[threadIdx.x];
  }
  if (a.topk != nullptr && a.numTokensPerExpert != nullptr) {
    u32* counts = static_cast<u32*>(a.numTokensPerExpert);
    for (u32 expert = threadIdx.x; expert < a.experts; expert += threads) counts[expert] = shared.experts[expert];
  }
  if (a.exchange == 0) return;
  publish(a, shared);
  __syncthreads();
  if (threadIdx.x < a.ranks) {
    const RankBarrier barrier = {a.peers, a.ranks, a.rank, a.epoch, a.call};
    const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelEpPrepare, a.rank, a.timeoutNs};
    signalRank(barrier, threadIdx.x);
    const u32 status = awaitRank(barrier, threadIdx.x, scope);
    if (status != epStatusGood) {
      atomicMax(&shared.status, status);
      if (status == epStatusOtherCall) shared.culprit = threadIdx.x;
    }
  }
  __syncthreads();
  if (shared.status == epStatusGood) plan(a, shared);
  report(a, shared);
}
