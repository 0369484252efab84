// put and signal by request handles: post a write, post a signal, ask for the status.
//
// A handle is a number, as the host passes it to a kernel. `waitsForDelivery` really waits: the write is then visible to the
// peer and its source may be overwritten.
#pragma once
#include "weftline/device-api/signal.cuh"

namespace weftline {

using RequestHandle = u64;

// Flag: what goes through a queue stays there until something without this flag follows on the same queue, or somebody
// waits for delivery or asks for the status. The host then posts all of it together.
constexpr u32 postDeferred = 1;

__device__ __forceinline__ Request requestOf(RequestHandle handle) { return reinterpret_cast<Request>(handle); }

// The route of a post. A flag that is not known is recorded, and names no range.
template <Level level>
__device__ __forceinline__ bool routeOf(const Opened& request, u32 remote, u32 flags, Route& route) {
  route = {remote, 0, Order::Release, (flags & postDeferred) != 0};
  if ((flags & ~postDeferred) == 0) return true;
  if (Group<level>::isFirstOf(Group<level>::callers())) {
    recordTrap(scopeOf(waitsOf(request)), {request.handle->peer, 0}, postDeferred, flags, trapReasonUnknownFlags);
  }
  return false;
}

template <Level level = Level::Unnamed>
__device__ __forceinline__ bool postWrite(RequestHandle handle, u64 targetOffset, u64 sourceOffset, u32 remote, u64 bytes,
                                          u32 flags = 0, bool waitsForDelivery = false) {
  const Opened request = requestOf(handle);
  Route route;
  if (!routeOf<level>(request, remote, flags, route)) return false;
  if (!put<level>(request, targetOffset, sourceOffset, bytes, route)) return false;
  return !waitsForDelivery || flush<level>(request, route);
}

template <Level level = Level::Unnamed>
__device__ __forceinline__ bool postSignal(RequestHandle handle, u64 targetOffset, u64 add, u32 remote, u32 flags = 0,
                                           bool waitsForDelivery = false) {
  const Opened request = requestOf(handle);
  Route route;
  if (!routeOf<level>(request, remote, flags, route)) return false;
  if (!signal<level>(request, targetOffset, add, route)) return false;
  return !waitsForDelivery || flush<level>(request, route);
}

enum class PostStatus { Done, UnderWay, Failed };

// Progress of everything posted to the request's peer on the route's channel; one thread asks. It does not wait, but for room in the queue if
// something was deferred. A mapped peer is only known to be done behind a fence, which this makes.
__device__ __forceinline__ PostStatus postStatusOn(const Opened& request, const Route& route) {
  if (directOf(request, route) != nullptr) {
    fenceSystem();
    return PostStatus::Done;
  }
  DeviceQueue* queue = queueOf(request, route);
  if (!endDeferral(queue, request, route)) return PostStatus::Failed;
  const u32 pushed = loadAcquireGpu(&queue->head);
  if (!epochReached(loadAcquireSystem(&hostSide(queue)->delivered), pushed)) return PostStatus::UnderWay;
  return loadRelaxedSystem(&hostSide(queue)->failed) == 0 ? PostStatus::Done : PostStatus::Failed;
}

// The same by the handle, on channel 0.
__device__ __forceinline__ PostStatus postStatus(RequestHandle handle) {
  return postStatusOn(Opened(requestOf(handle)), {});
}

}  // namespace weftline
