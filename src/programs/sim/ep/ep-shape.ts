// Dispatch and combine of one shape on a simulated network: how long they take, against what the links need for the rows.
import { fromBf16, toBf16 } from '../../../core/dtype.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { seededRandom } from '../../../core/seeded-random.ts';
import { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { EpBuffer } from '../../../ep/index.ts';
import type { CombinePrecision } from '../../../ep/across-hosts/network-size.ts';
import { DATA_HEADER_BYTES } from '../../../transport/wire/packet-layout.ts';
import { SimulatedJob, type JobOptions, type SimulatedRank } from '../job/simulated-job.ts';
import { oneWayDelay, wireBytes } from '../pattern-run.ts';
import { WIRE_OVERHEAD_BYTES } from '../simulated-host.ts';

export interface EpShapeOptions extends JobOptions {
  /** Tokens of each rank. */
  readonly tokens: number;
  readonly hidden: number;
  readonly topk: number;
  readonly experts: number;
  readonly combinePrecision: CombinePrecision;
  /** Pairs of calls, one after the other. */
  readonly rounds: number;
  /** Gbps of a host, all its rails together. */
  readonly hostGigabitsPerSecond: number;
  /** Longest simulated time, in microseconds. */
  readonly until: number;
}

const phases = ['dispatch', 'combine'] as const;

export type EpShapeResult = Awaited<ReturnType<typeof runEpShape>>;

const MAX_EVENTS = 1e9;
const MAX_RELEASE_EVENTS = 1e6;

/** Fails with what a call failed with, and with WL_TIMEOUT if the time was over before. */
export async function runEpShape(options: EpShapeOptions) {
  const devices: CpuDevice[] = [];
  while (devices.length < options.ranks) devices.push(await CpuDevice.create());
  await using job = new SimulatedJob(options, devices);
  return await new ShapeRun(options, job).run();
}

class ShapeRun {
  readonly #options: EpShapeOptions;
  readonly #job: SimulatedJob;
  /** Experts that each rank's tokens choose. */
  readonly #choices: readonly Int32Array[];
  /** tokens[s][h]: of rank s, with an expert on host h. */
  readonly #tokens: readonly number[][];
  /** Microseconds from the begin of a call at all ranks until the last one was done, by round. */
  readonly #times = { dispatch: [] as number[], combine: [] as number[] };

  constructor(options: EpShapeOptions, job: SimulatedJob) {
    const { ranks, tokens, topk, experts, seed } = options;
    this.#options = options;
    this.#job = job;
    const random = seededRandom(seed ^ 0x0e9);
    this.#choices = Array.from({ length: ranks }, () => distinctChoices(random, { tokens, topk, experts }));
    this.#tokens = this.#choices.map((choices) =>
      Array.from({ length: ranks }, (_, rank) => this.#tokensFor(choices, rank)),
    );
  }

  async run() {
    const { rounds, until } = this.#options;
    const { simulation } = this.#job;
    let running = this.#job.ranks.length;
    const buffers = await this.#job.atOnce(() =>
      Promise.all(this.#job.ranks.map(({ group, device }) => EpBuffer.create(group, device, this.#config))),
    );
    const ends = Promise.all(
      this.#job.ranks.map((rank, at) =>
        this.#runRank(rank, buffers[at]!).finally(() => {
          running--;
        }),
      ),
    );
    ends.catch(() => {});
    const end = await this.#job.run(until, MAX_EVENTS, () => running === 0);
    if (end !== 'done') {
      // What still waits would keep the process.
      await this.#job.release(this.#job.ranks, until, MAX_RELEASE_EVENTS, () => running === 0);
      const what = `${this.#times.dispatch.length} dispatches and ${this.#times.combine.length} combines of ${rounds}`;
      throw new WeftlineError(
        'WL_TIMEOUT',
        `Only ${what} ended within ${(until / 1000).toFixed(1)} ms of simulated time`,
      );
    }
    await ends;
    return {
      phases: phases.map((phase) => {
        const times = this.#times[phase];
        const links = this.#linkTime(phase);
        const mean = times.reduce((sum, time) => sum + time, 0) / times.length;
        return {
          phase,
          mean,
          least: Math.min(...times),
          most: Math.max(...times),
          links,
          ratio: mean / links.time,
          times,
        };
      }),
      network: { ...simulation.network.counts },
      microseconds: simulation.now,
      events: simulation.events,
      mostPackets: simulation.packets.most,
    };
  }

  get #config() {
    const { tokens, hidden, topk, experts, combinePrecision } = this.#options;
    return { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk, combinePrecision };
  }

  /** All rows are ones, so that a sum is the number of rows. */
  async #runRank({ rank, device }: SimulatedRank, buffer: EpBuffer): Promise<void> {
    const { tokens, hidden, topk, rounds } = this.#options;
    const x = device.empty('bf16', [tokens, hidden]);
    x.view().fill(toBf16(1));
    const topkIdx = device.empty('i32', [tokens, topk]);
    topkIdx.view().set(this.#choices[rank]!);
    for (let round = 0; round < rounds; round++) {
      const result = await this.#time(rank, 'dispatch', () => buffer.dispatch({ x, topkIdx }));
      const y = buffer.combineInput(result.handle);
      y.view().set(result.recvX.view());
      const { combinedX } = await this.#time(rank, 'combine', () => buffer.combine({ x: y, handle: result.handle }));
      this.#check(rank, combinedX.view());
      combinedX.close();
      result.handle.close();
    }
    x.close();
    topkIdx.close();
    await buffer.close();
  }

  async #time<T>(rank: number, phase: (typeof phases)[number], call: () => Promise<T>): Promise<T> {
    const { simulation } = this.#job;
    await this.#job.gather(`before ${phase}`, rank, 0);
    const begin = simulation.now;
    const result = await call();
    const times = await this.#job.gather(`after ${phase}`, rank, simulation.now - begin);
    if (rank === 0) this.#times[phase].push(Math.max(...times));
    return result;
  }

  #check(rank: number, sums: Uint16Array): void {
    const { tokens, hidden, topk, ranks } = this.#options;
    for (let token = 0; token < tokens; token++) {
      const choices = this.#choices[rank]!.subarray(token * topk, (token + 1) * topk);
      const wanted = Array.from({ length: ranks }, (_, other) => this.#tokensFor(choices, other)).filter((n) => n > 0);
      for (let at = token * hidden; at < (token + 1) * hidden; at++) {
        if (fromBf16(sums[at]!) === wanted.length) continue;
        const found = `element ${at} is ${fromBf16(sums[at]!)}, not ${wanted.length}`;
        throw new WeftlineError('WL_INTERNAL', `A combine of rank ${rank} is wrong: ${found}`);
      }
    }
  }

  /** How many of the tokens with these choices have an expert on that rank. */
  #tokensFor(choices: Int32Array, rank: number): number {
    const { topk, experts, ranks } = this.#options;
    const perRank = experts / ranks;
    let count = 0;
    for (let first = 0; first < choices.length; first += topk) {
      if (choices.subarray(first, first + topk).some((expert) => Math.floor(expert / perRank) === rank)) count++;
    }
    return count;
  }

  /** The busiest host's rows, headers included, at the rate of its links, and the way of the last packet. */
  #linkTime(phase: (typeof phases)[number]) {
    const { topology, segmentBytes, hostGigabitsPerSecond, hidden, combinePrecision } = this.#options;
    const rowBytes = hidden * (phase === 'combine' && combinePrecision === 'f32' ? 4 : 2);
    const hosts = this.#tokens.map((_, host) => host);
    const bytes = (from: number, to: number): number => {
      const rows = from === to ? 0 : this.#tokens[from]![to]!;
      return rows === 0 ? 0 : wireBytes(rows * rowBytes, segmentBytes);
    };
    const sum = (of: (other: number) => number): number => hosts.reduce((all, other) => all + of(other), 0);
    // What goes out in dispatch comes back in combine.
    const busiest = Math.max(
      ...hosts.flatMap((host) => [sum((other) => bytes(host, other)), sum((other) => bytes(other, host))]),
    );
    const rate = hostGigabitsPerSecond * 125;
    const last = Math.min(segmentBytes, rowBytes + DATA_HEADER_BYTES);
    const way = oneWayDelay(topology, { source: 0, destination: 1 }, last) - (last + WIRE_OVERHEAD_BYTES) / rate;
    return { bytes: busiest, time: busiest / rate + way };
  }
}

function distinctChoices(
  random: () => number,
  { tokens, topk, experts }: { readonly tokens: number; readonly topk: number; readonly experts: number },
): Int32Array {
  const choices = new Int32Array(tokens * topk);
  const pool = Int32Array.from({ length: experts }, (_, expert) => expert);
  for (let at = 0; at < choices.length; at++) {
    const first = at % topk;
    const chosen = first + Math.floor(random() * (experts - first));
    [pool[first], pool[chosen]] = [pool[chosen]!, pool[first]!];
    choices[at] = pool[first]!;
  }
  return choices;
}
