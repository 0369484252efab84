// The dtypes whose rows are summed: a vector of 16 bytes as f32, and sums rounded back. To nearest, ties to even; NaN as on
// the CPU device, where every sum that is NaN has the same bits.
#pragma once
#include "weftline/abi.cuh"
#include "weftline/types.cuh"

namespace weftline {

struct Bf16Element {
  static constexpr u32 perVector = 8;

  static __device__ __forceinline__ void start(f32 (&sum)[8], const uint4& v) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 q = 0; q < 4; ++q) {
      sum[2 * q] = lowBf16ToFloat(words[q]);
      sum[2 * q + 1] = highBf16ToFloat(words[q]);
    }
  }

  static __device__ __forceinline__ void add(f32 (&sum)[8], const uint4& v) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 q = 0; q < 4; ++q) {
      sum[2 * q] += lowBf16ToFloat(words[q]);
      sum[2 * q + 1] += highBf16ToFloat(words[q]);
    }
  }

  static __device__ __forceinline__ uint4 round(const f32 (&sum)[8]) {
    return make_uint4(packBf16(sum[0], sum[1]), packBf16(sum[2], sum[3]), packBf16(sum[4], sum[5]),
                      packBf16(sum[6], sum[7]));
  }
};

struct F16Element {
  static constexpr u32 perVector = 8;

  static __device__ __forceinline__ f32 toFloat(u32 half) {
    f32 value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(half)));
    return value;
  }

  static __device__ __forceinline__ u32 pack(f32 low, f32 high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    // The instruction makes every NaN 0x7fff; here it is 0x7e00, as on the CPU device.
    const u32 nan = __vcmpeq2(pair, 0x7fff7fffu);
    return pair & ~(nan & 0x01ff01ffu);
  }

  static __device__ __forceinline__ void start(f32 (&sum)[8], const uint4& v) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 q = 0; q < 4; ++q) {
      sum[2 * q] = toFloat(words[q] & 0xffffu);
      sum[2 * q + 1] = toFloat(words[q] >> 16);
    }
  }

  static __device__ __forceinline__ void add(f32 (&sum)[8], const uint4& v) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 q = 0; q < 4; ++q) {
      sum[2 * q] += toFloat(words[q] & 0xffffu);
      sum[2 * q + 1] += toFloat(words[q] >> 16);
    }
  }

  static __device__ __forceinline__ uint4 round(const f32 (&sum)[8]) {
    return make_uint4(pack(sum[0], sum[1]), pack(sum[2], sum[3]), pack(sum[4], sum[5]), pack(sum[6], sum[7]));
  }
};

struct F32Element {
  static constexpr u32 perVector = 4;

  static __device__ __forceinline__ void start(f32 (&sum)[4], const uint4& v) {
    sum[0] = __uint_as_float(v.x);
    sum[1] = __uint_as_float(v.y);
    sum[2] = __uint_as_float(v.z);
    sum[3] = __uint_as_float(v.w);
  }

  static __device__ __forceinline__ void add(f32 (&sum)[4], const uint4& v) {
    sum[0] += __uint_as_float(v.x);
    sum[1] += __uint_as_float(v.y);
    sum[2] += __uint_as_float(v.z);
    sum[3] += __uint_as_float(v.w);
  }

  static __device__ __forceinline__ u32 bits(f32 value) {
    const u32 word = __float_as_uint(value);
    return (word & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : word;
  }

  static __device__ __forceinline__ uint4 round(const f32 (&sum)[4]) {
    return make_uint4(bits(sum[0]), bits(sum[1]), bits(sum[2]), bits(sum[3]));
  }
};

// The type for a number, as the host names the dtype.
template <u32 format>
struct ElementOf;
template <>
struct ElementOf<elementFormatBf16> : Bf16Element {};
template <>
struct ElementOf<elementFormatF16> : F16Element {};
template <>
struct ElementOf<elementFormatF32> : F32Element {};

}  // namespace weftline
