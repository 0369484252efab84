// Random sparse all-reduces in lockstep, of 1 to 4 workers and 1 to 2 aggregators or without any, against the reference: argv =
// cases of each, seed, elements of the longest tensors, and which of the setups: all, or their numbers.
import { SparseAllReduce, type SparseAllReduceOptions } from 'weftline/collectives';
import { join } from 'weftline/world';
import { bytesInUse, openTestDevice } from '../support/test-device.js';
import { runSparseCase, sparseCase } from './sparse-case.js';

const [cases, seed, longest] = process.argv.slice(2, 5).map(Number) as [number, number, number];
const which = process.argv[5] ?? 'all';
await using world = await join();
await using device = await openTestDevice(world);
const first = bytesInUse(device) ?? 0;

interface Setup extends SparseAllReduceOptions {
  readonly ranks: readonly number[];
}

const setups: readonly Setup[] = [
  { ranks: [0, 1, 2, 3, 4], aggregators: [4] },
  { ranks: [5, 0, 1, 2, 3, 4], aggregators: [0, 3], blockSize: 64, messageSize: 256, slots: 3 },
  { ranks: [2, 5, 1], aggregators: [0], blockSize: 64, messageSize: 64, slots: 1 },
  { ranks: [3, 2], aggregators: [1], blockSize: 128, messageSize: 128 * 256, slots: 2 },
  // Every rank is a worker and aggregates.
  { ranks: [1, 2, 3, 4] },
  { ranks: [0, 5, 3], aggregators: [1], workers: [0, 1, 2], slots: 5 },
  { ranks: [4] },
  // Aggregators in trees, of their own and among the workers.
  { ranks: [0, 1, 2, 3, 4, 5], aggregators: [3, 4, 5], fanIn: 2, slots: 3, blockSize: 64, messageSize: 640 },
  { ranks: [5, 4, 3, 2, 1], fanIn: 2, slots: 6, blockSize: 64, messageSize: 256 },
  { ranks: [0, 1, 2, 3, 4, 5], aggregators: [0, 1, 2], fanIn: 2 },
];

for (const [number, { ranks, ...options }] of setups.entries()) {
  if (which !== 'all' && !which.split(',').includes(String(number))) continue;
  if (!ranks.includes(world.rank)) continue;
  const group = await world.group(ranks);
  const aggregators = options.aggregators ?? [];
  const isSilent = aggregators.includes(group.rank) && options.workers === undefined && number % 2 === 0;
  // Ranks that only aggregate are told by the others.
  const reducer = await SparseAllReduce.create(group, device, isSilent ? {} : options);
  if (reducer.isWorker) {
    for (let one = 0; one < cases; one++) {
      const of = sparseCase(seed + number * 10_000 + one, longest);
      const wrong = await runSparseCase(reducer, device, of, { blockSize: 256, ...options });
      if (wrong === undefined) continue;
      throw new Error(`rank ${group.rank} of setup ${number}: ${wrong}: ${JSON.stringify(of)}`);
    }
  } else await reducer.serve();
  await reducer.close();
}
await world.barrier('all');
const left = (bytesInUse(device) ?? 0) - first;
if (left > 0) throw new Error(`${left} bytes of the device's memory were not given back`);
console.log(`job ${world.filePrefix}, rank ${world.rank}: all cases agree with the reference`);
