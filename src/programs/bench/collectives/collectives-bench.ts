// Measures collectives of CPU ranks, each operation in turn with the same loop of the peer, round by round.
import { loadAverage, machineDocument } from '../machine.ts';
import { type PlacementSample, samplePlacement } from '../machine.ts';
import { quantile } from '../../../core/quantile.ts';
import { Communicator, type CommunicatorOptions } from '../../../collectives/index.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { World } from '../../../world/index.ts';
import { BenchedCall, makeBenchMemory } from './benched-call.ts';
import type { CollectiveRow, CollectivesBenchReport, CollectiveTimes, PeerRatio } from './collectives-results.ts';
import {
  type BenchedKind,
  busFactor,
  type CollectivesWorkload,
  countOf,
  type SizePlan,
  sizePlans,
} from './collectives-workload.ts';
import { MpiLoop } from './mpi-loop.ts';

/** Until the engine has compiled what the loops run, for little data and for more. */
const warmups = [
  { bytes: 64, calls: 20_000 },
  { bytes: 65_536, calls: 1000 },
] as const;
/** Ranks that wait for the peer's loop. */
const PEER_TIMEOUT_MS = 600_000;
/** Sizes up to this one are small. */
const SMALL_BYTES = 4096;

export interface CollectivesBenchOptions {
  readonly workload: CollectivesWorkload;
  readonly compare: 'mpi' | undefined;
  readonly communicator: Pick<CommunicatorOptions, 'directBytes'>;
  readonly progress?: (done: number, total: number) => void;
}

/** Of one call: by round, µs of the slowest rank, and of the peer. */
export interface Measured {
  readonly own: number[];
  readonly peer: number[];
  wrong: number | undefined;
}

export interface Entry {
  readonly kind: BenchedKind;
  readonly plan: SizePlan;
  readonly outOfPlace: Measured;
  readonly inPlace: Measured;
}

/** Collective; rank 0 gets the report. */
export async function runCollectivesBench(
  world: World,
  device: CpuDevice,
  { workload, compare, communicator: options, progress }: CollectivesBenchOptions,
): Promise<CollectivesBenchReport | undefined> {
  const plans = sizePlans(workload);
  using peer = compare === 'mpi' && world.rank === 0 ? MpiLoop.build() : undefined;
  const before = { load: loadAverage(), placement: world.rank === 0 ? await samplePlacement() : undefined };
  await using communicator = await Communicator.create(world, device, options);
  const memory = makeBenchMemory(device, workload);
  const newCall = (kind: BenchedKind, bytes: number): BenchedCall =>
    new BenchedCall(communicator, workload, { kind, bytes, memory });
  const entries = workload.kinds.flatMap((kind) =>
    plans
      .filter(({ bytes }) => countOf(kind, bytes, workload) > 0)
      .map((plan): Entry => ({ kind, plan, outOfPlace: newMeasured(), inPlace: newMeasured() })),
  );
  const total = workload.rounds * workload.kinds.length;
  for (let round = 0; round < workload.rounds; round++) {
    for (const [index, kind] of workload.kinds.entries()) {
      const ofKind = entries.filter((entry) => entry.kind === kind);
      if (round === 0) await warm(workload, (bytes) => newCall(kind, Math.min(bytes, workload.maxBytes)));
      for (const entry of ofKind) {
        await measure({ world, communicator, isFirst: round === 0 }, entry, newCall(kind, entry.plan.bytes));
      }
      if (compare !== undefined) await comparePeer(world, peer, { kind, workload, ofKind });
      progress?.(round * workload.kinds.length + index + 1, total);
    }
  }
  if (world.rank !== 0) return undefined;
  const peerVersion = peer?.version;
  return reportOf({ workload, entries, peer: peerVersion, before, ranksOn: 'CPU' });
}

/** What a run was, besides what it measured. */
interface RunFacts extends Pick<CollectivesBenchReport, 'workload' | 'peer' | 'ranksOn'> {
  readonly entries: readonly Entry[];
  readonly before: { readonly load: number; readonly placement: PlacementSample | undefined };
}

/** By rank 0. */
export async function reportOf({
  workload,
  entries,
  peer,
  before,
  ranksOn,
}: RunFacts): Promise<CollectivesBenchReport> {
  const rows = entries.map((entry) => rowOf(entry, workload));
  return {
    schema: 'weftline.bench.collectives/1',
    machine: machineDocument(),
    loadAverage: { before: before.load, after: loadAverage() },
    placement: { before: before.placement!, after: await samplePlacement() },
    workload,
    ranksOn,
    peer,
    rows,
    ratios: peer === undefined ? [] : ratiosOf(rows),
  };
}

/** Until the engine has compiled what the loops run. Less where few iterations are asked for. */
export async function warm(
  { iterations }: CollectivesWorkload,
  newCall: (bytes: number) => BenchedCall,
): Promise<void> {
  for (const { bytes, calls } of warmups) {
    const times = iterations > 0 ? Math.min(calls, 10 * iterations) : calls;
    for (const isInPlace of [false, true]) await repeat(newCall(bytes).prepare(isInPlace), times);
  }
}

/** Both ways of placing; results are compared in the first round. */
async function measure(
  { world, communicator, isFirst }: { world: World; communicator: Communicator; isFirst: boolean },
  { plan, outOfPlace, inPlace }: Entry,
  call: BenchedCall,
): Promise<void> {
  for (const isInPlace of [false, true]) {
    const measured = isInPlace ? inPlace : outOfPlace;
    measured.own.push(await slowest(world, communicator, plan, call.prepare(isInPlace)));
    if (isFirst) measured.wrong = await sumOver(world, await call.countWrong(isInPlace));
  }
}

/** The other ranks sleep meanwhile. */
async function comparePeer(
  world: World,
  peer: MpiLoop | undefined,
  { kind, workload, ofKind }: { kind: BenchedKind; workload: CollectivesWorkload; ofKind: readonly Entry[] },
): Promise<void> {
  const times = await peer?.run(
    kind,
    workload,
    ofKind.map(({ plan }) => plan),
  );
  for (const [index, { outOfPlace, inPlace }] of ofKind.entries()) {
    if (times === undefined) continue;
    outOfPlace.peer.push(times[index]!.outOfPlace);
    inPlace.peer.push(times[index]!.inPlace);
  }
  await world.barrier('peer', { timeoutMs: PEER_TIMEOUT_MS });
}

/** µs of a call, of the slowest rank. */
export async function slowest(
  world: World,
  communicator: Communicator,
  { warmup, iterations }: SizePlan,
  call: () => Promise<unknown>,
): Promise<number> {
  await repeat(call, warmup);
  await communicator.barrier();
  const begin = performance.now();
  await repeat(call, iterations);
  const mine = ((performance.now() - begin) / iterations) * 1000;
  return Math.max(...(await world.allGather('time', mine)));
}

async function repeat(call: () => Promise<unknown>, times: number): Promise<void> {
  for (let time = 0; time < times; time++) {
    const result = call();
    if (result !== Communicator.done) await result;
  }
}

async function sumOver(world: World, value: number): Promise<number> {
  return (await world.allGather('wrong', value)).reduce((sum, one) => sum + one, 0);
}

export function newMeasured(): Measured {
  return { own: [], peer: [], wrong: 0 };
}

function median(values: readonly number[]): number {
  return quantile(
    values.toSorted((a, b) => a - b),
    0.5,
  );
}

function rowOf({ kind, plan: { bytes }, outOfPlace, inPlace }: Entry, workload: CollectivesWorkload): CollectiveRow {
  const timesOf = ({ own, peer, wrong }: Measured): CollectiveTimes => {
    const microseconds = median(own);
    const algbw = bytes / microseconds / 1000;
    const busbw = algbw * busFactor(kind, workload.ranks);
    return { microseconds, algbw, busbw, wrong, peerMicroseconds: peer.length === 0 ? undefined : median(peer) };
  };
  const count = countOf(kind, bytes, workload);
  return { kind, bytes, count, outOfPlace: timesOf(outOfPlace), inPlace: timesOf(inPlace) };
}

function ratiosOf(rows: readonly CollectiveRow[]): PeerRatio[] {
  const kinds = [...new Set(rows.map(({ kind }) => kind))];
  return kinds.flatMap((kind) =>
    (['small', 'large'] as const).flatMap((sizes) => {
      const ratios = rows
        .filter((row) => row.kind === kind && row.bytes <= SMALL_BYTES === (sizes === 'small'))
        .flatMap(({ bytes, outOfPlace, inPlace }) =>
          [outOfPlace, inPlace].map(({ microseconds, peerMicroseconds }) => ({
            bytes,
            ratio: peerMicroseconds! / microseconds,
          })),
        );
      if (ratios.length === 0) return [];
      const worst = ratios.reduce((least, one) => (one.ratio < least.ratio ? one : least));
      const logs = ratios.reduce((sum, { ratio }) => sum + Math.log(ratio), 0);
      const geometricMean = Math.exp(logs / ratios.length);
      return [{ kind, sizes, geometricMean, worst: worst.ratio, worstBytes: worst.bytes }];
    }),
  );
}
