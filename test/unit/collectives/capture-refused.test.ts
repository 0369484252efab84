// A recording would take in the later steps of calls that the host makes, so it is refused while they run.
import assert from 'node:assert/strict';
import test from 'node:test';
import type { CudaCallOrder } from '#lib/group/cuda-calls.js';
import type { CollectiveCall } from '#lib/collectives/collective-call.js';
import { HostsCollectives, type HostsCollectivesParts } from '#lib/collectives/hosts/hosts-collectives.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { HostCopy } from '#lib/device/cuda/cuda-device.js';
import { captureGraph } from '#lib/device/cuda/cuda-graph.js';
import { CudaStream } from '#lib/device/cuda/cuda-stream.js';
import { addressOf } from '#lib/native/library.js';
import { pretendDriver } from '../support/pretended-driver.ts';

const keepNothing = () => ({ hold: () => {}, end: () => {}, release: () => {} });

function setUp(run: () => Promise<void> | undefined) {
  const { driver, calls } = pretendDriver();
  const context = CudaContext.retain(0, driver);
  const stream = new CudaStream(context, { priority: 'normal', timeoutMs: 30_000 }, () => undefined);
  const order: Pick<CudaCallOrder, 'begin' | 'end'> = { begin: () => stream, end: () => undefined };
  const steps = { run, exchange: run };
  const engine = new HostsCollectives({
    device: { context },
    steps,
    mover: {},
    order,
  } as unknown as HostsCollectivesParts);
  const record = (): Promise<Disposable> => captureGraph(stream, keepNothing, () => {});
  const begun = (): number => calls.filter((call) => call === 'cuStreamBeginCapture').length;
  return { engine, record, begun };
}

const call = {} as CollectiveCall;

function refused(calls: number) {
  return {
    code: 'WL_UNSUPPORTED',
    message: `Cannot record a graph on GPU 0 while calls run whose steps the host makes, expected none, running ${calls} (a call of a Communicator of several hosts): await them before device.capture()`,
    details: { what: 'a call of a Communicator of several hosts', calls },
  };
}

test('no graph is recorded while calls across hosts run', async () => {
  const ends: { readonly resolve: () => void; readonly reject: (error: Error) => void }[] = [];
  const { engine, record, begun } = setUp(() => new Promise<void>((resolve, reject) => ends.push({ resolve, reject })));
  const one = engine.run(call, {});
  const other = engine.exchange([], {});
  await assert.rejects(record(), refused(2));
  ends[0]?.resolve();
  await one;
  await assert.rejects(record(), refused(1));
  ends[1]?.reject(new Error('lost'));
  await assert.rejects(Promise.resolve(other), /lost/);
  assert.equal(begun(), 0);
  (await record())[Symbol.dispose]();
  assert.equal(begun(), 1);
});

test('calls that end at once, well or not, leave nothing behind', async () => {
  const { engine, record } = setUp(() => undefined);
  assert.equal(engine.run(call, {}), undefined);
  (await record())[Symbol.dispose]();
  const failing = setUp(() => {
    throw new Error('lost');
  });
  assert.throws(() => failing.engine.run(call, {}), /lost/);
  (await failing.record())[Symbol.dispose]();
});

test('no graph is recorded while a copy between the host and the device is under way', async () => {
  const { driver, status } = pretendDriver();
  const pinned: Uint8Array[] = [];
  status.cuMemHostAlloc = (...parameters) => {
    const memory = new Uint8Array(Number(parameters[1]));
    pinned.push(memory);
    (parameters[0] as number[])[0] = Number(addressOf(memory));
    return 0;
  };
  const context = CudaContext.retain(0, driver);
  const stream = new CudaStream(context, { priority: 'normal', timeoutMs: 30_000 }, () => undefined);
  const copies = new HostCopy(context, stream, 30_000);
  const record = (): Promise<Disposable> => captureGraph(stream, keepNothing, () => {});
  const one = copies.toDevice(4096, new Uint8Array());
  const other = copies.fromDevice(new Uint8Array(), 4096);
  const running = /running 2 \(a copy between the host and the device\)/;
  await assert.rejects(record(), { code: 'WL_UNSUPPORTED', message: running });
  await Promise.all([one, other]);
  (await record())[Symbol.dispose]();
  // One that fails is over, too.
  status.cuEventQuery = 1;
  const failing = copies.toDevice(4096, new Uint8Array());
  await assert.rejects(failing, { code: 'WL_CUDA' });
  delete status.cuEventQuery;
  (await record())[Symbol.dispose]();
});
