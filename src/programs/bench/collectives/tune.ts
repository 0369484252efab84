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
import { BenchedCall, makeBenchMemory } from './benched-call.ts';
import { slowest, warm } from './collectives-bench.ts';
import { type CollectivesWorkload, type SizePlan, sizePlans } from './collectives-workload.ts';

/** µs of the slowest rank, medians of the rounds, in place; by algorithm. */
export interface TunedRow {
  readonly kind: TunedKind;
  readonly bytes: number;
  readonly microseconds: Readonly<Partial<Record<AlgorithmName, number>>>;
  readonly fastest: AlgorithmName;
}

export interface TuneReport {
  readonly schema: 'weftline.bench.collectives.tune/1';
  readonly ranks: number;
  readonly hosts: number;
  readonly rounds: number;
  readonly rows: readonly TunedRow[];
  readonly table: AlgorithmTable;
}

/** An algorithm that is faster by less than this share does not begin a range of its own: times vary. */
const MIN_GAIN = 0.05;

/** Collective; rank 0 gets the report. */
export async function runTune(
  world: World,
  device: CpuDevice,
  workload: CollectivesWorkload,
  progress?: (done: number, total: number) => void,
): Promise<TuneReport | undefined> {
  const hosts = world.topology.hosts.length;
  // Without several hosts a chain is the same as shares.
  const names = algorithmNames.filter((name) => name !== 'chain' || hosts > 1);
  const memory = makeBenchMemory(device, workload);
  const communicators: Communicator[] = [];
  try {
    for (const algorithm of names) {
      const only = [{ algorithm }];
      communicators.push(await Communicator.create(world, device, { algorithms: { allReduce: only, reduce: only } }));
    }
    const rows: TunedRow[] = [];
    for (const kind of tunedKinds) {
      const ofKind = names.filter((name) => name !== 'chain' || kind === 'allReduce');
      const callOf = (at: number, bytes: number): BenchedCall =>
        new BenchedCall(communicators[at]!, workload, { kind, bytes, memory });
      for (const at of ofKind.keys()) await warm(workload, (bytes) => callOf(at, Math.min(bytes, workload.maxBytes)));
      for (const plan of sizePlans(workload)) {
        const ways = ofKind.map((_, at) => ({
          communicator: communicators[at]!,
          call: callOf(at, plan.bytes).prepare(true),
        }));
        rows.push(rowOf(kind, plan, ofKind, await inTurn(world, plan, workload.rounds, ways)));
        progress?.(rows.length, tunedKinds.length * sizePlans(workload).length);
      }
    }
    if (world.rank !== 0) return undefined;
    const table = { allReduce: rangesOf(rows, 'allReduce'), reduce: rangesOf(rows, 'reduce') };
    return {
      schema: 'weftline.bench.collectives.tune/1',
      ranks: world.size,
      hosts,
      rounds: workload.rounds,
      rows,
      table,
    };
  } finally {
    for (const communicator of communicators) await communicator.close();
  }
}

interface Way {
  readonly communicator: Communicator;
  readonly call: () => Promise<unknown>;
}

/** µs by way, then by round. */
async function inTurn(world: World, plan: SizePlan, rounds: number, ways: readonly Way[]): Promise<number[][]> {
  const times: number[][] = ways.map(() => []);
  for (let round = 0; round < rounds; round++) {
    for (const [at, { communicator, call }] of ways.entries())
      times[at]!.push(await slowest(world, communicator, plan, call));
  }
  return times;
}

function rowOf(
  kind: TunedKind,
  { bytes }: SizePlan,
  names: readonly AlgorithmName[],
  times: readonly (readonly number[])[],
): TunedRow {
  const medians = times.map(median);
  const microseconds = Object.fromEntries(names.map((name, at) => [name, medians[at]!]));
  return { kind, bytes, microseconds, fastest: names[medians.indexOf(Math.min(...medians))]! };
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
