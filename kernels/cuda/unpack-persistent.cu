// Unpacks and packs without a launch per chunk: the kernel stays, takes the blocks that the host posts into a ring of mapped
// memory, and leaves when it is told to or when nothing was posted for a while, so it outlives no owner.
//
// The first thread block looks at the host's counter and tells the others, which look at device memory alone. They need
// not run at the same time: what was posted stays posted until every one of them has taken its share.
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

// Of the thread that speaks with the host.
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

// Of the other blocks. Their leader always leaves a word when it leaves; the deadline is for a defect.
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

// By all threads of a block: its share of one slot.
template <bool packs>
__device__ __forceinline__ void moveShare(const u8* slot) {
  const BlockHead head = headOf(slot);
  const u32 warps = gridDim.x * (threads / lanesPerWarp);
  const u32 most = min((head.count + warps - 1) / warps, lanesPerWarp);
  for (u32 group = blockIdx.x + threadIdx.x / lanesPerWarp * gridDim.x; group * most < head.count; group += warps) {
    const Group descriptors = groupAt(slot, group * most, most);
    if (head.isSmall != 0) moveGroup<packs, true, batch>(descriptors);
    else moveGroup<packs, false, batch>(descriptors);
  }
}

template <bool packs>
__device__ __forceinline__ void serve(const PersistentArguments& a) {
  __shared__ News news;
  __shared__ u32 isReady;
  u32* const done = reinterpret_cast<u32*>(static_cast<u8*>(a.control) + sizeof(PersistentControl));
  u32* const arrived = reinterpret_cast<u32*>(static_cast<u8*>(a.shared) + sizeof(PersistentShared));
  const WaitScope scope = scopeOf(a, packs ? trapKernelPack : trapKernelUnpack);
  u32 taken = a.taken;
  u32 index = a.firstSlot;
  for (u32 isLast = 0; isLast == 0;) {
    __syncthreads();
    if (threadIdx.x == 0) news = blockIdx.x == 0 ? askHost(a, taken) : askLeader(a, taken, scope);
    __syncthreads();
    const u32 posted = news.posted;
    isLast = news.isLast;
    for (; taken != posted; ++taken, index = index + 1 == a.slots ? 0 : index + 1) {
      const u8* const slot = slotAt(a.ring, index);
      if (threadIdx.x == 0) {
        const DescriptorBlockHeader* const header = reinterpret_cast<const DescriptorBlockHeader*>(slot);
        const u64* const flag = static_cast<const u64*>(header->readyFlag);
        isReady = flag == nullptr || waitForThreshold(flag, header->readyThreshold, scope, {0, index});
        // ORDER: before this block arrives, so before the slot is done.
        if (isReady == 0) storeRelaxedSystem(static_cast<u32*>(a.missed) + index, 1);
      }
      __syncthreads();
      if (isReady != 0) moveShare<packs>(slot);
      __syncthreads();
      // ORDER: what the threads of this block have stored is published by its first, what all blocks have by the last one.
      if (threadIdx.x == 0 && fetchAddAcquireReleaseGpu(&arrived[index], 1) == gridDim.x - 1) {
        arrived[index] = 0;
        storeReleaseSystem(&done[index], taken + 1);
      }
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
