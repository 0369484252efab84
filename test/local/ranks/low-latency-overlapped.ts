// Ranks of EpLowLatency whose batches overlap. argv: 'hooks', in which a later combine is over before the hook of an earlier one;
// 'opposite', in which the hooks of a combine and of the next dispatch come in another order on every other rank; 'joins' of two ranks, in
// which a rank's first dispatch is the second one of a pair.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { fromBf16, toBf16 } from 'weftline';
import { EpLowLatency, type LowLatencyDispatchResult } from 'weftline/ep';
import { join } from 'weftline/world';
import { openOwnDevice } from '../support/test-device.ts';

const [TOKENS, HIDDEN, PAIRS, timeoutMs] = [2, 16, 6, 60_000];
await using world = await join();
const { rank: me, size } = world;
await using device = await openOwnDevice(world);
const config = { maxTokensPerRank: TOKENS, hidden: HIDDEN, numExperts: size, maxTopk: size };
const [, , scenario] = process.argv;
const elastic = scenario === 'joins';
const ll = await EpLowLatency.create(world, device, { ...config, elastic }, { timeoutMs: 60_000 });
const choices = Int32Array.from({ length: TOKENS * size }, (_, at) => at % size);
const topkIdx = await device.tensor('i32', [TOKENS, size], choices);
const topkWeights = await device.tensor('f32', [TOKENS, size], new Float32Array(TOKENS * size).fill(1));

async function dispatchArgs() {
  const rows = new Uint16Array(TOKENS * HIDDEN).fill(toBf16(ll.nextDispatch));
  const x = await device.tensor('bf16', [TOKENS, HIDDEN], rows);
  return { x, topkIdx, topkWeights, dtype: 'bf16', timeoutMs } as const;
}

async function dispatch(deadlineMs = timeoutMs): Promise<LowLatencyDispatchResult> {
  return ll.dispatch({ ...(await dispatchArgs()), timeoutMs: deadlineMs, returnRecvHook: false });
}

/** What experts make of the rows of a dispatch: the same rows. */
function combineArgs({ recvX, handle }: LowLatencyDispatchResult) {
  if ('data' in recvX) throw new Error('fp8 rows');
  return { x: recvX, handle, timeoutMs };
}

type Combined = Awaited<ReturnType<typeof combine>>;
const combine = (result: LowLatencyDispatchResult) => ll.combine({ ...combineArgs(result), returnRecvHook: false });

/** Each rank's expert gives back the row. */
async function check({ handle }: LowLatencyDispatchResult, { combinedX, activeMask }: Combined): Promise<void> {
  const ranks = activeMask === undefined ? size : (await activeMask.toHost()).reduce((sum, is) => sum + is, 0);
  for (const bits of await combinedX.toHost()) {
    assert.equal(fromBf16(bits), fromBf16(toBf16(handle.sequence)) * ranks, `dispatch ${handle.sequence}`);
  }
}

async function hooks(): Promise<void> {
  for (let pair = 0; pair < PAIRS; pair++) {
    const [first, second] = [await dispatch(), await dispatch()];
    const { hook } = await ll.combine({ ...combineArgs(first), returnRecvHook: true });
    // Nothing of the other result waits for the hook.
    for (let repeat = 0; repeat < 5; repeat++) await check(second, await combine(second));
    await check(first, await hook({ timeoutMs }));
  }
}

async function opposite(): Promise<void> {
  for (let pair = 0; pair < PAIRS; pair++) {
    const first = await dispatch();
    const combining = await ll.combine({ ...combineArgs(first), returnRecvHook: true });
    const dispatching = await ll.dispatch({ ...(await dispatchArgs()), returnRecvHook: true });
    const isCombineFirst = (me + pair) % 2 === 0;
    const early = isCombineFirst ? await combining.hook({ timeoutMs }) : undefined;
    const second = await dispatching.hook({ timeoutMs });
    await check(first, early ?? (await combining.hook({ timeoutMs })));
    await check(second, await combine(second));
  }
}

/** `between`: behind the first dispatch of the pair. */
async function pairUp(between: () => void = () => {}): Promise<void> {
  const first = await dispatch();
  between();
  const second = await dispatch();
  await check(first, await combine(first));
  await check(second, await combine(second));
}

async function stays(): Promise<void> {
  const other = 1 - me;
  // The other one sends the first, and never the second: it is masked at its deadline.
  await dispatch();
  await dispatch(300);
  while (!ll.view.connected[other]) {
    await pairUp();
    await sleep(1);
  }
  // It begins with an even dispatch, the second one of its pair.
  await pairUp(() => void ll.connectRanks([other], { timeoutMs }).catch(() => {}));
  while (!ll.view.active[other]) await pairUp();
  const end = ll.nextDispatch + 2 * PAIRS;
  await world.store.setJson('end', end);
  while (ll.nextDispatch < end) await pairUp();
}

async function leavesAndJoins(): Promise<void> {
  const { hook } = await ll.dispatch({ ...(await dispatchArgs()), returnRecvHook: true });
  ll.updateActiveMask(me, false);
  await assert.rejects(dispatch(), { code: 'WL_INACTIVE' });
  await ll.connectRanks([me], { timeoutMs });
  assert.equal(ll.nextDispatch % 2, 0);
  // What was under way before is of the past, and does not mask this rank again.
  await assert.rejects(hook({ timeoutMs }), { code: 'WL_INVALID_ARGUMENT' });
  const second = await dispatch();
  await check(second, await combine(second));
  // Told by now, as the other one has seen this rank join.
  const end = await world.store.getJson<number>('end', { timeoutMs });
  while (ll.nextDispatch < end) await pairUp();
}

if (scenario === 'hooks') await hooks();
else if (scenario === 'opposite') await opposite();
else if (me === 0) await stays();
else await leavesAndJoins();
console.log(JSON.stringify(ll.nextDispatch));
// Whoever is first must not be missed by the other.
await world.store.barrier('done');
await ll.close();
