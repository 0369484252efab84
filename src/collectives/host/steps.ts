// Carries out work that waits for other ranks now and then: polls and gives way to them, then sleeps, never without end.
import { type CallWait, Deadline } from '../../core/deadline.ts';
import { yieldProcessor } from '../../native/libc.ts';
import { waitForWord } from '../../windows/wait.ts';
import type { WindowFailure } from '../../windows/window-failure.ts';
import type { RankBoard } from './rank-board.ts';

/** Work in steps, some of which need what other ranks have yet to do. */
export interface Steps {
  /** Counts steps that were made; never resets. */
  readonly progress: number;
  /** Does what can be done now. True when all is done. */
  advance(): boolean;
  /** Ranks of the window that the next step needs and that are not so far; for errors. */
  missing(): readonly number[];
  /** "allReduce", for errors. */
  readonly name: string;
}

/** Looks at the clock once in so many turns. */
const TURNS = 16;

export interface StepRunnerOptions {
  readonly failure: WindowFailure;
  readonly timeoutMs: number;
  /** How long to poll without progress before sleeping. */
  readonly spinUs: number;
  /** Whether the ranks outnumber the processors. */
  readonly isCrowded: boolean;
}

export class StepRunner {
  readonly #board: RankBoard;
  readonly #options: StepRunnerOptions;
  /** Looks between two yields, of which each takes as long as many looks. */
  readonly #looks: number;

  constructor(board: RankBoard, options: StepRunnerOptions) {
    this.#board = board;
    this.#options = options;
    // In a crowd the rank that is waited for may wait for this processor.
    this.#looks = options.isCrowded ? 1 : 16;
  }

  /**
   * Hot path. undefined if the work ended without sleeping. If it fails, here or by the promise, the window is given up for all
   * its ranks.
   */
  run(steps: Steps, wait: CallWait): Promise<void> | undefined {
    try {
      for (let look = 0; look < this.#looks; look++) if (steps.advance()) return undefined;
      if (this.#poll(steps)) return undefined;
    } catch (error) {
      this.#giveUp(error);
      throw error;
    }
    return this.#sleepUntilDone(steps, wait);
  }

  /** True when all is done, false when nothing has moved for long. */
  #poll(steps: Steps): boolean {
    const patience = this.#options.spinUs / 1000;
    let { progress } = steps;
    let end = performance.now() + patience;
    while (true) {
      for (let turn = 0; turn < TURNS; turn++) {
        yieldProcessor();
        for (let look = 0; look < this.#looks; look++) if (steps.advance()) return true;
      }
      const now = performance.now();
      if (steps.progress !== progress) {
        ({ progress } = steps);
        end = now + patience;
      } else if (now > end) return false;
    }
  }

  async #sleepUntilDone(steps: Steps, { timeoutMs, signal, deadline: given }: CallWait): Promise<void> {
    const { failure } = this.#options;
    const deadline = given ?? new Deadline(timeoutMs ?? this.#options.timeoutMs);
    const missing = (): readonly number[] => steps.missing();
    try {
      while (true) {
        const sleep = new Awakening(steps);
        const ready = (): boolean => sleep.isOver();
        const check = (): void => {
          const reason = failure.reasonToGiveUp(missing, signal);
          // ORDER: a peer may do its part and then leave or give up in a later call; then this one still counts.
          if (reason !== undefined && !ready()) throw reason;
          if (deadline.isOver && !ready()) throw failure.timeout(missing, deadline.timeoutMs, hintOf(steps.name));
        };
        await waitForWord(this.#board.bell, { ready, check, spinUs: 0 });
        if (sleep.isDone || this.#poll(steps)) return;
      }
    } catch (error) {
      this.#giveUp(error);
      throw error;
    }
  }

  #giveUp(error: unknown): void {
    this.#options.failure.raise(error);
    this.#board.ringAll();
  }
}

/** A sleep that ends when a step could be made. */
class Awakening {
  /** All is done. */
  isDone = false;
  readonly #steps: Steps;
  readonly #before: number;

  constructor(steps: Steps) {
    this.#steps = steps;
    this.#before = steps.progress;
  }

  isOver(): boolean {
    this.isDone ||= this.#steps.advance();
    return this.isDone || this.#steps.progress !== this.#before;
  }
}

function hintOf(name: string): string {
  return `this rank waits in ${name}; they live, and may still compute (raise --timeout) or be in another call (all ranks must make the same calls in the same order)`;
}
