// Carries out work that waits for other ranks now and then: polls and gives way to them, then sleeps, never without end.
import { type CallWait, Deadline } from '../core/deadline.ts';
import type { ErrorDetails } from '../core/errors.ts';
import { yieldProcessor } from '../native/libc.ts';
import { SpinTime } from '../threads/spin-time.ts';
import type { WaitFacts } from '../core/waits.ts';
import { type RankBells, waitForWord } from '../windows/wait.ts';
import type { RankGroup } from '../world/rank-group.ts';
import { rankList } from '../world/membership.ts';
import type { Missing, WindowFailure } from '../windows/abort-record.ts';

/** Work in steps, some of which need what other ranks have yet to do. */
export interface Steps {
  /** Counts steps that were made; never resets. */
  readonly progress: number;
  /** Does what can be done now. True when all is done. */
  advance(): boolean;
  /** Ranks of the group that the next step needs and that are not so far; for errors. */
  missing(): readonly number[];
  /** "allReduce", for errors. */
  readonly name: string;
  /** What it waits for, for the error of a wait that takes too long. */
  details?(): ErrorDetails;
}

/** Why steps cannot go on. On one host the ranks are the window's, whose WindowFailure serves as it is. */
export type StepFailure = Pick<WindowFailure, 'reasonToGiveUp' | 'timeout' | 'raise' | 'reason' | 'rankOf'> & {
  /** Asked when the time is over: true if the wait can go on without the missing ranks. */
  excuse?(missing: Missing, timeoutMs: number): boolean;
};

/** What steps put for ranks of other hosts. */
interface StepNetwork {
  /** Hot path. Takes in what has come, posts what there is room for. */
  advance(): void;
  /** Everything was handed to the carrier, which needs no further call for it. */
  readonly isPosted: boolean;
  /** Ranks to whose hosts something waits to be posted. */
  unposted(): readonly number[];
  /** Behind advance(): whether all that comes from other hosts rings this rank's bell. Absent: nothing does. */
  isRung?(): boolean;
}

interface StepRunnerOptions {
  readonly failure: StepFailure;
  readonly firstCause: RankGroup['firstCause'];
  /** The way to ranks of other hosts, of a group on several hosts. */
  readonly network?: StepNetwork | undefined;
  readonly timeoutMs: number;
  /** How long to poll without progress before sleeping. */
  readonly spinUs: number;
  /** Steps also wait for what rings no bell, as work of a GPU does: sleeps are short. */
  readonly polls?: boolean;
  /** Whether the ranks outnumber the processors. */
  readonly isCrowded: boolean;
}

export class StepRunner {
  readonly #bells: RankBells;
  readonly #options: StepRunnerOptions;
  /** Looks between two yields, of which each takes as long as many looks. */
  readonly #looks: number;
  /** Yields between two glances at the clock. */
  readonly #turns: number;
  readonly #spin: SpinTime;
  /** The steps are done; what they put for other hosts may still wait for room. */
  #areDone = false;

  constructor(bells: RankBells, options: StepRunnerOptions) {
    this.#bells = bells;
    this.#options = options;
    // The rank that is waited for may wait for this processor in a crowd.
    this.#looks = options.isCrowded ? 1 : 16;
    this.#turns = options.isCrowded ? 16 : 1;
    this.#spin = new SpinTime(options.spinUs);
  }

  /**
   * Hot path. undefined if the work ended without sleeping. If it fails, here or by the promise, the window is given up for all
   * its ranks.
   */
  run(steps: Steps, wait: CallWait): Promise<void> | undefined {
    this.#areDone = false;
    try {
      for (let look = 0; look < this.#looks; look++) if (this.#advance(steps)) return undefined;
      if (this.#poll(steps)) return undefined;
    } catch (error) {
      this.#giveUp(error);
      throw error;
    }
    return this.#sleepUntilDone(steps, wait);
  }

  /** True when all is done. */
  #advance(steps: Steps): boolean {
    const { network } = this.#options;
    if (network === undefined) return steps.advance();
    this.#areDone ||= steps.advance();
    network.advance();
    return this.#areDone && network.isPosted;
  }

  /** True when all is done, false when nothing has moved for long, or when others compute on this processor. */
  #poll(steps: Steps): boolean {
    const spin = this.#spin;
    const { isCrowded } = this.#options;
    // It learns of waits, not of how long they took: pieces of large calls take long, and polling for them pays.
    spin.learn(0);
    let { progress } = steps;
    let now = performance.now();
    let end = now + spin.milliseconds;
    while (true) {
      let mustSleep = false;
      for (let turn = 0; turn < this.#turns; turn++) {
        yieldProcessor();
        if (!isCrowded) {
          const before = now;
          now = performance.now();
          // The scheduler lets a woken thread go before threads that compute, but not one that polls. In a crowd it may be a rank
          // that had the processor for long, because it was ahead in its calls: that is no reason to sleep.
          mustSleep = spin.lent(now - before);
        }
        for (let look = 0; look < this.#looks; look++) if (this.#advance(steps)) return true;
      }
      if (isCrowded) now = performance.now();
      if (mustSleep) return false;
      if (steps.progress !== progress) {
        ({ progress } = steps);
        end = now + spin.milliseconds;
      } else if (now > end) return false;
    }
  }

  async #sleepUntilDone(steps: Steps, { timeoutMs, signal, deadline: given }: CallWait): Promise<void> {
    const { failure, network, polls = false } = this.#options;
    const deadline = given ?? new Deadline(timeoutMs ?? this.#options.timeoutMs);
    const missing = (): readonly number[] => this.#missing(steps);
    const late = (): number[] => missing().map((rank) => failure.rankOf(rank));
    const source = { waitFacts: (): WaitFacts => ({ operation: steps.name, ranks: late() }) };
    const { endsAt } = deadline;
    const work = network !== undefined || polls ? (): void => network?.advance() : undefined;
    const isRung = (): boolean => !polls && network?.isRung?.() === true;
    try {
      while (true) {
        const sleep = new Awakening(steps, () => this.#advance(steps));
        const ready = (): boolean => sleep.isOver();
        const check = (): void => {
          const reason = failure.reasonToGiveUp(missing, signal);
          // ORDER: a peer may do its part and then leave or give up in a later call; then this one still counts.
          if (reason !== undefined && !ready()) throw reason;
          if (deadline.isOver && !ready() && !failure.excuse?.(missing, deadline.timeoutMs)) {
            throw failure.timeout(missing, deadline.timeoutMs, hintOf(steps.name, late()), steps.details?.());
          }
        };
        await waitForWord(this.#bells.own, { ready, check, work, isRung, source, endsAt });
        if (sleep.isDone || this.#poll(steps)) return;
      }
    } catch (error) {
      const reason = await this.#options.firstCause(error, { told: () => failure.reason() });
      this.#giveUp(reason);
      throw reason;
    }
  }

  #missing(steps: Steps): readonly number[] {
    const { network } = this.#options;
    return this.#areDone && network !== undefined ? network.unposted() : steps.missing();
  }

  #giveUp(error: unknown): void {
    this.#options.failure.raise(error);
    this.#bells.ringAll();
  }
}

/** A sleep that ends when a step could be made. */
class Awakening {
  /** All is done. */
  isDone = false;
  readonly #steps: Steps;
  readonly #before: number;
  readonly #advance: () => boolean;

  constructor(steps: Steps, advance: () => boolean) {
    this.#steps = steps;
    this.#advance = advance;
    this.#before = steps.progress;
  }

  isOver(): boolean {
    this.isDone ||= this.#advance();
    return this.isDone || this.#steps.progress !== this.#before;
  }
}

function hintOf(name: string, missing: readonly number[]): string {
  const [who, they] = missing.length === 1 ? ['is alive', 'it'] : ['are alive', 'they'];
  const cause = `${they} may still be computing (raise timeoutMs of the call, or --timeout) or be in another call`;
  return `this rank waits in ${name}; ${rankList(missing)} ${who}: ${cause} (all ranks must make the same calls in the same order)`;
}
