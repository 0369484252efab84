// What the path could reach, measured in turn with it: a bare copy, the transport without an agent, UCX's own benchmark.
import { median } from '../../../core/quantile.ts';
import { formatBytes } from '../../../core/byte-size.ts';
import { copyMemory } from '../../../native/libc.ts';
import { monotonicMicroseconds } from '../harness.ts';
import { summarizeRatios } from '../harness.ts';
import { runTransportBench } from '../transport/transport-bench.ts';
import { defaultTransportWorkload } from '../transport/transport-workload.ts';
import { type MovedMemory, type P2pPhase, prepareSlots, runOneSided, runPings } from './p2p-phases.ts';
import type { CeilingResult, NotCompared, PingCeilingResult } from './p2p-results.ts';
import type { P2pSession } from './p2p-session.ts';
import { COMPARED_SLOTS, MIN_COMPARED_BYTES, PING_BYTES, slotsOf } from './p2p-workload.ts';
import { type PerftestCase, type PerftestResult, perftestMissing, runPerftest } from './ucx-perftest.ts';

/** Of one side of one round. */
const ROUND_BYTES = 256 << 20;
const TRANSPORT_SECONDS = 1;
/** Until all of a message's path is compiled to machine code: a program that moves much gets there at once. */
const WARM_MESSAGES = 20_000;
const WARM_BYTES = 256;
/** Of the backend alone, on both of its sides. */
const WARM_ROUNDS = 4;
const PERFTEST_TRIAL: PerftestCase = { test: 'tag_lat', bytes: PING_BYTES, iterations: 100, window: 1 };

export interface CeilingOptions {
  readonly mode: 'write' | 'read';
  readonly sizes: readonly number[];
  readonly rounds: number;
  /** Messages that are under way at a time, beside UCX's own benchmark. */
  readonly inflight: number;
  /** Where the peer's transport bench is reached. */
  readonly host: string;
}

/**
 * To be called before anything is measured: warming up takes long. Fails with WL_UNSUPPORTED if a side lacks the program
 * that measures the ceiling.
 */
export async function checkCeilings(session: P2pSession, host: string): Promise<void> {
  if (session.connection.backend === 'ucx') await runPerftestPhase(session, host, PERFTEST_TRIAL);
}

/** Every size is in one of the two. */
export async function runCeilings(
  session: P2pSession,
  options: CeilingOptions,
): Promise<{ readonly results: readonly CeilingResult[]; readonly notCompared: readonly NotCompared[] }> {
  const { backend } = session.connection;
  const results: CeilingResult[] = [];
  const notCompared: NotCompared[] = [];
  for (const bytes of options.sizes) {
    if (bytes < MIN_COMPARED_BYTES) {
      notCompared.push({ bytes, why: `below ${formatBytes(MIN_COMPARED_BYTES)}, where other costs than bytes decide` });
    } else if (session.memory.kind === 'cuda' && backend !== 'local') {
      results.push(await besideHostMemory(session, bytes, options));
    } else if (backend === 'local' && session.memory.kind === 'host') {
      results.push(await besideMemcpy(session, bytes, options));
    } else if (backend === 'multipath') {
      results.push(await besideTransport(session, bytes, options));
    } else if (backend === 'ucx') {
      results.push(await besidePerftest(session, bytes, options));
    } else {
      notCompared.push({ bytes, why: `${backend} moves memory of a GPU, and no ceiling of that is measured here` });
    }
  }
  return { results, notCompared };
}

/** Message by message in turn, so that what else the machine does meets both alike. */
async function besideMemcpy(
  session: P2pSession,
  bytes: number,
  { mode, rounds }: CeilingOptions,
): Promise<CeilingResult> {
  const { endpoint, memory } = session;
  const pairs = Math.max(5, Math.floor(ROUND_BYTES / bytes));
  const target = await endpoint.agent.allocate(bytes);
  await warmUp(session, mode, target.address);
  const [transfer] = await prepareSlots(session, mode, { bytes, slots: 1 });
  const sides = [
    (): void => {
      transfer?.post();
      transfer?.waitBlocking();
    },
    (): void => copyMemory(target.address, memory.address, bytes),
  ];
  const speeds: [number[], number[]] = [[], []];
  // The first round warms up.
  for (let round = -1; round < rounds; round += 1) {
    const times: [number[], number[]] = [[], []];
    for (let pair = 0; pair < pairs; pair += 1) {
      for (const side of pair % 2 === 0 ? ([0, 1] as const) : ([1, 0] as const)) {
        const begin = monotonicMicroseconds();
        sides[side]?.();
        times[side].push(monotonicMicroseconds() - begin);
      }
    }
    if (round < 0) continue;
    for (const side of [0, 1] as const) speeds[side].push(bytes / median(times[side]) / 1000);
  }
  await transfer?.release();
  await endpoint.agent.deregister(target);
  const [own, ceilings] = speeds;
  return { bytes, ceiling: 'memcpy', own, ceilings, ratio: summarizeRatios(own, ceilings) };
}

async function warmUp(session: P2pSession, mode: 'write' | 'read', target: number): Promise<void> {
  const [transfer] = await prepareSlots(session, mode, { bytes: WARM_BYTES, slots: 1 });
  for (let message = 0; message < WARM_MESSAGES; message += 1) {
    transfer?.post();
    transfer?.waitBlocking();
    copyMemory(target, session.memory.address, WARM_BYTES);
  }
  await transfer?.release();
}

/** What staging costs: the same transfers between host memory, in turn. */
async function besideHostMemory(
  session: P2pSession,
  bytes: number,
  { mode, rounds, inflight }: CeilingOptions,
): Promise<CeilingResult> {
  const slots = slotsOf(inflight, bytes);
  const count = Math.max(slots, Math.floor(ROUND_BYTES / bytes));
  const speeds: Record<MovedMemory, number[]> = { own: [], host: [] };
  // The first round warms up.
  for (let round = -1; round < rounds; round += 1) {
    for (const memory of round % 2 === 0 ? (['own', 'host'] as const) : (['host', 'own'] as const)) {
      const { gigabytesPerSecond } = await runOneSided(session, { mode, bytes, count, slots, memory });
      if (round >= 0) speeds[memory].push(gigabytesPerSecond);
    }
  }
  const { own, host: ceilings } = speeds;
  return { bytes, ceiling: 'host', own, ceilings, ratio: summarizeRatios(own, ceilings) };
}

async function besideTransport(
  session: P2pSession,
  bytes: number,
  { mode, rounds, host }: CeilingOptions,
): Promise<CeilingResult> {
  const slots = slotsOf(COMPARED_SLOTS, bytes);
  const own: number[] = [];
  const ceilings: number[] = [];
  let count = Math.max(slots, Math.floor(ROUND_BYTES / bytes));
  for (let round = -1; round < rounds; round += 1) {
    const { gigabytesPerSecond, seconds } = await runOneSided(session, { mode, bytes, count, slots });
    // As long as the other side.
    count = Math.max(slots, Math.round((count * TRANSPORT_SECONDS) / seconds));
    if (round < 0) continue;
    own.push(gigabytesPerSecond);
    ceilings.push(await runTransport(session, bytes, host));
  }
  return { bytes, ceiling: 'transport', own, ceilings, ratio: summarizeRatios(own, ceilings) };
}

/** GB/s. */
async function runTransport(session: P2pSession, msize: number, host: string): Promise<number> {
  session.say({ phase: 'transport' } satisfies P2pPhase);
  const { port } = await session.hear<{ port: number }>();
  const workload = { ...defaultTransportWorkload, msize, seconds: TRANSPORT_SECONDS };
  const { throughput } = await runTransportBench({ host, port, workload, rounds: 0, onLine: () => {} });
  return (throughput?.gbps[0] ?? 0) / 8;
}

async function besidePerftest(
  session: P2pSession,
  bytes: number,
  { mode, rounds, host, inflight }: CeilingOptions,
): Promise<CeilingResult> {
  const slots = slotsOf(inflight, bytes);
  const count = Math.max(slots * 4, Math.floor((ROUND_BYTES * 4) / bytes));
  const own: number[] = [];
  const ceilings: number[] = [];
  await runOneSided(session, { mode, bytes: WARM_BYTES, count: WARM_MESSAGES, slots });
  for (let round = -WARM_ROUNDS; round < rounds; round += 1) {
    const { gigabytesPerSecond } = await runOneSided(session, { mode, bytes, count, slots });
    if (round < -1) continue;
    const test = mode === 'read' ? 'ucp_get' : 'ucp_put_bw';
    const what: PerftestCase = { test, bytes, iterations: count, window: slots };
    const { overall } = await runPerftestPhase(session, host, what);
    if (round < 0) continue;
    own.push(gigabytesPerSecond);
    ceilings.push(bytes / overall / 1000);
  }
  return { bytes, ceiling: 'ucx_perftest', own, ceilings, ratio: summarizeRatios(own, ceilings) };
}

/** Round trips beside those of ucx_perftest, which measures one way: twice that. Undefined where there is no such ceiling. */
export async function runPingCeiling(
  session: P2pSession,
  { rounds, host, pings }: { readonly rounds: number; readonly host: string; readonly pings: number },
): Promise<PingCeilingResult | undefined> {
  if (session.connection.backend !== 'ucx') return undefined;
  const own: number[] = [];
  const ceilings: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const [, typicalOwn = 0] = await runPings(session, pings);
    const what = { test: 'tag_lat', bytes: PING_BYTES, iterations: pings, window: 1 } as const;
    const { typical } = await runPerftestPhase(session, host, what);
    own.push(typicalOwn);
    ceilings.push(2 * typical);
  }
  return { ceiling: 'ucx_perftest', own, ceilings, ratio: summarizeRatios(own, ceilings) };
}

async function runPerftestPhase(session: P2pSession, host: string, what: PerftestCase): Promise<PerftestResult> {
  session.say({ phase: 'perftest' } satisfies P2pPhase);
  const { port } = await session.hear<{ port: number }>();
  if (port === 0) throw perftestMissing('the server');
  try {
    return await runPerftest(host, port, what);
  } finally {
    session.say({});
  }
}
