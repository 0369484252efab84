// Words: 8 bytes that arrive together with their number, in one store of 16, so that no fence stands between the two.
//
// A put with a signal is two stores and a fence, which waits for the way there and back; a word is one way. It carries
// itself alone: it has no order with puts and signals.
#pragma once
#include "weftline/device-api/put.cuh"

namespace weftline {

// Contents of the cell at `target` (a multiple of 16) in the peer's range: the value, and behind it the epoch, a number that is
// greater each time. Once for the whole group. A cell has one writer and begins as zeros; it is written again when the
// peer has taken the word, as it says by a word or signal of its own. False as put().
template <Level level = Level::Unnamed>
__device__ __forceinline__ bool putWord(const Opened& request, u64 target, u64 value, u64 epoch, Route route = {}) {
  if (!hasRemote<level>(request, route)) return false;
  u8* direct = directOf(request, route);
  // Both halves arrive at once only at a multiple of 16, which the begin of a range need not be.
  const bool isAligned = ((reinterpret_cast<u64>(direct) | target) & 15) == 0;
  if (!isInside<level>(request, route, isAligned ? target : ~0ull - 15, 16, remoteBytesOf(request, route))) return false;
  if (direct != nullptr) {
    if (Group<level>::isLeader()) storeRelaxedSystem(direct + target, value, epoch);
    return true;
  }
  bool isPushed = true;
  if (Group<level>::isLeader()) {
    // The host writes the epoch after the value; the reader takes nothing before it.
    const Command commands[] = {numberCommand(commandKindStore, request, target, value, route),
                                numberCommand(commandKindSet, request, target + 8, epoch, route)};
    isPushed = pushFor(request, {route.remote, route.channel, Order::Relaxed}, commands);
  }
  return Group<level>::agree(isPushed);
}

// Returns true once the epoch of the cell, in memory of this device at a multiple of 16, is at least `epoch`, with the
// value that came with it for every member of the group. False as wait().
template <Level level = Level::Unnamed>
__device__ __forceinline__ bool waitWord(const void* cell, u64 epoch, u64& value, Waits waits, u32 channel = 0) {
  bool hasCome = true;
  if (Group<level>::isLeader()) {
    u64 seen = 0;
    const WaitScope scope = scopeOf(waits);
    if ((reinterpret_cast<u64>(cell) & 15) != 0) {
      recordTrap(scope, {trapAnyPeer, channel}, 0, reinterpret_cast<u64>(cell) & 15, trapReasonOutOfRange);
      hasCome = false;
    } else {
      loadRelaxedSystem(cell, value, seen);
      const u64 start = seen < epoch ? globalTimer() : 0;
      for (u32 polls = 1; seen < epoch && hasCome; ++polls) {
        loadRelaxedSystem(cell, value, seen);
        if (seen < epoch && waitIsOver(scope, polls, start)) hasCome = false;
      }
      if (!hasCome) recordTrap(scope, {trapAnyPeer, channel}, epoch, seen, timeoutReason(scope));
    }
  }
  value = Group<level>::broadcast(value);
  return Group<level>::agree(hasCome);
}

}  // namespace weftline
