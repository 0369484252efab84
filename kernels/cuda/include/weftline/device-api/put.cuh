// put and flush: bytes from here to a peer, and the knowledge that they have arrived.
#pragma once
#include "weftline/device-api/command-queue.cuh"
#include "weftline/copy/peer-copy.cuh"
#include "weftline/device-api/request.cuh"
#include "weftline/device-api/warp-arrival.cuh"

namespace weftline {

__device__ __forceinline__ DeviceQueue* queueOf(const Opened& request, const Route& route) {
  const Waits waits = waitsOf(request);
  return static_cast<DeviceQueue*>(waits->queues) + route.channel % waits->queueCount;
}

// The leader calls this, after the group has synchronised.
template <u32 count>
__device__ __forceinline__ bool pushFor(const Opened& request, const Route& route, const Command (&commands)[count]) {
  return pushCommands(queueOf(request, route), commands, route.order == Order::Release, scopeOf(waitsOf(request)),
                      {request.handle->peer, route.channel});
}

// A command whose number, 8 bytes, is part of it.
__device__ __forceinline__ Command numberCommand(u32 kind, const Opened& request, u64 target, u64 number,
                                                 const Route& route) {
  return {kind, request.number, route.remote, target, number & 0xffffffffull, number >> 32, route.isDeferred};
}

// Where the host would launch a kernel to read 8 bytes from this device, they are read here and travel along.
__device__ __forceinline__ Command putCommand(const Opened& request, u64 target, u64 source, u64 bytes,
                                              const Route& route) {
  const u8* from = request.local + source;
  if (request.inlines == 0 || bytes != 8 || ((target | reinterpret_cast<u64>(from)) & 7) != 0) {
    return {commandKindPut, request.number, route.remote, target, source, bytes, route.isDeferred};
  }
  const u64 value = *reinterpret_cast<const volatile u64*>(from);
  return numberCommand(commandKindStore, request, target, value, route);
}

// What a command can name.
constexpr u64 maxPutBytes = (1ull << 33) - 1;

// Whether the group comes whole and both ranges of a put are inside; if not there is a record.
template <Level level>
__device__ __forceinline__ bool mayPut(const Opened& request, u64 target, u64 source, u64 bytes, const Route& route) {
  const WaitFor whom = {request.handle->peer, route.channel};
  return arrivesWhole<level>(scopeOf(waitsOf(request)), whom) && hasRemote<level>(request, route) &&
         isInside<level>(request, route, 0, bytes, maxPutBytes) &&
         isInside<level>(request, route, target, bytes, remoteBytesOf(request, route)) &&
         isInside<level>(request, route, source, bytes, request.localBytes);
}

// ORDER: a signal by lane 0 alone publishes what the other lanes copied before. At block level a signal synchronises itself.
template <Level level>
__device__ __forceinline__ void endOfCopy() {
  if constexpr (level == Level::Warp) Group<level>::synchronize();
}

// Copies `bytes` from `source` in the request's local range to `target` in the peer's. Returns when the peer's memory
// has been told to change, not when it has: signal() and flush() of the same channel come after it. The source must
// stay as it is until a flush, if the peer is not mapped. At warp level lanes that come at different times wait for each
// other. False, with a record for the host and nothing written, for a range that is not inside, when lanes of the warp do
// not come until the deadline, and when the queue stays full until then: leave the kernel.
template <Level level = Level::Unnamed>
__device__ __forceinline__ bool put(const Opened& request, u64 target, u64 source, u64 bytes, Route route = {}) {
  if (!mayPut<level>(request, target, source, bytes, route)) return false;
  if (u8* direct = directOf(request, route)) {
    copyToPeer<level>(direct + target, request.local + source, bytes);
    endOfCopy<level>();
    return true;
  }
  Group<level>::synchronize();
  bool isPushed = true;
  if (Group<level>::isLeader()) {
    const Command commands[] = {putCommand(request, target, source, bytes, route)};
    isPushed = pushFor(request, route, commands);
  }
  return Group<level>::agree(isPushed);
}

// On sm_90 eight blocks of 512 threads fill its links; 12 to 16 get in each other's way (340 instead of 360 GB/s), from
// 20 on they do not. So some of them rest.
template <Level level>
__device__ __forceinline__ u32 copyingParts(u32 parts) {
#if __CUDA_ARCH__ == 900
  if (level == Level::Block && parts > 8 && parts < 20 && Group<level>::size() >= 512) return 8;
#endif
  return parts;
}

// A put by several groups, of which this is number `part` of `allParts`: all make the call with the same ranges, and
// together they copy everything once. Each then signals for itself, or all synchronise and one does. Otherwise as put().
//
// The groups go through the bytes side by side, eight vectors per thread at a time, and share what is left equally in
// whole pieces: a boundary inside a cache line would make two short writes of it, which costs a link a tenth.
template <Level level = Level::Unnamed>
__device__ __forceinline__ bool putShare(const Opened& request, u64 target, u64 source, u64 bytes, u32 part, u32 allParts,
                                         Route route = {}) {
  if (!mayPut<level>(request, target, source, bytes, route)) return false;
  const u32 parts = copyingParts<level>(allParts);
  if (part >= parts) return true;
  u8* direct = directOf(request, route);
  // Counted in pieces of 512 bytes: 64-bit divisions would take as long as a short message.
  const u32 pieces = static_cast<u32>((bytes + 511) / 512);
  const u32 chunk = max(Group<level>::size() / 4, 1u);
  const u32 step = chunk * parts;
  u32 even = static_cast<u32>(bytes / 512);
  // The host copies as fast in one piece.
  if (direct == nullptr || even < step) even = 0;
  else even -= even % step;
  for (u32 begin = part * chunk; begin < even; begin += step) {
    const u64 at = begin * 512ull;
    copyToPeer<level>(direct + target + at, request.local + source + at, chunk * 512ull);
  }
  u32 share = (pieces - even + parts - 1) / parts;
  // Two vectors per thread at a time, where that leaves few without work.
  const u32 pair = chunk / 4;
  if (pair > 1 && share > pair) share = (share + pair - 1) / pair * pair;
  const u64 begin = min((even + static_cast<u64>(part) * share) * 512, bytes);
  const u64 size = min(share * 512ull, bytes - begin);
  if (size == 0) return true;
  if (direct == nullptr) return put<level>(request, target + begin, source + begin, size, route);
  copyToPeer<level>(direct + target + begin, request.local + source + begin, size);
  endOfCopy<level>();
  return true;
}

// Has the host take what was deferred on the queue, by an empty command behind it. By one thread.
__device__ __forceinline__ bool endDeferral(DeviceQueue* queue, const Opened& request, const Route& route) {
  if (*static_cast<volatile u32*>(&queue->deferred) == 0 || atomicExch(&queue->deferred, 0) == 0) return true;
  const Command commands[] = {{commandKindPut, request.number, route.remote, 0, 0, 0, false}};
  return pushFor(request, {route.remote, route.channel, Order::Relaxed}, commands);
}

// Waits until the host has delivered what was pushed on the queue so far. False when it does not in time, gives up, or
// fails at a command. By one thread.
__device__ __forceinline__ bool waitDelivered(DeviceQueue* queue, const Opened& request, const Route& route) {
  CommandQueueHead* host = hostSide(queue);
  const WaitScope scope = scopeOf(waitsOf(request));
  const WaitFor whom = {request.handle->peer, route.channel};
  u32 count = loadAcquireGpu(&queue->head);
  u64 start = 0;
  u32 seen = 0;
  for (u32 polls = 0;; ++polls) {
    seen = loadAcquireSystem(&host->delivered);
    if (epochReached(seen, count)) break;
    // In each round: another thread may have taken its number, which counts, and only now say that its command is deferred.
    if (!endDeferral(queue, request, route)) return false;
    if (polls == 0) start = globalTimer();
    // Numbers that were given back are not waited for.
    const u32 head = *static_cast<volatile u32*>(&queue->head);
    if (!epochReached(head, count)) count = head;
    if (waitIsOver(scope, polls + 1, start)) {
      recordTrap(scope, whom, count, seen, timeoutReason(scope));
      return false;
    }
  }
  queue->knownDelivered = seen;
  const u32 failed = loadRelaxedSystem(&host->failed);
  if (failed == 0) return true;
  recordTrap(scope, whom, 0, failed - 1, trapReasonCommandFailed);
  return false;
}

// A flush by the callers, which are together.
template <Level level>
__device__ __forceinline__ bool flushBy(u32 callers, const Opened& request, const Route& route) {
  Group<level>::synchronize(callers);
  if (directOf(request, route) != nullptr) {
    // ORDER: waits until the stores that this group made before have been performed.
    fenceSystem();
    Group<level>::synchronize(callers);
    return true;
  }
  bool isDelivered = true;
  if (Group<level>::isFirstOf(callers)) isDelivered = waitDelivered(queueOf(request, route), request, route);
  return Group<level>::agree(isDelivered, callers);
}

// Returns when every put and signal that this group made on the channel is visible to the peer. False when that does
// not happen until the deadline, or the host failed at one. At warp level lanes may call it without the others, for what
// they made themselves.
template <Level level = Level::Unnamed>
__device__ __forceinline__ bool flush(const Opened& request, Route route = {}) {
  const u32 callers = Group<level>::callers();
  return hasRemote<level>(request, route) && flushBy<level>(callers, request, route);
}

}  // namespace weftline
