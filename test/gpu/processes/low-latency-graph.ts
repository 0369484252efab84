// Low-latency calls in a CUDA graph against direct ones, with other contents at each replay: argv = replays, "hooks", or "absent".
import assert from 'node:assert/strict';
import { type CudaDevice, type CudaGraph, type Tensor, WeftlineError } from 'weftline';
import { EpLowLatency, type LowLatencyDispatchResult, type PendingDispatch } from 'weftline/ep';
import { join } from 'weftline/world';
import { random } from '../../local/ranks/ep-case.ts';
import { makeShapes, type LowLatencyMode, modesOn } from '../../local/ranks/low-latency-shapes.ts';
import { openTestDevice } from '../../local/support/test-device.ts';

const [what] = process.argv.slice(2);
await using world = await join();
await using device = (await openTestDevice(world)) as CudaDevice;
const shapes = await makeShapes(world, device, random(world.rank + 1));

interface Call {
  readonly result: LowLatencyDispatchResult;
  readonly combinedX: Tensor<'bf16'>;
}

async function call(ll: EpLowLatency, mode: LowLatencyMode): Promise<Call> {
  const result = await ll.dispatch({ ...shapes.dispatchArgs(mode), returnRecvHook: false });
  const args = shapes.combineArgs(mode, result);
  return { result, ...(await ll.combine({ ...args, returnRecvHook: false })) };
}

/** The same with hooks. */
async function hookedCall(ll: EpLowLatency, mode: LowLatencyMode): Promise<Call> {
  const { hook } = await ll.dispatch({ ...shapes.dispatchArgs(mode), returnRecvHook: true });
  const result = await hook();
  const combining = await ll.combine({ ...shapes.combineArgs(mode, result), returnRecvHook: true });
  return { result, ...(await combining.hook()) };
}

async function bytesOf({ result, combinedX }: Call): Promise<readonly ArrayBufferView[]> {
  const tensors = [result.recvCount, result.handle.recvSrcIdx, combinedX];
  const copies: ArrayBufferView[] = [];
  for (const tensor of tensors) copies.push(await tensor.toHost());
  return copies;
}

async function compare(mode: LowLatencyMode, replays: number): Promise<void> {
  await using direct = await EpLowLatency.create(world, device, shapes.config(mode));
  await using recorded = await EpLowLatency.create(world, device, shapes.config(mode));
  // Its results are made before: what is taken in a recording belongs to the graph.
  (await call(recorded, mode)).combinedX.close();
  const calls: Call[] = [];
  using graph = await device.capture(async () => {
    calls.push(await call(recorded, mode));
    calls.push(await hookedCall(recorded, mode));
  });
  for (let replay = 0; replay < replays; replay++) {
    await shapes.refill();
    const expected = await call(direct, mode);
    const want = await bytesOf(expected);
    expected.combinedX.close();
    graph.launch();
    // Direct calls of the same object stand between replays.
    if (replay % 3 === 2) (await call(recorded, mode)).combinedX.close();
    else for (const one of calls) assert.deepEqual(await bytesOf(one), want, `${mode}, replay ${replay}`);
  }
  await direct.barrier();
  await recorded.barrier();
  for (const { combinedX } of calls) combinedX.close();
}

/** Launches of a graph while a hook is pending, and a hook of what another graph has sent. */
async function hooks(mode: LowLatencyMode): Promise<void> {
  await using direct = await EpLowLatency.create(world, device, shapes.config(mode));
  await using recorded = await EpLowLatency.create(world, device, shapes.config(mode));
  const args = { ...shapes.dispatchArgs(mode), returnRecvHook: true } as const;
  (await call(recorded, mode)).combinedX.close();
  const calls: Call[] = [];
  using graph = await device.capture(async () => void calls.push(await call(recorded, mode)));
  /** `launchAt`: whether the graph is launched while the hook of the dispatch is pending, or that of the combine. */
  const compareAt = async (launchAt: 'dispatch' | 'combine', send: () => Promise<PendingDispatch<'bf16'>>) => {
    await shapes.refill();
    const expected = await call(direct, mode);
    const want = await bytesOf(expected);
    // The graph has memory of even dispatches and, by rank, of every third one.
    assert.equal(recorded.nextDispatch % 2, 1);
    const { hook } = await send();
    if (launchAt === 'dispatch') graph.launch();
    const result = await hook();
    const combining = await recorded.combine({ ...shapes.combineArgs(mode, result), returnRecvHook: true });
    if (launchAt === 'combine') graph.launch();
    const own = { result, ...(await combining.hook()) };
    for (const one of [...calls, own]) assert.deepEqual(await bytesOf(one), want, `${mode}, hook of ${launchAt}`);
    for (const { combinedX } of [expected, own, await call(recorded, mode)]) combinedX.close();
  };
  for (const launchAt of ['dispatch', 'combine', 'dispatch'] as const) {
    await compareAt(launchAt, () => recorded.dispatch(args));
  }
  const graphs: CudaGraph[] = [];
  await compareAt('dispatch', async () => {
    const sent: PendingDispatch<'bf16'>[] = [];
    graphs.push(await device.capture(async () => void sent.push(await recorded.dispatch(args))));
    graphs[0]!.launch();
    return sent[0]!;
  });
  await direct.barrier();
  await recorded.barrier();
  graphs[0]!.close();
  for (const { combinedX } of calls) combinedX.close();
}

/** What cannot be recorded is refused by name, and the device goes on as before. */
async function refusals(): Promise<void> {
  const tensor = device.empty('f32', [4]);
  const refused = { code: 'WL_UNSUPPORTED', message: /Cannot record .* in a graph: do it before or after/ };
  await assert.rejects(
    device.capture(async () => {
      await tensor.toHost();
    }),
    refused,
  );
  await assert.rejects(
    device.capture(() => device.stream.idle()),
    refused,
  );
  await assert.rejects(
    device.capture(async () => {
      await device.compile({ name: 'late.cu', source: 'extern "C" __global__ void late() {}', kernels: { late: {} } });
    }),
    refused,
  );
  await tensor.fromHost(new Float32Array(4));
  assert.deepEqual([...(await tensor.toHost())], [0, 0, 0, 0]);
}

async function absent(): Promise<unknown> {
  const mode = 'rank-sums';
  await using ll = await EpLowLatency.create(world, device, shapes.config(mode));
  (await call(ll, mode)).combinedX.close();
  using graph = await device.capture(async () => {
    const args = { ...shapes.dispatchArgs(mode), timeoutMs: 400 };
    await ll.dispatch({ ...args, returnRecvHook: false });
  });
  await ll.barrier();
  if (world.rank === 1) {
    await world.store.get('gave up', { timeoutMs: 30_000 });
    return { code: 'none' };
  }
  graph.launch();
  try {
    await device.stream.idle();
  } catch (error) {
    await world.store.set('gave up', new Uint8Array(1));
    return error instanceof WeftlineError ? { code: error.code, message: error.message } : String(error);
  }
  return { code: 'no error' };
}

if (what === 'absent') {
  console.log(JSON.stringify(await absent()));
} else if (what === 'hooks') {
  for (const mode of modesOn(device, world.topology.hosts.length)) await hooks(mode);
} else {
  await refusals();
  for (const mode of modesOn(device, world.topology.hosts.length)) await compare(mode, Number(what));
}
