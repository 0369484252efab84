// The device API under the names and the argument order of NIXL's own header, which includes its newer names nixlPut, nixlAtomicAdd
// and nixlGetPtr. NIXL's guide to its GPU kernels has another order: nixl_guide.cuh. A kernel includes one of them.
//
// A call in the guide's order that says whether to wait for completion would mean something else here; it does not compile. Pass
// the status too (nullptr for none) where NIXL's order is meant.
//
// Differences: an index names a range of the request's peer; the local range is the request's one. A memory view is a request,
// which is the local and the remote side at once. What a post returns is NIXL_IN_PROG or an error, of which the host gets a record.
#pragma once
#ifdef WEFTLINE_NIXL_GUIDE
#error "nixl_device.cuh has another order of arguments than nixl_guide.cuh: include one of them"
#endif
#define WEFTLINE_NIXL_DEVICE
#include "weftline/nixl-names.cuh"

enum nixl_status_t {
  NIXL_IN_PROG = 1,
  NIXL_SUCCESS = 0,
  NIXL_ERR_NOT_POSTED = -1,
  NIXL_ERR_INVALID_PARAM = -2,
  NIXL_ERR_BACKEND = -3,
};

// The state of a post; ask nixlGpuGetXferStatus whether it is over.
struct nixlGpuXferStatusH {
  nixlGpuXferReqH request;
  unsigned channel;
};

// Bits of a post. No number, so that it cannot stand where the guide's order has flags and this one a channel.
struct nixl_gpu_flags_t {
  uint64_t bits;
  __device__ constexpr nixl_gpu_flags_t(uint64_t given) : bits(given) {}
};

namespace nixl_gpu_flags {
// The post may stay at this device until one without this flag follows, or its status is asked for.
__device__ constexpr nixl_gpu_flags_t defer{weftline::postDeferred};
}  // namespace nixl_gpu_flags

// Both sides of what a request writes; `index` and `offset` name a place of one.
using nixlMemViewH = nixlGpuXferReqH;
struct nixlMemViewElem {
  nixlMemViewH mvh;
  size_t index;
  size_t offset;
};

namespace weftline {

__device__ __forceinline__ nixl_status_t nixlPosted(bool isGood, nixlGpuXferReqH request, unsigned channel,
                                                    nixlGpuXferStatusH* status) {
  if (status != nullptr) *status = {request, channel};
  return isGood ? NIXL_IN_PROG : NIXL_ERR_BACKEND;
}

}  // namespace weftline

// Writes `size` bytes from `local_offset` of the request's local range to `remote_offset` of range `desc_index` of its peer.
template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
[[nodiscard]] __device__ __forceinline__ nixl_status_t nixlGpuPostSingleWriteXferReq(
    nixlGpuXferReqH req_hndl, unsigned desc_index, size_t local_offset, size_t remote_offset, size_t size,
    unsigned channel_id = 0) {
  const weftline::Route route = {desc_index, channel_id, weftline::Order::Release, false};
  const bool isGood =
      weftline::put<weftline::levelOf<LEVEL>>(weftline::Opened(req_hndl), remote_offset, local_offset, size, route);
  return weftline::nixlPosted(isGood, req_hndl, channel_id, nullptr);
}

template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
[[nodiscard]] __device__ __forceinline__ nixl_status_t nixlGpuPostSingleWriteXferReq(
    nixlGpuXferReqH req_hndl, unsigned desc_index, size_t local_offset, size_t remote_offset, size_t size,
    unsigned channel_id, bool is_no_delay, nixlGpuXferStatusH* xfer_status) {
  const weftline::Route route = {desc_index, channel_id, weftline::Order::Release, !is_no_delay};
  const bool isGood =
      weftline::put<weftline::levelOf<LEVEL>>(weftline::Opened(req_hndl), remote_offset, local_offset, size, route);
  return weftline::nixlPosted(isGood, req_hndl, channel_id, xfer_status);
}

// With the guide's order this is (offset there, offset here, range, size, flags, whether to wait).
template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
__device__ nixl_status_t nixlGpuPostSingleWriteXferReq(nixlGpuXferReqH, size_t, size_t, size_t, size_t, unsigned,
                                                       bool) = delete;

// Adds `signal_inc` to the counter at `signal_offset` of range `signal_desc_index` of the peer, behind the writes before.
template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
[[nodiscard]] __device__ __forceinline__ nixl_status_t nixlGpuPostSignalXferReq(nixlGpuXferReqH req_hndl,
                                                                                unsigned signal_desc_index,
                                                                                uint64_t signal_inc, size_t signal_offset,
                                                                                unsigned channel_id = 0) {
  const weftline::Route route = {signal_desc_index, channel_id, weftline::Order::Release, false};
  const bool isGood =
      weftline::signal<weftline::levelOf<LEVEL>>(weftline::Opened(req_hndl), signal_offset, signal_inc, route);
  return weftline::nixlPosted(isGood, req_hndl, channel_id, nullptr);
}

template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
[[nodiscard]] __device__ __forceinline__ nixl_status_t nixlGpuPostSignalXferReq(
    nixlGpuXferReqH req_hndl, unsigned signal_desc_index, uint64_t signal_inc, size_t signal_offset, unsigned channel_id,
    bool is_no_delay, nixlGpuXferStatusH* xfer_status) {
  const weftline::Route route = {signal_desc_index, channel_id, weftline::Order::Release, !is_no_delay};
  const bool isGood =
      weftline::signal<weftline::levelOf<LEVEL>>(weftline::Opened(req_hndl), signal_offset, signal_inc, route);
  return weftline::nixlPosted(isGood, req_hndl, channel_id, xfer_status);
}

// With the guide's order this is (offset, value, range, flags, whether to wait).
template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
__device__ nixl_status_t nixlGpuPostSignalXferReq(nixlGpuXferReqH, size_t, uint64_t, size_t, unsigned, bool) = delete;

// The status of everything posted to the request's peer on the channel.
template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
__device__ __forceinline__ nixl_status_t nixlGpuGetXferStatus(nixlGpuXferStatusH& xfer_status) {
  using Group = weftline::Group<weftline::levelOf<LEVEL>>;
  int status = NIXL_SUCCESS;
  Group::synchronize();
  if (Group::isLeader()) {
    const weftline::PostStatus seen =
        weftline::postStatusOn(weftline::Opened(xfer_status.request), {0, xfer_status.channel});
    if (seen == weftline::PostStatus::UnderWay) status = NIXL_IN_PROG;
    if (seen == weftline::PostStatus::Failed) status = NIXL_ERR_BACKEND;
  }
  return static_cast<nixl_status_t>(Group::broadcast(status));
}

// Writes from one element of a view to another: the local and the remote side of one request.
template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
[[nodiscard]] __device__ __forceinline__ nixl_status_t nixlPut(nixlMemViewElem src, nixlMemViewElem dst, size_t size,
                                                               unsigned channel_id = 0, nixl_gpu_flags_t flags = 0,
                                                               nixlGpuXferStatusH* xfer_status = nullptr) {
  if (src.mvh != dst.mvh || src.index != 0) return NIXL_ERR_INVALID_PARAM;
  const bool isNow = (flags.bits & weftline::postDeferred) == 0;
  return nixlGpuPostSingleWriteXferReq<LEVEL>(dst.mvh, static_cast<unsigned>(dst.index), src.offset, dst.offset, size,
                                              channel_id, isNow, xfer_status);
}

template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
[[nodiscard]] __device__ __forceinline__ nixl_status_t nixlAtomicAdd(uint64_t value, nixlMemViewElem counter,
                                                                     unsigned channel_id = 0, nixl_gpu_flags_t flags = 0,
                                                                     nixlGpuXferStatusH* xfer_status = nullptr) {
  const bool isNow = (flags.bits & weftline::postDeferred) == 0;
  return nixlGpuPostSignalXferReq<LEVEL>(counter.mvh, static_cast<unsigned>(counter.index), value, counter.offset,
                                         channel_id, isNow, xfer_status);
}

// Where the peer's range is mapped here; null where only the host reaches it, and for an index that there is not.
__device__ __forceinline__ void* nixlGetPtr(nixlMemViewH mvh, size_t index) {
  const weftline::Opened request(mvh);
  if (index >= request.remoteCount) return nullptr;
  return weftline::directOf(request, {static_cast<weftline::u32>(index)});
}
