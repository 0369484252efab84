// A put of few bytes, a signal behind it, and the news of both to the host: what a channel between two GPUs enqueues.
#include "weftline/abi.cuh"
#include "weftline/memory-order.cuh"
#include "weftline/copy/peer-copy.cuh"
#include "weftline/types.cuh"

using namespace weftline;

// One block.
extern "C" __global__ void channelPut(const __grid_constant__ ChannelPutArguments a) {
  copyToPeer<Level::Block>(a.to, a.from, a.bytes);
  __syncthreads();
  if (threadIdx.x != 0) return;
  // ORDER: the bytes, then the counter, then the news.
  if (a.counter != nullptr) addReleaseSystem(static_cast<u64*>(a.counter), a.add);
  storeReleaseSystem(static_cast<u32*>(a.done), a.operations);
}
