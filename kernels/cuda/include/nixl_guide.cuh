// The device API under the names and the argument order of NIXL's guide to its GPU kernels. The header of NIXL itself has another
// order: nixl_device.cuh. A kernel includes one of them.
//
// Differences: offsets may have 64 bits. A post that fails (a range that is not inside, an unknown flag, a deadline, a peer
// that is lost) ends the threads that made the call, because its result is void; no signal may tell of bytes that did not
// go. The host gets the error when it waits for the stream. A loop over nixlGpuReadSignal has no deadline; weftline::wait has.
#pragma once
#ifdef WEFTLINE_NIXL_DEVICE
#error "nixl_guide.cuh has another order of arguments than nixl_device.cuh: include one of them"
#endif
#define WEFTLINE_NIXL_GUIDE
#include "weftline/nixl-names.cuh"

namespace nixl_gpu_flags {
// The post may stay at this device until one without this flag follows, or one that waits for completion.
constexpr uint32_t defer = weftline::postDeferred;
}  // namespace nixl_gpu_flags

namespace weftline {

__device__ __forceinline__ void leaveUnless(bool isGood) {
  if (!isGood) asm volatile("exit;");
}

}  // namespace weftline

// Writes `size` bytes from `src_offset` of the request's local range to `dst_offset` of range `dst_rkey_idx` of its peer.
// With wait_completion they are visible there when it returns, and the source may change.
template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
__device__ __forceinline__ void nixlGpuPostSingleWriteXferReq(nixlGpuXferReqH req, uint64_t dst_offset, uint64_t src_offset,
                                                              uint32_t dst_rkey_idx, size_t size, uint32_t flags = 0,
                                                              bool wait_completion = false) {
  weftline::leaveUnless(weftline::postWrite<weftline::levelOf<LEVEL>>(
      weftline::handleOf(req), dst_offset, src_offset, dst_rkey_idx, size, flags, wait_completion));
}

// Adds `value` to the 64-bit counter at `offset` of range `dst_rkey_idx` of the request's peer, behind the writes before.
template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
__device__ __forceinline__ void nixlGpuPostSignalXferReq(nixlGpuXferReqH req, uint64_t offset, uint64_t value,
                                                         uint32_t dst_rkey_idx, uint32_t flags = 0,
                                                         bool wait_completion = false) {
  weftline::leaveUnless(weftline::postSignal<weftline::levelOf<LEVEL>>(weftline::handleOf(req), offset, value,
                                                                       dst_rkey_idx, flags, wait_completion));
}
