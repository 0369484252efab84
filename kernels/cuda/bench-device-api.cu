// What the device API reaches: bytes per second of put, the way of 8 bytes with a signal, commands per second.
#include "weftline/weftline.cuh"

using namespace weftline;

extern "C" __global__ void __launch_bounds__(512, 1) benchDevicePut(const __grid_constant__ BenchDevicePutArguments a) {
  const Opened request = static_cast<Request>(a.request);
  // Shares are whole vectors.
  const u64 share = ((a.bytes + gridDim.x - 1) / gridDim.x + 15) / 16 * 16;
  const u64 begin = min(blockIdx.x * share, a.bytes);
  const u64 size = min(begin + share, a.bytes) - begin;
  for (u32 message = 0; message < a.messages; ++message) {
    const u64 place = message % a.places * a.stride + begin;
    if (!put<Level::Block>(request, place, place, size)) return;
  }
  signal<Level::Block>(static_cast<Request>(a.signalRequest), 0, 1);
}

extern "C" __global__ void benchDevicePing(const __grid_constant__ BenchDevicePingArguments a) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  const Opened request = static_cast<Request>(a.request);
  const Opened counter = static_cast<Request>(a.signalRequest);
  u64* outbox = static_cast<u64*>(a.outbox);
  const volatile u64* inbox = static_cast<const volatile u64*>(a.inbox);
  u64* result = static_cast<u64*>(a.result);
  u64 wrong = 0;
  const u64 start = globalTimer();
  for (u32 round = 1; round <= a.rounds; ++round) {
    const u64 number = a.first + round;
    if (a.begins == 0) {
      if (!wait<Level::Thread>(a.counter, number, static_cast<Waits>(a.waits))) return;
      if (a.hasPut != 0 && *inbox != number) ++wrong;
    }
    if (a.hasPut != 0) {
      *outbox = number;
      if (!putWithSignal<Level::Thread>(request, 0, 0, 8, counter, 0, 1)) return;
    } else if (!signal<Level::Thread>(counter, 0, 1)) {
      return;
    }
    if (a.begins != 0) {
      if (!wait<Level::Thread>(a.counter, number, static_cast<Waits>(a.waits))) return;
      if (a.hasPut != 0 && *inbox != number) ++wrong;
    }
  }
  result[0] = globalTimer() - start;
  result[1] = wrong;
}

extern "C" __global__ void benchDevicePush(const __grid_constant__ BenchDevicePushArguments a) {
  if (laneIndex() != 0) return;
  const Opened request = static_cast<Request>(a.request);
  const u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / lanesPerWarp;
  const Route route = {0, warp % a.channels};
  for (u32 turn = 0; turn < a.count; ++turn) {
    if (!signal<Level::Thread>(request, 0, 1, route)) return;
  }
  flush<Level::Thread>(request, route);
}
