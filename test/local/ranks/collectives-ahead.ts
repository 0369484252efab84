// A root is hundreds of small broadcasts ahead of a rank that has compared no calls for long: their calls are the same for all that.
import assert from 'node:assert/strict';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';
import { openOwnDevice } from '../support/test-device.ts';

/** How far the root goes on while the other rank has stopped: as far as it may. */
const [BEHIND, MOST, LARGE, timeoutMs] = [400, 7, 8192, 60_000];
await using world = await join();
await using device = await openOwnDevice(world);
// The root of a reduce in one step waits for the others, and nobody for it.
const algorithms = { reduce: [{ algorithm: 'oneStep' }] } as const;
await using communicator = await Communicator.create(world, device, device.kind === 'cpu' ? { algorithms } : {});
const tensor = device.empty('i32', [LARGE]);
let calls = 0;

async function broadcast(elements: number): Promise<void> {
  calls += 1;
  const part = tensor.slice(0, elements);
  if (world.rank === 0) await part.fromHost(new Int32Array(elements).fill(calls));
  await communicator.broadcast({ output: part, root: 0, timeoutMs });
  if (world.rank !== 0) assert.deepEqual(new Set(await part.toHost()), new Set([calls]));
}

async function broadcasts(count: number): Promise<void> {
  for (let call = 0; call < count; call++) await broadcast(1 + (calls % MOST));
}

/** Rank 1 stops before a reduce of so many elements, until the other one has gone as far as it may. */
async function fallBehind(name: string, elements: number): Promise<void> {
  if (world.rank === 1) await world.store.get(name, { timeoutMs });
  const sum = await device.tensor('i32', [elements], new Int32Array(elements).fill(1 + world.rank));
  await communicator.reduce({ input: sum, output: sum, root: 1, timeoutMs });
  if (world.rank === 1) assert.deepEqual(new Set(await sum.toHost()), new Set([3]));
  await broadcasts(BEHIND);
  if (world.rank === 0) await world.store.set(name, new Uint8Array(1));
  await communicator.barrier({ timeoutMs });
}

await broadcasts(1200);
await fallBehind('small', 2);
// Slots of large pieces are used seldom: what was in them last was called long ago.
await broadcasts(1000);
for (let large = 0; large < 4; large++) await broadcast(LARGE);
await broadcasts(1800);
await fallBehind('large', LARGE);
