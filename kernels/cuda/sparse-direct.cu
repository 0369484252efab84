// Sparse sums of GPUs that reach each other: each rank puts the blocks that count into its window, and adds up what lies in the
// windows of all. The host says when a piece is there; nothing here waits.
#include "weftline/abi.cuh"
#include "weftline/collectives/move-range.cuh"
#include "weftline/collectives/reduce-range.cuh"
#include "weftline/types.cuh"

using namespace weftline;

namespace {

constexpr u32 warps = 8;
constexpr u32 threads = warps * lanesPerWarp;

__device__ __forceinline__ Share shareOfLane() { return {laneIndex(), lanesPerWarp}; }

__device__ __forceinline__ u32 bytesOf(u64 bytes, u32 block, u32 blockBytes) {
  const u64 left = bytes - static_cast<u64>(block) * blockBytes;
  return left < blockBytes ? static_cast<u32>(left) : blockBytes;
}

// A warp calls this: what one rank alone has is copied, not rounded. Blocks are short, so few loads of a source are under way.
__device__ __forceinline__ void sumBlock(const ReducedRun& run, u32 sources, u32 bytes) {
  using Of = ReducedOf<WEFTLINE_FORMAT>;
  if (sources == 1) {
    copyRange(run.targets[0], run.sources[0], bytes, shareOfLane());
    return;
  }
  // Windows are aligned.
  const u64 vectors = (addressBits(run.targets[0]) & 15) == 0 ? bytes / 16 : 0;
  const u64 next = reduceBatches<Of, 2>(run, sources, 1, reductionSum, laneIndex(), lanesPerWarp, vectors);
  reduceBatches<Of, 1>(run, sources, 1, reductionSum, next, lanesPerWarp, vectors);
  const u64 first = vectors * Of::perVector + laneIndex();
  reduceElements<Of>(run, sources, 1, reductionSum, first, lanesPerWarp, bytes / sizeof(typename Of::Element));
}

}  // namespace

// A warp for each block.
extern "C" __global__ void __launch_bounds__(threads) sparseShare(const __grid_constant__ SparseShareArguments a) {
  const u32 step = gridDim.x * warps;
  for (u32 block = blockIdx.x * warps + threadIdx.x / lanesPerWarp; block < a.blocks; block += step) {
    if (static_cast<const u8*>(a.marks)[block] != 0) continue;
    const u64 at = static_cast<u64>(block) * a.blockBytes;
    u8* to = static_cast<u8*>(a.shared) + at;
    const u8* from = static_cast<const u8*>(a.tensor) + at;
    copyRange(to, from, bytesOf(a.bytes, block, a.blockBytes), shareOfLane());
  }
}

// A warp for each block, which asks all ranks for it, a lane each. What none has is zero already.
extern "C" __global__ void __launch_bounds__(threads) sparseSum(const __grid_constant__ SparseSumArguments a) {
  __shared__ ReducedRun runs[warps];
  ReducedRun& run = runs[threadIdx.x / lanesPerWarp];
  const u32 lane = laneIndex();
  const u8* marks = lane < a.ranks ? static_cast<const u8*>(a.marks[lane]) : nullptr;
  const u8* shared = lane < a.ranks ? static_cast<const u8*>(a.shared[lane]) : nullptr;
  const u32 step = gridDim.x * warps;
  u32 own = 0;
  u32 sums = 0;
  for (u32 block = blockIdx.x * warps + threadIdx.x / lanesPerWarp; block < a.blocks; block += step) {
    const bool has = marks != nullptr && __ldcg(marks + block) == 0;
    const u32 holders = __ballot_sync(0xffffffffu, has);
    if (holders == 0) continue;
    own += (holders >> a.rank) & 1;
    ++sums;
    const u64 at = static_cast<u64>(block) * a.blockBytes;
    // Lanes may still read what the block before put there.
    __syncwarp();
    if (has) run.sources[__popc(holders & ((1u << lane) - 1))] = shared + at;
    if (lane == 0) run.targets[0] = static_cast<u8*>(a.output) + at;
    __syncwarp();
    sumBlock(run, __popc(holders), bytesOf(a.bytes, block, a.blockBytes));
  }
  if (lane != 0 || sums == 0) return;
  atomicAdd(static_cast<u32*>(a.found), own);
  atomicAdd(static_cast<u32*>(a.found) + 1, sums);
}
