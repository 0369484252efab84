// Signals: 64-bit counters in memory of the peer that is told. Adding to one, waiting for one, reading one.
#pragma once
#include "weftline/device-api/put.cuh"

namespace weftline {

// A counter across two words would not be added at once, so it lies at a multiple of 8, where the begin of a mapped range
// need not be.
template <Level level>
__device__ __forceinline__ bool maySignal(const Opened& request, u64 target, const Route& route) {
  if (!hasRemote<level>(request, route)) return false;
  const bool isAligned = ((reinterpret_cast<u64>(directOf(request, route)) | target) & 7) == 0;
  return isInside<level>(request, route, isAligned ? target : ~0ull - 7, 8, remoteBytesOf(request, route));
}

// A signal by the callers, which are together and may signal.
template <Level level>
__device__ __forceinline__ bool signalBy(u32 callers, const Opened& request, u64 target, u64 add, const Route& route) {
  Group<level>::synchronize(callers);
  if (u8* direct = directOf(request, route)) {
    if (!Group<level>::isLeader()) return true;
    u64* counter = reinterpret_cast<u64*>(direct + target);
    // ORDER: the release publishes what the group's members wrote before they synchronised.
    if (route.order == Order::Release) addReleaseSystem(counter, add);
    else addRelaxedSystem(counter, add);
    return true;
  }
  bool isPushed = true;
  if (Group<level>::isLeader()) {
    const Command commands[] = {numberCommand(commandKindSignal, request, target, add, route)};
    isPushed = pushFor(request, route, commands);
  }
  return Group<level>::agree(isPushed, callers);
}

// Adds to the counter at `target` (a multiple of 8) of the peer's range, once for the whole group. A thread that sees the sum
// sees what this group put before on the same channel, unless the route's order is relaxed. False as put().
//
// At warp level lane 0 may call it alone, or together with any other lanes. It tells of what the other lanes wrote by
// themselves, and finds them at lane 0's side after work that took them different ways, if a __syncwarp() of all lanes
// stands before it: lanes that come without lane 0 leave a record, because nobody knows whether lane 0 will come.
template <Level level = Level::Unnamed>
__device__ __forceinline__ bool signal(const Opened& request, u64 target, u64 add, Route route = {}) {
  const u32 callers = Group<level>::callers();
  if (!hasLanes<level>(request, route, callers, 1) || !maySignal<level>(request, target, route)) return false;
  return signalBy<level>(callers, request, target, add, route);
}

// A put, and a signal that comes after it. The counter may be in another request, to the same peer.
template <Level level = Level::Unnamed>
__device__ __forceinline__ bool putWithSignal(const Opened& data, u64 target, u64 source, u64 bytes, const Opened& counter,
                                              u64 counterTarget, u64 add, Route route = {}) {
  if (!mayPut<level>(data, target, source, bytes, route) || !maySignal<level>(counter, counterTarget, route)) return false;
  if (directOf(data, route) != nullptr || directOf(counter, route) != nullptr) {
    if (!put<level>(data, target, source, bytes, route)) return false;
    // What goes through a queue is overtaken by what does not.
    const bool isOvertaken = directOf(data, route) == nullptr && route.order == Order::Release;
    if (isOvertaken && !flushBy<level>(allLanes, data, route)) return false;
    return signalBy<level>(allLanes, counter, counterTarget, add, route);
  }
  // Both at once, for one fence and so that the host sees them together.
  Group<level>::synchronize();
  bool isPushed = true;
  if (Group<level>::isLeader()) {
    const Command commands[] = {putCommand(data, target, source, bytes, route),
                                numberCommand(commandKindSignal, counter, counterTarget, add, route)};
    isPushed = pushFor(data, route, commands);
  }
  return Group<level>::agree(isPushed);
}

// The same value for all members of the group, or of a warp for the lanes that call it, so that they leave a loop over it in the
// same turn. ORDER: what a peer put before its signal is visible to them behind this.
template <Level level = Level::Unnamed>
__device__ __forceinline__ u64 readSignal(const void* counter) {
  static_assert(sizeof(Group<level>) > 0, "");
  const u32 callers = Group<level>::callers();
  u64 value = 0;
  if (Group<level>::isFirstOf(callers)) value = loadAcquireSystem(static_cast<const u64*>(counter));
  return Group<level>::broadcast(value, callers);
}

// Sets a counter of this device, while no peer adds to it.
template <Level level = Level::Unnamed>
__device__ __forceinline__ void writeSignal(void* counter, u64 value) {
  Group<level>::synchronize();
  if (Group<level>::isLeader()) storeReleaseSystem(static_cast<u64*>(counter), value);
  Group<level>::synchronize();
}

// Returns true once the counter, in memory of this device, is at least `value`; what the peers put before their signals
// is then visible to the group. False after the deadline, or when the host gives up on a peer: leave the kernel.
template <Level level = Level::Unnamed>
__device__ __forceinline__ bool wait(const void* counter, u64 value, Waits waits, u32 channel = 0) {
  bool hasCome = true;
  if (Group<level>::isLeader()) {
    const u64* word = static_cast<const u64*>(counter);
    u64 seen = loadAcquireSystem(word);
    if (seen < value) {
      const WaitScope scope = scopeOf(waits);
      const u64 start = globalTimer();
      for (u32 polls = 1; seen < value && hasCome; ++polls) {
        seen = loadAcquireSystem(word);
        if (seen < value && waitIsOver(scope, polls, start)) hasCome = false;
      }
      if (!hasCome) recordTrap(scope, {trapAnyPeer, channel}, value, seen, timeoutReason(scope));
    }
  }
  return Group<level>::agree(hasCome);
}

}  // namespace weftline
