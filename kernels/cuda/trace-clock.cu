// Answers the host with the GPU's time, so that it can tell how far the clocks are apart.
#include "weftline/abi.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/types.cuh"
#include "weftline/wait.cuh"

using namespace weftline;

extern "C" __global__ void __launch_bounds__(32) traceClock(const __grid_constant__ TraceClockArguments a) {
  if (threadIdx.x != 0) return;
  TraceClockCells* cells = static_cast<TraceClockCells*>(a.cells);
  const u64 start = globalTimer();
  for (u32 round = 1; round <= a.rounds; ++round) {
    while (loadAcquireSystem(&cells->asked) < round) {
      if (globalTimer() - start > a.deadlineNs) return;
    }
    cells->time = globalTimer();
    // ORDER: publishes the time.
    storeReleaseSystem(&cells->answered, round);
  }
}
