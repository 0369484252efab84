// Ranks of an EpBuffer, an EPAll2AllLayer or an EpLowLatency die or stop; those that live make it anew, and every result is the reference's.
// Arguments: "buffer", "layer" or "low-latency", the scenario, the ranks that it is about, and the seed where it is random. The last line says which
// world ranks are left, and how the failed calls ended.
import assert from 'node:assert/strict';
import fc from '../../support/fast-check.ts';
import { CpuDevice, type Tensor, WeftlineError } from 'weftline';
import { Communicator } from 'weftline/collectives';
import { EPAll2AllLayer, EpBuffer, EpLowLatency } from 'weftline/ep';
import {
  referenceCombine,
  referenceDispatch,
  referenceLayerCombine,
  referenceLayerDispatch,
  referenceLowLatencyCombine,
  referenceLowLatencyDispatch,
  type ReferenceInput,
} from 'weftline/reference';
import { join, type RankGroup } from 'weftline/world';
import { keptBytes } from '#lib/windows/cuda-window.js';
import { until } from '../../support/until.ts';
import { bytesInUse, openTestDevice, testGroup } from '../support/test-device.ts';
import { flat, flat16, runBufferCase } from './ep-buffer-case.ts';
import { epCase, random, rows } from './ep-case.ts';
import { runLayerCase } from './layer-case.ts';

const [, , what = '', scenario = '', about = ''] = process.argv;
const victims = about.split(',').map(Number);
const world = await join();
const group = await testGroup(world);
const device = await openTestDevice(group);
const turn = victims.indexOf(world.rank);
/** Time of calls that a death ends long before; of one that only its deadline ends. */
const [timeoutMs, shortMs] = [100_000, 2_000];
const [maxTokensPerRank, hidden, maxTopk] = [24, 128, 3];
// A multiple of 6, 5, 4, 3, 2 and 1, but where the test is about that.
const numExperts = scenario === 'experts' ? 8 : 60;
const config = { maxTokensPerRank, hidden, maxTopk, numExperts };

type Ep = EpBuffer | EPAll2AllLayer | EpLowLatency;

function groupOf(object: Ep): RankGroup {
  return object instanceof EPAll2AllLayer ? object.context.group : object.group;
}

/** What the rank of the group passes, random but known to all. */
function inputOf(rank: number, experts: number, seed: number): ReferenceInput {
  const next = random(seed * 100 + rank);
  const tokens = 1 + Math.floor(next() * maxTokensPerRank);
  const topkIdx = Array.from({ length: tokens }, () => {
    const first = Math.floor(next() * experts);
    return [first, (first + 1 + Math.floor(next() * (experts - 1))) % experts, -1];
  });
  return { x: rows(tokens, hidden, next), topkIdx };
}

interface Tokens {
  /** What each rank of the group passes. */
  readonly inputs: readonly ReferenceInput[];
  readonly x: Tensor<'bf16'>;
  readonly topkIdx: Tensor<'i32'>;
  readonly seed: number;
}

/** A dispatch that has ended, and the combine of what experts made of its rows. */
interface Dispatched {
  readonly received: () => Promise<readonly number[]>;
  readonly handle?: Disposable;
  /** What the reference says that this rank received, and gets back for a token. */
  readonly wantedRows: readonly (readonly number[])[];
  readonly wantedSum: (token: number) => number[];
  readonly combine: () => Promise<Tensor<'bf16'>>;
}

/** What the experts of each rank make of so many rows. */
function outputsOf(counts: readonly number[], seed: number): number[][][] {
  return counts.map((count, rank) => rows(count, hidden, random(seed * 1000 + rank)));
}

async function dispatchBuffer(buffer: EpBuffer, { inputs, x, topkIdx, seed: of }: Tokens): Promise<Dispatched> {
  const { rank, topology } = buffer.group;
  const received = referenceDispatch(inputs, { numExperts: buffer.config.numExperts });
  const counts = received.map((one) => one.x.length);
  const outputs = outputsOf(counts, of);
  const { recvX, handle } = await buffer.dispatch({ x, topkIdx, timeoutMs });
  return {
    received: async () => [...(await recvX.toHost())],
    handle,
    wantedRows: received[rank]!.x,
    wantedSum: (token) =>
      referenceCombine({ received, outputs, hosts: topology.hosts }, { rank, token, hidden, topk: maxTopk }),
    async combine() {
      const y = buffer.combineInput(handle);
      await y.fromHost(flat16(outputs[rank]!));
      return (await buffer.combine({ x: y, handle, timeoutMs })).combinedX;
    },
  };
}

async function dispatchLayer(layer: EPAll2AllLayer, { inputs, x, topkIdx, seed: of }: Tokens): Promise<Dispatched> {
  const { rank, topology } = layer.context.group;
  const received = referenceLayerDispatch(inputs, layer.config.numExperts);
  const counts = received.map((one) => one.rows.length);
  const outputs = outputsOf(counts, of);
  const { recvX, handle } = await layer.dispatch({ x, topkIdx, timeoutMs });
  const place = { rank, hidden, localCombine: false, dtype: 'bf16', hosts: topology.hosts } as const;
  return {
    received: async () => [...(await recvX.toHost())],
    handle,
    wantedRows: received[rank]!.rows.map((row) => row.x),
    wantedSum: (token) => referenceLayerCombine(received, outputs, { ...place, token }),
    async combine() {
      const y = layer.combineInput(handle);
      await y.fromHost(flat16(outputs[rank]!));
      return layer.combine({ x: y, handle, timeoutMs });
    },
  };
}

async function dispatchLowLatency(
  object: EpLowLatency,
  { inputs: plain, x, topkIdx, seed: of }: Tokens,
): Promise<Dispatched> {
  const { rank, topology } = object.group;
  const inputs = plain.map((input, other) => {
    const next = random(of * 7 + other);
    return { ...input, topkWeights: input.topkIdx.map((choices) => choices.map(() => Math.fround(next()))) };
  });
  const received = referenceLowLatencyDispatch(inputs, { numExperts: object.config.numExperts });
  const counts = received.map(({ byExpert }) => byExpert.map((block) => block.length));
  const outputs = counts.map((blocks, other) => {
    const next = random(of * 1000 + other);
    return blocks.map((count) => rows(count, hidden, next));
  });
  using topkWeights = await device.tensor('f32', topkIdx.shape, flat(inputs[rank]!.topkWeights));
  const { recvX, handle } = await object.dispatch({ x, topkIdx, topkWeights, dtype: 'bf16', timeoutMs });
  const [experts, capacity] = recvX.shape as [number, number];
  return {
    async received() {
      const all = await recvX.toHost();
      return counts[rank]!.flatMap((count, expert) => {
        const from = expert * capacity * hidden;
        return [...all.subarray(from, from + count * hidden)];
      });
    },
    wantedRows: received[rank]!.byExpert.flatMap((block) => block.map((row) => row.data)),
    wantedSum(token) {
      const made = { inputs, received, outputs, hosts: topology.hosts, mode: 'rank-sums' } as const;
      return referenceLowLatencyCombine({ ...made, combinePrecision: 'bf16' }, { rank, token, hidden });
    },
    async combine() {
      const values = new Uint16Array(experts * capacity * hidden);
      for (const [expert, block] of outputs[rank]!.entries()) values.set(flat16(block), expert * capacity * hidden);
      using y = await device.tensor('bf16', recvX.shape, values);
      const { combinedX } = await object.combine({ x: y, handle, timeoutMs });
      // On GPUs the call only enqueues.
      await combinedX.toHost();
      return combinedX;
    },
  };
}

function dispatchTo(object: Ep, passed: Tokens): Promise<Dispatched> {
  if (object instanceof EpBuffer) return dispatchBuffer(object, passed);
  return object instanceof EpLowLatency ? dispatchLowLatency(object, passed) : dispatchLayer(object, passed);
}

/** A dispatch and a combine, as the reference has them; returns the rows that this rank received. */
async function check(object: Ep, of: number): Promise<readonly number[]> {
  const { rank, ranks } = groupOf(object);
  const inputs = ranks.map((_, other) => inputOf(other, object.config.numExperts, of));
  const mine = inputs[rank]!;
  const tokens = mine.x.length;
  using x = await device.tensor('bf16', [tokens, hidden], flat16(mine.x));
  using topkIdx = await device.tensor('i32', [tokens, maxTopk], Int32Array.from(mine.topkIdx.flat()));
  const passed = { inputs, x, topkIdx, seed: of };
  const dispatched = await dispatchTo(object, passed);
  const received = await dispatched.received();
  assert.deepEqual(received, dispatched.wantedRows.flat());
  const sums = await dispatched.combine();
  const got = await sums.toHost();
  for (let token = 0; token < tokens; token += 1) {
    const row = [...got.subarray(token * hidden, (token + 1) * hidden)];
    assert.deepEqual(row, dispatched.wantedSum(token), `combined row ${token}`);
  }
  for (const part of [sums, dispatched.handle]) part?.[Symbol.dispose]();
  return received;
}

function die(): void {
  process.kill(process.pid, 'SIGKILL');
}

let hasStopped = false;

function stop(): void {
  hasStopped = true;
  console.log(`stopping ${process.pid}`);
  process.kill(process.pid, 'SIGSTOP');
}

/** What a dispatch calls first; rows for other hosts are sent behind it. */
const kernelsOfDispatch: ReadonlySet<unknown> = new Set(['compactRows', 'expandedRows', 'scatterRows']);

/** What `act` does happens in the middle of this rank's next dispatch; on a GPU, instead of it. */
function inDispatch(act: () => void): void {
  if (!(device instanceof CpuDevice)) return act();
  let isDone = false;
  const kernels = new Proxy(device.kernels, {
    get(target, property) {
      if (kernelsOfDispatch.has(property) && !isDone) {
        isDone = true;
        act();
      }
      return Reflect.get(target, property, target) as unknown;
    },
  });
  Object.defineProperty(device, 'kernels', { value: kernels });
}

async function dispatchAlone(
  object: Ep,
  args: { readonly x: Tensor<'bf16'>; readonly topkIdx: Tensor<'i32'>; readonly timeoutMs: number },
): Promise<void> {
  if (object instanceof EPAll2AllLayer) await object.dispatch(args);
  else if (object instanceof EpBuffer) await object.dispatch(args);
  else {
    const { shape, elements } = args.topkIdx;
    using topkWeights = await device.tensor('f32', shape, new Float32Array(elements));
    await object.dispatch({ ...args, topkWeights, dtype: 'bf16' });
  }
}

/** The code of a dispatch, and of a barrier behind it, that cannot end well. */
async function doomed(object: Ep, ms = timeoutMs): Promise<string> {
  const experts = object.config.numExperts;
  const x = await device.tensor('bf16', [maxTokensPerRank, hidden], new Uint16Array(maxTokensPerRank * hidden));
  const ids = Int32Array.from({ length: maxTokensPerRank * maxTopk }, (_, at) => (at * 5) % experts);
  const topkIdx = await device.tensor('i32', [maxTokensPerRank, maxTopk], ids);
  try {
    const args = { x, topkIdx, timeoutMs: ms };
    await dispatchAlone(object, args);
    await object.barrier({ timeoutMs: ms });
  } catch (error) {
    return codeOf(error);
  } finally {
    for (const tensor of [x, topkIdx]) tensor.close();
  }
  throw new Error('a call without a rank that is gone has ended well');
}

function codeOf(error: unknown): string {
  if (!(error instanceof WeftlineError)) throw error;
  return error.code;
}

/** Resolves once the store knows that the rank is dead. */
async function deathOf(rank: number): Promise<void> {
  await assert.rejects(world.store.get('never', { from: [rank], timeoutMs }), { code: 'WL_PEER_LOST' });
}

async function make(): Promise<Ep> {
  if (what === 'low-latency') return EpLowLatency.create(group, device, config);
  return what === 'layer' ? EPAll2AllLayer.create(group, device, config) : EpBuffer.create(group, device, config);
}

/** This rank dies when it would map the windows of the object that is made next. */
function dieInCreation(): void {
  const groups = Object.getPrototypeOf(Object.getPrototypeOf(world)) as object;
  const allGather = Reflect.get(groups, 'allGather') as (...args: unknown[]) => unknown;
  Object.defineProperty(groups, 'allGather', {
    value(this: RankGroup, name: string, ...rest: unknown[]) {
      if (name.startsWith('window/') && /\/(?:map|open)$/.test(name)) die();
      return allGather.call(this, name, ...rest);
    },
  });
}

/** The code of the error of a rank that was left out, which it prints. */
async function refusal(object: Ep): Promise<string> {
  try {
    await object.shrink({ timeoutMs });
  } catch (error) {
    console.log((error as Error).message);
    return codeOf(error);
  }
  throw new Error('a rank that was left out is in the group');
}

/**
 * This rank dies at its n-th event from now on: a use of a kernel, an exchange of a group, or the request of an agreement, which
 * the store then has already.
 */
function dieAtEvent(nth: number): void {
  let seen = 0;
  const event = (): void => {
    seen += 1;
    if (seen === nth) die();
  };
  const kernels = new Proxy((device as CpuDevice).kernels, {
    get(target, property) {
      event();
      return Reflect.get(target, property, target) as unknown;
    },
  });
  Object.defineProperty(device, 'kernels', { value: kernels });
  const groups = Object.getPrototypeOf(Object.getPrototypeOf(world)) as object;
  for (const name of ['allGather', 'shrink']) {
    const method = Reflect.get(groups, name) as (...args: unknown[]) => unknown;
    Object.defineProperty(groups, name, {
      value(this: RankGroup, ...args: unknown[]) {
        if (name === 'allGather') event();
        const called = method.apply(this, args);
        if (name === 'shrink') event();
        return called;
      },
    });
  }
}

const losses = ['WL_PEER_LOST', 'WL_PEER_FAILED', 'WL_TIMEOUT'];
const codes: string[] = [];
let seed = 1;

/** Each victim of the round dies in a dispatch; the others go on without. */
async function dieAndShrink(object: Ep, round: readonly number[]): Promise<Ep> {
  if (round.includes(world.rank)) inDispatch(die);
  codes.push(await doomed(object));
  // It has heard of another death before it came to its own.
  if (round.includes(world.rank)) die();
  const next = await object.shrink({ timeoutMs });
  await check(next, seed++);
  return next;
}

const scenarios: Readonly<Record<string, (object: Ep) => Promise<Ep>>> = {
  dispatch: (object) => dieAndShrink(object, victims),
  async 'one after the other'(object) {
    let present = object;
    for (const victim of victims) present = await dieAndShrink(present, [victim]);
    return present;
  },
  async agreement(object) {
    const [first, second] = victims as [number, number];
    if (world.rank === first) inDispatch(die);
    codes.push(await doomed(object));
    if (world.rank === second) {
      // ORDER: the store takes requests of a rank in their order, so it has come when the others read this.
      void groupOf(object).shrink();
      await world.store.set('came', new Uint8Array());
      die();
    }
    // The last rank that is missing comes behind that death.
    if (world.rank === Math.min(...world.ranks.filter((rank) => !victims.includes(rank)))) await deathOf(second);
    return object.shrink({ timeoutMs });
  },
  async creation(object) {
    const [first, second] = victims as [number, number];
    if (world.rank === first) inDispatch(die);
    codes.push(await doomed(object));
    if (world.rank === second) dieInCreation();
    return object.shrink({ timeoutMs });
  },
  // The victims die at random events, the others check all steps, and agree behind each loss on the step from which they go on.
  async random(object) {
    const steps = 14;
    const next = random(Number(process.argv[5]) * 100 + world.rank);
    const dyingStep = turn < 0 ? Infinity : 1 + Math.floor(next() * (steps / 2));
    let present = object;
    let isAgreed = true;
    let isDoomed = false;
    for (let step = 1; step <= steps;) {
      try {
        if (!isAgreed) step = Math.min(...(await groupOf(present).allGather('step', step)));
        isAgreed = true;
        if (step === dyingStep && !isDoomed) dieAtEvent(1 + Math.floor(next() * 25));
        isDoomed ||= step === dyingStep;
        await check(present, step);
        step += 1;
        // A rank that has ended the last step would be gone for one that has not.
        if (step > steps) await present.barrier({ timeoutMs });
      } catch (error) {
        const code = codeOf(error);
        if (!losses.includes(code)) throw error;
        codes.push(code);
        step = Math.min(step, steps);
        present = await present.shrink({ timeoutMs });
        isAgreed = false;
      }
    }
    assert.ok(turn < 0, 'a victim has not come to its event');
    return present;
  },
  async experts(object) {
    if (turn >= 0) inDispatch(die);
    codes.push(await doomed(object));
    await assert.rejects(object.shrink({ timeoutMs }), {
      code: 'WL_INVALID_ARGUMENT',
      message: /multiple of the 3 ranks, got 8; 3 of 4 ranks are left: call shrink\(\{ config/,
    });
    // The object is closed by now.
    await assert.rejects(object.barrier(), { code: 'WL_CLOSED' });
    return object.shrink({ config: ({ size }) => ({ numExperts: 4 * size }), timeoutMs });
  },
  async stopped(object) {
    if (turn >= 0) inDispatch(stop);
    // The others have long given up when it goes on.
    codes.push(await doomed(object, shortMs));
    if (turn >= 0) {
      // It has heard of another one that stopped before it came to its own stop.
      if (!hasStopped) stop();
      codes.push(await refusal(object));
      await world.store.set(`late ${world.rank}`, new Uint8Array());
      return object;
    }
    const next = await object.shrink({ timeoutMs: shortMs });
    const before = await check(next, seed);
    console.log('without them');
    await world.store.wait(
      victims.map((victim) => `late ${victim}`),
      { timeoutMs },
    );
    // Rows of the same dispatch, which the late rank could have written over.
    assert.deepEqual(await check(next, seed), before);
    return next;
  },
};

/** Bytes of the GPU that are in use, after what kernels need has been loaded; other ranks may have the same GPU. */
function usedBytes(): number {
  if (device.kind === 'cpu') return 0;
  const [free, total]: [[number], [number]] = [[0], [0]];
  device.context.call('cuMemGetInfo', free, total);
  return total[0] - free[0];
}
if (device.kind === 'cuda') {
  const warm = await make();
  await check(warm, seed);
  await warm.barrier();
  await warm.close();
  await world.barrier('warm');
}
const usedBefore = usedBytes();

// Across hosts it keeps the agent that objects share, with its links to all ranks: a late rank still reaches this process.
const holder =
  scenario !== 'stopped' || group.topology.hosts.length === 1
    ? undefined
    : await EpBuffer.create(group, device, { ...config, maxTokensPerRank: 1 });
const first = await make();
await check(first, seed++);
// No rank dies while another one still needs it for that.
await world.barrier('ready');
const began = performance.now();
const last = await (scenarios[scenario] as (typeof scenarios)[string])(first);
const ms = performance.now() - began;
const isLeftOut = scenario === 'stopped' && turn >= 0;
if (!isLeftOut) {
  await check(last, seed++);
  const left = groupOf(last);
  assert.equal(left.ranks[left.rank], world.rank);
  await using communicator = await Communicator.create(left, device);
  using input = await device.tensor('i32', [1], Int32Array.of(1 << left.rank));
  using output = device.empty('i32', [1]);
  await communicator.allReduce({ input, output, op: 'sum' });
  assert.deepEqual([...(await output.toHost())], [(1 << left.size) - 1]);
  // The new group is as good as any other.
  for (const drawn of fc.sample(epCase(left.size), { numRuns: 2, seed: 1 })) {
    await (what === 'layer' ? runLayerCase : runBufferCase)(left, device, drawn);
  }
}
await last.close();
await first.close();
await holder?.close();
// Parts of windows of GPUs that were kept for ranks that could still write there.
await until(() => keptBytes() === 0, 'the end of the use of windows by ranks that are gone');
const more = usedBytes() - usedBefore;
// Pools of the driver keep some for what comes next.
assert.ok(scenario === 'stopped' || more < 64 << 20, `${more} bytes of the GPU were not given back`);
// Small tensors of the calls that failed go when they are collected; windows, tables and what is for the network must be gone.
const kept = bytesInUse(device) ?? 0;
assert.ok(kept < 65_536, `${kept} bytes of the device were not given back`);
await device.close();
await world.close();
console.log(JSON.stringify({ ranks: isLeftOut ? [] : groupOf(last).ranks, codes, ms }));
