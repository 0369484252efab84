// Calls of EpBuffer and EPAll2AllLayer in a CUDA graph: argv = scenario, and for "compare" shapes, replays of each and a seed.
import assert from 'node:assert/strict';
import { type CudaDevice, type CudaGraph, WeftlineError } from 'weftline';
import type { EPAll2AllLayer, EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { random } from '../../local/ranks/ep-case.ts';
import { openTestDevice } from '../../local/support/test-device.ts';
import {
  callBuffer,
  callLayer,
  type Calls,
  createBuffer,
  createLayer,
  drawShape,
  type GraphInputs,
  type GraphShape,
  makeInputs,
} from './ep-graph/graph-cases.ts';

const [what, ...numbers] = process.argv.slice(2);
await using world = await join();
await using device = (await openTestDevice(world)) as CudaDevice;

const small: GraphShape = {
  tokens: 8,
  hidden: 64,
  topk: 2,
  expertsPerRank: 4,
  fp8: false,
  overlap: false,
  localCombine: true,
  keepOutput: false,
  wideOffsets: false,
};

type Made = EpBuffer | EPAll2AllLayer;

/** How an object is made and called, whichever it is. */
interface Subject<M extends Made> {
  readonly create: (shape: GraphShape) => Promise<M>;
  readonly call: (
    made: M,
    inputs: GraphInputs,
    how: { readonly shape: GraphShape; readonly isBounded: boolean },
  ) => Promise<Calls>;
}

const buffers: Subject<EpBuffer> = { create: (shape) => createBuffer(world, device, shape), call: callBuffer };
const layers: Subject<EPAll2AllLayer> = { create: (shape) => createLayer(world, device, shape), call: callLayer };

async function compare<M extends Made>(
  { create, call }: Subject<M>,
  shape: GraphShape,
  { replays, seed }: { readonly replays: number; readonly seed: number },
): Promise<void> {
  const inputs = makeInputs(world, device, { shape, next: random(seed * 64 + world.rank + 1) });
  await inputs.refill();
  await using direct = await create(shape);
  await using recorded = await create(shape);
  // Some epochs and dispatches before the recording.
  for (let before = 0; before < seed % 3; before++) {
    using calls = await call(recorded, inputs, { shape, isBounded: before % 2 === 1 });
    await calls.read();
  }
  const results: Calls[] = [];
  using graph = await device.capture(async () => {
    results.push(await call(recorded, inputs, { shape, isBounded: true }));
  });
  const [replayed] = results as [Calls];
  using stream = device.createStream();
  for (let replay = 0; replay < replays; replay++) {
    await inputs.refill();
    using expected = await call(direct, inputs, { shape, isBounded: false });
    const want = await expected.read();
    // One behind the other, with no host between; now and then on another stream.
    for (let launch = 0; launch <= replay % 2; launch++) graph.launch();
    if (replay % 5 === 4) {
      graph.launch(stream);
      await stream.idle();
    }
    if (replay % 3 === 2) {
      // Direct calls of the same object, with a bound and without, before the host has looked at the replay.
      using between = await call(recorded, inputs, { shape, isBounded: replay % 2 === 1 });
      assert.deepEqual(await between.read(), want, `direct calls behind replay ${replay} of ${JSON.stringify(shape)}`);
      graph.launch();
    }
    assert.deepEqual(await replayed.read(), want, `replay ${replay} of ${JSON.stringify(shape)}`);
  }
  await device.stream.idle();
  for (const one of results) one[Symbol.dispose]();
  inputs.dispose();
}

async function compareAll(shapes: number, replays: number, seed: number): Promise<void> {
  const next = random(seed);
  for (let index = 0; index < shapes; index++) {
    const shape = index === 0 ? small : drawShape(next);
    await compare(buffers, shape, { replays, seed: seed + index });
    await compare(layers, shape, { replays, seed: seed + index });
  }
}

async function refusals(): Promise<void> {
  const shape = small;
  const inputs = makeInputs(world, device, { shape, next: random(world.rank + 1) });
  await inputs.refill();
  await using buffer = await buffers.create(shape);
  const layer = await layers.create(shape);
  const counted = (isBounded: boolean): { shape: GraphShape; isBounded: boolean } => ({ shape, isBounded });
  const refused = async (record: () => Promise<unknown>, message: RegExp): Promise<void> => {
    const capture = device.capture(async () => {
      await record();
    });
    await assert.rejects(capture, { code: 'WL_UNSUPPORTED', message });
  };
  await refused(() => callBuffer(buffer, inputs, counted(false)), /Cannot record a dispatch without numWorstTokens/);
  await refused(
    () => callLayer(layer, inputs, counted(false)),
    /Cannot record a layer dispatch without numWorstTokens/,
  );
  await refused(() => buffer.barrier(), /Cannot record a wait of the host/);
  await refused(async () => {
    // What came before it is not part of anything either.
    await callBuffer(buffer, inputs, counted(true));
    await device.stream.idle();
  }, /Cannot record a wait of the host/);
  // What the host enqueues of calls that are under way would be recorded.
  const dispatch = async (): Promise<void> => {
    (await layer.dispatch({ x: inputs.rows, topkIdx: inputs.topkIdx })).handle.close();
  };
  for (const [begin, running] of [
    [dispatch, /running 1 \(a layer dispatch without numWorstTokens\)/],
    [() => inputs.rows.toHost(), /running 1 \(a copy between the host and the device\)/],
  ] as const) {
    const call = begin();
    await refused(() => Promise.resolve(), running);
    await call;
  }
  // Refused recordings have left the numbers of calls as they were.
  await (async () => {
    using calls = await callBuffer(buffer, inputs, counted(false));
    await calls.read();
    using others = await callLayer(layer, inputs, counted(false));
    await others.read();
  })();
  const kept: Calls[] = [];
  const record = (made: () => Promise<Calls>): Promise<CudaGraph> =>
    device.capture(async () => {
      kept.push(await made());
    });
  using ofBuffer = await record(() => callBuffer(buffer, inputs, counted(true)));
  using ofLayer = await record(() => callLayer(layer, inputs, counted(true)));
  const pending = buffer.dispatch({ x: inputs.x, topkIdx: inputs.topkIdx });
  assert.throws(() => ofBuffer.launch(), { code: 'WL_INVALID_ARGUMENT', message: /its dispatch has not ended/ });
  (await pending).handle.close();
  const staged = await layer.preprocess({ x: inputs.rows, topkIdx: inputs.topkIdx });
  assert.throws(() => ofLayer.launch(), { code: 'WL_INVALID_ARGUMENT', message: /between the stages/ });
  await layer.initOutputBuffer(staged);
  await layer.dispatchToken(staged);
  (await layer.dispatchPostprocess(staged)).handle.close();
  ofLayer.launch();
  ofBuffer.launch();
  for (const calls of kept) await calls.read();
  await layer.close();
  assert.throws(() => ofLayer.launch(), { code: 'WL_CLOSED' });
  await outgrown();
  for (const calls of kept) calls[Symbol.dispose]();
  inputs.dispose();
}

/** A layer whose output has grown since. */
async function outgrown(): Promise<void> {
  const { EPAll2AllLayer } = await import('weftline/ep');
  const options = { maxTokensPerRank: 64, hidden: 64, maxTopk: 4, numExperts: 4 * world.size, capacity: 0.05 };
  await using layer = await EPAll2AllLayer.create(world, device, options);
  const input = device.empty('bf16', [1, 64]);
  const topkIdx = await device.tensor('i32', [1, 4], Int32Array.of(0, 1, 2, -1));
  const numWorstTokens = layer.context.outputSize.capacityRows;
  (await layer.dispatch({ x: input, topkIdx })).handle.close();
  using graph = await device.capture(async () => {
    (await layer.dispatch({ x: input, topkIdx, numWorstTokens })).handle.close();
  });
  await layer.context.reallocateDispatchOutputBuf(64 * world.size);
  assert.throws(() => graph.launch(), { code: 'WL_CLOSED', message: /record it again/ });
  input.close();
  topkIdx.close();
}

interface End {
  readonly code: string;
  readonly message?: string;
}

/** What a launch, or this rank's wait for it, ends with. */
async function endOf(graph: CudaGraph): Promise<End> {
  try {
    graph.launch();
    await device.stream.idle();
  } catch (error) {
    return error instanceof WeftlineError ? { code: error.code, message: error.message } : { code: String(error) };
  }
  return { code: 'none' };
}

interface GraphOptions {
  readonly numWorstTokens?: number;
  readonly wait?: { readonly timeoutMs?: number };
}

/** No bound that a replay could exceed. */
const roomForAll: GraphOptions = { numWorstTokens: small.tokens * world.size };

async function withGraph(
  use: (graph: CudaGraph, inputs: GraphInputs) => Promise<unknown>,
  { numWorstTokens = 2 * world.size, wait = { timeoutMs: 2_000 } }: GraphOptions = {},
): Promise<unknown> {
  const inputs = makeInputs(world, device, { shape: small, next: random(world.rank + 1) });
  await inputs.refill();
  await using buffer = await buffers.create(small);
  const { rows: x, topkIdx } = inputs;
  using graph = await device.capture(async () => {
    const { recvX, handle } = await buffer.dispatch({ x, topkIdx, numWorstTokens, ...wait });
    await buffer.combine({ x: recvX, handle, ...wait });
  });
  // Awaited here: a promise that is handed on outlives the graph and the buffer.
  return await use(graph, inputs);
}

/** Rank 1 does not come. */
const absent = (): Promise<unknown> =>
  withGraph(async (graph) => {
    if (world.rank === 1) {
      await world.store.get('gave up', { timeoutMs: 30_000 });
      return { code: 'none' };
    }
    const end = await endOf(graph);
    await world.store.set('gave up', new Uint8Array(1));
    return end;
  });

/** Rank 1 comes when rank 0 has given up its first launch and, if that counted from the same epochs, waits in its second. */
const late = (): Promise<unknown> =>
  withGraph(async (graph) => {
    if (world.rank === 1) {
      await world.store.get('launched', { timeoutMs: 30_000 });
      await new Promise((resolve) => setTimeout(resolve, 5_000));
      const end = await endOf(graph);
      await world.store.set('ended', new Uint8Array(1));
      return end;
    }
    graph.launch();
    await world.store.set('launched', new Uint8Array(1));
    const end = await endOf(graph);
    await world.store.get('ended', { timeoutMs: 30_000 });
    return end;
  }, roomForAll);

/** Rank 1 dies while rank 0 waits for it, in the same replay. */
const killed = (): Promise<unknown> =>
  withGraph(async (graph, { topkIdx }) => {
    await topkIdx.fromHost(new Int32Array(topkIdx.elements).fill(-1));
    graph.launch();
    await device.stream.idle();
    await world.barrier('before the end');
    if (world.rank === 1) {
      await new Promise((resolve) => setTimeout(resolve, 300));
      process.kill(process.pid, 'SIGKILL');
    }
    return endOf(graph);
  });

/** All replay until one of them dies, of which the test takes care when replays run. */
const loop = (): Promise<unknown> =>
  withGraph(
    async (graph) => {
      for (let replay = 0; ; replay++) {
        if (replay === 20) console.log(`running ${process.pid}`);
        const end = await endOf(graph);
        if (end.code !== 'none') return end;
      }
    },
    { ...roomForAll, wait: {} },
  );

/** More rows come than the recorded bound allows. */
const bound = (): Promise<unknown> =>
  withGraph(async (graph, { topkIdx }) => {
    await topkIdx.fromHost(Int32Array.from({ length: topkIdx.elements }, (_, cell) => cell % 2));
    return endOf(graph);
  });

/** The same of a layer, which has no room for them either. */
async function layerBound(): Promise<unknown> {
  const inputs = makeInputs(world, device, { shape: small, next: random(world.rank + 1) });
  await using layer = await layers.create(small);
  const { rows: input, topkIdx } = inputs;
  await topkIdx.fromHost(new Int32Array(topkIdx.elements).fill(-1));
  using graph = await device.capture(async () => {
    const { recvX: output, handle } = await layer.dispatch({ x: input, topkIdx, numWorstTokens: 3 });
    await layer.combine({ x: output, handle });
  });
  graph.launch();
  await device.stream.idle();
  await topkIdx.fromHost(Int32Array.from({ length: topkIdx.elements }, (_, cell) => cell % 2));
  // As in withGraph().
  return await endOf(graph);
}

const endings = { absent, late, killed, loop, bound, 'layer bound': layerBound };
if (what === 'compare') {
  const [shapes, replays, seed] = numbers.map(Number) as [number, number, number];
  await compareAll(shapes, replays, seed);
} else if (what === 'refusals') {
  await refusals();
} else {
  const ending = Object.entries(endings).find(([name]) => name === what)?.[1];
  if (ending === undefined) throw new Error(`no scenario ${what}`);
  console.log(JSON.stringify(await ending()));
}
