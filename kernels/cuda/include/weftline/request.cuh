// The handles that the host gives to kernels, the range checks of every call, and how a call that fails says so.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/level.cuh"
#include "weftline/wait.cuh"

namespace weftline {

// From DeviceHost.createGpuReq(): writes from one range here to the ranges of one peer.
using Request = const DeviceRequest*;

// From DeviceHost.waits: what a wait needs to end.
using Waits = const DeviceHostState*;

// Which range of the request's peer, and which channel. Within a channel a signal comes after the puts before it;
// between channels there is no order.
struct Route {
  u32 remote = 0;
  u32 channel = 0;
};

// Handles do not change while a kernel runs. Reading them so lets the compiler keep them across the fences of a loop of
// puts and waits, each of which would otherwise fetch them from the second-level cache again.
__device__ __forceinline__ u32 fixed(const u32& field) { return __ldg(&field); }
__device__ __forceinline__ u64 fixed(const u64& field) { return __ldg(&field); }
__device__ __forceinline__ void* fixed(void* const& field) {
  return reinterpret_cast<void*>(__ldg(reinterpret_cast<const u64*>(&field)));
}

__device__ __forceinline__ Waits waitsOf(Request request) { return static_cast<Waits>(fixed(request->host)); }

__device__ __forceinline__ WaitScope scopeOf(Waits waits) {
  return {static_cast<TrapRecord*>(fixed(waits->trap)), trapKernelDeviceApi, 0, fixed(waits->timeoutNs)};
}

__device__ __forceinline__ const DeviceRemote* remoteOf(Request request, u32 remote) {
  return static_cast<const DeviceRemote*>(fixed(request->remotes)) + remote;
}

// Where the range is mapped; null if only the host reaches it.
__device__ __forceinline__ u8* directOf(Request request, const Route& route) {
  return static_cast<u8*>(fixed(remoteOf(request, route.remote)->direct));
}

// False, and a record by the leader, when [offset, offset + bytes) is not inside `limit` bytes.
template <Level level>
__device__ __forceinline__ bool isInside(Request request, const Route& route, u64 offset, u64 bytes, u64 limit) {
  if (offset <= limit && bytes <= limit - offset) return true;
  if (Group<level>::isLeader()) {
    recordTrap(scopeOf(waitsOf(request)), {fixed(request->peer), route.channel}, limit, offset + bytes, trapReasonOutOfRange);
  }
  return false;
}

template <Level level>
__device__ __forceinline__ bool hasRemote(Request request, const Route& route) {
  if (route.remote < fixed(request->remoteCount)) return true;
  if (Group<level>::isLeader()) {
    recordTrap(scopeOf(waitsOf(request)), {fixed(request->peer), route.channel}, fixed(request->remoteCount), route.remote,
               trapReasonOutOfRange);
  }
  return false;
}

}  // namespace weftline
