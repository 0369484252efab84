// Transport benches over the ranks of a world: all send to one (incast), or each sends to another one (permutation).
import { seededRandom } from '../../../core/seeded-random.ts';
import { Transport } from '../../../transport/index.ts';
import type { World } from '../../../world/index.ts';
import { runExchange, type SecondOfExchange } from './transport-exchange.ts';
import { quantilesOf, secondLine } from './transport-phases.ts';
import { BenchSession } from './transport-session.ts';
import type { TransportWorkload } from './transport-workload.ts';

export type RankBenchReport = NonNullable<Awaited<ReturnType<typeof runRankBench>>>;

/** The ranks that each rank sends to. */
export function targetsOf(
  perftype: 'incast' | 'permutation',
  ranks: number,
  seed: number,
): readonly (readonly number[])[] {
  if (perftype === 'incast') return Array.from({ length: ranks }, (_, rank) => (rank === 0 ? [] : [0]));
  const order = derangement(ranks, seed);
  return order.map((target) => [target]);
}

/** Sattolo's shuffle: one cycle through all, so that nobody sends to itself. */
function derangement(count: number, seed: number): number[] {
  const random = seededRandom(seed);
  const order = Array.from({ length: count }, (_, index) => index);
  for (let index = count - 1; index > 0; index -= 1) {
    const other = Math.floor(random() * index);
    [order[index], order[other]] = [order[other] as number, order[index] as number];
  }
  return order;
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
