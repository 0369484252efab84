// The same sparse all-reduce again and again, with workers that are late in turn, gives the same bytes: argv = how often.
import { setTimeout as sleep } from 'node:timers/promises';
import { SparseAllReduce } from 'weftline/collectives';
import { join } from 'weftline/world';
import { seededRandom } from '#lib/core/seeded-random.js';
import { openTestDevice } from '../support/test-device.js';

const repeats = Number(process.argv[2]);
await using world = await join();
await using device = await openTestDevice(world);
const reducer = await SparseAllReduce.create(world, device, { aggregators: [3, 1], slots: 4, messageSize: 2048 });
const input = device.empty('f32', [100_000]);
const output = device.empty('f32', [100_000]);
const next = seededRandom(world.rank + 1);
const values = new Float32Array(input.elements);
// Sums of such numbers depend on the order.
for (let at = 0; at < values.length; at++) {
  if ((at >> 8) % 7 <= world.rank) values[at] = (next() - 0.5) * 10 ** (8 * next());
}
await input.fromHost(values);
if (reducer.isWorker) {
  let first: Buffer | undefined;
  for (let repeat = 0; repeat < repeats; repeat++) {
    if (repeat % 10 === world.rank) await sleep(5);
    await reducer.allReduce({ input, output });
    const bytes = Buffer.from((await output.toHost()).buffer);
    first ??= bytes;
    if (!first.equals(bytes)) throw new Error(`repeat ${repeat} gives other bytes`);
  }
} else await reducer.serve();
await reducer.close();
