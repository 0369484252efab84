// The low-latency bench of ranks on several hosts: calls and chains of them beside the carrier, which sends the same rows bare.
import {
  benchBufferConfig,
  checkEpWorkload,
  combineRowBytes,
  countTokensOfHosts,
  dispatchRowBytes,
  type EpWorkload,
  shareTokens,
} from './ep-workload.ts';
import { makeEpInputs } from './ep-calls.ts';
import { benchNetwork, combineCarrier, dispatchCarrier } from './ep-hosts.ts';
import { type LowLatencyBenchOptions, type LowLatencyCalls, makeLowLatencyCalls } from './low-latency.ts';
import { measureInTurn, monotonicMicroseconds, percentilesOf, type Progress } from '../harness.ts';
import { recordRun } from '../machine.ts';
import { median } from '../../../core/quantile.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { EpBuffer, type LowLatencyDispatchResult } from '../../../ep/index.ts';
import type { World } from '../../../world/index.ts';

/** Written into every document, so that a number can be read without this source. */
const method = {
  time: 'Microseconds by the clock of the slowest rank, from a barrier of all ranks until its results are there.',
  chained:
    'Period of so many calls in a row without any barrier between them, on GPUs in one CUDA graph. The experts between dispatch and combine compute nothing.',
  carrier:
    'The same ranks send the rows of the call bare, each once per (token, host), as one message per peer, until all of it is delivered.',
  beyond: "Median of the time of a call less the carrier's in the same iteration; of a pair less both.",
} as const;

type RowDtype = EpWorkload['dtype'];

interface HostCase {
  readonly name: string;
  readonly dtype: RowDtype;
  readonly prepare?: () => Promise<unknown>;
  readonly run: () => unknown;
  /** How many calls one run makes, if not one. */
  readonly calls?: number;
  /** Names of the cases that send as many rows bare. */
  readonly carriers?: readonly string[];
}

export type LowLatencyHostBenchReport = NonNullable<Awaited<ReturnType<typeof runLowLatencyHostBench>>>;

const carrierName = (dtype: RowDtype): string => `carrier ${dtype}`;
const CARRIER_BACK = 'carrier back';

/**
 * Collective, over ranks on several hosts. Returns the result document on rank 0 and undefined elsewhere. Fails with
 * WL_INVALID_ARGUMENT, with WL_MEMORY or WL_SHARED_MEMORY when windows or results do not fit, and with WL_CHECK when the carrier
 * brought other bytes than were sent.
 */
export async function runLowLatencyHostBench(
  world: World,
  device: CpuDevice | CudaDevice,
  options: LowLatencyBenchOptions,
  progress?: Progress,
) {
  const { workload, variant, dtypes, iterations, warmup, pairs } = options;
  const full: EpWorkload = { ...workload, dtype: 'bf16' };
  checkEpWorkload(full);
  const inputs = await makeEpInputs(world, device, full);
  await using buffer = await EpBuffer.create(world, device, benchBufferConfig(full));
  await using calls = await makeLowLatencyCalls(world, device, options, inputs);
  if (device.kind === 'cpu') await calls.writeOutput(full);
  const network = benchNetwork(buffer, device, inputs.bf16);
  const { hosts } = world.topology;
  const { inRanks } = await shareTokens(world, inputs.routing.topkIdx, full);
  const tokens = await world.allGather('bench-host-tokens', countTokensOfHosts(inRanks, hosts));
  const crossing = tokens.reduce((sum, counts, rank) => sum + crossingRows(counts, world.topology.hostOf(rank)), 0);
  const rows = { rank: world.rank, tokens };
  const carriers = dtypes.map((dtype) => {
    const road = { ...network.there, channels: 1 };
    const carrier = dispatchCarrier(road, { ...rows, rowBytes: dispatchRowBytes({ ...workload, dtype }) });
    return { name: carrierName(dtype), dtype, carrier };
  });
  const back = combineCarrier({ ...network.back, channels: 1 }, { ...rows, rowBytes: combineRowBytes(full) });
  const bare = [...carriers, { name: CARRIER_BACK, dtype: 'bf16' as const, carrier: back }];
  for (const { carrier } of bare) await carrier.check(world);
  using chains = new Chains(device, pairs);
  const cases: HostCase[] = [
    ...bare.map(({ carrier, ...of }) => ({ ...of, run: carrier.run })),
    ...(await callCases(calls, dtypes, chains)),
  ];
  const schema = 'weftline.bench.ep.low-latency.hosts/1' as const;
  const head = {
    schema,
    method,
    device: device.kind,
    variant,
    workload,
    hosts,
    carriers: network.carriers,
    /** Rows of a dispatch that cross, of all ranks: each token once to each other host. */
    crossing,
    warmup,
    iterations,
    pairs,
  };
  const settled = (): Promise<unknown> => (device.kind === 'cpu' ? Promise.resolve() : device.stream.idle());
  const report = await recordRun(world, head, async () => {
    const samples = await measureInTurn(world, cases, { warmup, iterations, progress }, async (one) => {
      await one.prepare?.();
      await calls.settle();
      const begin = monotonicMicroseconds();
      await one.run();
      await settled();
      return { time: (monotonicMicroseconds() - begin) / (one.calls ?? 1) };
    });
    const timesOf = samples.map((of) => of.slowest('time'));
    return {
      cases: cases.map(({ name, dtype, carriers: names = [] }, index) => {
        const times = timesOf[index]!;
        const carrying = names.map((of) => timesOf[cases.findIndex((other) => other.name === of)]!);
        const beyond = times.map((time, at) => carrying.reduce((left, of) => left - of[at]!, time));
        return {
          name,
          dtype,
          microseconds: percentilesOf(times),
          ...(names.length > 0 && { beyondCarrier: median(beyond) }),
        };
      }),
    };
  });
  await calls.settle();
  return report;
}

function crossingRows(counts: readonly number[], own: number): number {
  return counts.reduce((sum, count, host) => sum + (host === own ? 0 : count), 0);
}

/** Runs so many calls in a row: on GPUs as a graph. */
class Chains implements Disposable {
  readonly #device: CpuDevice | CudaDevice;
  readonly #length: number;
  readonly #made: Disposable[] = [];

  constructor(device: CpuDevice | CudaDevice, length: number) {
    this.#device = device;
    this.#length = length;
  }

  async chain(name: string, work: () => Promise<unknown>, of: Omit<HostCase, 'name' | 'run'>): Promise<HostCase> {
    const all = async (): Promise<void> => {
      for (let call = 0; call < this.#length; call++) await work();
    };
    const chained = { ...of, name: `${name}, chained`, calls: this.#length };
    if (this.#device.kind === 'cpu') return { ...chained, run: all };
    const graph = await this.#device.capture(all);
    this.#made.push(graph);
    return { ...chained, run: () => graph.launch() };
  }

  [Symbol.dispose](): void {
    for (const graph of this.#made) graph[Symbol.dispose]();
  }
}

/** Collective: makes calls, so that all memory is there and all graphs can be recorded. */
async function callCases(calls: LowLatencyCalls, dtypes: readonly RowDtype[], chains: Chains): Promise<HostCase[]> {
  const cases: HostCase[] = [];
  for (const dtype of dtypes) {
    for (let parity = 0; parity < 2; parity++) await calls.pair(dtype);
  }
  for (const dtype of dtypes) {
    const there = { dtype, carriers: [carrierName(dtype)] };
    const both = { dtype, carriers: [carrierName(dtype), CARRIER_BACK] };
    const dispatch = (): Promise<unknown> => calls.dispatch(dtype);
    cases.push({ ...there, name: `dispatch ${dtype}`, run: dispatch });
    cases.push(await chains.chain(`dispatch ${dtype}`, dispatch, there));
    cases.push(await chains.chain(`pair ${dtype}`, () => calls.pair(dtype), both));
  }
  const back = { dtype: 'bf16', carriers: [CARRIER_BACK] } as const;
  let last: LowLatencyDispatchResult = await calls.dispatch('bf16');
  const prepare = async (): Promise<unknown> => (last = await calls.dispatch('bf16'));
  cases.push({ ...back, name: 'combine bf16', prepare, run: () => calls.combine(last) });
  // The graph combines the result of whichever dispatch came last into that memory: rows of the same shape.
  cases.push(await chains.chain('combine bf16', () => calls.combine(last), { ...back, prepare }));
  await calls.settle();
  return cases;
}
