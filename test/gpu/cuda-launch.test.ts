import assert from 'node:assert/strict';
import { gpuTest, noise } from './support/gpu.js';
import { kernelFiles } from '#lib/device/cuda/kernel-files.js';

gpuTest('a launch passes its arguments as they are at that moment', async (device) => {
  const { selfTestFill } = await device.loadKernels(kernelFiles.selfTest);
  using tensor = device.empty('i32', [3, 100]);
  const plan = selfTestFill.plan({ grid: 3, block: 32 });
  plan.arguments.set('count', 100);
  for (const [row, value] of [10, 2000, 300_000].entries()) {
    plan.arguments.set('words', tensor.address + row * 400);
    plan.arguments.set('value', value);
    plan.launch();
  }
  const host = await tensor.toHost();
  for (const [row, value] of [10, 2000, 300_000].entries()) {
    assert.deepEqual(
      [...host.subarray(row * 100, row * 100 + 100)],
      Array.from({ length: 100 }, (_, index) => value + index),
    );
  }
});

gpuTest('what a launch costs', async (device, context) => {
  const { selfTestFill } = await device.loadKernels(kernelFiles.selfTest);
  const plan = selfTestFill.plan({ grid: 1, block: 32 });
  const times: number[] = [];
  for (let round = 0; round < 7; round += 1) {
    const launches = 2000;
    const start = performance.now();
    for (let index = 0; index < launches; index += 1) plan.launch();
    times.push(((performance.now() - start) / launches) * 1000);
    await device.stream.idle();
  }
  const shapes: number[] = [];
  for (let round = 0; round < 7; round += 1) {
    const launches = 1000;
    const start = performance.now();
    for (let index = 0; index < launches; index += 1) {
      plan.arguments.set('words', 0);
      plan.arguments.set('value', index);
      plan.arguments.set('count', 0);
      plan.launch();
    }
    shapes.push(((performance.now() - start) / launches) * 1000);
    await device.stream.idle();
  }
  context.diagnostic(
    `launch: ${best(times)} us at best, ${middle(times)} us median; with 3 arguments set: ${best(shapes)} us, ${middle(shapes)} us`,
  );
  assert.ok(times.every((time) => time > 0));
});

gpuTest('events tell when work is done, in the order of streams, and how long it took', async (device) => {
  const { selfTestFill, selfTestWait } = await device.loadKernels(kernelFiles.selfTest);
  using flags = device.allocateHost(512);
  const words = flags.view('i32');
  const urgent = device.createStream({ priority: 'high' });
  const wait = selfTestWait.plan({ grid: 1, block: 32 });
  wait.arguments.set('trap', device.traps.address);
  wait.arguments.set('flag', flags.deviceAddress);
  wait.arguments.set('answer', flags.deviceAddress + 256);
  wait.arguments.set('timeoutNs', 10e9);
  wait.arguments.set('epoch', 1);
  const start = device.createEvent({ timing: true }).record(urgent);
  wait.launch(urgent);
  const end = device.createEvent({ timing: true }).record(urgent);
  device.stream.waitFor(end);
  using tensor = device.empty('i32', [4]);
  const fill = selfTestFill.plan({ grid: 1, block: 32 });
  fill.arguments.set('words', tensor.address);
  fill.arguments.set('count', 4);
  fill.launch();
  assert.equal(end.isDone(), false);
  assert.equal(device.stream.isIdle(), false);
  await assert.rejects(end.wait({ timeoutMs: 30 }), { code: 'WL_TIMEOUT' });
  const reason = new Error('enough');
  await assert.rejects(end.wait({ signal: AbortSignal.abort(reason) }), reason);
  let turns = 0;
  const ticking = setInterval(() => (turns += 1), 1);
  setTimeout(() => Atomics.store(words, 0, 1), 30);
  await end.wait();
  clearInterval(ticking);
  assert.ok(turns >= 5, `the event loop ran ${turns} times during the wait`);
  const milliseconds = end.millisecondsSince(start);
  assert.ok(milliseconds > 20 && milliseconds < 20_000, `${milliseconds} ms`);
  assert.deepEqual([...(await tensor.toHost())], [0, 1, 2, 3]);
});

gpuTest('rows go through shared memory whole, for any size that is a multiple of 16', async (device) => {
  const { selfTestCopyRows } = await device.loadKernels(kernelFiles.selfTest);
  for (const [rows, rowBytes, warps, grid] of [
    [1, 16, 1, 1],
    [37, 176, 3, 2],
    [300, 7392, 4, 5],
    [200, 14_336, 7, 8],
  ] as const) {
    const values = noise(rows * rowBytes);
    using from = await device.tensor('u8', [rows, rowBytes], values);
    using to = device.empty('u8', [rows, rowBytes]);
    const plan = selfTestCopyRows.plan({
      grid,
      block: warps * 32,
      // Barriers, then two rows per warp.
      sharedBytes: 1024 + 2 * warps * rowBytes,
    });
    plan.arguments.set('from', from.address);
    plan.arguments.set('to', to.address);
    plan.arguments.set('rows', rows);
    plan.arguments.set('rowBytes', rowBytes);
    plan.launch();
    assert.ok(Buffer.from(await to.toHost()).equals(values), `${rows} rows of ${rowBytes}`);
  }
});

gpuTest('cooperative and clustered launches run, and a grid that does not fit says so', async (device) => {
  const { selfTestFill } = await device.loadKernels(kernelFiles.selfTest);
  const most = selfTestFill.residentBlocks(128);
  assert.ok(most >= device.properties.multiprocessors);
  using tensor = device.empty('i32', [1000]);
  const shapes = [{ cooperative: true }, ...(device.properties.capability.major >= 9 ? [{ cluster: 2 }] : [])];
  for (const shape of shapes) {
    const plan = selfTestFill.plan({ grid: 4, block: 128, ...shape });
    plan.arguments.set('words', tensor.address);
    plan.arguments.set('count', 1000);
    plan.arguments.set('value', 5);
    plan.launch();
    assert.equal((await tensor.toHost())[999], 1004);
  }
  const tooLarge = selfTestFill.plan({ grid: most + 1, block: 128, cooperative: true });
  assert.throws(() => tooLarge.launch(), {
    code: 'WL_CUDA',
    message:
      /cuLaunchKernelEx \(launching self-test\.cu:selfTestFill with .*COOPERATIVE_LAUNCH_TOO_LARGE \(720\): a cooperative/,
  });
  assert.throws(() => selfTestFill.plan({ grid: 1, block: 32, sharedBytes: 1 << 20 }), { code: 'WL_INVALID_ARGUMENT' });
  await device.stream.idle();
});

gpuTest('everything ends with the device, twice is once, and later calls say that it was closed', async (device) => {
  const { selfTestFill } = await device.loadKernels(kernelFiles.selfTest);
  const tensor = device.empty('u8', [16]);
  const memory = device.allocateHost(16);
  const event = device.createEvent();
  const plan = selfTestFill.plan({ grid: 1, block: 32 });
  await device[Symbol.asyncDispose]();
  await device[Symbol.asyncDispose]();
  tensor.close();
  event[Symbol.dispose]();
  assert.equal(memory.disposed, true);
  assert.throws(() => memory.view('u8'), { code: 'WL_CLOSED' });
  assert.throws(() => plan.launch(), { code: 'WL_CLOSED' });
  assert.throws(() => device.empty('u8', [16]), { code: 'WL_CLOSED' });
});

function best(times: readonly number[]): string {
  return Math.min(...times).toFixed(2);
}

function middle(times: readonly number[]): string {
  return (times.toSorted((a, b) => a - b)[Math.floor(times.length / 2)] as number).toFixed(2);
}
