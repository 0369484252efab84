// The device API on GPUs: random puts and words by every way, a queue that nobody serves, a peer that is killed.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { CudaDevice } from 'weftline';
import { DeviceHost } from 'weftline/device-api';
import { CudaRequests } from '#lib/device-api/service/cuda-requests.js';
import { DeviceTraps } from '#lib/device-api/host/cuda-side.js';
import type { DeviceHostPeer } from '../local/support/device-host-peer.ts';
import { runRanks } from '../local/support/run-ranks.ts';
import { countingPeer } from './support/counting-peer.ts';
import { cacheFolder, gpuTest, noGpu } from './support/gpu.ts';
import { testSeed } from '../support/seed.ts';
import { kernelFiles } from '#lib/device/cuda/kernel-files.js';
import { settingsTable } from '#lib/settings/settings.js';

const property = new URL('../local/ranks/device-api-property.js', import.meta.url);
const devicesProgram = new URL('../local/ranks/device-host-devices.js', import.meta.url);
const peerModule = fileURLToPath(new URL('../local/support/device-host-peer.js', import.meta.url));
/** WEFTLINE_TEST_SEED=… repeats a failing run. */
const seed = String(testSeed());
const decode = (text: string): Uint8Array => Buffer.from(text, 'base64');
const env = { WEFTLINE_TEST_DEVICE: 'cuda', [settingsTable.cacheFolder.env]: cacheFolder };

for (const way of ['direct', 'queue', 'sole', 'host']) {
  test(`${way}: random puts, signals and words at all levels arrive as they are`, { skip: noGpu }, async () => {
    const { exitCode, transcript } = await runRanks(2, property, { args: [way, seed, '6'], env, timeoutMs: 120_000 });
    assert.equal(exitCode, 0, `seed ${seed}\n${transcript}`);
  });
}

for (const way of ['direct', 'queue']) {
  test(
    `${way}: one host drives all GPUs, meets its peer by a port, and releases what it took`,
    { skip: noGpu },
    async () => {
      const { exitCode, transcript } = await runRanks(2, devicesProgram, { args: [way], env, timeoutMs: 120_000 });
      assert.equal(exitCode, 0, transcript);
      assert.match(transcript, way === 'direct' ? /GPU 0: direct/ : /GPU 0: queue, then local/);
    },
  );
}

/** A queue whose other side this thread serves, when it likes. */
async function openQueue(device: CudaDevice, capacity: number, timeoutMs: number) {
  const traps = new DeviceTraps({ device, agent: 'here', peerName: () => 'nobody' });
  const requests = await CudaRequests.create({ device, trap: traps.address, timeoutMs, queues: 1, capacity });
  return { traps, requests, ...(await countingPeer(requests, capacity)) };
}

gpuTest('threads that find no room in the queue until their deadline leave no hole in it', async (device) => {
  const { benchDevicePush } = await device.loadKernels(kernelFiles.benchDeviceApi);
  const capacity = 64;
  const { traps, requests, handle, seen, server } = await openQueue(device, capacity, 100);
  const plan = benchDevicePush.plan({ grid: 8, block: 128 });
  plan.arguments.set('request', handle);
  plan.arguments.set('channels', 1);
  const launch = (count: number, lanes: number): number => {
    plan.arguments.set('count', count);
    plan.arguments.set('lanes', lanes);
    plan.launch();
    return count * lanes * 32;
  };
  const drain = (): void => {
    while (server.step());
  };
  for (const lanes of [1, 32, 7]) {
    seen.sum = 0;
    launch(5, lanes);
    // Nobody serves: the ring takes what it can, the rest leaves within the deadline, all together.
    await device.stream.idle({ timeoutMs: 5_000 });
    assert.match(traps.take(true)?.message ?? '', /waited 100 ms for nobody/);
    drain();
    assert.equal(seen.sum, capacity);
    const expected = capacity + launch(20, lanes);
    const end = performance.now() + 5_000;
    while (seen.sum < expected && performance.now() < end) server.step();
    await device.stream.idle();
    assert.equal(seen.sum, expected);
    assert.equal(traps.take(true), undefined);
  }
  requests[Symbol.dispose]();
  traps[Symbol.dispose]();
});

gpuTest('counters and cells that are not aligned are named as such, and the device goes on', async (device) => {
  const traps = new DeviceTraps({ device, agent: 'here', peerName: () => 'there' });
  const options = { device, trap: traps.address, timeoutMs: 1000, queues: 1, capacity: 4 };
  const requests = await CudaRequests.create(options);
  using memory = await device.tensor('i32', [8], new Int32Array(8));
  const { address } = memory;
  const shape = { number: 0, peer: 0, inlines: false, local: { address, bytes: 8 } };
  const request = await requests.add({ ...shape, remotes: [{ direct: address + 4, bytes: 24 }] });
  const { mistake } = await device.compile({
    source: `#include "weftline/weftline.cuh"
using namespace weftline;
extern "C" __global__ void mistake(Request request, const u32* cells, Waits waits, u32 which) {
  u64 value;
  if (which == 0) signal<Level::Warp>(request, 0, 1);
  if (which == 1) putWord<Level::Warp>(request, 0, 1, 1);
  if (which == 2) waitWord<Level::Warp>(cells + 2, 1, value, waits);
}`,
    kernels: { mistake: { request: 'ptr', cells: 'ptr', waits: 'ptr', which: 'u32' } },
  });
  for (const which of [0, 1, 2]) {
    mistake.launch({ grid: 1, block: 32 }, { request, cells: memory, waits: requests.state, which });
    await device.stream.idle();
    const error = traps.take(true);
    assert.equal(error?.code, 'WL_INVALID_ARGUMENT');
    assert.match(error.message, /not aligned/);
  }
  assert.ok((await memory.toHost()).every((word) => word === 0));
  requests[Symbol.dispose]();
  traps[Symbol.dispose]();
});

gpuTest('a peer that is killed ends a kernel that waits for it, by name', async (device) => {
  const victim = fork(peerModule, ['queue'], { env: { ...process.env, ...env } });
  const [said] = (await once(victim, 'message')) as [DeviceHostPeer];
  await using host = await DeviceHost.create({ name: 'here', device, direct: false, timeoutMs: 20_000 });
  const source = await host.allocate(1 << 20);
  const counter = await host.allocate(64);
  const peer = await host.addRemoteAgent(decode(said.metadata));
  const put = await host.createGpuReq(await host.createWriteReq({ memory: source }, decode(said.data), peer));
  const tell = await host.createGpuReq(await host.createWriteReq({ memory: source }, decode(said.counter), peer));
  const { ask } = await device.compile({
    source: `#include "weftline/weftline.cuh"
using namespace weftline;
extern "C" __global__ void ask(Request data, Request tell, const u64* counter, Waits waits, u32 puts, u32* ended) {
  for (u32 turn = 0; turn < puts; ++turn) {
    if (!putWithSignal<Level::Block>(data, 0, 0, 1 << 20, tell, 0, 1)) break;
  }
  const bool hasCome = wait<Level::Block>(counter, 1, waits);
  if (threadIdx.x == 0) *ended = hasCome ? 2 : 1;
}`,
    kernels: { ask: { data: 'ptr', tell: 'ptr', counter: 'ptr', waits: 'ptr', puts: 'u32', ended: 'ptr' } },
  });
  using ended = await device.tensor('i32', [1], new Int32Array(1));
  // Many more than the ring holds, so that the kernel still pushes when the peer is killed.
  const values = { data: put, tell, counter: counter.address, waits: host.waits, puts: 200_000, ended };
  ask.launch({ grid: 1, block: 64 }, values);
  await sleep(200);
  const gone = once(victim, 'exit');
  victim.kill('SIGKILL');
  await gone;
  const start = performance.now();
  await assert.rejects(device.stream.idle({ timeoutMs: 15_000 }), { code: 'WL_PEER_LOST', message: /victim is gone/ });
  assert.ok(performance.now() - start < 10_000);
  await device.stream.idle();
  assert.deepEqual([...(await ended.toHost())], [1]);
});
