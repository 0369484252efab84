// put and flush: bytes from here to a peer, and the knowledge that they have arrived.
#pragma once
#include "weftline/command-queue.cuh"
#include "weftline/peer-copy.cuh"
#include "weftline/request.cuh"

namespace weftline {

__device__ __forceinline__ DeviceQueue* queueOf(const Opened& request, const Route& route) {
  const Waits waits = waitsOf(request);
  return static_cast<DeviceQueue*>(waits->queues) + route.channel % waits->queueCount;
}

// By the leader, after the group has synchronised.
template <u32 count>
__device__ __forceinline__ bool pushFor(const Opened& request, const Route& route, const Command (&commands)[count]) {
  return pushCommands(queueOf(request, route), commands, scopeOf(waitsOf(request)), {request.handle->peer, route.channel});
}

// What a command can name.
constexpr u64 maxPutBytes = (1ull << 34) - 1;

// Whether both ranges of a put are inside; the leader records it if not.
template <Level level>
__device__ __forceinline__ bool mayPut(const Opened& request, u64 target, u64 source, u64 bytes, const Route& route) {
  return hasRemote<level>(request, route) && isInside<level>(request, route, 0, bytes, maxPutBytes) &&
         isInside<level>(request, route, target, bytes, remoteBytesOf(request, route)) &&
         isInside<level>(request, route, source, bytes, request.localBytes);
}

// Copies `bytes` from `source` in the request's local range to `target` in the peer's. Returns when the peer's memory
// has been told to change, not when it has: signal() and flush() of the same channel come after it. The source must
// stay as it is until a flush, if the peer is not mapped. False, with a record for the host and nothing written, for a
// range that is not inside, and when the queue stays full until the deadline: leave the kernel then.
template <Level level = Level::Unnamed>
__device__ __forceinline__ bool put(const Opened& request, u64 target, u64 source, u64 bytes, Route route = {}) {
  if (!mayPut<level>(request, target, source, bytes, route)) return false;
  if (u8* direct = directOf(request, route)) {
    copyToPeer<level>(direct + target, request.local + source, bytes);
    return true;
  }
  Group<level>::synchronize();
  bool isPushed = true;
  if (Group<level>::isLeader()) {
    const Command commands[] = {{commandKindPut, request.number, route.remote, target, source, bytes}};
    isPushed = pushFor(request, route, commands);
  }
  return Group<level>::agree(isPushed);
}

// Returns when every put and signal that this group made on the channel is visible to the peer. False when that does
// not happen until the deadline, or the host failed at one.
template <Level level = Level::Unnamed>
__device__ __forceinline__ bool flush(const Opened& request, Route route = {}) {
  if (!hasRemote<level>(request, route)) return false;
  Group<level>::synchronize();
  if (directOf(request, route) != nullptr) {
    // ORDER: waits until the stores that this group made before have been performed.
    fenceSystem();
    Group<level>::synchronize();
    return true;
  }
  bool isDelivered = true;
  if (Group<level>::isLeader()) {
    DeviceQueue* queue = queueOf(request, route);
    const u32 pushed = loadAcquireGpu(&queue->head);
    isDelivered = waitDelivered(queue, pushed, scopeOf(waitsOf(request)), {request.handle->peer, route.channel});
  }
  return Group<level>::agree(isDelivered);
}

}  // namespace weftline
