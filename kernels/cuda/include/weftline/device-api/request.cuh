// The handles that the host gives to kernels, the range checks of every call, and how a call that fails says so.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/level.cuh"
#include "weftline/wait.cuh"

namespace weftline {

// Made by DeviceHost.createGpuReq(): writes from one range here to the ranges of one peer.
using Request = const DeviceRequest*;

// Made by DeviceHost.waits: what a wait needs to end.
using Waits = const DeviceHostState*;

// What a signal, or a command for the host, waits for before it goes. Release: a thread that sees it sees what its group wrote
// and put before. Relaxed: it goes alone and at once, which spares a fence of about 1 us; what it tells of must be visible
// already (written by an earlier kernel, say), or travel through the same queue.
enum class Order : u32 { Release, Relaxed };

// A range of the request's peer, and a channel. Within a channel a signal comes after the puts before it;
// between channels there is no order. `isDeferred`: what goes through a queue stays there until something that is not
// deferred follows on the same queue, or a flush; what the group writes itself goes at once.
struct Route {
  u32 remote = 0;
  u32 channel = 0;
  Order order = Order::Release;
  bool isDeferred = false;
};

__device__ __forceinline__ WaitScope scopeOf(Waits waits) {
  return {static_cast<TrapRecord*>(waits->trap), trapKernelDeviceApi, 0, waits->timeoutNs};
}

// A request as it is used, in registers. Every function takes a handle in its place and opens it; a kernel that uses one
// again and again opens it once, because a wait or a signal in between would make it be fetched again.
struct Opened {
  const u8* local;
  u64 localBytes;
  // The first range of the peer, which most requests have alone.
  u8* direct;
  u64 remoteBytes;
  Request handle;
  u32 remoteCount;
  u32 number;
  u32 inlines;

  __device__ __forceinline__ Opened(Request request)
      : local(static_cast<const u8*>(request->local)),
        localBytes(request->localBytes),
        direct(static_cast<u8*>(request->firstDirect)),
        remoteBytes(request->firstBytes),
        handle(request),
        remoteCount(request->remoteCount),
        number(request->number),
        inlines(request->inlines) {}
};

__device__ __forceinline__ const DeviceRemote* remoteOf(const Opened& request, u32 remote) {
  return static_cast<const DeviceRemote*>(request.handle->remotes) + remote;
}

// Address at which the range is mapped; null if only the host reaches it.
__device__ __forceinline__ u8* directOf(const Opened& request, const Route& route) {
  return route.remote == 0 ? request.direct : static_cast<u8*>(remoteOf(request, route.remote)->direct);
}

__device__ __forceinline__ u64 remoteBytesOf(const Opened& request, const Route& route) {
  return route.remote == 0 ? request.remoteBytes : remoteOf(request, route.remote)->bytes;
}

__device__ __forceinline__ Waits waitsOf(const Opened& request) { return static_cast<Waits>(request.handle->host); }

// The record of a range that is not inside.
__device__ __forceinline__ void recordOutside(Request request, u32 channel, u64 limit, u64 end) {
  recordTrap(scopeOf(static_cast<Waits>(request->host)), {request->peer, channel}, limit, end, trapReasonOutOfRange);
}

// False, and a record by the leader, when [offset, offset + bytes) is not inside `limit` bytes.
template <Level level>
__device__ __forceinline__ bool isInside(const Opened& request, const Route& route, u64 offset, u64 bytes, u64 limit) {
  if (offset <= limit && bytes <= limit - offset) return true;
  if (Group<level>::isLeader()) recordOutside(request.handle, route.channel, limit, offset + bytes);
  return false;
}

// False, and a record by the first of the callers, when lanes of the warp are missing that the call needs.
template <Level level>
__device__ __forceinline__ bool hasLanes(const Opened& request, const Route& route, u32 callers, u32 needed) {
  if ((callers & needed) == needed) return true;
  if (Group<level>::isFirstOf(callers)) {
    const Waits waits = waitsOf(request);
    recordTrap(scopeOf(waits), {request.handle->peer, route.channel}, needed, callers, trapReasonMissingLanes);
  }
  return false;
}

template <Level level>
__device__ __forceinline__ bool hasRemote(const Opened& request, const Route& route) {
  if (route.remote < request.remoteCount) return true;
  if (Group<level>::isLeader()) recordOutside(request.handle, route.channel, request.remoteCount, route.remote);
  return false;
}

}  // namespace weftline
