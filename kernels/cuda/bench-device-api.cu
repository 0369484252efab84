// What the device API reaches: bytes per second of put, the way of 8 bytes with a signal, commands per second.
#include "weftline/weftline.cuh"

using namespace weftline;

extern "C" __global__ void __launch_bounds__(512, 1) benchDevicePut(const __grid_constant__ BenchDevicePutArguments a) {
  const Opened request = static_cast<Request>(a.request);
  for (u32 message = 0; message < a.messages; ++message) {
    const u64 place = message % a.places * a.stride;
    if (!putShare<Level::Block>(request, place, place, a.bytes, blockIdx.x, gridDim.x)) return;
  }
  signal<Level::Block>(static_cast<Request>(a.signalRequest), 0, 1);
}

constexpr u64 wordCell = 16;

// Sends the number of a round; false when that failed.
__device__ __forceinline__ bool sendRound(const BenchDevicePingArguments& a, const Opened& request, const Opened& counter,
                                          u64 number) {
  const Route route = {0, 0, a.isRelaxed != 0 ? Order::Relaxed : Order::Release};
  if (a.what == benchPingKindWord) return putWord<Level::Thread>(counter, wordCell, number * 3, number, route);
  if (a.what == benchPingKindSignal) return signal<Level::Thread>(counter, 0, 1, route);
  *static_cast<u64*>(a.outbox) = number;
  return putWithSignal<Level::Thread>(request, 0, 0, 8, counter, 0, 1, route);
}

// Waits for the number of a round; false when it does not come.
__device__ __forceinline__ bool awaitRound(const BenchDevicePingArguments& a, u64 number, u64& wrong) {
  const Waits waits = static_cast<Waits>(a.waits);
  if (a.what == benchPingKindWord) {
    u64 value;
    if (!waitWord<Level::Thread>(static_cast<const u8*>(a.counter) + wordCell, number, value, waits)) return false;
    if (value != number * 3) ++wrong;
    return true;
  }
  if (!wait<Level::Thread>(a.counter, number, waits)) return false;
  if (a.what == benchPingKindPutWithSignal && *static_cast<const volatile u64*>(a.inbox) != number) ++wrong;
  return true;
}

extern "C" __global__ void benchDevicePing(const __grid_constant__ BenchDevicePingArguments a) {
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  const Opened request = static_cast<Request>(a.request);
  const Opened counter = static_cast<Request>(a.signalRequest);
  u64* result = static_cast<u64*>(a.result);
  u64 wrong = 0;
  const u64 start = globalTimer();
  for (u32 round = 1; round <= a.rounds; ++round) {
    const u64 number = a.first + round;
    if (a.begins == 0 && !awaitRound(a, number, wrong)) return;
    if (!sendRound(a, request, counter, number)) return;
    if (a.begins != 0 && !awaitRound(a, number, wrong)) return;
  }
  result[0] = globalTimer() - start;
  result[1] = wrong;
}

extern "C" __global__ void benchDevicePush(const __grid_constant__ BenchDevicePushArguments a) {
  if (laneIndex() >= a.lanes) return;
  const Opened request = static_cast<Request>(a.request);
  const u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / lanesPerWarp;
  const Route route = {0, warp % a.channels, a.isRelaxed != 0 ? Order::Relaxed : Order::Release};
  for (u32 turn = 0; turn < a.count; ++turn) {
    if (!signal<Level::Thread>(request, 0, 1, route)) return;
  }
  flush<Level::Thread>(request, route);
}
