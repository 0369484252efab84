import assert from 'node:assert/strict';
import { closeSync, readlinkSync } from 'node:fs';
import type { CudaDevice } from '#lib/device/cuda/cuda-device.js';
import { until } from '../support/until.ts';
import { gpuTest, noise } from './support/gpu.js';
import { gpuRdmaFacts } from '#lib/native/verbs/gpu-memory.js';
import { kernelFiles } from '#lib/device/cuda/kernel-files.js';

gpuTest('tensors of all sizes come back as they were uploaded', async (device) => {
  for (const bytes of [0, 1, 3, 4096, (2 << 20) - 1, 2 << 20, (5 << 20) + 7]) {
    const values = noise(bytes);
    using tensor = await device.tensor('u8', [bytes], values);
    assert.deepEqual(await tensor.toHost(), values);
  }
  using matrix = await device.tensor('f32', [2, 3], Float32Array.of(1, 2, 3, 4, 5, 6));
  assert.deepEqual([...(await matrix.slice(1, 2).toHost())], [4, 5, 6]);
});

gpuTest('copies that run at the same time do not mix', async (device) => {
  const tensors = await Promise.all(
    [1, 2, 3, 4].map((value) => device.tensor('u8', [3 << 20], new Uint8Array(3 << 20).fill(value))),
  );
  const copies = await Promise.all(tensors.map((tensor) => tensor.toHost()));
  for (const [index, copy] of copies.entries()) assert.ok(copy.every((byte) => byte === index + 1));
});

gpuTest('the host cannot view GPU memory, and the error says what to do', async (device) => {
  using tensor = device.empty('u8', [4]);
  assert.throws(() => tensor.view(), { code: 'WL_UNSUPPORTED', message: /toHost\(\)/ });
});

gpuTest('a kernel writes host memory that is mapped, and reads what the host wrote', async (device) => {
  const { selfTestFill, selfTestWait } = await device.loadKernels(kernelFiles.selfTest);
  using memory = device.allocateHost(4096);
  const words = memory.view('i32');
  assert.ok(words.every((word) => word === 0));
  const fill = selfTestFill.plan({ grid: 2, block: 64 });
  fill.arguments.set('words', memory.deviceAddress);
  fill.arguments.set('count', 1024);
  fill.arguments.set('value', 7);
  fill.launch();
  await device.stream.idle();
  assert.deepEqual(
    [...words],
    Array.from({ length: 1024 }, (_, index) => 7 + index),
  );

  words.fill(0);
  const wait = selfTestWait.plan({ grid: 1, block: 32 });
  wait.arguments.set('trap', device.traps.address);
  wait.arguments.set('flag', memory.deviceAddress);
  wait.arguments.set('answer', memory.deviceAddress + 256);
  wait.arguments.set('timeoutNs', 10e9);
  wait.arguments.set('epoch', 5);
  wait.launch();
  assert.equal(device.stream.isIdle(), false);
  Atomics.store(words, 0, 5);
  await device.stream.idle();
  assert.equal(Atomics.load(words, 64), 5);
  device.traps.throwIfExpired();
});

/** Freed memory waits for all streams: where processes share the GPU, one may be idle while another still waits for its turn. */
async function allStreamsIdle(device: CudaDevice): Promise<void> {
  const fence = device.workFence();
  await until(() => fence.isPassed());
}

gpuTest('freed memory is handed out again, but not while earlier work may use it', async (device) => {
  const { selfTestWait } = await device.loadKernels(kernelFiles.selfTest);
  const first = device.empty('u8', [1000]);
  const { address } = first;
  first.close();
  first.close();
  await allStreamsIdle(device);
  const second = device.empty('u8', [900]);
  assert.equal(second.address, address);

  using flags = device.allocateHost(512);
  const wait = selfTestWait.plan({ grid: 1, block: 32 });
  wait.arguments.set('trap', device.traps.address);
  wait.arguments.set('flag', flags.deviceAddress);
  wait.arguments.set('answer', flags.deviceAddress + 256);
  wait.arguments.set('timeoutNs', 10e9);
  wait.arguments.set('epoch', 1);
  const other = device.createStream();
  wait.launch(other);
  second.close();
  using third = device.empty('u8', [1000]);
  assert.notEqual(third.address, address);
  Atomics.store(flags.view('i32'), 0, 1);
  await allStreamsIdle(device);
  using fourth = device.empty('u8', [1000]);
  assert.equal(fourth.address, address);
});

gpuTest('a graph keeps memory that was taken before it, and whose tensor is gone', async (device) => {
  const tensor = device.empty('u8', [5000]);
  const { address } = tensor;
  const graph = await device.capture(() => device.setBytes(tensor, 7));
  tensor.close();
  await device.stream.idle();
  using stranger = await device.tensor('u8', [5000], new Uint8Array(5000).fill(1));
  assert.notEqual(stranger.address, address);
  graph.launch();
  assert.ok((await stranger.toHost()).every((byte) => byte === 1));
  graph.close();
  await allStreamsIdle(device);
  using next = device.empty('u8', [5000]);
  assert.equal(next.address, address);
});

gpuTest('too much memory is WL_MEMORY, and the device goes on', async (device) => {
  assert.throws(() => device.empty('u8', [2 ** 44]), { code: 'WL_MEMORY', message: /GPU 0: .* are free/ });
  using tensor = await device.tensor('u8', [2], Uint8Array.of(1, 2));
  assert.deepEqual([...(await tensor.toHost())], [1, 2]);
});

gpuTest(
  'memory of all sizes is exported as a dmabuf, where the driver says that it can be',
  async (device, context) => {
    const facts = gpuRdmaFacts(device.context.driver, device.context.device);
    context.diagnostic(JSON.stringify(facts));
    if (!facts.exportsDmabuf) {
      assert.throws(() => device.exportDmabuf(device.empty('u8', [4096]).address, 4096), { name: 'WeftlineError' });
      return;
    }
    for (const bytes of [100, 5000, 1 << 20, 3_000_000, 1 << 28]) {
      using tensor = device.empty('u8', [bytes]);
      const { descriptor, offset } = device.exportDmabuf(tensor.address, bytes);
      assert.match(readlinkSync(`/proc/self/fd/${descriptor}`), /dmabuf/);
      assert.ok(offset >= 0 && offset < 65_536);
      closeSync(descriptor);
    }
  },
);

gpuTest('what the device is', async (device, context) => {
  const { properties } = device;
  context.diagnostic(JSON.stringify(properties));
  assert.match(properties.uuid, /^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  assert.match(properties.pciBusId, /^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:/);
  assert.ok(properties.multiprocessors > 0 && properties.capability.major >= 8);
  assert.ok(properties.sharedBytesPerBlock >= 96 * 1024 && properties.totalBytes > 2 ** 30);
});
