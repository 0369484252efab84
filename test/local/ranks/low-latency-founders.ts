// The last active rank of an elastic EpLowLatency dies while the others wait to be connected: they begin anew by themselves.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { EpLowLatency } from 'weftline/ep';
import { join } from 'weftline/world';
import { openOwnDevice } from '../support/test-device.ts';

const [TOKENS, HIDDEN, ROUNDS] = [2, 16, 20];
const LAST_ACTIVE = 0;
const timeoutMs = 60_000;

await using world = await join();
const { rank: me, size } = world;
await using device = await openOwnDevice(world);
const config = { maxTokensPerRank: TOKENS, hidden: HIDDEN, numExperts: size, maxTopk: size, elastic: true };
const ll = await EpLowLatency.create(world, device, config, { timeoutMs });
const x = await device.tensor('bf16', [TOKENS, HIDDEN], new Uint16Array(TOKENS * HIDDEN).fill(0x3f80));
const choices = Int32Array.from({ length: TOKENS * size }, (_, at) => at % size);
const topkIdx = await device.tensor('i32', [TOKENS, size], choices);
const topkWeights = await device.tensor('f32', [TOKENS, size], new Float32Array(TOKENS * size).fill(1));
const y = await device.tensor('bf16', [1, TOKENS * size, HIDDEN], new Uint16Array(TOKENS * size * HIDDEN).fill(0x3f80));

/** How many ranks took part. */
async function round(): Promise<number> {
  const { handle } = await ll.dispatch({ x, topkIdx, topkWeights, dtype: 'bf16', timeoutMs, returnRecvHook: false });
  const { combinedX, activeMask } = await ll.combine({ x: y, handle, timeoutMs, returnRecvHook: false });
  const active = (await activeMask!.toHost()).reduce((sum, is) => sum + is, 0);
  // The sums are 1, 2 and 3 in bf16.
  for (const bits of await combinedX.toHost()) assert.equal(bits, [0, 0x3f80, 0x4000, 0x4040][active]);
  combinedX.close();
  return active;
}

if (world.life === 0) {
  assert.equal(await round(), size);
  await world.store.barrier('all have made a round');
  if (me === LAST_ACTIVE) {
    while (ll.view.connected.filter(Boolean).length < size - 1) await sleep(1);
    process.kill(process.pid, 'SIGKILL');
  }
  ll.updateActiveMask(me, false);
  await ll.connectRanks([me], { timeoutMs });
}
for (let isAlone = true; isAlone;) {
  isAlone = (await round()) < size;
  const gone = ll.view.active.flatMap((active, rank) => (active || rank === me ? [] : [rank]));
  if (gone.length > 0) ll.connectRanks(gone, { timeoutMs }).catch(() => {});
  await sleep(5);
}
const end = Math.ceil((ll.nextDispatch + ROUNDS) / 100) * 100;
while (ll.nextDispatch < end) assert.equal(await round(), size);
console.log(JSON.stringify({ end, life: world.life }));
await ll.close();
