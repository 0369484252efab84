// What a low-latency combine across hosts has between both halves of the kernel of one host: for each source that this rank serves, the
// sums of what its host has of the source's tokens, in one message back.
#define WEFTLINE_GROUP 2
#include "weftline/abi.cuh"
#include "weftline/fp8.cuh"
#include "weftline/launch-order.cuh"
#include "weftline/low-latency/add-hosts.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/host-message.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/trace.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

// All lanes of a warp call this with vectors of a sum, 16 of each group of columns: those in the row go to the message as fp8, with the
// group's scale behind the codes of all columns.
__device__ __forceinline__ void storeFp8(const GrowingSum& sum, u8* row, u32 rowBytes, u32 at) {
  constexpr u32 groupBytes = 2 * fp8Group;
  const bool isInRow = at < rowBytes;
  f32 largest = 0;
#pragma unroll
  for (u32 i = 0; i < GrowingSum::perVector; ++i) {
    // A NaN is never the larger one.
    if (isInRow) largest = fmaxf(largest, fabsf(sum.sums[i]));
  }
#pragma unroll
  for (u32 step = groupBytes / 16 / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  }
  if (!isInRow) return;
  const Fp8Scale scale = fp8ScaleOf(fminf(largest, __uint_as_float(bf16MaxBits << 16)), false);
  u32 codes[2];
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    const f32* four = sum.sums + 4 * half;
    codes[half] = toE4m3(four[0] * scale.factor, four[1] * scale.factor, four[2] * scale.factor, four[3] * scale.factor);
  }
  *reinterpret_cast<uint2*>(row + at / 2) = make_uint2(codes[0], codes[1]);
  if (at % groupBytes == 0) reinterpret_cast<f32*>(row + rowBytes / 2)[at / groupBytes] = scale.stored;
}

// The lane's vector of a sum, to the message.
__device__ __forceinline__ void storeSum(const GrowingSum& sum, bool isWide, u8* row, u32 at) {
  if (!isWide) {
    *reinterpret_cast<uint4*>(row + at) = sum.rounded();
    return;
  }
  uint4* pair = reinterpret_cast<uint4*>(row + 2 * at);
  u32 words[GrowingSum::perVector];
#pragma unroll
  for (u32 i = 0; i < GrowingSum::perVector; ++i) words[i] = __float_as_uint(sum.sums[i]);
  pair[0] = make_uint4(words[0], words[1], words[2], words[3]);
  pair[1] = make_uint4(words[4], words[5], words[6], words[7]);
}

// All warps add up the rows of one source. False when the warp must leave.
__device__ __forceinline__ bool sumSource(const LowLatencyCombineArguments& a, u32 slot, u32 rows, u32 number, const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  const u32 here = ranksHere(a);
  const u32 lane = laneIndex();
  const u32 source = network.servedRank[slot];
  const u32 parts = (a.rowBytes + lowLatencyPartBytes - 1) / lowLatencyPartBytes;
  const u32 sumBytes = sumBytesOf(network, a.rowBytes);
  u8* out = networkAt(network, sentSums(network, slot, a.result)) + sizeof(LowLatencyHostMessage);
  const WarpRun mine(rows * parts);
#pragma unroll 1
  for (u32 work = mine.first; work < mine.end; ++work) {
    const u32 index = Divisor(parts).quotient(work);
    const u32 at = (work - index * parts) * lowLatencyPartBytes + lane * 16;
    const bool isInRow = at < a.rowBytes;
    const i32* places = static_cast<const i32*>(a.servedRows) + (static_cast<u64>(slot) * a.maxTokens + index) * here;
    const i32 row = lane < here ? places[lane] : -1;
    GrowingSum sum;
    if (!addRanksHere(sum, a, source, a.peers[source], row, at, isInRow, number, scope)) return false;
    u8* to = out + static_cast<u64>(index) * sumBytes;
    if (network.isFp8 != 0) {
      storeFp8(sum, to, a.rowBytes, at);
    } else if (isInRow) {
      storeSum(sum, network.isWide != 0, to, at);
    }
  }
  return true;
}

// One thread of the last block to come: the message goes.
__device__ __forceinline__ void sendSums(const LowLatencyCombineArguments& a, u32 slot, u32 rows, u32 number, const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  const u64 from = sentSums(network, slot, a.result);
  auto* header = reinterpret_cast<LowLatencyHostMessage*>(networkAt(network, from));
  header->rows = rows;
  header->call = a.call;
  header->number = number;
  const u32 channel = channelOf(network, slot);
  const u64 bytes = sizeof(LowLatencyHostMessage) + static_cast<u64>(rows) * sumBytesOf(network, a.rowBytes);
  sendMessage(ranksOf(a), network, servedRequest(network, slot, channel), channel,
              returnedSums(network, network.servedWay[slot], a.result), from, bytes, networkCellSums + a.result, scope,
              {network.servedRank[slot], waitWord(lowLatencyWaitCombineRows, a.call)});
}

}  // namespace

extern "C" __global__ void __launch_bounds__(lowLatencyThreads, 1)
    lowLatencyHostSums(const __grid_constant__ LowLatencyCombineArguments a) {
  awaitPredecessor();
  WEFTLINE_TRACE_KERNEL();
  const EpNetwork& network = networkOf(a);
  const LowLatencyBlock& own = *static_cast<const LowLatencyBlock*>(a.blocks);
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), trapKernelLowLatencyCombine, a.rank, a.timeoutNs, sharedWaits()};
  const u32 number = own.combineOf[a.result];
  const u32 uses = own.combineUses[a.result];
  __syncthreads();
  bool isFree = true;
  if (threadIdx.x < network.served) {
    // The source has added up what the last combine in this memory sent.
    const WaitFor whom = {network.servedRank[threadIdx.x], waitWord(lowLatencyWaitCombineSlot, a.call)};
    isFree = awaitCell(ranksOf(a), network, networkCellEnded + a.result, uses - 1, scope, whom);
  }
  if (!awaitRanksHere(a, number, scope, isFree)) return;
  for (u32 slot = 0; slot < network.served; ++slot) {
    const u32 rows = __ldcg(static_cast<const u32*>(a.servedCounts) + slot);
    const bool isSummed = sumSource(a, slot, rows, number, scope);
    if (!__syncthreads_and(isSummed)) return;
    // The ranks of this host may write again what was for the source, as if it had told them so.
    if (threadIdx.x < ranksHere(a)) {
      LowLatencyFlags* flags = flagsAt(a.peers[network.localRanks[threadIdx.x]], network.servedRank[slot]);
      addReleaseSystem(&flags->taken[a.result], blockShare());
    }
    if (isLastDone(&hostsDoneOf(a).summed[slot]) && threadIdx.x == 0) sendSums(a, slot, rows, number, scope);
  }
}
