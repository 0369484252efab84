// Two buffers over several hosts share the agent of their rank: one ends for all ranks, the other one goes on. The
// argument says how the first one ends; each rank prints what it heard of that, and what sharing cost in sockets.
import assert from 'node:assert/strict';
import { readdirSync, readlinkSync } from 'node:fs';
import { fromBf16 } from 'weftline';
import { EpBuffer } from 'weftline/ep';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';

const how = process.argv[2];
const [tokens, hidden, topk] = [32, 64, 2];
await using world = await join();
await using device = await openTestDevice(world);
const x = await device.tensor('bf16', [tokens, hidden], new Uint16Array(tokens * hidden).fill(0x3f80));
/** Each token goes to two ranks. */
const ids = Int32Array.from({ length: tokens * topk }, (_, at) => ((at >> 1) + (at & 1)) % world.size);
const topkIdx = await device.tensor('i32', [tokens, topk], ids);
const config = { maxTokensPerRank: tokens, hidden, numExperts: world.size, maxTopk: topk };

async function check(buffer: EpBuffer): Promise<void> {
  const { recvX, handle } = await buffer.dispatch({ x, topkIdx });
  const { combinedX } = await buffer.combine({ x: recvX, handle });
  assert.deepEqual([...(await combinedX.toHost())].map(fromBf16), Array<number>(tokens * hidden).fill(2));
  handle.close();
  combinedX.close();
}

function sockets(): number {
  const links = readdirSync('/proc/self/fd').map((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return '';
    }
  });
  return links.filter((link) => link.startsWith('socket:')).length;
}

/** Rank 1 ends the first buffer; what the others, or rank 1 itself, hear. */
async function end(first: EpBuffer): Promise<unknown> {
  if (how === 'closes' && world.rank === 1) {
    await first[Symbol.asyncDispose]();
    return undefined;
  }
  // Nobody joins rank 1 in this barrier.
  if (how === 'gives up' && world.rank !== 1) await world.barrier('given up');
  const failed = await first.dispatch({ x, topkIdx, timeoutMs: world.rank === 1 ? 300 : 120_000 }).then(
    () => undefined,
    (error: unknown) => error,
  );
  if (how === 'gives up' && world.rank === 1) await world.barrier('given up');
  return failed;
}

const first = await EpBuffer.create(world, device, config);
await check(first);
await world.barrier('first');
const alone = sockets();
const second = await EpBuffer.create(world, device, config);
await check(second);
const more = sockets() - alone;
await world.barrier('second');
const { code, message } = ((await end(first)) ?? {}) as { code?: string; message?: string };
// Meanwhile others may hear of the end, take the memory back, or still wait.
await check(second);
const third = await EpBuffer.create(world, device, config);
await check(third);
await first[Symbol.asyncDispose]();
await check(second);
await third[Symbol.asyncDispose]();
await check(second);
await second[Symbol.asyncDispose]();
// The agent is closed by now; the next buffer opens another one.
await using last = await EpBuffer.create(world, device, config);
await check(last);
console.log(JSON.stringify({ code, message, more }));
