// The same under the names and argument order of request handles: post a write, post a signal, ask for the status.
//
// A handle is a number, as the host passes it to a kernel. `waitsForDelivery` really waits: the write is then visible to the
// peer and its source may be overwritten.
#pragma once
#include "weftline/signal.cuh"

namespace weftline {

using RequestHandle = u64;

// Accepted, without effect: the host polls its queues, so there is no doorbell whose ring could be put off.
constexpr u32 postDeferred = 1;

__device__ __forceinline__ Request requestOf(RequestHandle handle) { return reinterpret_cast<Request>(handle); }

template <Level level = Level::Unnamed>
__device__ __forceinline__ bool postWrite(RequestHandle handle, u64 targetOffset, u64 sourceOffset, u32 remote, u64 bytes,
                                          u32 flags = 0, bool waitsForDelivery = false) {
  (void)flags;
  const Opened request = requestOf(handle);
  if (!put<level>(request, targetOffset, sourceOffset, bytes, {remote, 0})) return false;
  return !waitsForDelivery || flush<level>(request, {remote, 0});
}

template <Level level = Level::Unnamed>
__device__ __forceinline__ bool postSignal(RequestHandle handle, u64 targetOffset, u64 add, u32 remote, u32 flags = 0,
                                           bool waitsForDelivery = false) {
  (void)flags;
  const Opened request = requestOf(handle);
  if (!signal<level>(request, targetOffset, add, {remote, 0})) return false;
  return !waitsForDelivery || flush<level>(request, {remote, 0});
}

enum class PostStatus { Done, UnderWay, Failed };

// Of everything posted to the handle's peer; by one thread. Without waiting: a mapped peer is only known to be done behind
// a fence, which this makes.
__device__ __forceinline__ PostStatus postStatus(RequestHandle handle) {
  const Opened request = requestOf(handle);
  if (directOf(request, {}) != nullptr) {
    fenceSystem();
    return PostStatus::Done;
  }
  DeviceQueue* queue = queueOf(request, {});
  const u32 pushed = loadAcquireGpu(&queue->head);
  if (!epochReached(loadAcquireSystem(&hostSide(queue)->delivered), pushed)) return PostStatus::UnderWay;
  return loadRelaxedSystem(&hostSide(queue)->failed) == 0 ? PostStatus::Done : PostStatus::Failed;
}

}  // namespace weftline
