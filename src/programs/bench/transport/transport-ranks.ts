// Transport benches over the ranks of a world: all send to one (incast), each sends to another one (permutation), or several
// engines in one pair of processes beside as many pairs with one engine each.
import { randomCycle, seededRandom } from '../../../core/seeded-random.ts';
import { Transport } from '../../../transport/index.ts';
import type { World } from '../../../world/index.ts';
import { runExchange, type SecondOfExchange } from './transport-exchange.ts';
import { quantilesOf } from '../harness.ts';
import { secondLine } from './transport-exchange.ts';
import { BenchSession, type TransportWorkload } from './transport-session.ts';
import { readSettings } from '../../../settings/settings.ts';
import { machineDocument } from '../machine.ts';
import { summarizeRatios } from '../harness.ts';

export type RankBenchReport = NonNullable<Awaited<ReturnType<typeof runRankBench>>>;

/** The ranks that each rank sends to. */
export function targetsOf(
  perftype: 'incast' | 'permutation',
  ranks: number,
  seed: number,
): readonly (readonly number[])[] {
  if (perftype === 'incast') return Array.from({ length: ranks }, (_, rank) => (rank === 0 ? [] : [0]));
  return randomCycle(ranks, seededRandom(seed)).map((target) => [target]);
}

/** Collective. The report on rank 0, undefined elsewhere. */
export async function runRankBench(
  world: World,
  workload: TransportWorkload,
  { seed, onLine }: { readonly seed: number; readonly onLine: (line: string) => void },
) {
  await using transport = await Transport.create({ name: `rank ${world.rank}`, token: world.secret });
  using listener = await transport.listen({ host: '127.0.0.1', port: 0 });
  const ports = await world.allGather('transport-bench-ports', listener.port);
  const targets = targetsOf(workload.perftype === 'incast' ? 'incast' : 'permutation', world.size, seed);
  const sendsTo = targets[world.rank] as readonly number[];
  const callers = targets.filter((list) => list.includes(world.rank)).length;
  const outgoing: BenchSession[] = [];
  const incoming: BenchSession[] = [];
  const dialled = sendsTo.map((rank) => transport.connect({ host: '127.0.0.1', port: ports[rank] as number }));
  for (let caller = 0; caller < callers; caller += 1) {
    incoming.push(await BenchSession.open(transport, await listener.accept({ timeoutMs: world.settings.timeoutMs })));
  }
  for (const connection of dialled) outgoing.push(await BenchSession.open(transport, await connection));
  await world.barrier('transport-bench-begin');
  const onSecond = (second: SecondOfExchange): void => onLine(`Rank ${world.rank} ${secondLine(workload, second)}`);
  const result = await runExchange({ transport, workload, outgoing, incoming, onSecond });
  const mine = {
    rank: world.rank,
    sendsTo,
    txGbps: result.sent.gbps,
    rxGbps: (result.received.bytes * 8) / result.seconds / 1e9,
    messages: result.sent.messages,
    /** Microseconds of each request, in the order of latencyQuantiles. */
    times: quantilesOf(result.times),
    cpuSeconds: result.cpuSeconds,
  };
  const all = await world.allGather('transport-bench-results', mine);
  for (const session of [...outgoing, ...incoming]) await session.settle();
  if (world.rank !== 0) return undefined;
  return {
    schema: 'weftline.bench.transport-ranks/1' as const,
    date: new Date().toISOString(),
    workload,
    seed,
    ranks: all,
    /** Sum of what arrived. */
    totalGbps: all.reduce((sum, { rxGbps }) => sum + rxGbps, 0),
  };
}

// Several engines in one pair of processes beside as many pairs of processes with one engine each: the same traffic, in turn.

export type PairsBenchReport = NonNullable<Awaited<ReturnType<typeof runPairsBench>>>;

type Side = Awaited<ReturnType<typeof openSide>>;

/** What a rank did in a round; zeros if it only waited. */
interface Share {
  readonly gbps: number;
  readonly bytes: number;
  readonly cpuSeconds: number;
}

const NOTHING: Share = { gbps: 0, bytes: 0, cpuSeconds: 0 };

/**
 * Collective over twice as many ranks as engines: rank r of the first half sends to rank r of the second. The report on rank
 * 0, undefined elsewhere.
 */
export async function runPairsBench(
  world: World,
  workload: TransportWorkload,
  { rounds, onLine }: { readonly rounds: number; readonly onLine: (line: string) => void },
) {
  const engines = world.size / 2;
  const isFirst = world.rank % engines === 0;
  await using single = await openSide(world, 'single', 1);
  await using wide = isFirst ? await openSide(world, 'wide', engines) : undefined;
  // The others take part in the exchange of ports alone.
  if (!isFirst) await sharePort(world, 'wide', 0);
  const all: Share[][] = [];
  const each: Share[][] = [];
  const warmups = workload.warmup ? 1 : 0;
  for (let round = 1 - warmups; round <= rounds; round++) {
    // The messages under way are as many in all, over one connection or over several.
    const wideShares = await runRound(world, wide, { ...workload, nflow: workload.nflow * engines });
    const pairShares = await runRound(world, single, workload);
    if (round < 1) continue;
    all.push(wideShares);
    each.push(pairShares);
    if (world.rank === 0)
      onLine(`round ${round}: ${engines} engines ${show(wideShares)}, ${engines} pairs ${show(pairShares)}`);
  }
  if (world.rank !== 0 || wide === undefined) return undefined;
  const { lanes } = await wide.connection.statistics();
  const enginesGbps = all.map(totalGbps);
  const processesGbps = each.map(totalGbps);
  return {
    schema: 'weftline.bench.transport-pairs/1' as const,
    date: new Date().toISOString(),
    workload,
    engines,
    segmentBytes: wide.connection.segmentBytes,
    machine: machineDocument(),
    settings: readSettings(),
    /** Gbps of each round: one pair of processes with all engines, and all pairs with one engine each. */
    enginesGbps,
    processesGbps,
    ratioToProcesses: summarizeRatios(enginesGbps, processesGbps),
    /** The slowest pair of each round: engines that take turns go at its pace. */
    slowestProcessGbps: each.map(slowestGbps),
    /** CPU time of senders and receivers over what they moved. */
    enginesCpuSecondsPerGB: cpuPerGB(all),
    processesCpuSecondsPerGB: cpuPerGB(each),
    /** Bytes that each lane of the one pair has sent. */
    laneBytes: lanes.map(({ connection }) => connection.sentBytes),
  };
}

async function openSide(world: World, name: string, engines: number) {
  const half = world.size / 2;
  const settings = { transportEngines: engines, transportThread: true };
  const transport = await Transport.create({ name: `rank ${world.rank}`, token: world.secret, settings });
  const listener = await transport.listen({ host: '127.0.0.1', port: 0 });
  try {
    const ports = await sharePort(world, name, listener.port);
    const connection =
      world.rank < half
        ? await transport.connect({ host: '127.0.0.1', port: ports[world.rank + half] as number })
        : await listener.accept({ timeoutMs: world.settings.timeoutMs });
    const session = await BenchSession.open(transport, connection);
    return { transport, connection, session, [Symbol.asyncDispose]: () => transport.close() };
  } catch (error) {
    await transport.close();
    throw error;
  } finally {
    listener.close();
  }
}

function sharePort(world: World, name: string, port: number): Promise<number[]> {
  return world.allGather(`pairs-${name}`, port);
}

async function runRound(world: World, side: Side | undefined, workload: TransportWorkload): Promise<Share[]> {
  await world.barrier('pairs-begin');
  let share = NOTHING;
  if (side !== undefined) {
    const { transport, session } = side;
    const isSender = world.rank < world.size / 2;
    const sides = isSender ? { outgoing: [session], incoming: [] } : { outgoing: [], incoming: [session] };
    const { sent, cpuSeconds } = await runExchange({ transport, workload, ...sides });
    await session.settle();
    share = { gbps: sent.gbps, bytes: sent.bytes, cpuSeconds };
  }
  return world.allGather('pairs-shares', share);
}

function totalGbps(shares: readonly Share[]): number {
  return shares.reduce((sum, { gbps }) => sum + gbps, 0);
}

function slowestGbps(shares: readonly Share[]): number {
  return Math.min(...shares.filter(({ bytes }) => bytes > 0).map(({ gbps }) => gbps));
}

function cpuPerGB(rounds: readonly (readonly Share[])[]): number {
  const shares = rounds.flat();
  const bytes = shares.reduce((sum, share) => sum + share.bytes, 0);
  return shares.reduce((sum, share) => sum + share.cpuSeconds, 0) / (bytes / 1e9);
}

function show(shares: readonly Share[]): string {
  return `${totalGbps(shares).toFixed(2)} Gbps`;
}
