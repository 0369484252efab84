// The same calls again and again, with ranks that are late at random, must give the same bytes: argv = repeats.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Communicator } from 'weftline/collectives';
import { join } from 'weftline/world';
import { openTestDevice } from '../support/test-device.ts';
import { seededRandom } from '#lib/core/seeded-random.js';

const repeats = Number(process.argv[2]);
await using world = await join();
await using device = await openTestDevice(world);
await using communicator = await Communicator.create(world, device, { pieceBytes: 65_536 });
const next = seededRandom(world.rank + 1);
const counts = [3, 2000, 60_000];
const inputs = await Promise.all(
  counts.map((count) =>
    device.tensor(
      'f32',
      [count],
      Float32Array.from({ length: count }, () => next() - 0.5),
    ),
  ),
);
const outputs = counts.map((count) => device.empty('f32', [count]));

async function once(): Promise<string> {
  const digest = createHash('sha256');
  for (const [index, input] of inputs.entries()) {
    const output = outputs[index]!;
    if (next() < 0.05) await sleep(next() * 4);
    await communicator.allReduce({ input, output });
    digest.update(await output.toHost());
    await communicator.reduce({ input, output, root: index % world.size, op: 'sum' });
    digest.update(await output.toHost());
  }
  return digest.digest('hex');
}

const first = await once();
for (let repeat = 1; repeat < repeats; repeat++) assert.equal(await once(), first, `repeat ${repeat}`);
