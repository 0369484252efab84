// What the path could reach, measured in turn with it: a bare copy, the transport without an agent, UCX's own benchmark.
import { median } from '../../../core/quantile.ts';
import { formatBytes } from '../../../core/byte-size.ts';
import { copyMemory } from '../../../native/libc.ts';
import { measureInTurn, type Rounds, summarizeRatios, timeInTurn } from '../harness.ts';
import { runTransportBench } from '../transport/transport-bench.ts';
import { defaultTransportWorkload } from '../transport/transport-session.ts';
import {
  type MovedMemory,
  type P2pPhase,
  prepareSlots,
  runOneSided,
  runPings,
  type P2pSession,
  COMPARED_SLOTS,
  MIN_COMPARED_BYTES,
  PING_BYTES,
  slotsOf,
} from './p2p-phases.ts';
import { type PerftestCase, perftestMissing, runPerftest } from '../peer-programs.ts';

/** Bytes of one side of one round. */
const ROUND_BYTES = 256 << 20;
const TRANSPORT_SECONDS = 1;
/** Messages until all of a message's path is compiled to machine code: a program that moves much gets there at once. */
const WARM_MESSAGES = 20_000;
const WARM_BYTES = 256;
/** Rounds of the backend that warm up both of its sides. */
const WARM_ROUNDS = 4;
const PERFTEST_TRIAL: PerftestCase = { test: 'tag_lat', bytes: PING_BYTES, iterations: 100, window: 1 };

type CeilingName = 'memcpy' | 'transport' | 'ucx_perftest' | 'host';

interface CeilingOptions {
  readonly mode: 'write' | 'read';
  readonly sizes: readonly number[];
  readonly rounds: number;
  /** Messages that are under way at a time, beside UCX's own benchmark. */
  readonly inflight: number;
  /** The address of the peer's transport bench. */
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
export async function runCeilings(session: P2pSession, options: CeilingOptions) {
  const { backend } = session.connection;
  const results = [];
  /** Sizes that are left out. */
  const notCompared = [];
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

/** The two sides of each round in turn, in GB/s. The first rounds warm up. */
async function beside(
  ceiling: CeilingName,
  bytes: number,
  rounds: Rounds,
  sides: readonly [own: () => Promise<number>, ceiling: () => Promise<number>],
) {
  const samples = await measureInTurn(undefined, sides, rounds, async (side) => ({ speed: await side() }));
  return compared(ceiling, bytes, samples[0]!.slowest('speed'), samples[1]!.slowest('speed'));
}

function compared(ceiling: CeilingName, bytes: number, own: readonly number[], ceilings: readonly number[]) {
  return { bytes, ceiling, own, ceilings, ratio: summarizeRatios(own, ceilings) };
}

/** Message by message in turn, so that what else the machine does meets both alike. */
async function besideMemcpy(session: P2pSession, bytes: number, { mode, rounds }: CeilingOptions) {
  const { endpoint, memory } = session;
  const messages = { warmup: 0, iterations: Math.max(5, Math.floor(ROUND_BYTES / bytes)) };
  const target = await endpoint.agent.allocate(bytes);
  await warmUp(session, mode, target.address);
  const [transfer] = await prepareSlots(session, mode, { bytes, slots: 1 });
  const move = (): void => {
    transfer?.post();
    transfer?.waitBlocking();
  };
  const sides = [{ run: move }, { run: (): void => copyMemory(target.address, memory.address, bytes) }];
  const [samples] = await measureInTurn(undefined, [sides], { warmup: 1, iterations: rounds }, async () => {
    const [own, copy] = (await timeInTurn(sides, messages)).map((times) => bytes / median(times) / 1000);
    return { own: own!, copy: copy! };
  });
  await transfer?.close();
  await target.close();
  return compared('memcpy', bytes, samples!.slowest('own'), samples!.slowest('copy'));
}

async function warmUp(session: P2pSession, mode: 'write' | 'read', target: number): Promise<void> {
  const [transfer] = await prepareSlots(session, mode, { bytes: WARM_BYTES, slots: 1 });
  for (let message = 0; message < WARM_MESSAGES; message += 1) {
    transfer?.post();
    transfer?.waitBlocking();
    copyMemory(target, session.memory.address, WARM_BYTES);
  }
  await transfer?.close();
}

/** What staging costs: the same transfers between host memory, in turn. */
function besideHostMemory(session: P2pSession, bytes: number, { mode, rounds, inflight }: CeilingOptions) {
  const slots = slotsOf(inflight, bytes);
  const count = Math.max(slots, Math.floor(ROUND_BYTES / bytes));
  const side = (memory: MovedMemory) => async (): Promise<number> =>
    (await runOneSided(session, { mode, bytes, count, slots, memory })).gigabytesPerSecond;
  return beside('host', bytes, { warmup: 1, iterations: rounds }, [side('own'), side('host')]);
}

function besideTransport(session: P2pSession, bytes: number, { mode, rounds, host }: CeilingOptions) {
  const slots = slotsOf(COMPARED_SLOTS, bytes);
  let count = Math.max(slots, Math.floor(ROUND_BYTES / bytes));
  const own = async (): Promise<number> => {
    const { gigabytesPerSecond, seconds } = await runOneSided(session, { mode, bytes, count, slots });
    // Rounds become as long as those of the other side.
    count = Math.max(slots, Math.round((count * TRANSPORT_SECONDS) / seconds));
    return gigabytesPerSecond;
  };
  return beside('transport', bytes, { warmup: 1, iterations: rounds }, [own, () => runTransport(session, bytes, host)]);
}

/** GB/s. */
async function runTransport(session: P2pSession, msize: number, host: string): Promise<number> {
  session.say({ phase: 'transport' } satisfies P2pPhase);
  const { port } = await session.hear<{ port: number }>();
  const workload = { ...defaultTransportWorkload, msize, seconds: TRANSPORT_SECONDS };
  const { throughput } = await runTransportBench({ host, port, workload, rounds: 0, onLine: () => {} });
  return (throughput?.gbps[0] ?? 0) / 8;
}

async function besidePerftest(session: P2pSession, bytes: number, { mode, rounds, host, inflight }: CeilingOptions) {
  const slots = slotsOf(inflight, bytes);
  const count = Math.max(slots * 4, Math.floor((ROUND_BYTES * 4) / bytes));
  const test = mode === 'read' ? 'ucp_get' : 'ucp_put_bw';
  const own = async (): Promise<number> =>
    (await runOneSided(session, { mode, bytes, count, slots })).gigabytesPerSecond;
  await runOneSided(session, { mode, bytes: WARM_BYTES, count: WARM_MESSAGES, slots });
  for (let round = 1; round < WARM_ROUNDS; round += 1) await own();
  const perftest = async (): Promise<number> => {
    const { overall } = await runPerftestPhase(session, host, { test, bytes, iterations: count, window: slots });
    return bytes / overall / 1000;
  };
  return beside('ucx_perftest', bytes, { warmup: 1, iterations: rounds }, [own, perftest]);
}

/** Round trips beside those of ucx_perftest, which measures one way: twice that. Undefined where there is no such ceiling. */
export async function runPingCeiling(
  session: P2pSession,
  { rounds, host, pings }: { readonly rounds: number; readonly host: string; readonly pings: number },
) {
  if (session.connection.backend !== 'ucx') return undefined;
  const what = { test: 'tag_lat', bytes: PING_BYTES, iterations: pings, window: 1 } as const;
  const { bytes: _, ...result } = await beside('ucx_perftest', PING_BYTES, { warmup: 0, iterations: rounds }, [
    async () => (await runPings(session, pings))[1] ?? 0,
    async () => 2 * (await runPerftestPhase(session, host, what)).typical,
  ]);
  return result;
}

async function runPerftestPhase(session: P2pSession, host: string, what: PerftestCase): ReturnType<typeof runPerftest> {
  session.say({ phase: 'perftest' } satisfies P2pPhase);
  const { port } = await session.hear<{ port: number }>();
  if (port === 0) throw perftestMissing('the server');
  try {
    return await runPerftest(host, port, what);
  } finally {
    session.say({});
  }
}
