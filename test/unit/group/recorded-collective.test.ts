// Calls in a CUDA graph: their kernels get no numbers, and the host counts with each launch; with a pretended driver.
import assert from 'node:assert/strict';
import test from 'node:test';
import { type CudaDevice, readSettings } from 'weftline';
import { CudaCallOrder, CudaCalls } from '#lib/group/cuda-calls.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { CudaEvent } from '#lib/device/cuda/cuda-event.js';
import { captureGraph } from '#lib/device/cuda/cuda-graph.js';
import { CudaStream } from '#lib/device/cuda/cuda-stream.js';
import { addressOf } from '#lib/native/library.js';
import { pretendDriver } from '../support/pretended-driver.ts';

interface Pretended {
  readonly device: CudaDevice;
  readonly calls: CudaCalls;
  readonly order: CudaCallOrder;
  readonly steps: string[];
  readonly record: (record: () => void) => ReturnType<typeof captureGraph>;
}

function pretend(requireReady: () => void = () => {}): Pretended {
  const { driver, status } = pretendDriver();
  const trap = new Uint8Array(new SharedArrayBuffer(4096));
  status.cuMemHostAlloc = (out) => (((out as [number])[0] = Number(addressOf(trap))), 0);
  const context = CudaContext.retain(0, driver);
  const steps: string[] = [];
  status.cuGraphLaunch = () => (steps.push('launched'), 0);
  status.cuStreamWaitEvent = (stream) => (steps.push(`${String(stream)} waits`), 0);
  const makeStream = (): CudaStream => new CudaStream(context, { priority: 'normal', timeoutMs: 30_000 }, () => {});
  const stream = makeStream();
  const device = {
    context,
    stream,
    createStream: makeStream,
    createEvent: () => new CudaEvent(context, { timing: false, timeoutMs: 30_000 }),
  } as unknown as CudaDevice;
  const peerLost = new AbortController().signal;
  const calls = new CudaCalls({ ranks: [0], settings: readSettings({ timeoutMs: 30_000 }, {}), peerLost }, device);
  const order = new CudaCallOrder(device);
  const network = {
    wake: () => void steps.push('woken'),
    expectKernels: () => (steps.push('kernels expected'), () => void steps.push('no kernels expected')),
  };
  const memory = { hold: () => {}, end: () => {}, release: () => {} };
  const record = (what: () => void): ReturnType<typeof captureGraph> =>
    captureGraph(
      stream,
      () => memory,
      () => {
        calls.record({ order, network, begin: () => requireReady });
        what();
      },
    );
  return { device, calls, order, steps, record };
}

/** What a call of a dispatch and a combine takes. */
function callOnce(calls: CudaCalls): readonly number[] {
  const given = [calls.givenDispatch, calls.nextEpochs(2)];
  calls.countDispatch();
  return [...given, calls.nextEpochs(2)];
}

test('recorded calls take no numbers; each launch takes as many as its kernels', async () => {
  const { calls, record } = pretend();
  assert.deepEqual(callOnce(calls), [1, 1, 3]);
  const graph = await record(() => {
    assert.deepEqual(callOnce(calls), [0, 0, 0]);
    // What the next dispatch would be called.
    assert.equal(calls.nextDispatch, 3);
    assert.deepEqual(callOnce(calls), [0, 0, 0]);
  });
  assert.deepEqual(callOnce(calls), [2, 5, 7]);
  graph.launch();
  assert.deepEqual(callOnce(calls), [5, 17, 19]);
  graph.launch();
  graph.launch();
  assert.deepEqual(callOnce(calls), [10, 37, 39]);
});

test('a recording that fails takes no numbers, and another one may follow', async () => {
  const { calls, record } = pretend();
  const failing = record(() => {
    callOnce(calls);
    throw new Error('given up');
  });
  await assert.rejects(failing, /given up/);
  assert.deepEqual(callOnce(calls), [1, 1, 3]);
  (await record(() => callOnce(calls))).launch();
  assert.deepEqual(callOnce(calls), [3, 9, 11]);
});

test('a launch that its object refuses enqueues nothing and takes no numbers', async () => {
  let reason: Error | undefined;
  const { calls, record, steps } = pretend(() => {
    if (reason !== undefined) throw reason;
  });
  const graph = await record(() => callOnce(calls));
  reason = new Error('closed');
  assert.throws(() => graph.launch(), /closed/);
  reason = undefined;
  calls.giveUp(new Error('a peer is gone'));
  assert.throws(() => graph.launch(), { code: 'WL_CLOSED' });
  assert.ok(!steps.includes('launched'));
});

test('a launch on another stream and calls behind it keep their order; the recording itself waits for nothing outside', async () => {
  const { device, calls, order, steps, record } = pretend();
  order.begin({ asyncFinish: true });
  order.end({ asyncFinish: true });
  steps.length = 0;
  const graph = await record(() => {
    assert.equal(order.begin({}), device.stream);
    callOnce(calls);
    order.end({});
  });
  assert.deepEqual(steps, ['kernels expected']);
  steps.length = 0;
  const other = device.createStream();
  graph.launch(other);
  assert.deepEqual(steps, ['woken', `${other.handle} waits`, 'launched', `${device.stream.handle} waits`]);
});

test('the thread that carries commands is woken at each launch, and looks by itself until the graph is closed', async () => {
  const { calls, steps, record } = pretend();
  const graph = await record(() => callOnce(calls));
  graph.launch();
  graph.launch();
  graph.close();
  graph.close();
  assert.deepEqual(steps, ['kernels expected', 'woken', 'launched', 'woken', 'launched', 'no kernels expected']);
});

test('a recording that fails leaves that thread as it was', async () => {
  const { steps, record } = pretend();
  const failing = record(() => {
    throw new Error('given up');
  });
  await assert.rejects(failing, /given up/);
  assert.deepEqual(steps, ['kernels expected', 'no kernels expected']);
});
