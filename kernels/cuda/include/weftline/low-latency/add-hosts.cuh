// The sums of a low-latency combine across hosts: what this host has of a row, and what other hosts send back of this rank's tokens.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/fp8.cuh"
#include "weftline/low-latency/block-share.cuh"
#include "weftline/low-latency/host-message.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/sum-rows.cuh"
#include "weftline/low-latency/take-sums.cuh"
#include "weftline/types.cuh"

namespace weftline {

// A warp adds what the ranks of this host have of a row of a source: `row`, by the lane with the index of the rank on this host, or -1.
// `puts`: the window in which those ranks put sums for this source, where they put them at all; else they are read where they lie.
// False when the warp must leave.
__device__ __forceinline__ bool addRanksHere(GrowingSum& sum, const LowLatencyCombineArguments& a, u32 source, void* puts, i32 row,
                                             u32 at, bool isInRow, u32 number, const WaitScope& scope) {
  const u32 holders = __ballot_sync(0xffffffffu, row >= 0);
  const EpNetwork& network = networkOf(a);
  const u64 block = static_cast<u64>(a.maxTokens) * a.rowBytes;
  if constexpr (lowLatencyTravels == lowLatencyTravelsRankSums) {
    if (holders == 0) return true;
    // All of them at the place of the token.
    const u32 token = __shfl_sync(0xffffffffu, row, __ffs(holders) - 1);
    ArrivingSums sums;
    sums.ranks = holders;
    sums.names = network.localRanks;
    sums.rankZero = static_cast<u8*>(puts) + a.rowsOffset + static_cast<u64>(token) * a.rowBytes + at;
    sums.stride = block;
    return sums.addTo(sum, a, isInRow, number, scope);
  }
  const u8* from = nullptr;
  if (row >= 0) {
    from = static_cast<const u8*>(a.peers[network.localRanks[laneIndex()]]) + a.rowsOffset + source * block +
           static_cast<u64>(row) * a.rowBytes;
  }
  for (u32 rest = holders; rest != 0; rest &= rest - 1) {
    const u64 address = __shfl_sync(0xffffffffu, reinterpret_cast<u64>(from), __ffs(rest) - 1);
    // Past the first-level cache: peers may have written it during this kernel.
    if (isInRow) sum.add(__ldcg(reinterpret_cast<const uint4*>(reinterpret_cast<const u8*>(address) + at)));
  }
  return true;
}

// All threads call this: every rank of this host is in this combine and, where rows have flags, has its rows ready. False when the
// block must leave.
__device__ __forceinline__ bool awaitRanksHere(const LowLatencyCombineArguments& a, u32 number, const WaitScope& scope,
                                               bool isReady) {
  const u32 index = threadIdx.x - lanesPerWarp;
  if (index < ranksHere(a)) {
    const u32 r = networkOf(a).localRanks[index];
    isReady = lowLatencySumsShow || awaitSums(a, r, number, scope);
    isReady = isReady && checkCall(a, r, number, scope);
  }
  return __syncthreads_and(isReady);
}

// The same, and all sums of other hosts are here. `uses`: combines of this result so far.
__device__ __forceinline__ bool awaitHosts(const LowLatencyCombineArguments& a, u32 number, u32 uses, const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  bool isHere = true;
  const u32 way = threadIdx.x;
  if (way < network.ways) {
    const LowLatencyRanks all = ranksOf(a);
    const WaitFor whom = {network.wayForwarder[way], waitWord(lowLatencyWaitCombineRows, a.call)};
    const bool isTimed = a.waitStats != nullptr && blockIdx.x == 0;
    const u64 began = isTimed ? globalTimer() : 0;
    // Sums come in the order of combines, whichever results these are of.
    isHere = awaitCells(all, &network, {networkCellSums, lowLatencyResults}, number, scope, whom);
    if (isTimed) static_cast<u64*>(a.waitStats)[whom.peer] += globalTimer() - began;
    if (isHere) {
      // A peer that combines another result has sent those instead.
      const bool isSame = epochReached(signalsOf(network, whom.peer, {networkCellSums + a.result, 1}), uses);
      const u8* sums = networkAt(network, returnedSums(network, way, isSame ? a.result : 1 - a.result));
      const volatile auto* header = reinterpret_cast<const volatile LowLatencyHostMessage*>(sums);
      isHere = isSameCall(all, number | static_cast<u64>(header->call) << 32, number, a.call, scope, whom) && isSame;
    }
  }
  return awaitRanksHere(a, number, scope, isHere);
}

// Adds the lane's vector of a sum that has come as fp8: codes, and the scales of all columns behind them. `at`: byte of the row of bf16.
__device__ __forceinline__ void addFp8(GrowingSum& sum, const u8* from, u32 rowBytes, u32 at) {
  constexpr u32 groupBytes = 2 * fp8Group;
  const uint2 codes = __ldcg(reinterpret_cast<const uint2*>(from + at / 2));
  const f32 scale = __ldcg(reinterpret_cast<const f32*>(from + rowBytes / 2) + at / groupBytes);
  const auto read = [&](u32 code) { return __float_as_uint(__fmul_rn(fromE4m3(code & 0xffu), scale)); };
  sum.addWide(make_uint4(read(codes.x), read(codes.x >> 8), read(codes.x >> 16), read(codes.x >> 24)),
              make_uint4(read(codes.y), read(codes.y >> 8), read(codes.y >> 16), read(codes.y >> 24)));
}

// The parts of 512 bytes of this rank's tokens, by all warps: hosts in their order, of the own host rank by rank, of another one its sum.
// False when the warp must leave.
__device__ __forceinline__ bool addHosts(const LowLatencyCombineArguments& a, u32 number, const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  const u32 here = ranksHere(a);
  const u32 lane = laneIndex();
  const u32 parts = (a.rowBytes + lowLatencyPartBytes - 1) / lowLatencyPartBytes;
  const u32 sumBytes = sumBytesOf(network, a.rowBytes);
  const WarpRun mine(a.tokens * parts);
#pragma unroll 1
  for (u32 work = mine.first; work < mine.end; ++work) {
    const u32 token = Divisor(parts).quotient(work);
    const u32 at = (work - token * parts) * lowLatencyPartBytes + lane * 16;
    const bool isInRow = at < a.rowBytes;
    const i32* sentRows = static_cast<const i32*>(a.sentRows) + static_cast<u64>(token) * a.ranks;
    const i32* sentWays = static_cast<const i32*>(a.sentWays) + static_cast<u64>(token) * network.ways;
    GrowingSum sum;
    const auto addWay = [&](u32 way) {
      const i32 row = sentWays[way];
      if (row < 0 || !isInRow) return;
      const u8* from = networkAt(network, returnedSums(network, way, a.result)) + sizeof(LowLatencyHostMessage) +
                       static_cast<u64>(row) * sumBytes;
      if (network.isFp8 != 0) {
        addFp8(sum, from, a.rowBytes, at);
      } else if (network.isWide == 0) {
        sum.add(__ldcg(reinterpret_cast<const uint4*>(from + at)));
      } else {
        const uint4* pair = reinterpret_cast<const uint4*>(from + 2 * at);
        sum.addWide(__ldcg(pair), __ldcg(pair + 1));
      }
    };
    // Ways lead to the hosts behind this one first, of which there are so many, then to those before it.
    const u32 behind = network.hosts - 1 - network.host;
#pragma unroll 1
    for (u32 way = behind; way < network.ways; ++way) addWay(way);
    const i32 row = lane < here ? sentRows[network.localRanks[lane]] : -1;
    if (!addRanksHere(sum, a, a.rank, a.peers[a.rank], row, at, isInRow, number, scope)) return false;
#pragma unroll 1
    for (u32 way = 0; way < behind; ++way) addWay(way);
    if (isInRow) {
      *reinterpret_cast<uint4*>(static_cast<u8*>(a.out) + static_cast<u64>(token) * a.rowBytes + at) = sum.rounded();
    }
  }
  return true;
}

// All threads call this, when the block has read what it needs: the last block to come lets other hosts fill their places again.
__device__ __forceinline__ void freeHostSums(const LowLatencyCombineArguments& a, const WaitScope& scope) {
  const EpNetwork& network = networkOf(a);
  if (!isLastDone(&hostsDoneOf(a).added) || threadIdx.x >= network.ways) return;
  const u32 way = threadIdx.x;
  const u32 channel = channelOf(network, network.waySlot[way]);
  signalAcross(ranksOf(a), network, wayRequest(network, way, channel), channel, networkCellEnded + a.result, scope,
               {network.wayForwarder[way], waitWord(lowLatencyWaitCombineSlot, a.call)});
}

}  // namespace weftline
