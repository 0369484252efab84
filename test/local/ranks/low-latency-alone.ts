// One rank of EpLowLatency asks alone for the memory of its next combine, behind a combine of the same handle, with and without a
// hook; then all meet, and it writes there and combines again.
import assert from 'node:assert/strict';
import { fromBf16 } from 'weftline';
import { EpLowLatency, type LowLatencyConfig } from 'weftline/ep';
import { join } from 'weftline/world';
import { openOwnDevice } from '../support/test-device.ts';
import { modesOn } from './low-latency-shapes.ts';

const [TOKENS, HIDDEN, timeoutMs] = [3, 16, 60_000];
await using world = await join();
const { rank: me, size } = world;
await using device = await openOwnDevice(world);

async function run(variant: Partial<LowLatencyConfig>): Promise<void> {
  const config = { maxTokensPerRank: TOKENS, hidden: HIDDEN, numExperts: size, maxTopk: size, ...variant };
  const ll = await EpLowLatency.create(world, device, config, { timeoutMs: 60_000 });
  const x = await device.tensor('bf16', [TOKENS, HIDDEN], new Uint16Array(TOKENS * HIDDEN).fill(0x3f80));
  const choices = Int32Array.from({ length: TOKENS * size }, (_, at) => at % size);
  const topkIdx = await device.tensor('i32', [TOKENS, size], choices);
  const topkWeights = await device.tensor('f32', [TOKENS, size], new Float32Array(TOKENS * size).fill(1));
  const isRankMajor = variant.layout === 'rank-major';
  for (const isHooked of [false, true, false]) {
    const { recvX, handle } = await ll.dispatch({ x, topkIdx, dtype: 'bf16', timeoutMs, returnRecvHook: false });
    if ('data' in recvX) throw new Error('fp8 rows');
    // What experts give is a one wherever a row came, as x is.
    const own = await device.tensor('bf16', recvX.shape, new Uint16Array(recvX.elements).fill(0x3f80));
    const args = { handle, ...(isRankMajor ? {} : { topkWeights }), timeoutMs };
    if (isHooked) {
      const { hook } = await ll.combine({ ...args, x: own, returnRecvHook: true });
      await hook({ timeoutMs });
    } else {
      await ll.combine({ ...args, x: own, returnRecvHook: false });
    }
    const asksAlone = me === 0;
    const y = asksAlone ? await ll.combineInput(handle, { timeoutMs }) : own;
    // The others make no call meanwhile that could tell this rank that they have read.
    await ll.barrier({ timeoutMs });
    // Experts of this rank give twos.
    if (asksAlone) await y.fromHost(new Uint16Array(y.elements).fill(0x4000));
    const { combinedX } = await ll.combine({ ...args, x: y, returnRecvHook: false });
    for (const bits of await combinedX.toHost()) assert.equal(fromBf16(bits), size + 1);
  }
  await ll.close();
}

await run({ layout: 'rank-major' });
if (modesOn(device, world.topology.hosts.length).includes('choices')) await run({ combineTravels: 'choices' });
