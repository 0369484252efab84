// The kernels of `weftline 2proc`: one process puts bytes and a signal, the other waits for the signal.
#include "weftline/weftline.cuh"

using namespace weftline;

// One thread alone.
extern "C" __global__ void postWriteAndSignalThread(const __grid_constant__ TwoProcessWriteArguments a) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  const RequestHandle data = *static_cast<const RequestHandle*>(a.requests);
  for (u32 turn = 0; turn < a.pipeline; ++turn) {
    if (!postWrite<Level::Thread>(data, 0, 0, 0, a.bytes, 0, turn + 1 == a.pipeline)) return;
  }
  postSignal<Level::Thread>(a.signalRequest, 0, a.add, 0, 0, true);
}

// The lanes of a warp together; with a request per lane, each lane its own share.
extern "C" __global__ void postWriteAndSignalWarp(const __grid_constant__ TwoProcessWriteArguments a) {
  if (blockIdx.x != 0 || threadIdx.x >= lanesPerWarp) return;
  const RequestHandle* requests = static_cast<const RequestHandle*>(a.requests);
  bool isGood = true;
  for (u32 turn = 0; turn < a.pipeline && isGood; ++turn) {
    const bool isLast = turn + 1 == a.pipeline;
    if (a.requestCount == lanesPerWarp) {
      const u64 share = (a.bytes + lanesPerWarp - 1) / lanesPerWarp;
      const u64 begin = min(static_cast<u64>(laneIndex()) * share, a.bytes);
      const u64 end = min(begin + share, a.bytes);
      isGood = postWrite<Level::Thread>(requests[laneIndex()], begin, begin, 0, end - begin, 0, isLast);
    } else {
      isGood = postWrite<Level::Warp>(requests[0], 0, 0, 0, a.bytes, 0, isLast);
    }
    isGood = __all_sync(0xffffffffu, isGood);
  }
  if (isGood) postSignal<Level::Warp>(a.signalRequest, 0, a.add, 0, 0, true);
}

// All threads of a block together.
extern "C" __global__ void postWriteAndSignalBlock(const __grid_constant__ TwoProcessWriteArguments a) {
  if (blockIdx.x != 0) return;
  const RequestHandle data = *static_cast<const RequestHandle*>(a.requests);
  for (u32 turn = 0; turn < a.pipeline; ++turn) {
    if (!postWrite<Level::Block>(data, 0, 0, 0, a.bytes, 0, turn + 1 == a.pipeline)) return;
  }
  postSignal<Level::Block>(a.signalRequest, 0, a.add, 0, 0, true);
}

extern "C" __global__ void waitForSignal(const __grid_constant__ TwoProcessWaitArguments a) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  wait<Level::Thread>(a.counter, a.expected, static_cast<Waits>(a.waits));
}
