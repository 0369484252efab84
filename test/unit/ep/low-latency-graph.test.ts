// A graph with calls of EpLowLatency belongs to the object: its launches keep the order of calls, and end with the object. Across hosts
// a rank does its part for others in the order of calls, whichever hook comes first.
import assert from 'node:assert/strict';
import test from 'node:test';
import { type CudaDevice, readSettings, type Tensor } from 'weftline';
import { CudaCalls } from '#lib/group/cuda-calls.js';
import { CudaContext } from '#lib/device/cuda/cuda-context.js';
import { CudaEvent } from '#lib/device/cuda/cuda-event.js';
import { captureGraph } from '#lib/device/cuda/cuda-graph.js';
import { CudaStream } from '#lib/device/cuda/cuda-stream.js';
import { CudaLowLatencyEngine } from '#lib/ep/low-latency/cuda/cuda-low-latency-engine.js';
import { lowLatencySize, withLowLatencyDefaults } from '#lib/ep/low-latency/low-latency-size.js';
import { addressOf } from '#lib/native/library.js';
import { pretendDriver } from '../support/pretended-driver.ts';

type Parts = ConstructorParameters<typeof CudaLowLatencyEngine>[1];
type Scope = ConstructorParameters<typeof CudaLowLatencyEngine>[0];
type Input = Parameters<CudaLowLatencyEngine['dispatch']>[0];
type Combine = Parameters<CudaLowLatencyEngine['combine']>[0];
type Wait = Parameters<CudaLowLatencyEngine['dispatch']>[2];

function keepNothing() {
  return { hold() {}, end() {}, release() {} };
}

/** Kernels and waits between streams are told in `steps`, streams by their names. */
function setUp(isAcross = false) {
  const { driver, status } = pretendDriver();
  const trap = new Uint8Array(new SharedArrayBuffer(8192));
  status.cuMemHostAlloc = (out) => (((out as [number])[0] = Number(addressOf(trap))), 0);
  const context = CudaContext.retain(0, driver);
  const makeStream = (): CudaStream => new CudaStream(context, { priority: 'normal', timeoutMs: 60_000 }, () => {});
  const [stream, other] = [makeStream(), makeStream()];
  const steps: string[] = [];
  const nameOf = (handle: unknown): string => (handle === other.handle ? 'other' : 'own');
  status.cuStreamWaitEvent = (waiting) => (steps.push(`${nameOf(waiting)} waits`), 0);
  status.cuGraphLaunch = (_graph, on) => (steps.push(`graph on ${nameOf(on)}`), 0);
  const device = {
    context,
    stream,
    kind: 'cuda',
    createStream: makeStream,
    createEvent: () => new CudaEvent(context, { timing: false, timeoutMs: 60_000 }),
  } as unknown as CudaDevice;
  const given = { maxTokensPerRank: 4, hidden: 512, numExperts: 4, maxTopk: 2 };
  const config = withLowLatencyDefaults(given, 2);
  const group = { ranks: [0, 1], size: 2, settings: readSettings({}, {}), peerLost: new AbortController().signal };
  const scope = { group, device, config, size: lowLatencySize(given, 2, 'cuda') } as unknown as Scope;
  const plan = (name: string) => ({
    arguments: { set() {} },
    launch: (on: CudaStream) => steps.push(`${name} on ${nameOf(on.handle)}`),
  });
  const dispatch = plan('dispatch');
  const toHosts = { send: plan('send to hosts'), forward: plan('forward') };
  const hosts = { bf16: toHosts, fp8: toHosts, sums: plan('sums') };
  const tensor = {
    address: 1 << 20,
    elements: 1,
    shape: [4, 2],
    dtype: 'i32',
    reshape: () => tensor,
  } as never as Tensor;
  const tables = new Proxy({}, { get: () => tensor });
  const calls = new CudaCalls(group, device);
  const engine = new CudaLowLatencyEngine(scope, {
    launches: {
      dispatch: { bf16: dispatch, fp8: dispatch },
      combine: plan('combine'),
      awaitBuffer: plan('await'),
      ...(isAcross && { hosts }),
    },
    ...(isAcross && { network: { wake() {}, expectKernels: () => () => {}, close: () => Promise.resolve() } }),
    tables: { results: [tables, tables], [Symbol.dispose]() {} },
    window: { storage: { address: 1 << 22, bytes: 1 << 22, device, disposed: false }, [Symbol.dispose]() {} },
    calls,
  } as unknown as Parts);
  const input = { x: tensor, topkIdx: tensor, out: tensor } as unknown as Input;
  const call = (sequence: number): void => void engine.dispatch({ ...input }, sequence, {} as Wait);
  const record = (): ReturnType<typeof captureGraph> => captureGraph(stream, keepNothing, () => call(1));
  /** The first half of a dispatch or a combine; returns the second one. */
  const sendDispatch = (sequence: number) => {
    const sent = { ...input };
    void engine.sendDispatch(sent, sequence, {} as Wait);
    return () => void engine.receiveDispatch(sent, sequence, {} as Wait);
  };
  const sendCombine = async (sequence: number) => {
    const handle = { sequence, numTokens: 4, topk: 2 };
    const sent = await engine.sendCombine({ x: tensor, out: tensor, handle } as unknown as Combine, {} as Wait);
    return () => void engine.receiveCombine(sent, {} as Wait);
  };
  return { engine, calls, steps, call, record, other, stream, sendDispatch, sendCombine };
}

test('a launch on another stream comes behind the calls before it, and before those that follow', async () => {
  const { steps, call, record, other } = setUp();
  const graph = await record();
  assert.deepEqual(steps.splice(0), ['dispatch on own']);
  call(2);
  graph.launch(other);
  call(3);
  const [before, first, launched, ...behind] = steps;
  assert.deepEqual([before, first, launched], ['dispatch on own', 'other waits', 'graph on other']);
  assert.equal(behind[0], 'own waits');
  assert.equal(behind.at(-1), 'dispatch on own');
});

test('a launch fails as a call would: while the object is in a call, when it was given up or closed', async () => {
  const { engine, calls, steps, record } = setUp();
  const graph = await record();
  steps.length = 0;
  let reason: Error | undefined = new Error('in another call');
  engine.guardLaunches(() => {
    if (reason !== undefined) throw reason;
  });
  assert.throws(() => graph.launch(), /in another call/);
  reason = undefined;
  graph.launch();
  await engine.close();
  assert.throws(() => graph.launch(), { code: 'WL_CLOSED' });
  assert.deepEqual(steps, ['graph on own']);
  assert.throws(() => calls.throwIfUnusable(), { code: 'WL_CLOSED' });
});

/** What ran on the device's stream. */
function ran(steps: string[]): string[] {
  return steps.splice(0).map((step) => step.replace(' on own', ''));
}

test('a rank does its part for other hosts call by call before it waits, whichever hook comes first', async () => {
  for (const order of [
    ['dispatch', 'combine'],
    ['combine', 'dispatch'],
  ] as const) {
    const { steps, sendDispatch, sendCombine } = setUp(true);
    const hooks = { dispatch: sendDispatch(2), combine: await sendCombine(1) };
    assert.deepEqual(ran(steps), ['send to hosts', 'dispatch', 'combine']);
    hooks[order[0]]();
    hooks[order[1]]();
    const expected = {
      dispatch: ['forward', 'dispatch', 'sums', 'combine'],
      combine: ['forward', 'sums', 'combine', 'dispatch'],
    };
    assert.deepEqual(ran(steps), expected[order[0]], `the hook of ${order[0]} first`);
  }
  const { steps, call, sendCombine } = setUp(true);
  const hook = await sendCombine(1);
  call(2);
  hook();
  assert.deepEqual(ran(steps), ['combine', 'send to hosts', 'dispatch', 'sums', 'forward', 'dispatch', 'combine']);
});

test('before a graph is launched a rank does its part for other hosts in the calls before; a graph has only that of its own', async () => {
  const { steps, call, record, sendDispatch, sendCombine, stream } = setUp(true);
  const early = sendDispatch(1);
  steps.length = 0;
  const graph = await record();
  assert.deepEqual(ran(steps), ['send to hosts', 'dispatch', 'forward', 'dispatch']);
  const later = await sendCombine(2);
  graph.launch();
  assert.deepEqual(ran(steps), ['combine', 'forward', 'sums', 'graph']);
  early();
  later();
  assert.deepEqual(ran(steps), ['dispatch', 'combine']);
  // What one graph has sent another one receives.
  const hooks: (() => void)[] = [];
  await captureGraph(stream, keepNothing, () => void hooks.push(sendDispatch(3)));
  call(4);
  await captureGraph(stream, keepNothing, () => hooks[0]!());
  const [first, direct, second] = [
    'send to hosts,dispatch',
    'send to hosts,dispatch,forward,dispatch',
    'forward,dispatch',
  ];
  assert.equal(ran(steps).join(), [first, direct, second].join());
});

test('what a graph has sent a rank passes on before later calls and graphs, if no graph receives it', async () => {
  const { steps, call, record, sendDispatch, stream } = setUp(true);
  const whole = await record();
  const hooks: (() => void)[] = [];
  const sending = await captureGraph(stream, keepNothing, () => void hooks.push(sendDispatch(2)));
  steps.length = 0;
  // Nothing was sent so far.
  call(3);
  assert.deepEqual(ran(steps), ['send to hosts', 'dispatch', 'forward', 'dispatch']);
  sending.launch();
  call(4);
  hooks[0]!();
  assert.deepEqual(ran(steps), ['graph', 'send to hosts', 'dispatch', 'forward', 'forward', 'dispatch', 'dispatch']);
  const later = await captureGraph(stream, keepNothing, () => void hooks.push(sendDispatch(5)));
  steps.length = 0;
  later.launch();
  whole.launch();
  hooks[1]!();
  assert.deepEqual(ran(steps), ['graph', 'forward', 'graph', 'dispatch']);
});
