// Measures every algorithm of the reductions over a range of sizes, in turn, and makes a table of the fastest ones.
import {
  type AlgorithmName,
  algorithmNames,
  type AlgorithmRange,
  type AlgorithmTable,
  type AlgorithmTableFile,
  isSame,
  TABLE_SCHEMA,
  type TunedKind,
  tunedKinds,
} from '../../../collectives/algorithm-table.ts';
import { Communicator } from '../../../collectives/index.ts';
import { median } from '../../../core/quantile.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { World } from '../../../world/index.ts';
import { measureInTurn, type Progress } from '../harness.ts';
import { BenchedCall, makeBenchMemory, timeOnHost, warmOnHost } from './collectives-bench.ts';
import { type CollectivesWorkload, sizePlans } from './collectives-workload.ts';

/** µs of the slowest rank, medians of the rounds, in place; by algorithm. */
export interface TunedRow {
  readonly kind: TunedKind;
  readonly bytes: number;
  readonly microseconds: Readonly<Partial<Record<AlgorithmName, number>>>;
  readonly fastest: AlgorithmName;
}

export type TuneReport = NonNullable<Awaited<ReturnType<typeof runTune>>>;

/** An algorithm that is faster by less than this share does not begin a range of its own: times vary. */
const MIN_GAIN = 0.05;

/** Collective; rank 0 gets the report. */
export async function runTune(world: World, device: CpuDevice, workload: CollectivesWorkload, progress?: Progress) {
  const hosts = world.topology.hosts.length;
  // A chain is the same as shares without several hosts.
  const names = algorithmNames.filter((name) => name !== 'chain' || hosts > 1);
  const memory = makeBenchMemory(device, workload);
  const communicators: Communicator[] = [];
  try {
    for (const algorithm of names) {
      const only = [{ algorithm }];
      communicators.push(await Communicator.create(world, device, { algorithms: { allReduce: only, reduce: only } }));
    }
    const plans = sizePlans(workload);
    const rows: TunedRow[] = [];
    for (const kind of tunedKinds) {
      const ways = names
        .map((name, at) => ({ name, communicator: communicators[at]! }))
        .filter(({ name }) => name !== 'chain' || kind === 'allReduce');
      for (const { communicator } of ways) {
        await warmOnHost(workload, (bytes) => new BenchedCall(communicator, workload, { kind, bytes, memory }));
      }
      for (const plan of plans) {
        const { bytes } = plan;
        const rounds = { warmup: 0, iterations: workload.rounds };
        const samples = await measureInTurn(world, ways, rounds, async ({ communicator }) => {
          const call = new BenchedCall(communicator, workload, { kind, bytes, memory });
          return { time: await timeOnHost(communicator, plan, call.prepare(true)) };
        });
        const medians = samples.map((of) => median(of.slowest('time')));
        rows.push({
          kind,
          bytes,
          microseconds: Object.fromEntries(ways.map(({ name }, at) => [name, medians[at]!])),
          fastest: ways[medians.indexOf(Math.min(...medians))]!.name,
        });
        progress?.(rows.length, tunedKinds.length * plans.length);
      }
    }
    if (world.rank !== 0) return undefined;
    const table: AlgorithmTable = { allReduce: rangesOf(rows, 'allReduce'), reduce: rangesOf(rows, 'reduce') };
    const schema = 'weftline.bench.collectives.tune/1' as const;
    return { schema, ranks: world.size, hosts, rounds: workload.rounds, rows, table };
  } finally {
    for (const communicator of communicators) await communicator.close();
  }
}

/** A range ends half way, on a logarithmic scale, between the last size at which it was the fastest and the next one. */
export function rangesOf(rows: readonly TunedRow[], kind: TunedKind): AlgorithmRange[] {
  const ofKind = rows.filter((row) => row.kind === kind);
  const ranges: AlgorithmRange[] = [];
  let present = ofKind[0]!.fastest;
  for (const [at, { bytes, fastest, microseconds }] of ofKind.entries()) {
    const isFaster = microseconds[fastest]! < microseconds[present]! * (1 - MIN_GAIN);
    if (!isFaster) continue;
    ranges.push({ upToBytes: Math.round(Math.sqrt(bytes * ofKind[at - 1]!.bytes)), algorithm: present });
    present = fastest;
  }
  return [...ranges, { algorithm: present }];
}

/** The file with this table in it, in place of the one that it had for as many ranks and hosts. */
export function withTable(
  file: AlgorithmTableFile | undefined,
  { ranks, hosts, table }: TuneReport,
): AlgorithmTableFile {
  const shape = { ranks, hosts };
  const others = file?.shapes.filter((one) => !isSame(one, shape)) ?? [];
  return {
    schema: TABLE_SCHEMA,
    shapes: [...others, { ...shape, allReduce: [...table.allReduce], reduce: [...table.reduce] }],
  };
}
