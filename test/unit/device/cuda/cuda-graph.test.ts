// What a graph refuses before the driver hears of it, with a driver that is only pretended.
import assert from 'node:assert/strict';
import test from 'node:test';
import { defineLayout } from '#lib/abi/layout.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { captureGraph } from '#lib/device/cuda/cuda-graph.js';
import { CudaStream, WorkFences } from '#lib/device/cuda/cuda-stream.js';
import { LaunchPlan } from '#lib/device/cuda/kernel.js';
import { MemoryPool } from '#lib/device/cuda/memory-pool.js';
import { pretendDriver } from '../../support/pretended-driver.ts';

const options = { priority: 'normal', timeoutMs: 30_000 } as const;

function keepNothing() {
  return { hold: () => {}, end: () => {}, release: () => {} };
}

function setUp() {
  const { driver, calls } = pretendDriver();
  const context = CudaContext.retain(0, driver);
  const stream = new CudaStream(context, options, () => undefined);
  const launches = (): number => calls.filter((call) => call.startsWith('cuGraphLaunch')).length;
  return { driver, calls, context, stream, launches };
}

test('a graph is launched on streams of its device until it is disposed', async () => {
  const { driver, context, stream, launches } = setUp();
  const graph = await captureGraph(stream, keepNothing, () => {});
  graph.launch();
  const other = new CudaStream(context, options, () => undefined);
  graph.launch(other);
  assert.equal(launches(), 2);
  const stranger = new CudaStream(CudaContext.retain(1, driver), options, () => undefined);
  for (const wrong of [stranger, { handle: 1 }, 1, null]) {
    assert.throws(() => graph.launch(wrong as CudaStream), {
      code: 'WL_INVALID_ARGUMENT',
      message: /^Invalid stream: expected a CudaStream of GPU 0/,
    });
  }
  other.close();
  assert.throws(() => graph.launch(other), { code: 'WL_CLOSED' });
  graph.close();
  assert.throws(() => graph.launch(), { code: 'WL_CLOSED' });
  assert.equal(launches(), 2);
});

test('what is no function is refused before anything is recorded', async () => {
  const { calls, context, stream } = setUp();
  const before = calls.length;
  await assert.rejects(captureGraph(stream, keepNothing, undefined as unknown as () => void), {
    code: 'WL_INVALID_ARGUMENT',
    message: /^Invalid record: expected a function/,
  });
  assert.equal(calls.length, before);
  assert.equal(context.isCapturing, false);
});

test('a graph keeps the memory that its calls name, also what was taken before, until the last one that does is disposed', async () => {
  const { context, stream } = setUp();
  const pool = new MemoryPool(context, new WorkFences(context, new Set([stream])));
  const label = 'sample.cu:sample';
  const layout = defineLayout('SampleArguments', { count: 'u32', base: 'ptr' });
  const kernel = { arguments: layout, passing: 'structure', stream } as const;
  const of = { context, handle: 7, label, options: kernel };
  const plan = new LaunchPlan(of, { grid: 1, block: 32 });
  // Blocks far apart, as the pretended addresses are; what a call names may lie within one.
  const [given, within, filled, stranger] = [1, 2, 3, 4].map(() => pool.take(1000)) as [number, number, number, number];
  const recordLaunch = (address: number) => (): void => {
    plan.arguments.set('base', address);
    plan.launch();
  };
  const first = await captureGraph(
    stream,
    () => pool.keep(),
    () => {
      recordLaunch(given)();
      recordLaunch(within + 1000)();
      context.call('cuMemsetD8Async', filled, 0, 16, stream.handle);
    },
  );
  const second = await captureGraph(stream, () => pool.keep(), recordLaunch(given));
  for (const address of [given, within, filled, stranger]) pool.give(address);
  const takeAll = (): number[] => [1, 2, 3, 4].map(() => pool.take(1000));
  const giveAll = (taken: number[]): void => {
    for (const address of taken) pool.give(address);
  };
  const meanwhile = takeAll();
  assert.deepEqual(
    [given, within, filled, stranger].map((address) => meanwhile.includes(address)),
    [false, false, false, true],
  );
  giveAll(meanwhile);
  first.close();
  const afterwards = [...takeAll(), ...takeAll()];
  assert.deepEqual(
    [given, within, filled].map((address) => afterwards.includes(address)),
    [false, true, true],
  );
  giveAll(afterwards);
  second.close();
  assert.ok([...takeAll(), ...takeAll(), ...takeAll()].includes(given));
});
