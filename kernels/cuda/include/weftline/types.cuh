// Fixed-width types and bf16 as raw bits: all that the other headers and the kernels assume. Includes nothing, so that
// NVRTC compiles it without any include path.
#pragma once

namespace weftline {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
using f32 = float;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void*) == 8, "an LP64 target");

constexpr u32 lanesPerWarp = 32;

__device__ __forceinline__ u32 laneIndex() {
  u32 lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// Lane l gets the sum of lanes 0 to l. By all lanes.
__device__ __forceinline__ u32 warpInclusiveSum(u32 value) {
#pragma unroll
  for (u32 distance = 1; distance < lanesPerWarp; distance *= 2) {
    const u32 before = __shfl_up_sync(0xffffffffu, value, distance);
    if (laneIndex() >= distance) value += before;
  }
  return value;
}

// bf16 is the upper half of an f32; exact.
__device__ __forceinline__ f32 bf16ToFloat(u16 bits) {
  return __uint_as_float(static_cast<u32>(bits) << 16);
}

// Rounds to nearest, ties to even; every NaN becomes 0x7fc0, as on the CPU device.
__device__ __forceinline__ u16 floatToBf16(f32 value) {
  const u32 bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Two neighbours of a row lie in one word, the first in its lower half.
__device__ __forceinline__ f32 lowBf16ToFloat(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ f32 highBf16ToFloat(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ u32 packBf16(f32 low, f32 high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  // The instruction makes every NaN 0x7fff, which nothing else rounds to; here it is 0x7fc0, as on the CPU device.
  const u32 nan = __vcmpeq2(pair, 0x7fff7fffu);
  return pair & ~(nan & 0x003f003fu);
}

}  // namespace weftline
