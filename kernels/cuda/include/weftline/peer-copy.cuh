// Copies bytes into memory that may be a peer's, by a group of threads: 16-byte vectors where both sides allow it.
//
// Nothing waits for the writes: whoever must know that they have arrived releases after them. Eight loads are under way
// per thread before the first store, because a link is kept busy by bytes in flight and not by threads.
#pragma once
#include "weftline/level.cuh"
#include "weftline/types.cuh"

namespace weftline {

template <Level level, typename Vector>
__device__ __forceinline__ void copyVectors(u8* to, const u8* from, u64 count) {
  constexpr u32 batch = 8;
  const u64 step = Group<level>::size();
  Vector* target = reinterpret_cast<Vector*>(to);
  const Vector* source = reinterpret_cast<const Vector*>(from);
  u64 index = Group<level>::index();
  for (; index + (batch - 1) * step < count; index += batch * step) {
    Vector values[batch];
#pragma unroll
    for (u32 part = 0; part < batch; ++part) values[part] = source[index + part * step];
#pragma unroll
    for (u32 part = 0; part < batch; ++part) target[index + part * step] = values[part];
  }
  for (; index < count; index += step) target[index] = source[index];
}

template <Level level>
__device__ __forceinline__ void copyToPeer(void* to, const void* from, u64 bytes) {
  u8* target = static_cast<u8*>(to);
  const u8* source = static_cast<const u8*>(from);
  const u64 targetAt = reinterpret_cast<u64>(to);
  const u64 sourceAt = reinterpret_cast<u64>(from);
  if (((targetAt ^ sourceAt) & 15) != 0) {
    if (((targetAt | sourceAt | bytes) & 3) == 0) copyVectors<level, u32>(target, source, bytes / 4);
    else copyVectors<level, u8>(target, source, bytes);
    return;
  }
  // Bytes before the first whole vector, the vectors, and what is left.
  const u64 toVector = (16 - (targetAt & 15)) & 15;
  const u64 head = toVector < bytes ? toVector : bytes;
  const u64 vectors = (bytes - head) / 16;
  const u64 tail = head + vectors * 16;
  copyVectors<level, u8>(target, source, head);
  copyVectors<level, uint4>(target + head, source + head, vectors);
  copyVectors<level, u8>(target + tail, source + tail, bytes - tail);
}

}  // namespace weftline
