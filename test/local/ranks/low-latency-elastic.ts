// Ranks of an elastic EpLowLatency that die, stop, are masked and come back at random, every result checked: argv = seed, mode, dispatches,
// faults, and for the first half of the dispatches another deadline, so short that ranks are masked within their calls.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Tensor, WeftlineError } from 'weftline';
import {
  EpLowLatency,
  type LowLatencyCombineResult,
  type LowLatencyConfig,
  type LowLatencyDispatchResult,
} from 'weftline/ep';
import { referenceLowLatencyCombine, referenceLowLatencyDispatch, type ReferenceInput } from 'weftline/reference';
import { join } from 'weftline/world';
import { openOwnDevice } from '../support/test-device.ts';
import { flat, flat16 } from './ep-buffer-case.ts';
import { random, rows } from './ep-case.ts';

const [seedText, mode, dispatches, faultCount, shortMs] = process.argv.slice(2);
if (mode !== 'rank-sums' && mode !== 'choices' && mode !== 'rank-major') throw new Error(`no mode ${mode}`);
const seed = Number(seedText);
const [TOKENS, HIDDEN, TOPK, PER_RANK] = [6, 16, 3, 2];
/** Ranks agree on whether to go on once in so many dispatches. */
const STRETCH = 25;

await using world = await join();
const me = world.rank;
const n = world.size;
await using device = await openOwnDevice(world);
/** Ranks on GPUs may share one, and take turns there. */
const TIMEOUT_MS = device.kind === 'cpu' ? 400 : 2_000;
const deadlineOf = (dispatch: number): number =>
  dispatch < Number(dispatches) / 2 ? Number(shortMs ?? TIMEOUT_MS) : TIMEOUT_MS;
/** A call may take its deadline, another one for ranks that waited themselves, and what a busy machine adds: more is a hang. */
const LONGEST_MS = 60_000;
const numExperts = PER_RANK * n;
const config: LowLatencyConfig = {
  maxTokensPerRank: TOKENS,
  hidden: HIDDEN,
  numExperts,
  maxTopk: TOPK,
  elastic: true,
  combinePrecision: (['bf16', 'f32', 'fp8-lossy'] as const)[Math.floor(seed / 3) % 3]!,
  ...(mode === 'rank-major' ? { layout: mode } : { combineTravels: mode }),
};
/** Ranks of other hosts stand each for itself, as if they had hosts of their own. */
const { hosts: hostsOfRanks, scaleUpRanks } = world.topology;
const seen = [
  scaleUpRanks,
  ...hostsOfRanks.flatMap((ranks) => (ranks === scaleUpRanks ? [] : ranks.map((rank) => [rank]))),
].toSorted((a, b) => a[0]! - b[0]!);
const chance = random(seed + 1000 * me + 17 * world.life);
const counts = { checked: 0, without: 0, faults: 0, rejoined: 0, longestMs: 0 };

const ll = await EpLowLatency.create(world, device, config, { timeoutMs: 60_000 });

function inputOf(dispatch: number, rank: number): ReferenceInput {
  const next = random(seed + 7919 * dispatch + 31 * rank);
  const tokens = Math.floor(next() * (TOKENS + 1));
  const topkIdx = Array.from({ length: tokens }, () => {
    const free = Array.from({ length: numExperts }, (_, expert) => expert);
    return Array.from({ length: TOPK }, () =>
      next() < 0.1 ? -1 : (free.splice(Math.floor(next() * free.length), 1)[0] ?? -1),
    );
  });
  const topkWeights = topkIdx.map((choices) => choices.map(() => Math.fround(next() * 2 - 0.5)));
  return { x: rows(tokens, HIDDEN, next), topkIdx, topkWeights };
}

/** What an expert, or the experts of a rank, make of a token: the same whatever else has come. */
function outputOf(dispatch: number, block: number, source: number, token: number): number[] {
  return rows(1, HIDDEN, random(seed + dispatch * 101 + block * 13 + source * 7 + token))[0]!;
}

/** What that rank's experts, or its rows by source, give for what it received. */
function outputsOf(dispatch: number, rank: number, received: ReturnType<typeof referenceLowLatencyDispatch>[number]) {
  const blocks = mode === 'rank-major' ? received.byRank : received.byExpert;
  return blocks.map((block, at) =>
    block.map((row) => {
      const maker = mode === 'rank-major' ? rank : rank * PER_RANK + at;
      return outputOf(dispatch, maker, row.sourceRank, row.sourceToken);
    }),
  );
}

async function timed<T>(call: Promise<T>): Promise<T> {
  const began = performance.now();
  try {
    return await call;
  } finally {
    counts.longestMs = Math.max(counts.longestMs, performance.now() - began);
  }
}

async function maskOf(mask: Tensor<'i32'> | undefined): Promise<boolean[]> {
  return Array.from((await mask?.toHost()) ?? [], Boolean);
}

async function step(dispatch: number): Promise<void> {
  const inputs = Array.from({ length: n }, (_, rank) => inputOf(dispatch, rank));
  const mine = inputs[me]!;
  const tokens = mine.x.length;
  const x = await device.tensor('bf16', [tokens, HIDDEN], flat16(mine.x));
  const topkIdx = await device.tensor('i32', [tokens, TOPK], Int32Array.from(mine.topkIdx.flat()));
  const topkWeights = await device.tensor('f32', [tokens, TOPK], flat(mine.topkWeights));
  const own: { close(): void }[] = [x, topkIdx, topkWeights];
  try {
    const weights = mode === 'choices' ? {} : { topkWeights };
    maybeFault();
    const timeoutMs = deadlineOf(dispatch);
    const args = { x, topkIdx, ...weights, dtype: 'bf16', timeoutMs } as const;
    let result: LowLatencyDispatchResult;
    if (dispatch % 3 === 0) {
      const { hook } = await timed(ll.dispatch({ ...args, returnRecvHook: true }));
      maybeFault();
      result = await timed(hook({ timeoutMs }));
    } else {
      result = await timed(ll.dispatch({ ...args, returnRecvHook: false }));
    }
    const { handle, recvX } = result;
    assert.equal(handle.sequence, dispatch, 'number of the dispatch');
    const active = await timed(maskOf(result.activeMask));
    const received = referenceLowLatencyDispatch(inputs, { numExperts, active })[me]!;
    const blocks = mode === 'rank-major' ? received.byRank : received.byExpert;
    assert.deepEqual(
      [...(await result.recvCount.toHost())],
      blocks.map((block) => block.length),
      `recvCount of dispatch ${dispatch} with ${active.join()}`,
    );
    if ('data' in recvX) throw new Error('fp8 rows');
    const most = recvX.shape[1]!;
    const got = await recvX.toHost();
    const y = mode === 'rank-sums' ? device.empty('bf16', recvX.shape) : await ll.combineInput(handle, { timeoutMs });
    if (mode === 'rank-sums') own.push(y);
    const values = new Uint16Array(y.elements);
    const outputs = outputsOf(dispatch, me, received);
    for (const [block, blockRows] of blocks.entries()) {
      for (const [at, row] of blockRows.entries()) {
        const from = (block * most + at) * HIDDEN;
        assert.deepEqual(
          [...got.subarray(from, from + HIDDEN)],
          row.data,
          `row ${at} of ${block}, dispatch ${dispatch}`,
        );
        values.set(outputs[block]![at]!, from);
      }
    }
    await y.fromHost(values);
    maybeFault();
    const combined = await timed(
      ll.combine({
        x: y,
        handle,
        ...(mode === 'choices' && { topkWeights }),
        timeoutMs,
        returnRecvHook: false,
      }),
    );
    own.push(combined.combinedX);
    await timed(checkSums(dispatch, inputs, combined));
    const there = await maskOf(combined.activeMask);
    counts.checked += 1;
    if (active.includes(false) || there.includes(false)) counts.without += 1;
  } finally {
    for (const tensor of own) tensor.close();
  }
}

async function checkSums(
  dispatch: number,
  inputs: readonly ReferenceInput[],
  { combinedX, activeMask, droppedChoices }: LowLatencyCombineResult,
): Promise<void> {
  const active = await maskOf(activeMask);
  const droppedCounts = await droppedChoices?.toHost();
  const received = referenceLowLatencyDispatch(inputs, { numExperts });
  const outputs = received.map((of, rank) => outputsOf(dispatch, rank, of));
  const got = await combinedX.toHost();
  for (const [token, choices] of inputs[me]!.topkIdx.entries()) {
    const want = referenceLowLatencyCombine(
      {
        inputs,
        received,
        outputs,
        mode: mode as 'choices',
        active,
        hosts: seen,
        combinePrecision: config.combinePrecision,
      },
      { rank: me, token, hidden: HIDDEN },
    );
    const row = [...got.subarray(token * HIDDEN, (token + 1) * HIDDEN)];
    assert.deepEqual(row, want, `sum of token ${token}, dispatch ${dispatch} with ${active.join()}`);
    const dropped = choices.filter((expert) => expert >= 0 && active[Math.floor(expert / PER_RANK)] === false);
    assert.equal(droppedCounts?.[token], dropped.length, 'droppedChoices');
  }
}

/** Rank 0 stays, so that somebody can connect the others. */
function maybeFault(): void {
  if (me === 0 || world.life + counts.faults >= Number(faultCount) || chance() > 0.01) return;
  counts.faults += 1;
  if (chance() < 0.6) process.kill(process.pid, 'SIGKILL');
  // Late: the others go on without this rank.
  if (chance() < 0.7) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2.5 * TIMEOUT_MS);
  else ll.updateActiveMask(me, false);
}

/** Active ranks connect those that are not, as often as it takes. */
let connecting = false;
function connectOthers(): void {
  // Its own number would connect this rank anew, in the middle of its calls, if others have masked it.
  const gone = ll.view.active.flatMap((active, rank) => (active || rank === me ? [] : [rank]));
  if (connecting || gone.length === 0) return;
  connecting = true;
  // One at a time: a rank that is slow to start must not hold up another.
  Promise.all(gone.map((rank) => ll.connectRanks([rank], { timeoutMs: 1_000 }).catch(() => {})))
    .finally(() => (connecting = false))
    .catch(() => {});
}

let told = 0;

async function goesOn(dispatch: number): Promise<boolean> {
  const stretch = dispatch / STRETCH;
  const key = `stretch/${stretch}`;
  if (me === 0) {
    // On a busy machine the others may go on without this rank as well, which then has checked less.
    const isEnough = dispatch >= Number(dispatches) && counts.checked > Number(dispatches) / 2;
    const isOver = isEnough && !ll.view.active.includes(false);
    // Also those that it has left out, because it was late itself.
    for (; told <= stretch; told++) await world.store.setJson(`stretch/${told}`, !isOver);
    return !isOver;
  }
  for (;;) {
    connectOthers();
    try {
      return await world.store.getJson<boolean>(key, { from: [0], timeoutMs: 200 });
    } catch (error) {
      if (!(error instanceof WeftlineError) || error.code !== 'WL_TIMEOUT') throw error;
    }
  }
}

for (;;) {
  const dispatch = ll.nextDispatch;
  if (dispatch % STRETCH === 0 && !(await goesOn(dispatch))) break;
  try {
    await step(dispatch);
    connectOthers();
  } catch (error) {
    if (!(error instanceof WeftlineError) || error.code !== 'WL_INACTIVE') throw error;
    await ll.connectRanks([me], { timeoutMs: 60_000 });
    counts.rejoined += 1;
  }
  // Others may need the processor, and timers have to run.
  if (dispatch % 10 === 0) await sleep(1);
}
assert.ok(counts.longestMs < LONGEST_MS, `a call took ${counts.longestMs} ms`);
console.log(JSON.stringify({ rank: me, life: world.life, dispatches: ll.nextDispatch - 1, ...counts }));
await ll.close();
