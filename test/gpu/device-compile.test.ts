// Kernels of users: compiled from text, launched with plain parameters, mistakes told with their line; waits that end.
import assert from 'node:assert/strict';
import type { CudaDevice, WeftlineError } from 'weftline';
import { DeviceHost } from 'weftline/device-api';
import { gpuTest } from './support/gpu.js';

const scale = `
#include "weftline/weftline.cuh"
extern "C" __global__ void scale(float* x, unsigned count, float factor, const unsigned char* add) {
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) x[index] = x[index] * factor + *add;
}
`;
const kernels = { scale: { x: 'ptr', count: 'u32', factor: 'f32', add: 'ptr' } } as const;

gpuTest("a user's kernel takes its parameters one by one", async (device) => {
  const compiled = await device.compile({ source: scale, kernels });
  using x = await device.tensor('f32', [4], Float32Array.of(1, 2, 3, 4));
  using add = await device.tensor('u8', [1], Uint8Array.of(7));
  compiled.scale.launch({ grid: 1, block: 32 }, { x, count: 3, factor: 0.5, add: add.address });
  assert.deepEqual([...(await x.toHost())], [7.5, 8, 8.5, 4]);
  const plan = compiled.scale.plan({ grid: 1, block: 32 });
  plan.arguments.set('x', x.address);
  plan.arguments.set('add', add.address);
  plan.arguments.set('factor', 2);
  plan.arguments.set('count', 1);
  plan.launch();
  assert.equal((await x.toHost())[0], 22);
  assert.throws(() => compiled.scale.launch({ grid: 1, block: 32 }, { x, count: 0.5, factor: 1, add }), {
    code: 'WL_INVALID_ARGUMENT',
    message: /parameter count \(u32\) of user\.cu:scale/,
  });
});

async function mistake(device: CudaDevice, source: string): Promise<WeftlineError> {
  try {
    await device.compile({ source, name: 'mine.cu', kernels: { scale: {} } });
  } catch (error) {
    return error as WeftlineError;
  }
  return assert.fail('it compiled');
}

gpuTest('what does not compile says where and why', async (device) => {
  const wrong = await mistake(device, scale.replace('* factor', '* factory'));
  assert.equal(wrong.code, 'WL_COMPILE');
  assert.match(wrong.message, /^mine\.cu does not compile .*\n?.*mine\.cu\(5\): error: .*factory/s);
  assert.equal(wrong.details['line'], 5);
  const level = await mistake(
    device,
    `#include "weftline/weftline.cuh"
extern "C" __global__ void scale(weftline::Request request) { weftline::put(request, 0, 0, 8); }`,
  );
  assert.match(level.message, /name who makes this call together/);
  const hidden = await mistake(device, '__global__ void scale() {}');
  assert.match(hidden.message, /extern "C"/);
});

gpuTest('a wait for a signal that never comes ends with its deadline, and the device goes on', async (device) => {
  await using host = await DeviceHost.create({ name: 'alone', device, timeoutMs: 200 });
  const counter = await host.allocate(8);
  const compiled = await device.compile({
    source: `#include "weftline/weftline.cuh"
extern "C" __global__ void waitFor(const unsigned long long* counter, weftline::Waits waits, unsigned long long* seen) {
  if (weftline::wait<weftline::Level::Warp>(counter, 3, waits)) *seen = weftline::readSignal<weftline::Level::Warp>(counter);
}`,
    kernels: { waitFor: { counter: 'ptr', waits: 'ptr', seen: 'ptr' } },
  });
  using seen = await device.tensor('i32', [2], Int32Array.of(0, 0));
  const launch = () =>
    compiled.waitFor.launch({ grid: 1, block: 32 }, { counter: counter.address, waits: host.waits, seen });
  launch();
  await assert.rejects(device.stream.idle(), {
    code: 'WL_TIMEOUT',
    message: /A kernel of alone waited 200 ms for its peers \(channel 0: expected 3, seen 0\)/,
  });
  await host.write(counter, Uint8Array.of(5));
  launch();
  assert.equal((await seen.toHost())[0], 5);
});

gpuTest('the waits of a kernel last no longer together than one', async (device) => {
  await using host = await DeviceHost.create({ name: 'alone', device, timeoutMs: 200 });
  const words = await host.allocate(8);
  const compiled = await device.compile({
    source: `#include "weftline/weftline.cuh"
using namespace weftline;
extern "C" __global__ void waitTwice(const u32* words, Waits waits, u32* tenths) {
  const WaitScope scope = {static_cast<TrapRecord*>(waits->trap), trapKernelDeviceApi, 0, waits->timeoutNs, sharedWaits()};
  __syncthreads();
  const u64 start = globalTimer();
  bool hasCome = false;
  // Each thread has a word of its own, as each rank has at a barrier; the second is not waited for until the first is over.
  if (threadIdx.x == 0) hasCome = waitForEpoch(&words[0], 1, scope, {0, 0});
  __syncthreads();
  if (threadIdx.x == 1) {
    hasCome = waitForEpoch(&words[1], 1, scope, {1, 0});
    *tenths = hasCome ? 1000 : static_cast<u32>((globalTimer() - start) * 10 / waits->timeoutNs);
  }
}`,
    kernels: { waitTwice: { words: 'ptr', waits: 'ptr', tenths: 'ptr' } },
  });
  using tenths = await device.tensor('i32', [1], Int32Array.of(0));
  compiled.waitTwice.launch({ grid: 1, block: 32 }, { words: words.address, waits: host.waits, tenths });
  await assert.rejects(device.stream.idle(), { code: 'WL_TIMEOUT', message: /waited 200 ms for peer 0/ });
  const [spent = 0] = await tenths.toHost();
  assert.ok(spent >= 10 && spent < 15, `${spent} tenths`);
});

gpuTest(
  'a launch may ask for shared memory up to the limit, beside what the kernel declares itself',
  async (device) => {
    const source = `
extern "C" __global__ void sum(unsigned* out, unsigned words) {
  extern __shared__ unsigned dynamic[];
  __shared__ unsigned own[16];
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) dynamic[i] = 1;
  if (threadIdx.x < 16) own[threadIdx.x] = 100;
  __syncthreads();
  if (threadIdx.x != 0) return;
  unsigned total = 0;
  for (unsigned i = 0; i < words; ++i) total += dynamic[i];
  for (unsigned i = 0; i < 16; ++i) total += own[i];
  *out = total;
}`;
    const { sum } = await device.compile({ source, kernels: { sum: { out: 'ptr', words: 'u32' } } });
    using out = await device.tensor('i32', [1], Int32Array.of(0));
    // Together with the 64 bytes of the kernel these are below, at and above the 48 KiB that need no consent.
    for (const sharedBytes of [49_024, 49_088, 49_120, 49_152, 49_168]) {
      const words = sharedBytes / 4;
      sum.launch({ grid: 1, block: 128, sharedBytes }, { out, words });
      assert.equal((await out.toHost())[0], words + 1600);
    }
  },
);
