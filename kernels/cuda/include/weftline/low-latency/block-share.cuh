// How work is divided among blocks: neighbouring parts of rows to one block.
#pragma once
#include "weftline/types.cuh"

namespace weftline {

// The parts of this block: begin to end - 1 of `all`. Rows lie far apart in memory, and the fewer of them a multiprocessor works
// on at a time, the fewer translations of addresses it needs.
struct BlockShare {
  u32 begin;
  u32 end;

  __device__ __forceinline__ explicit BlockShare(u32 all) {
    const u32 each = all / gridDim.x;
    const u32 more = all - each * gridDim.x;
    begin = blockIdx.x * each + min(blockIdx.x, more);
    end = begin + each + (blockIdx.x < more ? 1 : 0);
  }
};

}  // namespace weftline
