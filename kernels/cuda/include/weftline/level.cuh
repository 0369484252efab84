// The threads that work together in a call of the device API: one thread, the 32 lanes of a warp, or all threads of a block.
//
// All of them make the call together, with the same arguments. A call without a level does not compile. At warp level
// puts wait, within their deadline, for lanes that come later; signal, flush and readSignal may also be called by some
// lanes alone, of which a signal needs lane 0; before other calls the lanes of a warp come together by __syncwarp().
#pragma once
#include "weftline/types.cuh"

namespace weftline {

enum class Level { Unnamed, Thread, Warp, Block };

constexpr u32 allLanes = 0xffffffffu;

template <Level level>
struct Group {
  static_assert(level == Level::Thread || level == Level::Warp || level == Level::Block,
                "name who makes this call together: <Level::Thread>, <Level::Warp> or <Level::Block>");

  __device__ __forceinline__ static u32 size() {
    if constexpr (level == Level::Thread) return 1;
    else if constexpr (level == Level::Warp) return lanesPerWarp;
    else return blockDim.x * blockDim.y * blockDim.z;
  }

  __device__ __forceinline__ static u32 index() {
    if constexpr (level == Level::Thread) return 0;
    else if constexpr (level == Level::Warp) return laneIndex();
    else return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }

  __device__ __forceinline__ static bool isLeader() { return index() == 0; }

  // The lanes of the warp that make this call together, for calls that not all lanes need to make. Groups of other levels
  // come whole.
  __device__ __forceinline__ static u32 callers() {
    if constexpr (level == Level::Warp) return __activemask();
    else return allLanes;
  }

  // The first of the callers; the leader of a group that came whole.
  __device__ __forceinline__ static bool isFirstOf(u32 callers) {
    if constexpr (level == Level::Warp) return laneIndex() == static_cast<u32>(__ffs(callers)) - 1;
    else return isLeader();
  }

  // ORDER: what a member did before is visible to all members after, so that a release by the leader publishes it.
  __device__ __forceinline__ static void synchronize(u32 callers = allLanes) {
    if constexpr (level == Level::Warp) __syncwarp(callers);
    else if constexpr (level == Level::Block) __syncthreads();
  }

  // What the first of the callers says, for all of them; synchronises.
  __device__ __forceinline__ static bool agree(bool firsts, u32 callers = allLanes) {
    if constexpr (level == Level::Thread) return firsts;
    else if constexpr (level == Level::Warp) return broadcast(firsts ? 1 : 0, callers) != 0;
    else return __syncthreads_or(isLeader() && firsts) != 0;
  }

  // The value of the first of the callers, for all of them; synchronises.
  template <class Value>
  __device__ __forceinline__ static Value broadcast(Value firsts, u32 callers = allLanes) {
    if constexpr (level == Level::Thread) return firsts;
    else if constexpr (level == Level::Warp) {
      // ORDER: a shuffle alone orders no memory; behind this, what the first has acquired is visible to the others.
      __syncwarp(callers);
      return __shfl_sync(callers, firsts, __ffs(callers) - 1);
    } else {
      __shared__ Value shared;
      // Behind the last call, whose value a slower thread may still have to read.
      __syncthreads();
      if (isLeader()) shared = firsts;
      __syncthreads();
      return shared;
    }
  }
};

}  // namespace weftline
