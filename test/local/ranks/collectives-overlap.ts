// Calls that are posted while earlier ones run: a Communicator carries them out in order, other objects refuse them.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { type CpuDevice, WeftlineError } from 'weftline';
import { Communicator, SparseAllReduce } from 'weftline/collectives';
import { EPAll2AllLayer, EpBuffer, EpLowLatency } from 'weftline/ep';
import { ExpertMover, expertPlan } from 'weftline/ep/placement';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';

await using world = await join();
await using device = (await openTestDevice(world)) as CpuDevice;
const { rank, size } = world;
const ranks = Array.from({ length: size }, (_, at) => at);
const RUNS = 12;
const all = (of: (rank: number) => number): number => ranks.reduce((sum, at) => sum + of(at), 0);

const codeOf = (call: Promise<unknown>): Promise<string | undefined> =>
  call.then(
    () => undefined,
    (error: unknown) => (error instanceof WeftlineError ? error.code : String(error)),
  );

function filled(count: number, value: number) {
  const tensor = device.empty('i32', [count]);
  tensor.view().fill(value);
  return tensor;
}

type Posted = readonly [call: Promise<unknown>, check: () => void];

/** Posts call `number` of a run: calls of all kinds, whose results tell whose call they were. */
function post(communicator: Communicator, number: number, count: number): Posted {
  const value = (of: number): number => number * 10 + of;
  const root = number % size;
  const output = filled(count, value(rank));
  const is = (tensor: typeof output, expected: number) => () =>
    assert.deepEqual(new Set(tensor.view()), new Set([expected]), `call ${number}`);
  switch (number % 6) {
    case 0:
      return [communicator.allReduce({ output }), is(output, all(value))];
    case 1:
      return [communicator.broadcast({ output, root }), is(output, value(root))];
    case 2: {
      const parts = filled(count * size, 0);
      return [
        communicator.allGather({ input: output, output: parts }),
        () => ranks.forEach((at) => is(parts.slice(at * count, (at + 1) * count), value(at))()),
      ];
    }
    case 3: {
      const [input, parts] = [filled(count * size, value(rank)), filled(count * size, 0)];
      // The caller may change them once the call was posted.
      const counts = ranks.map(() => count);
      const call = communicator.allToAllv({ input, output: parts, sendCounts: counts, recvCounts: counts });
      counts.fill(0);
      return [call, () => ranks.forEach((at) => is(parts.slice(at * count, (at + 1) * count), value(at))())];
    }
    case 4: {
      const received = filled(count, 0);
      communicator.groupStart();
      void communicator.send({ input: output, peer: (rank + 1) % size });
      void communicator.recv({ output: received, peer: (rank + size - 1) % size });
      return [communicator.groupEnd(), is(received, value((rank + size - 1) % size))];
    }
    default:
      return [communicator.reduce({ output, root }), rank === root ? is(output, all(value)) : () => undefined];
  }
}

/** Ranks that are late in turn, so that on some a call is over when the next is posted, and on others it is not. */
{
  const communicator = await Communicator.create(world, device);
  for (let run = 0; run < RUNS; run++) {
    if (run % size === rank) await sleep(2);
    const posted = Array.from({ length: 8 }, (_, at) => post(communicator, run + at, run % 3 === 0 ? 20_000 : 16));
    const last = run === RUNS - 1 ? communicator.close() : Promise.resolve();
    await Promise.all(posted.map(([call]) => call));
    for (const [, check] of posted) check();
    await last;
  }
  assert.equal(await codeOf(communicator.barrier()), 'WL_CLOSED');
}

/** One rank keeps three calls under way, and closes with them, while the others await each: what waits keeps its place. */
{
  const communicator = await Communicator.create(world, device);
  const posted: Posted[] = [];
  for (let number = 0; number < 6 * RUNS; number++) {
    posted.push(post(communicator, number, number % 4 === 0 ? 20_000 : 16));
    const awaited = posted[rank === 0 ? number - 2 : number];
    await awaited?.[0];
  }
  const closed = communicator.close();
  await Promise.all(posted.map(([call]) => call));
  for (const [, check] of posted) check();
  await closed;
}

/** A call fails while others wait for it: all of them have the same reason, on each rank; what is posted behind close() is refused. */
{
  const communicator = await Communicator.create(world, device);
  await world.barrier('before a call fails');
  if (rank !== 0) {
    const output = filled(16, 0);
    const stop = new AbortController();
    const calls = [
      communicator.allReduce({ output, signal: stop.signal }),
      communicator.broadcast({ output, root: 1 }),
      communicator.barrier(),
    ];
    const closed = communicator.close();
    const late = codeOf(communicator.barrier());
    if (rank === 1) stop.abort(new Error('enough'));
    const [first, ...rest] = await Promise.all(calls.map((call) => call.then(() => undefined, String)));
    assert.match(first ?? '', /enough/);
    assert.deepEqual(rest, [first, first]);
    await closed;
    assert.equal(await late, 'WL_CLOSED');
  }
  await world.barrier('a call has failed');
  await communicator.close();
}

/** The second of two calls in one tick is refused, on every rank alike, whatever the first one waits for. */
async function refused(name: string, first: Promise<unknown>, second: () => Promise<unknown>): Promise<void> {
  const codes = await Promise.all([codeOf(first), codeOf(second())]);
  assert.deepEqual(codes, [undefined, 'WL_INVALID_ARGUMENT'], name);
}

/** They refuse before anything goes to other ranks, so that one host is enough. */
async function refusals(): Promise<void> {
  const x = device.empty('bf16', [4, 64]);
  const topkIdx = await device.tensor('i32', [4, 1], Int32Array.of(0, 1, 0, 1));
  const topkWeights = await device.tensor('f32', [4, 1], new Float32Array(4).fill(1));
  const config = { maxTokensPerRank: 4, hidden: 64, numExperts: size, maxTopk: 1 };
  {
    await using buffer = await EpBuffer.create(world, device, config);
    const calls = [() => buffer.dispatch({ x, topkIdx }), () => buffer.barrier(), () => buffer.close()];
    for (const first of calls.slice(0, 2)) for (const second of calls) await refused('EpBuffer', first(), second);
  }
  {
    await using lowLatency = await EpLowLatency.create(world, device, config);
    const calls = [
      () => lowLatency.dispatch({ x, topkIdx, topkWeights, dtype: 'bf16' }),
      () => lowLatency.barrier(),
      () => lowLatency.close(),
    ];
    for (const first of calls.slice(0, 2)) for (const second of calls) await refused('EpLowLatency', first(), second);
  }
  {
    const shape = { maxTokensPerRank: 4, hidden: 64, maxTopk: 1, numExperts: size };
    await using layer = await EPAll2AllLayer.create(world, device, shape);
    const calls = [() => layer.dispatch({ x, topkIdx }), () => layer.barrier(), () => layer.close()];
    for (const first of calls.slice(0, 2)) for (const second of calls) await refused('EPAll2AllLayer', first(), second);
  }
  {
    await using sparse = await SparseAllReduce.create(world, device, {});
    const call = () => sparse.allReduce({ output: device.empty('f32', [5000]) });
    for (const second of [call, () => sparse.close()]) await refused('SparseAllReduce', call(), second);
  }
  {
    const plan = expertPlan({
      layers: 1,
      ranks: size,
      experts: size,
      physicalToLogical: ranks,
    });
    await using mover = await ExpertMover.create(world, device, { plan, expertBytes: 64, load: () => undefined });
    for (const second of [() => mover.cutOver(), () => mover.close()]) {
      await mover.stage(plan);
      await refused('ExpertMover', mover.cutOver(), second);
    }
  }
}

if (world.topology.hosts.length === 1) await refusals();
