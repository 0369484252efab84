// The barrier of a window: every rank arrives in a shared cell; the last one publishes the epoch and wakes the rest.
import { availableParallelism } from 'node:os';
import {
  ARRIVAL_OFFSET,
  ARRIVAL_STRIDE,
  windowArrival,
  WindowFailure,
  type WindowFailureOptions,
  windowHeader,
} from './abort-record.ts';
import { type CallWait, type Deadline, deadlineOf } from '../core/deadline.ts';
import { WeftlineError } from '../core/errors.ts';
import type { WaitFacts, WaitSource } from '../core/waits.ts';
import { Futex } from '../native/libc.ts';
import { SpinTime } from '../threads/spin-time.ts';
import type { RankGroup } from '../world/rank-group.ts';
import { type SharedWord, waitForWord, wakeWord, type WordPoll } from './wait.ts';

export interface LocalBarrierOptions extends WindowFailureOptions {
  readonly timeoutMs: number;
  readonly spinUs: number;
  readonly firstCause: RankGroup['firstCause'];
  /** What a call word means, for errors: "dispatch of bf16 rows". */
  describeCall(call: number): string;
}

/** What a timeout may mean when the process of the missing rank lives. */
const MISSING_HINT =
  'its process lives: it may still compute (raise --timeout) or wait elsewhere (all ranks must make the same calls in the same order)';

export class LocalBarrier implements WaitSource {
  /** Why the window was given up, for other waits on it. */
  readonly failure: WindowFailure;
  readonly #options: LocalBarrierOptions;
  readonly #arrivals: readonly Int32Array[];
  readonly #generation: SharedWord;
  readonly #poll: WordPoll;
  #epoch = 0;
  #closed = false;
  #work: (() => void) | undefined;
  #waiting = false;

  constructor(options: LocalBarrierOptions) {
    this.#options = options;
    const isCrowded = options.ranks.length > availableParallelism();
    this.#poll = { spin: new SpinTime(options.spinUs), isCrowded };
    const words = (offset: number, count: number): Int32Array =>
      new Int32Array(options.header, options.headerOffset + offset, count);
    this.#arrivals = options.ranks.map((_, index) =>
      words(ARRIVAL_OFFSET + index * ARRIVAL_STRIDE, windowArrival.size / 4),
    );
    const value = words(windowHeader.offset.generation, 1);
    this.#generation = { value, waiters: words(windowHeader.offset.waiters, 1), futex: new Futex(value) };
    this.failure = new WindowFailure(options);
  }

  /**
   * Returns when every rank of the window has called it: what any of them wrote to any window before is then visible.
   * `call` identifies the operation; ranks that arrive in different operations all get WL_CONFIG_MISMATCH. A rank that
   * does not come raises WL_TIMEOUT or, when its process is gone, WL_PEER_LOST. After any failure here the window is
   * given up by all its ranks (WL_PEER_FAILED), because they no longer agree on where they are.
   */
  async wait(call: number, options: CallWait = {}): Promise<void> {
    const waiting = this.meet(call, options);
    if (waiting !== undefined) await waiting;
  }

  /** Hot path. The same; undefined if the others came before this thread had to sleep. Fails by a throw until then. */
  meet(call: number, options: CallWait): Promise<void> | undefined {
    const deadline = deadlineOf(options, this.#options.timeoutMs);
    this.throwIfUnusable();
    const epoch = (this.#epoch + 1) | 0;
    this.#epoch = epoch;
    const mine = this.#arrivals[this.#options.index] as Int32Array;
    // ORDER: the call word first, then the epoch, whose store publishes it and all our writes to the windows.
    Atomics.store(mine, 1 + (epoch & 1), call);
    Atomics.store(mine, 0, epoch);
    try {
      const waiting = this.#publishIfComplete(epoch)
        ? undefined
        : this.#untilPublished(epoch, deadline, options.signal);
      if (waiting !== undefined) return this.#finish(waiting, epoch, call);
      this.#compareCalls(epoch, call);
      return undefined;
    } catch (error) {
      this.giveUp(error);
      throw error;
    }
  }

  /** What this thread does again and again while it waits here, because nothing else does it. It must not throw. */
  workWhileWaiting(work: () => void): void {
    this.#work = work;
  }

  /**
   * Runs a part of a collective call in which only this rank can fail. If it does, the window is given up for all, so
   * that the others hear the reason instead of waiting for a rank that does not come.
   */
  async orAbort<T>(work: () => T | Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      this.giveUp(error);
      throw error;
    }
  }

  /** Gives the window up for all its ranks, who hear the reason. The first one's stays. */
  giveUp(error: unknown): void {
    this.failure.raise(error);
    // Sleepers look at the record when they wake; one that was about to sleep looks within a slice.
    this.#generation.futex.wakeAll();
  }

  /**
   * Fails with the reason if the window was given up, here or by a peer, and with WL_CLOSED after close(). `network`: links to
   * ranks of other hosts, which would wait for this rank if they had not heard of it.
   */
  throwIfUnusable(network?: { giveUp(error: unknown): void }): void {
    const closed = this.#closed ? new WeftlineError('WL_CLOSED', 'The window of this object was closed') : undefined;
    const reason = closed ?? this.failure.reason();
    if (reason === undefined) return;
    network?.giveUp(reason);
    throw reason;
  }

  /** The memory is about to be released: no word of it may be touched afterwards. Fails while a call still waits here. */
  close(): void {
    if (this.#waiting) throw new WeftlineError('WL_INVALID_ARGUMENT', 'Cannot close a window while a call waits on it');
    this.#closed = true;
  }

  /** Tells of the wait that is under way. */
  waitFacts(): WaitFacts {
    const { ranks, index } = this.#options;
    const epoch = this.#epoch;
    const missing = this.#missing(epoch);
    const call = Atomics.load(this.#arrivals[index] as Int32Array, 1 + (epoch & 1)) >>> 0;
    return {
      operation: this.#options.describeCall(call),
      ranks: missing.map((other) => ranks[other]!),
      expected: ranks.length,
      seen: ranks.length - missing.length,
    };
  }

  async #finish(waiting: Promise<void>, epoch: number, call: number): Promise<void> {
    this.#waiting = true;
    try {
      await waiting;
      this.#compareCalls(epoch, call);
    } catch (error) {
      const reason = await this.#options.firstCause(error, { told: () => this.failure.reason() });
      this.giveUp(reason);
      throw reason;
    } finally {
      this.#waiting = false;
    }
  }

  #untilPublished(epoch: number, deadline: Deadline, signal: AbortSignal | undefined): Promise<void> | undefined {
    const { value } = this.#generation;
    const ready = (): boolean => ((Atomics.load(value, 0) - epoch) | 0) >= 0;
    const missing = (): number[] => this.#missing(epoch);
    return waitForWord(this.#generation, {
      ready,
      check: () => {
        // A rank that died between the last arrival and its publication must not cost the others their barrier.
        if (this.#publishIfComplete(epoch)) return;
        const reason = this.failure.reasonToGiveUp(missing, signal);
        // ORDER: a peer may publish this barrier and give up in the next; then this one still counts.
        if (reason !== undefined && !ready()) throw reason;
        if (deadline.isOver) throw this.failure.timeout(missing, deadline.timeoutMs, MISSING_HINT);
      },
      poll: this.#poll,
      source: this,
      endsAt: deadline.endsAt,
      work: this.#work,
    });
  }

  #publishIfComplete(epoch: number): boolean {
    // INVARIANT: arrivals are stored and loaded sequentially consistent, so the last to arrive sees all the others.
    for (const arrival of this.#arrivals) if (!hasArrived(arrival, epoch)) return false;
    Atomics.store(this.#generation.value, 0, epoch);
    wakeWord(this.#generation);
    return true;
  }

  #missing(epoch: number): number[] {
    const missing: number[] = [];
    for (let index = 0; index < this.#arrivals.length; index++) {
      if (!hasArrived(this.#arrivals[index] as Int32Array, epoch)) missing.push(index);
    }
    return missing;
  }

  #compareCalls(epoch: number, call: number): void {
    const { ranks } = this.#options;
    for (let index = 0; index < this.#arrivals.length; index++) {
      const word = Atomics.load(this.#arrivals[index] as Int32Array, 1 + (epoch & 1)) >>> 0;
      if (word === call >>> 0) continue;
      const here = this.#options.describeCall(call >>> 0);
      const there = this.#options.describeCall(word);
      throw new WeftlineError(
        'WL_CONFIG_MISMATCH',
        `This rank is in ${here}, but rank ${ranks[index]} is in ${there}; all ranks must make the same calls in the same order`,
        { details: { rank: ranks[index], here, there } },
      );
    }
  }
}

function hasArrived(arrival: Int32Array, epoch: number): boolean {
  return ((Atomics.load(arrival, 0) - epoch) | 0) >= 0;
}
