// Unpacks and packs without a launch per chunk: the kernel stays, takes the blocks that the host posts into a ring of mapped
// memory, and leaves when it is told to or when nothing was posted for a while, so it outlives no owner.
//
// The thread block that begins first looks at the host's counter and tells the others, which look at device memory alone.
// They need not run at the same time: what was posted stays posted until every one of them has taken its share.
#include "weftline/abi.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/unpack/blocks.cuh"
#include "weftline/types.cuh"
#include "weftline/wait.cuh"

using namespace weftline;

namespace {

constexpr u32 threads = 512;
constexpr u32 batch = 8;
constexpr u32 pollsPerLook = 16;

struct News {
  u32 posted;
  // Nothing comes behind what is posted.
  u32 isLast;
};

__device__ __forceinline__ WaitScope scopeOf(const PersistentArguments& a, u32 kernel) {
  return {static_cast<TrapRecord*>(a.trap), kernel, 0, a.timeoutNs};
}

// State of the thread that speaks with the host.
__device__ News askHost(const PersistentArguments& a, u32 taken) {
  PersistentControl* const control = static_cast<PersistentControl*>(a.control);
  PersistentShared* const shared = static_cast<PersistentShared*>(a.shared);
  const u64 start = globalTimer();
  for (u32 polls = 1;; ++polls) {
    u32 posted = loadAcquireSystem(&control->posted);
    if (posted == taken) {
      if (polls % pollsPerLook != 0) continue;
      if (globalTimer() - start < a.idleNs && loadRelaxedSystem(&control->mustStop) == 0) continue;
      storeRelaxedSystem(&control->taken, taken);
      storeRelaxedSystem(&control->state, persistentStateLeaves);
      // ORDER: the host posts, then reads the state. Either it sees this one, or its post is seen here.
      fenceSequentialSystem();
      posted = loadAcquireSystem(&control->posted);
      if (posted == taken) {
        storeReleaseGpu(&shared->leaving, a.generation);
        storeReleaseSystem(&control->state, persistentStateLeft);
        return {taken, 1};
      }
      storeReleaseSystem(&control->state, persistentStateRuns);
    }
    storeReleaseGpu(&shared->posted, posted);
    return {posted, 0};
  }
}

// The wait of the other blocks. Their leader always leaves a word when it leaves; the deadline is for a defect.
__device__ News askLeader(const PersistentArguments& a, u32 taken, const WaitScope& scope) {
  const PersistentShared* const shared = static_cast<const PersistentShared*>(a.shared);
  const u64 most = a.idleNs + a.timeoutNs * (a.slots + 1);
  const u64 start = globalTimer();
  for (u32 polls = 1;; ++polls) {
    const u32 posted = loadAcquireGpu(&shared->posted);
    if (posted != taken) return {posted, 0};
    if (loadAcquireGpu(&shared->leaving) == a.generation) return {loadAcquireGpu(&shared->posted), 1};
    if (polls % pollsPerLook != 0 || globalTimer() - start < most) continue;
    recordTrap(scope, {0, a.firstSlot}, taken + 1, posted);
    return {taken, 1};
  }
}

// Slots that are moved together, none of which waits but for the first one.
struct Batch {
  u32 slots;
  // The warp that takes the first group, and how many groups all slots have, up to each slot's end.
  u32 firstWarp;
  u32 groupEnds[lanesPerWarp];
  BlockHead heads[lanesPerWarp];
};

__device__ __forceinline__ u32 slotBehind(const PersistentArguments& a, u32 index, u32 distance) {
  return (index + distance) % a.slots;
}

// One warp calls this: reads the headers of the slots from `index` on, all at once, and waits for the flag of the first.
__device__ __forceinline__ void makeBatch(const PersistentArguments& a, u32 index, u32 left, const WaitScope& scope, Batch& batch) {
  const u32 lane = laneIndex();
  const u32 slot = slotBehind(a, index, lane);
  BlockHead head = {};
  const u64* flag = nullptr;
  u64 threshold = 0;
  if (lane < left) {
    const u8* const memory = slotAt(a.ring, slot);
    const DescriptorBlockHeader* const header = reinterpret_cast<const DescriptorBlockHeader*>(memory);
    head = headOf(memory);
    flag = static_cast<const u64*>(header->readyFlag);
    threshold = header->readyThreshold;
  }
  const u32 count = head.count;
  const u32 later = __ballot_sync(allLanes, flag != nullptr) & ~1u;
  const u32 slots = min(min(left, lanesPerWarp), later == 0 ? lanesPerWarp : static_cast<u32>(__ffs(later)) - 1);
  if (lane == 0 && flag != nullptr && !waitForThreshold(flag, threshold, scope, {0, slot})) {
    // ORDER: before this block arrives, so before the slot is done.
    storeRelaxedSystem(static_cast<u32*>(a.missed) + slot, 1);
    head.count = 0;
  }
  // A slot that was missed counts, too: what each warp takes of a slot does not depend on what this block found.
  const u32 groups = lane < slots && count != 0 ? (count + head.groupDescriptors - 1) / head.groupDescriptors : 0;
  batch.groupEnds[lane] = warpInclusiveSum(groups);
  batch.heads[lane] = head;
  if (lane == 0) batch.firstWarp = head.firstWarp;
  batch.slots = slots;
}

// All warps call this: those groups of a batch that are this warp's. The host numbers the groups of all slots in the order of posts, and
// the warps take turns: blocks that have other slots in their batch find the same share of each.
template <bool packs>
__device__ __forceinline__ void moveShare(const PersistentArguments& a, u32 index, const Batch& slots) {
  const u32 lane = laneIndex();
  const u32 warps = gridDim.x * (threads / lanesPerWarp);
  const u32 groupEnd = slots.groupEnds[lane];
  const u32 groups = __shfl_sync(allLanes, groupEnd, lanesPerWarp - 1);
  const auto load = [&](u32 group) {
    const u32 slot = __popc(__ballot_sync(allLanes, groupEnd <= group));
    const u32 start = slot == 0 ? 0 : slots.groupEnds[slot - 1];
    const u8* const memory = slotAt(a.ring, slotBehind(a, index, slot));
    const BlockHead& head = slots.heads[slot];
    return groupOf(head, memory, (group - start) * head.groupDescriptors, head.groupDescriptors);
  };
  const u32 warp = blockIdx.x + threadIdx.x / lanesPerWarp * gridDim.x;
  u32 at = (warp + warps - slots.firstWarp) % warps;
  if (at >= groups) return;
  Group next = load(at);
  for (; at < groups; at += warps) {
    const Group group = next;
    if (at + warps < groups) next = load(at + warps);
    if (group.head.isSmall != 0) moveGroup<packs, true, batch>(group);
    else moveGroup<packs, false, batch>(group);
  }
}

template <bool packs>
__device__ __forceinline__ void serve(const PersistentArguments& a) {
  __shared__ News news;
  __shared__ Batch slots;
  __shared__ bool leads;
  u32* const done = static_cast<u32*>(a.done);
  u32* const arrived = reinterpret_cast<u32*>(static_cast<u8*>(a.shared) + sizeof(PersistentShared));
  const WaitScope scope = scopeOf(a, packs ? trapKernelPack : trapKernelUnpack);
  // Whoever waits for the leader waits for a block that runs.
  if (threadIdx.x == 0) leads = atomicInc(&static_cast<PersistentShared*>(a.shared)->begun, gridDim.x - 1) == 0;
  u32 taken = a.taken;
  u32 index = a.firstSlot;
  for (u32 isLast = 0; isLast == 0;) {
    __syncthreads();
    if (threadIdx.x == 0) news = leads ? askHost(a, taken) : askLeader(a, taken, scope);
    __syncthreads();
    const u32 posted = news.posted;
    isLast = news.isLast;
    while (taken != posted) {
      if (threadIdx.x < lanesPerWarp) makeBatch(a, index, posted - taken, scope, slots);
      __syncthreads();
      moveShare<packs>(a, index, slots);
      const u32 count = slots.slots;
      __syncthreads();
      // ORDER: what the threads of this block have stored is published by one of them, what all blocks have by the last one.
      if (threadIdx.x < count) {
        const u32 slot = slotBehind(a, index, threadIdx.x);
        if (fetchAddAcquireReleaseGpu(&arrived[slot], 1) == gridDim.x - 1) {
          arrived[slot] = 0;
          storeReleaseSystem(&done[slot], taken + threadIdx.x + 1);
        }
      }
      taken += count;
      index = slotBehind(a, index, count);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(threads, 1) unpackPersistent(const __grid_constant__ PersistentArguments a) {
  serve<false>(a);
}

extern "C" __global__ void __launch_bounds__(threads, 1) packPersistent(const __grid_constant__ PersistentArguments a) {
  serve<true>(a);
}
