// Copies bytes into memory that may be a peer's, by a group of threads: 16-byte vectors where both sides allow it.
//
// Nothing waits for the writes: a caller that must know that they have arrived releases after them. Eight loads are under way
// per thread before the first store, because a link is kept busy by bytes in flight and not by threads.
#pragma once
#include "weftline/level.cuh"
#include "weftline/types.cuh"

namespace weftline {

// Whole batches from `index` on, each thread's parts a group apart; the index behind them.
template <Level level, u32 batch, typename Vector, typename Index>
__device__ __forceinline__ Index copyBatches(Vector* target, const Vector* source, Index index, Index count) {
  const Index step = Group<level>::size();
  for (; index + (batch - 1) * step < count; index += batch * step) {
    Vector values[batch];
#pragma unroll
    for (u32 part = 0; part < batch; ++part) values[part] = source[index + part * step];
#pragma unroll
    for (u32 part = 0; part < batch; ++part) target[index + part * step] = values[part];
  }
  return index;
}

template <Level level, typename Vector>
__device__ __forceinline__ void copyVectors(u8* to, const u8* from, u64 count) {
  Vector* target = reinterpret_cast<Vector*>(to);
  const Vector* source = reinterpret_cast<const Vector*>(from);
  if constexpr (sizeof(Vector) == 16) {
    // Largest size: 2^34 bytes. A message of few vectors per thread keeps them under way together too.
    const u32 vectors = static_cast<u32>(count);
    u32 index = copyBatches<level, 8>(target, source, Group<level>::index(), vectors);
    index = copyBatches<level, 4>(target, source, index, vectors);
    index = copyBatches<level, 2>(target, source, index, vectors);
    copyBatches<level, 1>(target, source, index, vectors);
  } else {
    const u64 index = copyBatches<level, 8>(target, source, static_cast<u64>(Group<level>::index()), count);
    copyBatches<level, 1>(target, source, index, count);
  }
}

template <Level level>
__device__ __forceinline__ void copyToPeer(void* to, const void* from, u64 bytes) {
  u8* target = static_cast<u8*>(to);
  const u8* source = static_cast<const u8*>(from);
  const u64 targetAt = reinterpret_cast<u64>(to);
  const u64 sourceAt = reinterpret_cast<u64>(from);
  const u64 all = targetAt | sourceAt | bytes;
  if ((all & 15) == 0) return copyVectors<level, uint4>(target, source, bytes / 16);
  if (((targetAt ^ sourceAt) & 15) != 0 || bytes < 64) {
    if ((all & 7) == 0) return copyVectors<level, u64>(target, source, bytes / 8);
    if ((all & 3) == 0) return copyVectors<level, u32>(target, source, bytes / 4);
    return copyVectors<level, u8>(target, source, bytes);
  }
  // Bytes before the first whole vector, the vectors, and what is left.
  const u64 head = (16 - (targetAt & 15)) & 15;
  const u64 vectors = (bytes - head) / 16;
  const u64 tail = head + vectors * 16;
  copyVectors<level, u8>(target, source, head);
  copyVectors<level, uint4>(target + head, source + head, vectors);
  copyVectors<level, u8>(target + tail, source + tail, bytes - tail);
}

}  // namespace weftline
