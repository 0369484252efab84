// How warps share the descriptors of blocks in a ring.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/copy/fragments.cuh"
#include "weftline/types.cuh"

namespace weftline {

constexpr u32 allLanes = 0xffffffffu;

// The first 32 bytes of a slot's header. Two accesses of 16 bytes, which all lanes of a warp make together.
struct BlockHead {
  u32 count;
  u32 isSmall;
  // Words in the rings of kernels that stay: descriptors that a warp takes at a time, and the warp that takes the first ones.
  u32 groupDescriptors;
  u32 firstWarp;
  u8* bounce;
  u8* destination;
};

__device__ __forceinline__ const u8* slotAt(const void* ring, u32 slot) {
  return static_cast<const u8*>(ring) + static_cast<u64>(slot) * ringSlotBytes;
}

__device__ __forceinline__ u64 joined(u32 low, u32 high) { return static_cast<u64>(high) << 32 | low; }

__device__ __forceinline__ BlockHead headOf(const u8* slot) {
  const uint4 first = loadOnce(reinterpret_cast<const uint4*>(slot));
  const uint4 second = loadOnce(reinterpret_cast<const uint4*>(slot) + 1);
  BlockHead head;
  head.count = first.x;
  head.isSmall = first.y;
  head.groupDescriptors = first.z;
  head.firstWarp = first.w;
  head.bounce = reinterpret_cast<u8*>(joined(second.x, second.y));
  head.destination = reinterpret_cast<u8*>(joined(second.z, second.w));
  return head;
}

// x: source offset, y: length, z and w: destination offset.
template <bool packs>
__device__ __forceinline__ Fragment fragmentOf(const BlockHead& head, uint4 descriptor) {
  u8* const inBounce = head.bounce + descriptor.x;
  u8* const inDestination = head.destination + joined(descriptor.z, descriptor.w);
  if (packs) return {inBounce, inDestination, descriptor.y};
  return {inDestination, inBounce, descriptor.y};
}

// Descriptors that a warp takes at a time: lane l has the l-th of them.
struct Group {
  BlockHead head;
  uint4 descriptor;
  u32 count;
};

// Descriptors of a slot whose header is known.
__device__ __forceinline__ Group groupOf(const BlockHead& head, const u8* slot, u32 first, u32 most) {
  const u32 lane = laneIndex();
  Group group;
  group.head = head;
  const u32 left = head.count > first ? head.count - first : 0;
  group.count = min(left, most);
  group.descriptor = make_uint4(0, 0, 0, 0);
  if (lane < group.count) {
    group.descriptor = loadOnce(reinterpret_cast<const uint4*>(slot + sizeof(DescriptorBlockHeader)) + first + lane);
  }
  return group;
}

// The loads do not wait for each other: a descriptor behind the last one is loaded too, and forgotten.
__device__ __forceinline__ Group groupAt(const u8* slot, u32 first, u32 most) {
  const u32 lane = laneIndex();
  Group group;
  uint4 descriptor = make_uint4(0, 0, 0, 0);
  if (lane < most && first + lane < ringDescriptors) {
    descriptor = loadOnce(reinterpret_cast<const uint4*>(slot + sizeof(DescriptorBlockHeader)) + first + lane);
  }
  group.head = headOf(slot);
  const u32 left = group.head.count > first ? group.head.count - first : 0;
  group.count = min(left, most);
  group.descriptor = lane < group.count ? descriptor : make_uint4(0, 0, 0, 0);
  return group;
}

// The same for all lanes.
__device__ __forceinline__ uint4 descriptorAt(const Group& group, u32 lane) {
  uint4 one;
  one.x = __shfl_sync(allLanes, group.descriptor.x, lane);
  one.y = __shfl_sync(allLanes, group.descriptor.y, lane);
  one.z = __shfl_sync(allLanes, group.descriptor.z, lane);
  one.w = __shfl_sync(allLanes, group.descriptor.w, lane);
  return one;
}

template <bool packs, bool isSmall, u32 batch>
__device__ __forceinline__ void moveGroup(const Group& group) {
  if constexpr (isSmall) {
    moveFragments<batch>(fragmentOf<packs>(group.head, group.descriptor));
  } else {
    for (u32 lane = 0; lane < group.count; ++lane) {
      moveFragment<batch>(fragmentOf<packs>(group.head, descriptorAt(group, lane)));
    }
  }
}

}  // namespace weftline
