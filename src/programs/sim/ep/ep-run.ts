// Runs a scenario of expert parallelism and finds out whether its calls kept their promises.
import { type ErrorCode, WeftlineError } from '../../../core/errors.ts';
import { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { EpBuffer } from '../../../ep/index.ts';
import { SimulatedJob, type SimulatedRank } from '../job/simulated-job.ts';
import { type ExpectedRound, expectRound, RankRound } from './ep-rank.ts';
import type { EpScenario } from './ep-scenario.ts';

/** Simulated time within which everything must have ended, in microseconds. */
const LONGEST = 600_000_000;
const MAX_EVENTS = 20_000_000;
const TIMEOUT_MS = 60_000;

/** Memory of ranks, which takes long to make, for one scenario after the other. */
const devices: CpuDevice[] = [];

export async function runEpScenario(scenario: EpScenario) {
  while (devices.length < scenario.ranks) devices.push(await CpuDevice.create({ addressSpaceMiB: 1024 }));
  const { network, ranks, wakeDelay, hangUpDelay } = scenario;
  const { topology, seed, segmentBytes, rail, pollDelay, paths, engines = 1 } = network;
  const settings = { ...network.settings, timeoutMs: TIMEOUT_MS, transportPaths: paths };
  const simulated = { topology, seed, segmentBytes, rail, pollDelay, paths, engines, settings };
  await using job = new SimulatedJob({ ...simulated, ranks, wakeDelay, hangUpDelay }, devices);
  return await new EpRun(scenario, job).run();
}

/** Why a rank gives up a call by itself. */
const CANCELLED = new Error('cancelled by the scenario');

class EpRun {
  readonly #scenario: EpScenario;
  readonly #job: SimulatedJob;
  readonly #rounds: readonly ExpectedRound[];
  readonly #problems: string[] = [];
  readonly #cancelling = new AbortController();
  #running = 0;
  /** Ranks that were killed, or gave a call up. */
  readonly #culprits = new Set<number>();
  readonly #where: string[] = [];

  constructor(scenario: EpScenario, job: SimulatedJob) {
    this.#scenario = scenario;
    this.#job = job;
    this.#rounds = scenario.rounds.map((round) => expectRound(scenario, round));
  }

  async run() {
    const { network, config, keepsAgent } = this.#scenario;
    const job = this.#job;
    const { simulation } = job;
    const buffers = await job.atOnce(() =>
      Promise.all(job.ranks.map(({ group, device }) => EpBuffer.create(group, device, config))),
    );
    if (!keepsAgent) for (const rank of job.ranks) rank.leaveAgent();
    for (const { link, at, recoversAt } of network.faults) {
      simulation.at(at, () => simulation.network.fail(link));
      if (recoversAt !== undefined) simulation.at(recoversAt, () => simulation.network.recover(link, simulation.now));
    }
    this.#planTrouble();
    const ends = buffers.map((buffer, rank) => this.#runRank(job.ranks[rank]!, buffer));
    const isOver = (): boolean => this.#running === 0;
    let end = await job.run(LONGEST, MAX_EVENTS, isOver);
    if (end !== 'done') {
      this.#problems.push(`"${end}" at ${simulation.now.toFixed(0)} µs: ${this.#where.join('; ')}`);
    }
    // What is behind it, of a scenario that broke a promise, follows from that.
    const problems = end === 'done' ? this.#problems : [...this.#problems];
    await this.#release(end === 'done' ? job.ranks.filter(({ isAlive }) => !isAlive) : job.ranks);
    if (end === 'done') {
      await Promise.all(ends);
      end = await this.#windDown();
    }
    return { problems, end, microseconds: simulation.now, events: simulation.events };
  }

  #planTrouble(): void {
    const { death, cancellation } = this.#scenario;
    const job = this.#job;
    if (death !== undefined) {
      const { rank, at, withHost, noticedAfter } = death;
      job.clock.after(at, () => {
        if (this.#where[rank] === OVER) return;
        this.#culprits.add(rank);
        job.kill(rank, withHost);
        this.#running--;
      });
      if (noticedAfter !== undefined) {
        const lost = new WeftlineError('WL_PEER_LOST', `Rank ${rank} ended`, { details: { ranks: [rank] }, rank });
        job.clock.after(at + noticedAfter, () => {
          for (const { group, isAlive } of job.ranks) if (isAlive && this.#culprits.size > 0) group.lose(lost);
        });
      }
    }
    if (cancellation === undefined) return;
    job.clock.after(cancellation.at, () => {
      this.#culprits.add(cancellation.rank);
      this.#cancelling.abort(CANCELLED);
    });
  }

  async #runRank(rank: SimulatedRank, buffer: EpBuffer): Promise<void> {
    this.#running++;
    const me = rank.rank;
    const { cancellation } = this.#scenario;
    const signal = cancellation?.rank === me ? this.#cancelling.signal : new AbortController().signal;
    let step = '';
    const note = (problem: string): void => void this.#problems.push(`${step}: ${problem}`);
    try {
      for (const [number, expected] of this.#rounds.entries()) {
        step = `round ${number}`;
        this.#where[me] = `rank ${me} in ${step}`;
        await new RankRound(buffer, expected, note).run(() => rank.pause(expected.round.pauses[me]!), signal);
      }
    } catch (error) {
      this.#checkError(me, step, error);
    }
    this.#where[me] = `rank ${me} closes`;
    try {
      await buffer.close();
    } catch (error) {
      this.#problems.push(`rank ${me}: close failed: ${String(error)}`);
    }
    this.#where[me] = OVER;
    if (!this.#wasKilled(me)) this.#running--;
  }

  /** Killed ones go on, and give their memory back; so do all where some have not ended, as their waits would keep the process. */
  async #release(ranks: readonly SimulatedRank[]): Promise<void> {
    await this.#job.release(ranks, LONGEST, MAX_EVENTS, () => ranks.every(({ rank }) => this.#where[rank] === OVER));
  }

  /** Everything is closed: nobody may stay awake. */
  async #windDown() {
    const { simulation } = this.#job;
    await this.#job.close();
    const end = await this.#job.run(simulation.now + LONGEST, 1_000_000, () => false);
    if (end !== 'quiet') this.#problems.push(`engines do not come to rest: ${end} at ${simulation.now.toFixed(0)} µs`);
    else if (simulation.packets.used > 0) this.#problems.push(`${simulation.packets.used} packets were not given back`);
    return end;
  }

  #wasKilled(rank: number): boolean {
    return this.#scenario.death?.rank === rank && this.#culprits.has(rank);
  }

  #checkError(rank: number, step: string, error: unknown): void {
    if (this.#wasKilled(rank) || error === CANCELLED) return;
    const { death } = this.#scenario;
    // A connection that has nothing to send probes nobody: of a host that fell silent only the world could tell.
    const isUntold = death?.withHost === true && death.noticedAfter === undefined;
    const late: readonly ErrorCode[] = isUntold ? ['WL_TIMEOUT'] : [];
    const allowed: readonly ErrorCode[] = ['WL_PEER_LOST', 'WL_PEER_FAILED', ...late];
    const isExpected = this.#culprits.size > 0 && error instanceof WeftlineError && allowed.includes(error.code);
    if (!isExpected) this.#problems.push(`rank ${rank}, ${step}: ${String(error)}`);
  }
}

const OVER = 'over';
