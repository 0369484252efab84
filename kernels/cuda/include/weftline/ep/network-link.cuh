// What a kernel does with the network: it writes rows into this rank's window, in memory of the host or of the GPU, has the host's thread put them
// to peers by commands, and waits for the cells in which signals of peers are counted.
//
// Cells count up for ever; `seen` keeps what earlier calls took of each. Nothing lies in the way of what arrives: a rank sends
// rows only behind a record of their receiver, which the receiver sends when its call before has ended.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/device-api/put.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/types.cuh"
#include "weftline/wait.cuh"

namespace weftline {

__device__ __forceinline__ u8* networkAt(const EpNetwork& network, u64 offset) {
  return static_cast<u8*>(network.window) + offset;
}

// A cell that `peer`, by rank of the group, adds to.
__device__ __forceinline__ const u64* networkCell(const EpNetwork& network, u32 peer, u32 cell) {
  return reinterpret_cast<const u64*>(networkAt(network, network.cellsOffset + static_cast<u64>(peer) * networkLineBytes)) + cell;
}

// The cell by which `peer` says that it gave up, where hosts read and write it too.
__device__ __forceinline__ const u64* abortCell(const EpNetwork& network, u32 peer) {
  const u64 line = network.cellsOffset + static_cast<u64>(peer) * networkLineBytes;
  return reinterpret_cast<const u64*>(static_cast<const u8*>(network.words) + line) + networkCellAbort;
}

// What earlier calls took of a cell. Only the block that ends a kernel last changes it.
__device__ __forceinline__ u32* seenOf(const EpNetwork& network, u32 peer, u32 cell) {
  return static_cast<u32*>(network.seen) + peer * (networkLineBytes / 8) + cell;
}

__device__ __forceinline__ u8* outSlot(const EpNetwork& network, u32 way) {
  return networkAt(network, network.outOffset + way * network.slotBytes);
}

__device__ __forceinline__ u8* inSlot(const EpNetwork& network, u32 slot) {
  return networkAt(network, network.inOffset + slot * network.slotBytes);
}

// Whether a place of a row that came through another rank is in a window; none is not. A call that follows one whose wait expired
// finds places that nobody wrote.
__device__ __forceinline__ bool hasRow(const EpNetwork& network, i32 place) {
  return static_cast<u32>(place) < network.ranks * network.maxTokens;
}

// The same of a choice: the index of its rank on this host, and its row in the output there.
template <class LayerArguments>
__device__ __forceinline__ bool hasChoiceRow(const LayerArguments& a, i32 rank, i32 row) {
  return static_cast<u32>(rank) < a.ranks && static_cast<u32>(row) < a.capacityRows;
}

__device__ __forceinline__ u64 recordOutOffset(const EpNetwork& network, u32 call) {
  return network.recordOutOffset + static_cast<u64>(call & 1) * network.recordBytes;
}

// The same at all ranks.
__device__ __forceinline__ u64 recordInOffset(const EpNetwork& network, u32 call, u32 slot) {
  return network.recordInOffset + static_cast<u64>((call & 1) * network.maxServed + slot) * network.recordBytes;
}

// A put from `source` in this rank's window to `target` in the peer's, and one signal behind it. By one thread. False, with a
// record, when the queue stays full until the deadline: leave the kernel.
// ORDER: what this thread has seen or written is visible to the host and to network cards before the command is.
__device__ __forceinline__ bool putAcross(const EpNetwork& network, Request handle, u32 channel, u64 target, u64 source,
                                          u64 bytes, u32 cell, const WaitScope& scope, WaitFor whom) {
  const Opened request(handle);
  const Route route = {0, channel};
  const u64 counter = network.cellsOffset + static_cast<u64>(network.rank) * networkLineBytes + cell * 8;
  const Command commands[] = {putCommand(request, target, source, bytes, route),
                              numberCommand(commandKindSignal, request, counter, 1, route)};
  return pushCommands(queueOf(request, route), commands, true, scope, whom);
}

__device__ __forceinline__ Request wayRequest(const EpNetwork& network, u32 way, u32 channel) {
  return static_cast<Request>(network.wayRequests[way * networkMaxChannels + channel]);
}

__device__ __forceinline__ Request servedRequest(const EpNetwork& network, u32 slot, u32 channel) {
  return static_cast<Request>(network.servedRequests[slot * networkMaxChannels + channel]);
}

// What a wait is for, for its record: one of the networkPhase constants, how many are to come in all, and how many have.
struct NetworkWait {
  u32 call;
  u32 phase;
  u32 expected;
  u32 seen;
};

__device__ __forceinline__ WaitFor waitForPeer(u32 peer, const NetworkWait& what) {
  constexpr u32 phaseShift = 4;
  return {peer, (what.call & ~(0xfu << phaseShift)) | (what.phase << phaseShift)};
}

// Any value of the abort cell of the peer that is waited for counts: one that has closed its side sends nothing more. Of others
// only the lower half does, by which they say that they gave up. Returns the peer, or noPeer.
constexpr u32 noPeer = 0xffffffffu;
__device__ __forceinline__ u32 peerThatGaveUp(const EpNetwork& network, u32 awaited) {
  if (loadAcquireSystem(abortCell(network, awaited)) != 0) return awaited;
  for (u32 index = 0; index < network.ways + network.served; ++index) {
    const u32 peer = index < network.ways ? network.wayForwarder[index] : network.servedRank[index - network.ways];
    if (static_cast<u32>(loadAcquireSystem(abortCell(network, peer))) != 0) return peer;
  }
  return noPeer;
}

// Returns true once the peer has signalled the cell `expected` times since the buffer was made, which may wrap; what it put
// before is then visible. By one thread; a block synchronisation passes it on. False as waitForEpoch().
__device__ __forceinline__ bool waitForCell(const EpNetwork& network, u32 peer, u32 cell, u32 expected,
                                            const WaitScope& scope, const NetworkWait& what) {
  const u64* word = networkCell(network, peer, cell);
  if (epochReached(static_cast<u32>(loadAcquireSystem(word)), expected)) return true;
  const u64 start = waitStart(scope);
  WEFTLINE_TRACE_WAIT(waitForPeer(peer, what).peer, scope.rank);
  constexpr u32 looksAtAborts = 1024;
  for (u32 polls = 1;; ++polls) {
    if (epochReached(static_cast<u32>(loadAcquireSystem(word)), expected)) return true;
    if (polls % looksAtAborts == 0) {
      const u32 gone = peerThatGaveUp(network, peer);
      if (gone != noPeer) {
        // What it sent before it gave up came before that.
        if (epochReached(static_cast<u32>(loadAcquireSystem(word)), expected)) return true;
        const u64 value = loadAcquireSystem(abortCell(network, gone));
        recordTrap(scope, waitForPeer(gone, what), what.expected, value, trapReasonPeerGaveUp);
        return false;
      }
    }
    if (waitIsOver(scope, polls, start)) break;
  }
  recordTrap(scope, waitForPeer(peer, what), what.expected, what.seen, timeoutReason(scope));
  return false;
}

// Rows of one call to or from a peer, in chunks that the channels take in turn; one signal each.
struct Chunks {
  u32 rows;
  u32 channels;
  u32 rowsOfChunk;

  __device__ __forceinline__ Chunks(const EpNetwork& network, u32 count, u32 stride)
      : rows(count), channels(network.channels) {
    constexpr u32 chunksOfChannel = 4;
    const u32 even = (count + channels * chunksOfChannel - 1) / (channels * chunksOfChannel);
    rowsOfChunk = max(1u, min(max(even, network.leastChunkBytes / stride), network.chunkBytes / stride));
  }

  __device__ __forceinline__ u32 count() const { return (rows + rowsOfChunk - 1) / rowsOfChunk; }
  __device__ __forceinline__ u32 first(u32 chunk) const { return chunk * rowsOfChunk; }
  __device__ __forceinline__ u32 sizeOf(u32 chunk) const { return min(rowsOfChunk, rows - first(chunk)); }
};

// Waits for chunk `chunk` of what `peer` sends; `cells`: of its first channel. By one thread.
__device__ __forceinline__ bool waitForChunk(const EpNetwork& network, const Chunks& chunks, u32 chunk, u32 peer, u32 cells,
                                             const WaitScope& scope, u32 call, u32 phase) {
  const u32 cell = cells + chunk % chunks.channels;
  const u32 expected = __ldcg(seenOf(network, peer, cell)) + chunk / chunks.channels + 1;
  return waitForCell(network, peer, cell, expected, scope, {call, phase, chunks.rows, chunks.first(chunk)});
}

// Counts all chunks of a call as taken. By one thread, when nothing waits for them any more.
__device__ __forceinline__ void takeChunks(const EpNetwork& network, const Chunks& chunks, u32 peer, u32 cells) {
  for (u32 channel = 0; channel < chunks.channels; ++channel) {
    *seenOf(network, peer, cells + channel) += (chunks.count() + chunks.channels - 1 - channel) / chunks.channels;
  }
}

// Address for the rows of a chunk that this rank sends.
struct ChunkTarget {
  // Index in network.chunkRows: behind those of the ways come those of the slots.
  u32 counters;
  // DeviceRequest by channel.
  void* const* requests;
  u64 source;
  u64 target;
  // Request of the peer's first channel, and who it is.
  u32 cells;
  u32 peer;
};

// Mark in place of the count of a chunk whose rows are all ready.
constexpr u32 chunkIsReady = 0xffffffffu;

// Has a chunk put.
__device__ __forceinline__ bool putChunk(const EpNetwork& network, const Chunks& chunks, u32 stride, u32 chunk,
                                         const ChunkTarget& to, const WaitScope& scope, u32 call, u32 phase) {
  const u64 begin = static_cast<u64>(chunks.first(chunk)) * stride;
  const u32 channel = chunk % chunks.channels;
  return putAcross(network, static_cast<Request>(to.requests[channel]), channel, to.target + begin, to.source + begin,
                   static_cast<u64>(chunks.sizeOf(chunk)) * stride, to.cells + channel, scope,
                   waitForPeer(to.peer, {call, phase, 0, 0}));
}

// One lane calls this, when its warp has written row `row` and synchronised: who completes a chunk has it put. False as putAcross().
//
// A signal says only that one more chunk of its channel has come, so a channel's chunks are pushed in their order. Its word
// counts those that are, above a bit by which one thread at a time pushes. A thread that finds it at work leaves its chunk
// to it: each stores first and then looks for what the other stored.
__device__ __forceinline__ bool rowIsReady(const EpNetwork& network, const Chunks& chunks, u32 stride, u32 row,
                                           const ChunkTarget& to, const WaitScope& scope, u32 call, u32 phase) {
  const u32 complete = row / chunks.rowsOfChunk;
  const u32 channel = complete % chunks.channels;
  u32* ready = static_cast<u32*>(network.chunkRows) + to.counters * network.maxChunks;
  // ORDER: the row is visible outside of the GPU, then it counts.
  fenceSystem();
  if (fetchAddAcquireReleaseGpu(&ready[complete], 1) + 1 != chunks.sizeOf(complete)) return true;
  u32* word = seenOf(network, to.peer, networkSeenPushed + channel);
  storeReleaseGpu(&ready[complete], chunkIsReady);
  for (;;) {
    fenceSequentialSystem();
    const u32 pushed = loadAcquireGpu(word);
    const u32 chunk = (pushed >> 1) * chunks.channels + channel;
    if ((pushed & 1) != 0 || chunk >= chunks.count() || loadAcquireGpu(&ready[chunk]) != chunkIsReady) return true;
    if (compareExchangeGpu(word, pushed, pushed | 1) != pushed) continue;
    ready[chunk] = 0;
    if (!putChunk(network, chunks, stride, chunk, to, scope, call, phase)) return false;
    storeReleaseGpu(word, pushed + 2);
  }
}

// One thread calls this, when all blocks are done: the next call counts what it pushes to the peer from zero.
__device__ __forceinline__ void forgetPushed(const EpNetwork& network, u32 peer) {
  for (u32 channel = 0; channel < network.channels; ++channel) *seenOf(network, peer, networkSeenPushed + channel) = 0;
}

}  // namespace weftline
