// What NIXL's names have in common, in whichever order the arguments of its posts are: types, levels and counters. Kernels
// include nixl_device.cuh or nixl_guide.cuh.
#pragma once
#ifdef __CUDACC_RTC__
// NVRTC has no headers. Other libraries that name these types for it name the same ones.
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using uintptr_t = uint64_t;
using size_t = decltype(sizeof(0));
#else
#include <cstddef>
#include <cstdint>
#endif
#include "weftline/weftline.cuh"

// WARP: all 32 lanes of a warp write together, and wait for each other within the deadline; a signal may be posted by lane 0
// alone. Between code that takes lanes different ways and a signal by several lanes belongs a __syncwarp().
enum class nixl_gpu_level_t : uint64_t { THREAD = 0, WARP = 1, BLOCK = 2 };

// Made by DeviceHost.createGpuReq().
using nixlGpuXferReqH = const weftline::DeviceRequest*;

namespace weftline {

template <nixl_gpu_level_t level>
constexpr Level levelOf = level == nixl_gpu_level_t::THREAD ? Level::Thread
                          : level == nixl_gpu_level_t::WARP ? Level::Warp
                          : level == nixl_gpu_level_t::BLOCK ? Level::Block
                                                             : Level::Unnamed;

__device__ __forceinline__ RequestHandle handleOf(nixlGpuXferReqH request) {
  return reinterpret_cast<RequestHandle>(request);
}

}  // namespace weftline

// The counter's value; what peers wrote before the signals that it counts is then visible to the callers.
template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
__device__ __forceinline__ uint64_t nixlGpuReadSignal(const void* signal_ptr) {
  return weftline::readSignal<weftline::levelOf<LEVEL>>(signal_ptr);
}

// Sets a counter of this device, while no peer adds to it.
template <nixl_gpu_level_t LEVEL = nixl_gpu_level_t::THREAD>
__device__ __forceinline__ void nixlGpuWriteSignal(void* signal_ptr, uint64_t value) {
  weftline::writeSignal<weftline::levelOf<LEVEL>>(signal_ptr, value);
}
