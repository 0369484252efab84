// What low-latency kernels of different hosts send each other, and their waits for it. Each other host has a rank that stands for this
// one there (see HostRoutes): a dispatch sends it one message, and it puts the rows to the ranks of its host as this rank would; of
// a combine it sums its host's rows of each token, and sends one message of sums back. Messages cross through the network windows of the ranks.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/ep/network-link.cuh"
#include "weftline/low-latency/arriving-words.cuh"
#include "weftline/low-latency/rank-flags.cuh"
#include "weftline/low-latency/send-vectors.cuh"
#include "weftline/types.cuh"

namespace weftline {

template <class Arguments>
__device__ __forceinline__ const EpNetwork& networkOf(const Arguments& a) {
  return *static_cast<const EpNetwork*>(a.network);
}

template <class Arguments>
__device__ __forceinline__ LowLatencyHostsDone& hostsDoneOf(const Arguments& a) {
  return *static_cast<LowLatencyHostsDone*>(a.hostsDone);
}

template <class Arguments>
__device__ __forceinline__ LowLatencyRanks ranksOf(const Arguments& a) {
  return {a.peers, a.ranks, a.rank};
}

// How many ranks this host has.
template <class Arguments>
__device__ __forceinline__ u32 ranksHere(const Arguments& a) {
  return __popc(a.active);
}

constexpr u32 hostMessageAlignment = 16;

__device__ __forceinline__ u64 alignMessage(u64 bytes) { return (bytes + hostMessageAlignment - 1) & ~(hostMessageAlignment - 1ull); }

// The message of a dispatch, in this rank's network window.
struct DispatchMessage {
  u8* header;
  // Numbers for each token: its row in the message and, in 'rank-major', that at each rank of the host.
  u32 width;
  u32 columns;
  u32 tokens;
  u32 rowBytes;
  u32 rowStride;

  __device__ __forceinline__ DispatchMessage(const LowLatencyDispatchArguments& a, u8* at, u32 tokenCount, u32 ranksThere)
      : header(at), width(1 + (lowLatencyIsRankMajor ? ranksThere : 0)), columns(a.topkColumns), tokens(tokenCount),
        rowBytes(lowLatencyIsBf16 ? a.hidden * 2 : a.hidden),
        rowStride(static_cast<u32>(alignMessage(rowBytes + scaleWordsOf(a) * 4))) {}

  // Where the token's row stands: [0] in the message, [1 + i] at rank i of the host.
  __device__ __forceinline__ i32* placesOf(u32 token) const {
    return reinterpret_cast<i32*>(header + sizeof(LowLatencyHostMessage)) + static_cast<u64>(token) * width;
  }

  __device__ __forceinline__ u64 choicesOffset() const {
    return sizeof(LowLatencyHostMessage) + alignMessage(static_cast<u64>(tokens) * width * 4);
  }

  __device__ __forceinline__ LowLatencyChoice* choicesOf(u32 token) const {
    return reinterpret_cast<LowLatencyChoice*>(header + choicesOffset()) + static_cast<u64>(token) * columns;
  }

  __device__ __forceinline__ u64 rowsOffset() const {
    return choicesOffset() + static_cast<u64>(tokens) * columns * sizeof(LowLatencyChoice);
  }

  __device__ __forceinline__ u8* rowAt(u32 row) const { return header + rowsOffset() + static_cast<u64>(row) * rowStride; }

  __device__ __forceinline__ u8* scalesOf(u32 row) const { return rowAt(row) + rowBytes; }

  __device__ __forceinline__ u64 bytes(u32 rows) const { return rowsOffset() + static_cast<u64>(rows) * rowStride; }
};

// Offsets in every network window of the slots of a dispatch: by way and by source that is served, for each receive slot.
__device__ __forceinline__ u64 outMessage(const EpNetwork& network, const LowLatencyDispatchArguments& a, u32 way) {
  return network.outOffset + static_cast<u64>(way * a.slots + a.slot) * network.slotBytes;
}

__device__ __forceinline__ u64 inMessage(const EpNetwork& network, const LowLatencyDispatchArguments& a, u32 slot) {
  return network.inOffset + static_cast<u64>(slot * a.slots + a.slot) * network.slotBytes;
}

// The same of the sums of a combine: at the rank that sends them, and at the source.
__device__ __forceinline__ u64 sentSums(const EpNetwork& network, u32 slot, u32 result) {
  return network.sumsOffset + static_cast<u64>(slot * lowLatencyResults + result) * network.sumsBytes;
}

__device__ __forceinline__ u64 returnedSums(const EpNetwork& network, u32 way, u32 result) {
  return network.returnedOffset + static_cast<u64>(way * lowLatencyResults + result) * network.sumsBytes;
}

// Bytes of the sum of a row of bf16. See fp8SumBytes() of the host.
__device__ __forceinline__ u32 sumBytesOf(const EpNetwork& network, u32 rowBytes) {
  if (network.isFp8 != 0) {
    const u32 columns = rowBytes / 2;
    return (columns + (columns + fp8Group - 1) / fp8Group * 4 + fp8SumAlignment - 1) / fp8SumAlignment * fp8SumAlignment;
  }
  return network.isWide != 0 ? rowBytes * 2 : rowBytes;
}

// Neighbouring cells that count together.
struct NetworkCells {
  u32 first;
  u32 count;
};

// How often a peer has signalled those cells since the object was made.
__device__ __forceinline__ u32 signalsOf(const EpNetwork& network, u32 peer, NetworkCells cells) {
  u32 signals = 0;
  for (u32 index = 0; index < cells.count; ++index) {
    signals += static_cast<u32>(loadAcquireSystem(networkCell(network, peer, cells.first + index)));
  }
  return signals;
}

// One thread calls this, and a block synchronisation passes it on: returns true once that peer, of another host, has signalled the cells
// so often; what it put before is then visible. False when the caller must leave the kernel.
__device__ __noinline__ bool awaitCells(LowLatencyRanks all, const EpNetwork* network, NetworkCells cells, u32 expected,
                                        WaitScope scope, WaitFor whom) {
  constexpr u32 looksAtAborts = 1024;
  WordWait wait;
  WEFTLINE_TRACE_LATER_WAIT();
  for (;;) {
    if (epochReached(signalsOf(*network, whom.peer, cells), expected)) return true;
    if (wait.polls == 0) {
      WEFTLINE_TRACE_WAIT_BEGINS(whom.peer, scope.rank);
    }
    const bool isOver = wait.isOver(all, scope);
    if (isOver) break;
    if (wait.polls % looksAtAborts != 0) continue;
    const u32 gone = peerThatGaveUp(*network, whom.peer);
    if (gone == noPeer) continue;
    // What it sent before it gave up came before that.
    if (epochReached(signalsOf(*network, whom.peer, cells), expected)) return true;
    const u64 value = loadAcquireSystem(abortCell(*network, gone));
    if (recordTrap(scope, {gone, whom.channel}, expected, value, trapReasonPeerGaveUp)) {
      tellFailure(all, {lowLatencyFailureGaveUp, 0, 0, 0});
    }
    return false;
  }
  endWait(all, expected, scope, whom);
  return false;
}

__device__ __forceinline__ bool awaitCell(const LowLatencyRanks& all, const EpNetwork& network, u32 cell, u32 expected,
                                          const WaitScope& scope, WaitFor whom) {
  return awaitCells(all, &network, {cell, 1}, expected, scope, whom);
}

// One thread calls this: a message from this rank's window goes to a peer's, and one signal behind it. If it cannot, all ranks of this
// host hear that this one gave up.
__device__ __forceinline__ void sendMessage(const LowLatencyRanks& all, const EpNetwork& network, Request to, u32 channel,
                                            u64 target, u64 source, u64 bytes, u32 cell, const WaitScope& scope, WaitFor whom) {
  if (putAcross(network, to, channel, target, source, bytes, cell, scope, whom)) return;
  tellFailure(all, {lowLatencyFailureGaveUp, 0, 0, 0});
}

// One thread calls this: the peer's cell counts one more, behind all messages that went to it by this channel.
__device__ __forceinline__ void signalAcross(const LowLatencyRanks& all, const EpNetwork& network, Request to, u32 channel,
                                             u32 cell, const WaitScope& scope, WaitFor whom) {
  const Opened request(to);
  const Route route = {0, channel};
  const u64 counter = network.cellsOffset + static_cast<u64>(network.rank) * networkLineBytes + cell * 8;
  const Command commands[] = {numberCommand(commandKindSignal, request, counter, 1, route)};
  if (pushCommands(queueOf(request, route), commands, true, scope, whom)) return;
  tellFailure(all, {lowLatencyFailureGaveUp, 0, 0, 0});
}

// The channel by which everything between a source and the rank that serves it in that slot goes, so that it stays in order.
__device__ __forceinline__ u32 channelOf(const EpNetwork& network, u32 slot) { return slot % network.channels; }

// All threads call this, when the block has done its share; true in the last block to come, which sees what all have written. `count`
// is zero again then.
__device__ __forceinline__ bool isLastDone(u32* count) {
  __shared__ bool isLast;
  __syncthreads();
  if (threadIdx.x == 0) {
    // ORDER: what the block has written is visible outside of the GPU before the last block has a message of it sent.
    fenceSystem();
    isLast = fetchWrapAcquireReleaseGpu(count, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  return isLast;
}

}  // namespace weftline
