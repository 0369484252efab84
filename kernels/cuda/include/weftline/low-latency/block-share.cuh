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

// A group of blocks that does one part of a kernel's work. `index`: of this block in the group; `count` or more if it is not in it.
struct BlockTeam {
  u32 index;
  u32 count;

  __device__ __forceinline__ bool isIn() const { return index < count; }
};

__device__ __forceinline__ BlockTeam allBlocks() { return {blockIdx.x, gridDim.x}; }

// The parts of this block: begin to end - 1 of `all`. All blocks have as many or one more, and each works on few rows.
struct BlockShare {
  u32 begin;
  u32 end;

  __device__ __forceinline__ explicit BlockShare(u32 all, const BlockTeam& team = allBlocks()) {
    const u32 each = Divisor(team.count).quotient(all);
    const u32 more = all - each * team.count;
    begin = team.index * each + min(team.index, more);
    end = begin + each + (team.index < more ? 1 : 0);
  }
};

}  // namespace weftline
