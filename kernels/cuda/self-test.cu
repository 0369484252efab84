// Small kernels that show that a device, its memory and our headers work: used by the GPU tests.
#include "weftline/abi.cuh"
#include "weftline/copy/bulk-copy.cuh"
#include "weftline/types.cuh"
#include "weftline/wait.cuh"

using namespace weftline;

// words[i] = value + i; with no words at all it is the cheapest launch there is.
extern "C" __global__ void selfTestFill(const __grid_constant__ SelfTestFillArguments arguments) {
  u32* words = static_cast<u32*>(arguments.words);
  const u32 step = gridDim.x * blockDim.x;
  for (u32 index = blockIdx.x * blockDim.x + threadIdx.x; index < arguments.count; index += step) {
    words[index] = arguments.value + index;
  }
}

// Waits until the flag has reached the epoch, then answers; on a timeout it answers nothing and leaves a trap record.
extern "C" __global__ void selfTestWait(const __grid_constant__ SelfTestWaitArguments arguments) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  const WaitScope scope = {static_cast<TrapRecord*>(arguments.trap), trapKernelSelfTest, arguments.rank,
                           arguments.timeoutNs};
  const WaitFor whom = {arguments.peer, arguments.channel};
  if (!waitForEpoch(static_cast<const u32*>(arguments.flag), arguments.epoch, scope, whom)) return;
  storeReleaseSystem(static_cast<u32*>(arguments.answer), arguments.epoch);
}

// Copies rows through shared memory, two in flight per warp; dynamic shared memory: selfTestCopyRowsSharedBytes().
extern "C" __global__ void selfTestCopyRows(const __grid_constant__ SelfTestCopyRowsArguments arguments) {
  extern __shared__ __align__(128) u8 shared[];
  const u32 warps = blockDim.x / lanesPerWarp;
  const u32 warp = threadIdx.x / lanesPerWarp;
  u64* barriers = reinterpret_cast<u64*>(shared) + 2 * warp;
  u8* rows = shared + 1024 + 2ull * warp * arguments.rowBytes;
  if (laneIndex() == 0) {
    warpRowBarrierInit(&barriers[0]);
    warpRowBarrierInit(&barriers[1]);
  }
  __syncthreads();
  const u8* from = static_cast<const u8*>(arguments.from);
  u8* to = static_cast<u8*>(arguments.to);
  const u32 first = blockIdx.x * warps + warp;
  const u32 step = gridDim.x * warps;
  const u64 rowBytes = arguments.rowBytes;
  if (first < arguments.rows) warpLoadRow(rows, from + first * rowBytes, arguments.rowBytes, &barriers[0]);
  u32 turn = 0;
  for (u32 row = first; row < arguments.rows; row += step, ++turn) {
    const u32 slot = turn & 1;
    const u32 next = row + step;
    // The other slot was stored one turn ago and must have been read before it is loaded again.
    warpWaitStoresRead<0>();
    if (next < arguments.rows) {
      warpLoadRow(rows + (slot ^ 1) * rowBytes, from + next * rowBytes, arguments.rowBytes, &barriers[slot ^ 1]);
    }
    warpWaitRow(&barriers[slot], (turn >> 1) & 1);
    warpStoreRow(to + row * rowBytes, rows + slot * rowBytes, arguments.rowBytes);
    warpCommitStores();
  }
  warpWaitStoresWritten();
}
