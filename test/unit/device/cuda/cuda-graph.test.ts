// What a graph refuses before the driver hears of it, with a driver that is only pretended.
import assert from 'node:assert/strict';
import test from 'node:test';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { captureGraph } from '#lib/device/cuda/cuda-graph.js';
import { CudaStream } from '#lib/device/cuda/cuda-stream.js';
import { pretendDriver } from '../../support/pretended-driver.ts';

const options = { priority: 'normal', timeoutMs: 100 } as const;

function keepNothing() {
  return { end: () => {}, release: () => {} };
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
  other[Symbol.dispose]();
  assert.throws(() => graph.launch(other), { code: 'WL_CLOSED' });
  graph.dispose();
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
