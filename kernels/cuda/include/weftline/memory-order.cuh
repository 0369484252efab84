// Loads, stores and additions with an order: .gpu for blocks of this GPU, .sys for peers and the host as well.
#pragma once
#include "weftline/types.cuh"

namespace weftline {

// ORDER: what another thread wrote before its release is visible after an acquire that reads the released value.

__device__ __forceinline__ u32 loadAcquireSystem(const u32* word) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ u64 loadAcquireSystem(const u64* word) {
  u64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ u32 loadAcquireGpu(const u32* word) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ u64 loadAcquireGpu(const u64* word) {
  u64 value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ void storeReleaseSystem(u32* word, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void storeReleaseSystem(u64* word, u64 value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void storeReleaseGpu(u32* word, u32 value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// For threads of the same block; words of shared memory, too.
__device__ __forceinline__ u32 loadAcquireBlock(const u32* word) {
  u32 value;
  asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ void storeReleaseBlock(u32* word, u32 value) {
  asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// No order of its own: combine with a fence, or use where only the word itself matters.
__device__ __forceinline__ u32 loadRelaxedSystem(const u32* word) {
  u32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ void storeRelaxedSystem(u32* word, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ u64 loadRelaxedSystem(const u64* word) {
  u64 value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ void storeRelaxedSystem(u64* word, u64 value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void storeRelaxedSystem(u8* byte, u8 value) {
  asm volatile("st.relaxed.sys.global.u8 [%0], %1;" ::"l"(byte), "r"(static_cast<u32>(value)) : "memory");
}

// Both halves at once: a thread that reads the new value of one half reads that of the other as well. At a multiple of 16.
__device__ __forceinline__ void storeRelaxedSystem(void* pair, u64 low, u64 high) {
  asm volatile(
      "{\n\t.reg .b128 both;\n\tmov.b128 both, {%1, %2};\n\tst.relaxed.sys.global.b128 [%0], both;\n\t}" ::"l"(pair),
      "l"(low), "l"(high)
      : "memory");
}

__device__ __forceinline__ void loadRelaxedSystem(const void* pair, u64& low, u64& high) {
  asm volatile("{\n\t.reg .b128 both;\n\tld.relaxed.sys.global.b128 both, [%2];\n\tmov.b128 {%0, %1}, both;\n\t}"
               : "=l"(low), "=l"(high)
               : "l"(pair)
               : "memory");
}

// Words that are written and read one by one, whatever their order, but by one instruction.
__device__ __forceinline__ void storeWordsSystem(uint2* to, uint2 words) {
  asm volatile("st.relaxed.sys.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words.x), "r"(words.y) : "memory");
}

__device__ __forceinline__ void storeWordsSystem(uint4* to, uint4 words) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z),
               "r"(words.w)
               : "memory");
}

__device__ __forceinline__ void loadWordsSystem(const uint2* from, uint2& words) {
  asm volatile("ld.relaxed.sys.global.v2.b32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "l"(from) : "memory");
}

__device__ __forceinline__ void loadWordsSystem(const uint4* from, uint4& words) {
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
}

// Adds without returning the old value, which spares the round trip to a peer.
__device__ __forceinline__ void addReleaseSystem(u32* word, u32 value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void addReleaseSystem(u64* word, u64 value) {
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void addRelaxedSystem(u32* word, u32 value) {
  asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void addRelaxedSystem(u64* word, u64 value) {
  asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// Also for mapped memory of the host, which most GPUs cannot add to at system scope: the host then only reads the word.
__device__ __forceinline__ void addRelaxedGpu(u64* word, u64 value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void addReleaseGpu(u32* word, u32 value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// Returns the value before.
__device__ __forceinline__ u32 fetchAddAcquireReleaseGpu(u32* word, u32 value) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(value) : "memory");
  return before;
}

// The same for a count that goes back to 0 behind `last`.
__device__ __forceinline__ u32 fetchWrapAcquireReleaseGpu(u32* word, u32 last) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(last) : "memory");
  return before;
}

__device__ __forceinline__ u32 fetchAddAcquireReleaseSystem(u32* word, u32 value) {
  u32 before;
  asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(value) : "memory");
  return before;
}

// Returns the value before; equal to `expected` when `desired` was stored.
__device__ __forceinline__ u32 compareExchangeGpu(u32* word, u32 expected, u32 desired) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(before)
               : "l"(word), "r"(expected), "r"(desired)
               : "memory");
  return before;
}

__device__ __forceinline__ void fenceGpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ void fenceSystem() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// ORDER: of two parties that each store, pass this and then load what the other stored, at least one sees the other's store.
__device__ __forceinline__ void fenceSequentialSystem() { asm volatile("fence.sc.sys;" ::: "memory"); }

// Between ordinary accesses and those of the bulk copy engine, both ways, all memory. Nothing to order before sm_90.
__device__ __forceinline__ void fenceProxyAsync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// The same for this block's shared memory only.
__device__ __forceinline__ void fenceProxyAsyncShared() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace weftline
