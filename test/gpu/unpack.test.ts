// Unpacking and packing on a GPU: what the CPU device does, in every configuration of the kernels; and kernels that stay.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { CudaDevice, WeftlineError } from 'weftline';
import { DescriptorBlock, UnpackLauncher } from 'weftline/unpack';
import { blocksOf, randomBytes, randomList, referenceUnpack } from '../support/fragment-lists.js';
import { seed } from '../support/seed.js';
import { checkPlaced, contentsOf, place, testUnpack } from '../support/unpack-conformance.js';
import { cacheFolder, gpuTest, noGpu } from './support/gpu.js';

testUnpack({
  name: 'cuda',
  skip: noGpu,
  open: () => CudaDevice.create({ cacheFolder, timeoutMs: 20_000 }),
  configs: [
    { smallKernel: true, numSms: 3 },
    { smallKernel: false, numSms: 3 },
    { pool: { memory: 'copied' } },
    { persistent: true, numSms: 3 },
  ],
});

gpuTest('a kernel that stays moves chunk after chunk, leaves when it is idle, and comes back', async (device) => {
  await using unpacker = await UnpackLauncher.create(device, { persistent: true, idleMs: 5, pool: { slots: 4 } });
  const list = randomList(seed, { count: 20_000, length: (random) => Math.floor(random() * 200) });
  const bounce = await place(device, randomBytes(1, list.bounceBytes), 0);
  const destination = await place(device, new Uint8Array(list.destinationBytes), 3);
  let launches = 0;
  for (const block of blocksOf(list, bounce.span, destination.span, 100)) {
    await unpacker.whenRoom();
    unpacker.launch(block);
    launches += 1;
    // Now and then nothing comes for so long that the kernel leaves; each stream then is idle.
    if (launches % 50 === 0) await device.drained({ timeoutMs: 5_000 });
  }
  await unpacker.wait();
  await checkPlaced(destination, referenceUnpack(list, contentsOf(bounce), contentsOf(destination)));
});

gpuTest('a launcher that is closed while its kernel stays ends it, with all blocks moved', async (device) => {
  const unpacker = await UnpackLauncher.create(device, { persistent: true, idleMs: 10_000 });
  const list = randomList(seed, { count: 2000, length: () => 100 });
  const bounce = await place(device, randomBytes(1, list.bounceBytes), 0);
  const destination = await place(device, new Uint8Array(list.destinationBytes), 0);
  for (const block of blocksOf(list, bounce.span, destination.span, 200)) unpacker.launch(block);
  await unpacker.close();
  await checkPlaced(destination, referenceUnpack(list, contentsOf(bounce), contentsOf(destination)));
});

gpuTest('a kernel that always has work is followed by another, so that freed memory comes back', async (device) => {
  await using unpacker = await UnpackLauncher.create(device, { persistent: true, idleMs: 50, pool: { slots: 8 } });
  const list = randomList(seed, { count: 4000, length: () => 100 });
  const bounce = await place(device, randomBytes(1, list.bounceBytes), 0);
  const destination = await place(device, new Uint8Array(list.destinationBytes), 0);
  const blocks = blocksOf(list, bounce.span, destination.span, 1000);
  unpacker.launch(blocks);
  const fence = device.workFence();
  const end = performance.now() + 10_000;
  // Never fewer than one block under way.
  while (!fence.isPassed() && performance.now() < end) {
    await unpacker.whenRoom(4);
    unpacker.launch(blocks);
  }
  assert.equal(fence.isPassed(), true);
  await unpacker.wait();
  await checkPlaced(destination, referenceUnpack(list, contentsOf(bounce), contentsOf(destination)));
});

gpuTest('a kernel that stays waits for the flag of one block with those before it in their places', async (device) => {
  await using unpacker = await UnpackLauncher.create(device, { persistent: true, timeoutMs: 5_000 });
  const bounce = await place(device, randomBytes(1, 300), 0);
  const destination = await place(device, new Uint8Array(300), 0);
  const flag = await device.tensor('i32', [2], Int32Array.of(4, 0));
  const blocks = [0, 100, 200].map((at) => {
    const ready = at === 100 ? { address: flag.address, threshold: 5 } : undefined;
    return new DescriptorBlock(1).begin(bounce.span, destination.span, ready).add(at, 100, at);
  });
  const launches = blocks.map((block) => unpacker.launch(block));
  await unpacker.wait(launches[0]);
  assert.equal(unpacker.isDone(launches[1]!), false);
  await flag.fromHost(Int32Array.of(5, 0));
  await unpacker.wait(launches[2]);
  await checkPlaced(destination, contentsOf(bounce));
});

gpuTest('a kernel that stays names the block whose flag did not come, and goes on', async (device) => {
  await using unpacker = await UnpackLauncher.create(device, { persistent: true, timeoutMs: 300 });
  const bounce = await place(device, randomBytes(1, 100), 0);
  const destination = await place(device, new Uint8Array(100), 0);
  const flag = await device.tensor('i32', [2], Int32Array.of(4, 0));
  const ready = new DescriptorBlock(1).begin(bounce.span, destination.span).add(0, 50, 0);
  const late = new DescriptorBlock(1).begin(bounce.span, destination.span, { address: flag.address, threshold: 5 });
  late.add(50, 50, 50);
  await assert.rejects(unpacker.launchSync([ready, late], { timeoutMs: 5_000 }), (error: unknown) => {
    assert.ok(error instanceof WeftlineError && error.code === 'WL_TIMEOUT');
    assert.deepEqual(error.details, { block: 1, seen: 4, threshold: 5, timeoutMs: 300 });
    return true;
  });
  await unpacker.launchSync(ready);
});

gpuTest('a flag that did not come fails the waits for its own stream, and those for others go on', async (device) => {
  using own = device.createStream();
  using other = device.createStream();
  await using unpacker = await UnpackLauncher.create(device, { timeoutMs: 200, stream: own });
  await using bystander = await UnpackLauncher.create(device, { stream: other });
  const bounce = await place(device, randomBytes(1, 100), 0);
  const destination = await place(device, new Uint8Array(100), 0);
  const flag = await device.tensor('i32', [2], Int32Array.of(4, 0));
  const late = new DescriptorBlock(1).begin(bounce.span, destination.span, { address: flag.address, threshold: 5 });
  const launch = unpacker.launch(late.add(50, 50, 50));
  await own.drained({ timeoutMs: 5_000 });
  await bystander.launchSync(new DescriptorBlock(1).begin(bounce.span, destination.span).add(0, 50, 0));
  await other.idle();
  await device.createEvent().record(other).wait();
  await assert.rejects(own.idle(), { code: 'WL_TIMEOUT' });
  await assert.rejects(unpacker.wait(launch), { code: 'WL_TIMEOUT' });
});

gpuTest('a persistent launcher takes no stream of others', async (device) => {
  await using unpacker = await UnpackLauncher.create(device, { persistent: true });
  const { stream } = device;
  await assert.rejects(UnpackLauncher.create(device, { persistent: true, stream }), { code: 'WL_INVALID_ARGUMENT' });
  const memory = await place(device, randomBytes(1, 100), 0);
  const block = new DescriptorBlock(1).begin(
    { address: memory.span.address, bytes: 50 },
    { address: memory.span.address + 50, bytes: 50 },
  );
  assert.throws(() => unpacker.launch(block, { stream }), { code: 'WL_INVALID_ARGUMENT' });
  await unpacker.launchSync(block);
});

for (const signal of ['SIGKILL', 'SIGTERM'] as const) {
  test(`the kernel of an owner that ended by ${signal} ends, and others use the GPU`, { skip: noGpu }, async () => {
    const script = fileURLToPath(new URL('processes/unpack-owner.js', import.meta.url));
    const owner = spawn(process.execPath, [script, cacheFolder], { stdio: ['ignore', 'pipe', 'inherit'] });
    await once(owner.stdout, 'data');
    owner.kill(signal);
    await once(owner, 'exit');
    await using device = await CudaDevice.create({ cacheFolder, timeoutMs: 20_000 });
    await using unpacker = await UnpackLauncher.create(device, { persistent: true });
    const bounce = await place(device, randomBytes(1, 100), 0);
    const destination = await place(device, new Uint8Array(100), 0);
    await unpacker.launchSync(new DescriptorBlock(1).begin(bounce.span, destination.span).add(0, 100, 0));
    await checkPlaced(destination, contentsOf(bounce));
  });
}
