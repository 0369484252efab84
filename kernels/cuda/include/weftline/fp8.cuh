// bf16 to fp8 e4m3fn with one scale for each 128 columns, and back.
//
// The same bits as kernels/wasm/fp8.ts on every architecture: converted by integers, or by an instruction where there is one.
#pragma once
#include "weftline/types.cuh"

namespace weftline {

constexpr f32 fp8Max = 448.0f;
constexpr f32 smallestAmax = 1e-4f;
// The largest finite bf16: what an infinity counts as, and every larger f32.
constexpr u32 bf16MaxBits = 0x7f7f;

// Rounds to nearest, ties to even, saturating at 448; NaN becomes 0x7f.
__device__ __forceinline__ u32 toE4m3(f32 value) {
  if (value != value) return 0x7fu;
  const u32 sign = (__float_as_uint(value) >> 24) & 0x80u;
  const f32 magnitude = fminf(fabsf(value), fp8Max);
  if (magnitude < 0.015625f) {
    // Next to 2^14 an f32 counts in steps of 2^-9, the smallest e4m3, so the addition itself rounds.
    return sign | (__float_as_uint(__fadd_rn(magnitude, 16384.0f)) - __float_as_uint(16384.0f));
  }
  const u32 bits = __float_as_uint(magnitude);
  return sign | (((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3));
}

#if __CUDA_ARCH__ >= 890
// Two numbers to nearest, ties to even, saturating at 448; the first one lowest.
__device__ __forceinline__ u32 toE4m3Pair(f32 low, f32 high) {
  u16 codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
#endif

// Exact: its bits are those of an f32 that is 2^120 times too small.
__device__ __forceinline__ f32 fromE4m3(u32 code) {
  const u32 magnitude = code & 0x7fu;
  const f32 value = magnitude == 0x7fu ? __uint_as_float(0x7fc00000u)
                                       : __uint_as_float(magnitude << 20) * 1.329227995784916e36f;
  return __uint_as_float(__float_as_uint(value) | ((code & 0x80u) << 24));
}

// Four neighbours, the first one lowest. No code is 0xff, so four of them are never lowLatencyEmpty.
__device__ __forceinline__ u32 toE4m3(f32 first, f32 second, f32 third, f32 fourth) {
#if __CUDA_ARCH__ >= 890
  return toE4m3Pair(first, second) | toE4m3Pair(third, fourth) << 16;
#else
  return toE4m3(first) | toE4m3(second) << 8 | toE4m3(third) << 16 | toE4m3(fourth) << 24;
#endif
}

// The same of bf16, times a scale.
__device__ __forceinline__ u32 toE4m3(uint2 pairs, f32 scale) {
  return toE4m3(lowBf16ToFloat(pairs.x) * scale, highBf16ToFloat(pairs.x) * scale, lowBf16ToFloat(pairs.y) * scale,
                highBf16ToFloat(pairs.y) * scale);
}

// Bits of a bf16 without its sign, 0 for NaN. As integers, magnitudes order like the numbers they stand for.
__device__ __forceinline__ u32 magnitudeOf(u16 bits) {
  const u32 magnitude = bits & 0x7fffu;
  return magnitude <= 0x7f80u ? magnitude : 0;
}

// The larger one of two neighbours.
__device__ __forceinline__ u32 magnitudeOf(u32 pair) {
  return max(magnitudeOf(static_cast<u16>(pair)), magnitudeOf(static_cast<u16>(pair >> 16)));
}

// The largest one of eight neighbours.
__device__ __forceinline__ u32 magnitudeOf(uint4 eight) {
  const u32 larger = __vmaxu2(__vmaxu2(eight.x & 0x7fff7fffu, eight.y & 0x7fff7fffu),
                              __vmaxu2(eight.z & 0x7fff7fffu, eight.w & 0x7fff7fffu));
  const u32 most = max(larger & 0xffffu, larger >> 16);
  if (most <= 0x7f80u) return most;
  // One of them is NaN.
  return max(max(magnitudeOf(eight.x), magnitudeOf(eight.y)), max(magnitudeOf(eight.z), magnitudeOf(eight.w)));
}

struct Fp8Scale {
  // What the group's elements are multiplied by, and what a reader multiplies them by.
  f32 factor;
  f32 stored;
};

// `largest`: the largest magnitude of the group, no larger than that of a bf16.
__device__ __forceinline__ Fp8Scale fp8ScaleOf(f32 largest, bool isRounded) {
  const f32 amax = fmaxf(largest, smallestAmax);
  Fp8Scale scale = {fp8Max / amax, amax / fp8Max};
  if (!isRounded) return scale;
  // The exponent of the next power of two: one more than that of `stored`, unless its mantissa is zero.
  const u32 exponent = (__float_as_uint(scale.stored) + 0x7fffffu) >> 23;
  return {__uint_as_float((254u - exponent) << 23), __uint_as_float(exponent << 23)};
}

// `most`: the same as the bits of a bf16.
__device__ __forceinline__ Fp8Scale fp8ScaleOf(u32 most, bool isRounded) {
  return fp8ScaleOf(__uint_as_float(min(most, bf16MaxBits) << 16), isRounded);
}

}  // namespace weftline
