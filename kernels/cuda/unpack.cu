// Moves the fragments that blocks of a ring describe: unpack from the bounce buffer to their places, pack the other way.
//
// Small kernels move the fragments of up to 32 descriptors together, the others one after the other by a whole warp. What
// bounds them is how many bytes a multiprocessor has under way: all variants have 64 KiB.
#include "weftline/abi.cuh"
#include "weftline/unpack/blocks.cuh"
#include "weftline/types.cuh"
#include "weftline/wait.cuh"

using namespace weftline;

namespace {

constexpr u32 threads = WEFTLINE_WARPS * lanesPerWarp;
// Few warps have registers for more loads at a time, and for descriptors that come while others are being moved.
constexpr bool isWide = WEFTLINE_WARPS <= 16;
constexpr u32 batch = isWide ? 8 : 4;

__device__ __forceinline__ u32 slotIndex(const MoveFragmentsArguments& a, u32 block) {
  const u32 slot = a.firstSlot + block;
  return slot < a.slots ? slot : slot - a.slots;
}

__device__ __forceinline__ const u8* slotOf(const MoveFragmentsArguments& a, u32 block) {
  return slotAt(a.ring, slotIndex(a, block));
}

// All threads call this. False if a block was not ready in time; the record says which.
__device__ bool areReady(const MoveFragmentsArguments& a, u32 kernel) {
  __shared__ u32 isReady;
  const WaitScope scope = {static_cast<TrapRecord*>(a.trap), kernel, 0, a.timeoutNs};
  if (threadIdx.x == 0) {
    isReady = 1;
    for (u32 block = 0; block < a.blocks && isReady != 0; ++block) {
      const u32 slot = slotIndex(a, block);
      const DescriptorBlockHeader* header = reinterpret_cast<const DescriptorBlockHeader*>(slotAt(a.ring, slot));
      const u64* flag = static_cast<const u64*>(header->readyFlag);
      if (flag == nullptr || waitForThreshold(flag, header->readyThreshold, scope, {0, slot})) continue;
      // The record of the GPU holds the first wait that expired alone.
      storeRelaxedSystem(static_cast<u32*>(a.missed) + slot, 1);
      isReady = 0;
    }
  }
  __syncthreads();
  return isReady != 0;
}

template <bool packs, bool isSmall>
__device__ __forceinline__ void moveBlocks(const MoveFragmentsArguments& a) {
  if (a.waits != 0 && !areReady(a, packs ? trapKernelPack : trapKernelUnpack)) return;
  const u32 groups = a.groupsPerBlock * a.blocks;
  const u32 step = gridDim.x * (blockDim.x / lanesPerWarp);
  // Neighbours go to different multiprocessors.
  u32 at = blockIdx.x + (threadIdx.x / lanesPerWarp) * gridDim.x;
  const auto load = [&a](u32 group) {
    const u32 block = group / a.groupsPerBlock;
    return groupAt(slotOf(a, block), (group - block * a.groupsPerBlock) * a.groupDescriptors, a.groupDescriptors);
  };
  if constexpr (isWide) {
    if (at >= groups) return;
    Group next = load(at);
    for (; at < groups; at += step) {
      const Group group = next;
      if (at + step < groups) next = load(at + step);
      moveGroup<packs, isSmall, batch>(group);
    }
  } else {
    for (; at < groups; at += step) moveGroup<packs, isSmall, batch>(load(at));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(threads, 1) unpackSmall(const __grid_constant__ MoveFragmentsArguments a) {
  moveBlocks<false, true>(a);
}

extern "C" __global__ void __launch_bounds__(threads, 1) unpackLarge(const __grid_constant__ MoveFragmentsArguments a) {
  moveBlocks<false, false>(a);
}

extern "C" __global__ void __launch_bounds__(threads, 1) packSmall(const __grid_constant__ MoveFragmentsArguments a) {
  moveBlocks<true, true>(a);
}

extern "C" __global__ void __launch_bounds__(threads, 1) packLarge(const __grid_constant__ MoveFragmentsArguments a) {
  moveBlocks<true, false>(a);
}
