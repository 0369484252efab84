// A root is hundreds of small broadcasts ahead of a rank that has compared no calls for long: their calls are the same for all that.
import assert from 'node:assert/strict';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';
import { openOwnDevice } from '../support/test-device.ts';

/** Broadcasts before the other rank stops, and how far the root goes on then: as far as it may. */
const [BEFORE, BEHIND, MOST, timeoutMs] = [1200, 400, 7, 20_000];
await using world = await join();
await using device = await openOwnDevice(world);
await using communicator = await Communicator.create(world, device);
const tensor = device.empty('i32', [MOST]);

async function broadcasts(from: number, to: number): Promise<void> {
  for (let call = from; call < to; call++) {
    const part = tensor.slice(0, 1 + (call % MOST));
    if (world.rank === 0) await part.fromHost(new Int32Array(part.elements).fill(call));
    await communicator.broadcast({ output: part, root: 0, timeoutMs });
    if (world.rank !== 0) assert.deepEqual([...(await part.toHost())], Array(part.elements).fill(call));
  }
}

await broadcasts(0, BEFORE);
if (world.rank === 1) await world.store.get('ahead', { timeoutMs });
const sum = await device.tensor('i32', [2], Int32Array.of(1, world.rank));
await communicator.reduce({ input: sum, output: sum, root: 1, timeoutMs });
if (world.rank === 1) assert.deepEqual([...(await sum.toHost())], [2, 1]);
await broadcasts(BEFORE + 1, BEFORE + 1 + BEHIND);
if (world.rank === 0) await world.store.set('ahead', new Uint8Array(1));
await communicator.barrier({ timeoutMs });
