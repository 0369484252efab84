// Random collective calls in lockstep, in groups of 1 to all ranks, against the reference: argv = cases of each group, seed,
// elements of the longest runs, "graph" for calls that are recorded and replayed, "late" for ones whose bytes move late,
// "engines" for GPUs whose copy engines move what they can; sizes of the groups (all without it).
import type { CpuDevice, CudaDevice } from 'weftline';
import { type AlgorithmTable, Communicator } from 'weftline/collectives';
import { join, type RankGroup } from 'weftline/world';
import { bytesInUse, openTestDevice } from '../support/test-device.ts';
import { createLateCommunicator } from './late-communicator.js';
import { type AroundCall, collectiveCase, runCollectiveCase } from './collective-case.js';

const [cases, seed, longest] = process.argv.slice(2).map(Number) as [number, number, number];
const isRecorded = process.argv[5] === 'graph';
const isLate = process.argv[5] === 'late';
const copyEngines = process.argv[5] === 'engines';
const sizes = process.argv[6]?.split(',').map(Number);
await using world = await join();
await using device = await openTestDevice(world);
const first = bytesInUse(device);

const replayed: AroundCall = async (call) => {
  using graph = await (device as CudaDevice).capture(call);
  graph.launch();
  await (device as CudaDevice).stream.idle();
};

/** Tables of reductions, which take turns. Where ranks cannot form a chain they take shares. */
const tables: readonly Partial<AlgorithmTable>[] = [
  {},
  { allReduce: [{ algorithm: 'chain' }], reduce: [{ algorithm: 'shares' }] },
  { allReduce: [{ upToBytes: 256, algorithm: 'oneStep' }, { algorithm: 'chain' }], reduce: [{ algorithm: 'oneStep' }] },
];

async function runCases(group: RankGroup, salt: number): Promise<void> {
  const algorithms = tables[salt % tables.length]!;
  const isStepped = device.kind === 'cpu' || group.topology.hosts.length > 1;
  const options = { pieceBytes: 65_536, directBytes: 20_000, copyEngines, ...(isStepped && { algorithms }) };
  await using communicator = isLate
    ? await createLateCommunicator(group, device as CpuDevice, options)
    : await Communicator.create(group, device, options);
  for (let number = 0; number < cases; number++) {
    const of = collectiveCase(seed + salt * 10_000 + number, group.size, longest);
    const wrong = await runCollectiveCase(communicator, device, of, isRecorded ? replayed : undefined);
    if (wrong === undefined) continue;
    const { counts, ...rest } = of;
    throw new Error(`rank ${group.rank} of ${group.size}: ${wrong}: ${JSON.stringify({ ...rest, counts })}`);
  }
  await communicator.barrier();
}

for (let size = 1; size <= world.size; size++) {
  if (sizes !== undefined && !sizes.includes(size)) continue;
  const ranks = Array.from({ length: size }, (_, rank) => (rank * 3 + size) % world.size);
  const members = [...new Set(ranks)];
  if (members.includes(world.rank)) await runCases(await world.group(members), size);
}
// In the order of the ranks, which chains need.
await runCases(world, 31);
// Groups of a group, at the same time as each other; and two Communicators of one group. A GPU does one call after another.
const half = await world.split({ color: world.rank % 2, key: -world.rank });
const quarter = await half.split({ color: Math.floor(half.rank / 2) });
if (device.kind === 'cpu') await Promise.all([runCases(half, 20), runCases(quarter, 21)]);
else for (const [salt, group] of [half, quarter].entries()) await runCases(group, 20 + salt);
await world.barrier('all');
const left = (bytesInUse(device) ?? 0) - (first ?? 0);
if (left > 0) throw new Error(`${left} bytes of the device's memory were not given back`);
console.log(`job ${world.filePrefix}, rank ${world.rank}: all cases agree with the reference`);
