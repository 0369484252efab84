// The device API of a test on GPUs: random puts, words back and forth, and lanes that push for themselves.
import type { CudaDevice, Tensor } from 'weftline';
import type { DeviceHost } from 'weftline/device-api';
import type { Put } from './put-case.ts';

const source = `
#include "weftline/weftline.cuh"
using namespace weftline;

struct Put { u64 target, source, bytes; };

template <Level level>
__device__ void putAll(Request data, Request counter, const Put* puts, u32 count, u32 isRelaxed) {
  const Route route = {0, 1, isRelaxed != 0 ? Order::Relaxed : Order::Release};
  const Opened request = data;
  for (u32 index = 0; index < count; ++index) {
    const Put one = puts[index];
    if (!putShare<level>(request, one.target, one.source, one.bytes, blockIdx.x, gridDim.x, route)) return;
  }
  signal<level>(counter, 0, 1, route);
  flush<level>(request, route);
}

extern "C" __global__ void putsThread(Request data, Request counter, const Put* puts, u32 count, u32 isRelaxed) {
  if (threadIdx.x == 0) putAll<Level::Thread>(data, counter, puts, count, isRelaxed);
}
extern "C" __global__ void putsWarp(Request data, Request counter, const Put* puts, u32 count, u32 isRelaxed) {
  if (threadIdx.x < 32) putAll<Level::Warp>(data, counter, puts, count, isRelaxed);
}
extern "C" __global__ void putsBlock(Request data, Request counter, const Put* puts, u32 count, u32 isRelaxed) {
  putAll<Level::Block>(data, counter, puts, count, isRelaxed);
}

extern "C" __global__ void waitFor(const u64* counter, Waits waits, u64 expected) {
  wait<Level::Block>(counter, expected, waits);
}

// Each lane puts its own 8 bytes with a signal, then the others' counters are as many.
extern "C" __global__ void lanes(Request data, Request counter, u32 turns) {
  for (u32 turn = 0; turn < turns; ++turn) {
    const u64 at = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (!putWithSignal<Level::Thread>(data, at, at, 8, counter, 8, 1)) return;
  }
  flush<Level::Thread>(data);
}

template <Level level>
__device__ void talk(Request counter, const u8* cell, Waits waits, u32 rounds, u32 begins, u32* wrong) {
  const Opened request = counter;
  for (u64 epoch = 1; epoch <= rounds; ++epoch) {
    u64 value = 0;
    if (begins != 0 && !putWord<level>(request, 16, epoch * 0x9e3779b97f4a7c15ull, epoch)) return;
    if (!waitWord<level>(cell, epoch, value, waits)) return;
    if (value != epoch * 0x9e3779b97f4a7c15ull) atomicAdd(wrong, 1);
    if (begins == 0 && !putWord<level>(request, 16, value, epoch)) return;
  }
  if (Group<level>::isLeader()) atomicAdd(wrong + 1, 1);
}

extern "C" __global__ void talkThread(Request counter, const u8* cell, Waits waits, u32 rounds, u32 begins, u32* wrong) {
  if (threadIdx.x == 0) talk<Level::Thread>(counter, cell, waits, rounds, begins, wrong);
}
extern "C" __global__ void talkWarp(Request counter, const u8* cell, Waits waits, u32 rounds, u32 begins, u32* wrong) {
  if (threadIdx.x < 32) talk<Level::Warp>(counter, cell, waits, rounds, begins, wrong);
}
extern "C" __global__ void talkBlock(Request counter, const u8* cell, Waits waits, u32 rounds, u32 begins, u32* wrong) {
  talk<Level::Block>(counter, cell, waits, rounds, begins, wrong);
}
`;

const puts = { data: 'ptr', counter: 'ptr', puts: 'ptr', count: 'u32', isRelaxed: 'u32' } as const;
const talk = { counter: 'ptr', cell: 'ptr', waits: 'ptr', rounds: 'u32', begins: 'u32', wrong: 'ptr' } as const;

/** Compiles; the same on both ranks. */
export async function loadPutKernels(device: CudaDevice) {
  const kernels = {
    putsThread: puts,
    putsWarp: puts,
    putsBlock: puts,
    waitFor: { counter: 'ptr', waits: 'ptr', expected: 'u64' },
    lanes: { data: 'ptr', counter: 'ptr', turns: 'u32' },
    talkThread: talk,
    talkWarp: talk,
    talkBlock: talk,
  } as const;
  return device.compile({ source, kernels });
}

export type PutKernels = Awaited<ReturnType<typeof loadPutKernels>>;

/** As `struct Put`. */
export function putTable(device: CudaDevice, list: readonly Put[]): Promise<Tensor<'u8'>> {
  const words = BigUint64Array.from(
    list.flatMap(({ target, source: from, bytes }) => [target, from, bytes]),
    BigInt,
  );
  return device.tensor('u8', [words.byteLength], new Uint8Array(words.buffer));
}

export async function waitForCounter(
  { device, kernels, host }: { readonly device: CudaDevice; readonly kernels: PutKernels; readonly host: DeviceHost },
  counter: number,
  expected: number,
): Promise<void> {
  kernels.waitFor.launch({ grid: 1, block: 64 }, { counter, waits: host.waits, expected });
  await device.stream.idle();
}
