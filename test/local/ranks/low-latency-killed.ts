// A rank of an elastic EpLowLatency is killed in mid-call, started again and joins: each rank prints how it went as JSON.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { EpLowLatency } from 'weftline/ep';
import { join } from 'weftline/world';
import { openOwnDevice } from '../support/test-device.ts';

const [TOKENS, HIDDEN] = [4, 16];
/** The victim's last dispatch, before which it has made `WARM` others. */
const [WARM, LAST] = [20, 21];
/** Results without the victim until it goes on: by then the words of its last call are written over. */
const WITHOUT_STOPPED = 10;

await using world = await join();
const { rank: me, size } = world;
await using device = await openOwnDevice(world);
const [how] = process.argv.slice(2);
/** With 'host' all ranks of the last host. */
const victims = how === 'host' ? world.topology.hosts.at(-1)! : [1];
const VICTIM = victims[0]!;
const isVictim = victims.includes(me);
/**
 * Time of each call. A rank that is late or stopped is given up at that deadline, so it is not long; no wait of CPU ranks ends at
 * it where the rank has died or was disconnected. Another rank that is as late, as on a busy machine, would be given up too.
 */
const TIMEOUT_MS = device.kind === 'cuda' ? 2_000 : how === 'late' || how === 'stopped' ? 4_000 : 60_000;
const config = { maxTokensPerRank: TOKENS, hidden: HIDDEN, numExperts: size, maxTopk: size, elastic: true };
const ll = (await joinInVain()) ?? (await EpLowLatency.create(world, device, config, { timeoutMs: 60_000 }));
const firstDispatch = ll.nextDispatch;
if (me === VICTIM) await world.store.setJson('victim', process.pid);
const victimPid = await world.store.getJson<number>('victim');

const x = await device.tensor('bf16', [TOKENS, HIDDEN], new Uint16Array(TOKENS * HIDDEN).fill(0x3f80));
const choices = Int32Array.from({ length: TOKENS * size }, (_, at) => at % size);
const topkIdx = await device.tensor('i32', [TOKENS, size], choices);
const topkWeights = await device.tensor('f32', [TOKENS, size], new Float32Array(TOKENS * size).fill(1));
const y = await device.tensor('bf16', [1, TOKENS * size, HIDDEN], new Uint16Array(TOKENS * size * HIDDEN).fill(0x3f80));

/** A join that finds nobody in time can be tried again. The others ask meanwhile, so now and then it is found in time. */
async function joinInVain(): Promise<EpLowLatency | undefined> {
  if (world.life === 0) return undefined;
  const used = device.kind === 'cpu' ? device.space.used : 0;
  try {
    return await EpLowLatency.create(world, device, config, { timeoutMs: 1 });
  } catch (error) {
    assert.equal((error as { code?: string }).code, 'WL_TIMEOUT');
    if (device.kind === 'cpu') assert.equal(device.space.used, used, 'memory of an attempt that failed');
    return undefined;
  }
}

/** How many ranks' experts have answered; every token goes to all of them. */
async function round(isLast = false): Promise<{ readonly active: number; readonly sums: number; readonly ms: number }> {
  const began = performance.now();
  const { hook } = await ll.dispatch({
    x,
    topkIdx,
    topkWeights,
    dtype: 'bf16',
    timeoutMs: TIMEOUT_MS,
    returnRecvHook: true,
  });
  if (isLast && (how === 'killed' || how === 'host')) process.kill(process.pid, 'SIGKILL');
  // Longer than the others wait; they do not know that its process still lives, and goes on later.
  if (isLast && how !== 'stopped') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2 * TIMEOUT_MS);
  const { handle, recvCount } = await hook({ timeoutMs: TIMEOUT_MS });
  if (me === 0 && how === 'stopped' && handle.sequence === LAST) {
    // The victim waits for this rank's combine.
    await sleep(TIMEOUT_MS / 4);
    process.kill(victimPid, 'SIGSTOP');
  }
  const { combinedX, activeMask, droppedChoices } = await ll.combine({
    x: y,
    handle,
    timeoutMs: TIMEOUT_MS,
    returnRecvHook: false,
  });
  const sums = new Set(await combinedX.toHost());
  const ms = performance.now() - began;
  const active = (await activeMask!.toHost()).reduce((sum, is) => sum + is, 0);
  assert.ok((await recvCount.toHost())[0]! >= TOKENS * active);
  assert.equal(sums.size, 1);
  for (const dropped of await droppedChoices!.toHost()) assert.equal(dropped, size - active);
  combinedX.close();
  // The sums are 1, 2, 3 or 4 in bf16.
  return { active, sums: [0, 0x3f80, 0x4000, 0x4040, 0x4080].indexOf([...sums][0]!), ms };
}

/** Connected is not active: that is for commit(). */
async function stage(): Promise<void> {
  await ll.connectRanks([VICTIM], { timeoutMs: 60_000, activate: false });
  assert.deepEqual([ll.view.connected[VICTIM], ll.view.active[VICTIM]], [true, false]);
  ll.commit();
}

/** One request at a time, again and again: the first one may find a process of the victim whose own time is over then. */
let isAsking = false;
function ask(): void {
  const gone = victims.filter((rank) => !ll.view.active[rank]);
  if (isAsking || gone.length === 0) return;
  isAsking = true;
  // Each by itself: one that is slow to start must not hold up another.
  Promise.all(gone.map((rank) => ll.connectRanks([rank], { timeoutMs: 60_000 })))
    .catch(() => {})
    .finally(() => (isAsking = false));
}

let longestMs = 0;
let without = 0;
if (me === VICTIM && how === 'disconnected') {
  // Until the others go on without it; before that no row is lost.
  for (let isIn = true; isIn;) {
    try {
      assert.equal((await round()).active, size);
    } catch (error) {
      assert.equal((error as { code?: string }).code, 'WL_INACTIVE');
      isIn = false;
    }
  }
  await ll.connectRanks([me], { timeoutMs: 60_000 });
} else if (isVictim && world.life === 0) {
  for (let warm = 0; warm < WARM; warm++) await round();
  try {
    await round(true);
  } catch (error) {
    assert.equal((error as { code?: string }).code, 'WL_INACTIVE');
    await ll.connectRanks([me], { timeoutMs: 60_000 });
  }
} else if (!isVictim) {
  // Until the victim is there again: each result is that of the ranks that are.
  const gone = async (): Promise<void> => {
    if (me === 0 && how === 'disconnected') ll.disconnectRanks([VICTIM]);
    for (let isBack = false; !isBack;) {
      const { active, sums, ms } = await round();
      longestMs = Math.max(longestMs, ms);
      assert.equal(sums, active);
      if (active < size) without += 1;
      if (me === 0 && how === 'stopped' && without === WITHOUT_STOPPED) process.kill(victimPid, 'SIGCONT');
      isBack = without > 0 && active === size;
      // The process that starts needs the processor.
      if (without > 0) await sleep(5);
      if (without > 0 && how !== 'disconnected') ask();
      if (without === 1 && how === 'disconnected' && me === 0) stage().catch(() => {});
    }
  };
  await gone();
}
// The others have one with all ranks behind them, and so has the rank that joins.
if (isVictim && how !== 'host') assert.equal((await round()).active, size);
// It has missed some; all end with the same dispatch.
if (how === 'host') while ((await round()).active < size) await sleep(5);
const end = Math.ceil((ll.nextDispatch + 40) / 100) * 100;
while (ll.nextDispatch < end) {
  const { active, sums } = await round();
  assert.equal(active, sums);
  if (ll.nextDispatch < end - 1) assert.equal(active, size, `dispatch ${ll.nextDispatch}`);
}
console.log(JSON.stringify({ life: world.life, firstDispatch, end, without, longestMs, deadlineMs: TIMEOUT_MS }));
await ll.close();
