// How work is divided among blocks: neighbouring parts of rows to one block; and divisions that take little time.
#pragma once
#include "weftline/types.cuh"

namespace weftline {

// Division of numbers below 2^31 by one that is used several times: a fraction of the instructions and of the time of a
// division, which a kernel of a few microseconds feels.
struct Divisor {
  u32 by;
  f32 inverse;

  __device__ __forceinline__ explicit Divisor(u32 divisor)
      : by(divisor), inverse(__fdividef(1.0f, static_cast<f32>(divisor))) {}

  __device__ __forceinline__ u32 quotient(u32 number) const {
    // Hardly ever off, and mostly by one.
    u32 guess = __float2uint_rd(static_cast<f32>(number) * inverse);
    i32 rest = static_cast<i32>(number - guess * by);
#pragma unroll 1
    for (; rest < 0; rest += by) --guess;
#pragma unroll 1
    for (; rest >= static_cast<i32>(by); rest -= by) ++guess;
    return guess;
  }
};

// The parts of this block: begin to end - 1 of `all`. All blocks have as many or one more, and each works on few rows.
struct BlockShare {
  u32 begin;
  u32 end;

  __device__ __forceinline__ explicit BlockShare(u32 all) {
    const u32 each = Divisor(gridDim.x).quotient(all);
    const u32 more = all - each * gridDim.x;
    begin = blockIdx.x * each + min(blockIdx.x, more);
    end = begin + each + (blockIdx.x < more ? 1 : 0);
  }
};

}  // namespace weftline
