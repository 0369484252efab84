// Copies of whole rows between global and shared memory: the bulk copy engine from sm_90 on, 16-byte vectors before.
//
// Functions that begin with `warp` are called by all 32 lanes together and work everywhere. The others are the
// engine's own operations, called by one thread, and exist only where WEFTLINE_BULK_COPY is 1. Addresses and sizes are
// multiples of 16 bytes; a size stays below 1 MiB.
#pragma once
#include "weftline/memory-order.cuh"
#include "weftline/types.cuh"

#if __CUDA_ARCH__ >= 900
#define WEFTLINE_BULK_COPY 1
#else
#define WEFTLINE_BULK_COPY 0
#endif

namespace weftline {

#if WEFTLINE_BULK_COPY

__device__ __forceinline__ u32 sharedAddress(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// The barrier takes 8 bytes of shared memory and completes a phase after `arrivals` arrivals and all announced bytes.
__device__ __forceinline__ void barrierInit(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sharedAddress(barrier)), "r"(arrivals) : "memory");
}

// ORDER: after the barriers of a block are made, before the engine may complete on them.
__device__ __forceinline__ void fenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Ends the barrier, so that its memory may hold something else.
__device__ __forceinline__ void barrierInvalidate(u64* barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(sharedAddress(barrier)) : "memory");
}

// Arrives once and announces bytes that loads will bring in this phase.
__device__ __forceinline__ void barrierArriveExpect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sharedAddress(barrier)), "r"(bytes)
               : "memory");
}

// True when the phase of this parity is over; waits a little in hardware first.
__device__ __forceinline__ bool barrierTryWait(u64* barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(sharedAddress(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// Needs no deadline: a load of the copy engine ends or faults, whatever a peer does.
__device__ __forceinline__ void barrierWait(u64* barrier, u32 parity) {
  while (!barrierTryWait(barrier, parity)) {
  }
}

__device__ __forceinline__ void bulkLoad(void* shared, const void* global, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   sharedAddress(shared)),
               "l"(global), "r"(bytes), "r"(sharedAddress(barrier))
               : "memory");
}

__device__ __forceinline__ void bulkStore(void* global, const void* shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(sharedAddress(shared)),
               "r"(bytes)
               : "memory");
}

// Closes a group of this thread's stores.
__device__ __forceinline__ void bulkCommit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// At most `pending` groups of this thread have not yet read their shared memory, which may then be overwritten.
template <u32 pending>
__device__ __forceinline__ void bulkWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// At most `pending` groups of this thread have not yet written their global memory.
template <u32 pending>
__device__ __forceinline__ void bulkWait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

#endif

// 16 bytes per lane and step; `to` and `from` in any memory. No synchronisation.
__device__ __forceinline__ void warpCopyVectors(void* to, const void* from, u32 bytes) {
  const uint4* source = static_cast<const uint4*>(from);
  uint4* destination = static_cast<uint4*>(to);
  const u32 vectors = bytes / 16;
#pragma unroll 4
  for (u32 index = laneIndex(); index < vectors; index += lanesPerWarp) destination[index] = source[index];
}

// One thread calls it for the barrier of each warp, then the block synchronises.
__device__ __forceinline__ void warpRowBarrierInit(u64* barrier) {
#if WEFTLINE_BULK_COPY
  barrierInit(barrier, 1);
  fenceBarrierInit();
#else
  *barrier = 0;
#endif
}

// Begins to load a row. The warp's earlier accesses to that shared memory must be over (warpWaitStoresRead).
__device__ __forceinline__ void warpLoadRow(void* shared, const void* global, u32 bytes, u64* barrier) {
#if WEFTLINE_BULK_COPY
  __syncwarp();
  if (laneIndex() == 0) {
    barrierArriveExpect(barrier, bytes);
    bulkLoad(shared, global, bytes, barrier);
  }
#else
  __syncwarp();
  warpCopyVectors(shared, global, bytes);
#endif
}

// The row of the phase with this parity (0, 1, 0, ...) is there for all lanes.
__device__ __forceinline__ void warpWaitRow(u64* barrier, u32 parity) {
#if WEFTLINE_BULK_COPY
  barrierWait(barrier, parity);
#endif
  __syncwarp();
}

// Begins to store a row that the engine loaded, or that this warp wrote and then called warpRowWritten for.
__device__ __forceinline__ void warpStoreRow(void* global, const void* shared, u32 bytes) {
#if WEFTLINE_BULK_COPY
  if (laneIndex() == 0) bulkStore(global, shared, bytes);
#else
  warpCopyVectors(global, shared, bytes);
#endif
}

// Ordinary writes of this warp to shared memory are over and may be stored.
__device__ __forceinline__ void warpRowWritten() {
  fenceProxyAsyncShared();
  __syncwarp();
}

// Closes the group of stores since the last call.
__device__ __forceinline__ void warpCommitStores() {
#if WEFTLINE_BULK_COPY
  if (laneIndex() == 0) bulkCommit();
#endif
}

// All but the last `pending` groups have read their shared memory.
template <u32 pending>
__device__ __forceinline__ void warpWaitStoresRead() {
#if WEFTLINE_BULK_COPY
  if (laneIndex() == 0) bulkWaitRead<pending>();
#endif
  __syncwarp();
}

// All stores of this warp are written. ORDER: a release by lane 0 that follows publishes them, the engine's too.
__device__ __forceinline__ void warpWaitStoresWritten() {
#if WEFTLINE_BULK_COPY
  if (laneIndex() == 0) bulkWait<0>();
  fenceProxyAsync();
#endif
  __syncwarp();
}

}  // namespace weftline
