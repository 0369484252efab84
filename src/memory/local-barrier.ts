// The barrier of a window: every local rank arrives in a shared cell; the last one publishes the epoch and wakes the rest.
import {
  ABORT_MESSAGE_BYTES,
  ARRIVAL_OFFSET,
  ARRIVAL_STRIDE,
  windowArrival,
  windowHeader,
} from '../abi/window-header.ts';
import { type EncodedError, WeftlineError } from '../core/errors.ts';
import { Futex } from '../native/libc.ts';
import type { WaitOptions } from '../world/store.ts';
import { type SharedWord, waitForWord, wakeWord } from './wait.ts';

export interface LocalBarrierOptions {
  /** The window's header in this process. */
  readonly header: SharedArrayBuffer;
  readonly headerOffset: number;
  /** World ranks by local rank. */
  readonly ranks: readonly number[];
  readonly localRank: number;
  readonly timeoutMs: number;
  readonly spinMicroseconds: number;
  /** False when the process of that local rank has ended or left the window. */
  isAlive(localRank: number): boolean;
  /** What a call word means, for errors: "dispatch of bf16 rows". */
  describeCall(call: number): string;
}

export class LocalBarrier {
  readonly #options: LocalBarrierOptions;
  readonly #arrivals: Int32Array[];
  readonly #generation: SharedWord;
  readonly #abortState: Int32Array;
  #epoch = 0;
  #broken: WeftlineError | undefined;

  constructor(options: LocalBarrierOptions) {
    this.#options = options;
    const words = (offset: number, count: number): Int32Array =>
      new Int32Array(options.header, options.headerOffset + offset, count);
    this.#arrivals = options.ranks.map((_, index) =>
      words(ARRIVAL_OFFSET + index * ARRIVAL_STRIDE, windowArrival.size / 4),
    );
    const value = words(windowHeader.offset.generation, 1);
    this.#generation = { value, waiters: words(windowHeader.offset.waiters, 1), futex: new Futex(value) };
    this.#abortState = words(windowHeader.offset.abortState, 1);
  }

  /**
   * Returns when every rank of the window has called it: what any of them wrote to any window before is then visible.
   * `call` identifies the operation; ranks that arrive in different operations all get WL_CONFIG_MISMATCH. A rank that
   * does not come raises WL_TIMEOUT or, when its process is gone, WL_PEER_LOST. After any failure here the window is
   * given up by all its ranks (WL_PEER_FAILED), because they no longer agree on where they are.
   */
  async wait(call: number, options: WaitOptions = {}): Promise<void> {
    this.#throwIfBroken();
    const epoch = (this.#epoch + 1) | 0;
    this.#epoch = epoch;
    const mine = this.#arrivals[this.#options.localRank] as Int32Array;
    // ORDER: the call word first, then the epoch, whose store publishes it and all our writes to the windows.
    Atomics.store(mine, 1 + (epoch & 1), call);
    Atomics.store(mine, 0, epoch);
    // INVARIANT: arrivals are stored and loaded sequentially consistent, so the last to arrive sees all the others.
    if (this.#missing(epoch).length === 0) {
      Atomics.store(this.#generation.value, 0, epoch);
      wakeWord(this.#generation);
    } else {
      await this.#sleepUntil(epoch, options);
    }
    this.#compareCalls(epoch, call);
  }

  /** Gives the window up for all its ranks, who get WL_PEER_FAILED with this error's text at their next or present wait. */
  abort(error: EncodedError): void {
    if (Atomics.compareExchange(this.#abortState, 0, 0, 1) !== 0) return;
    const { header, headerOffset, localRank } = this.#options;
    const text = new TextEncoder().encode(`${error.code}: ${error.message}`).subarray(0, ABORT_MESSAGE_BYTES);
    const copy = new Uint8Array(header, headerOffset + windowHeader.offset.abortMessage, text.length);
    copy.set(text);
    Atomics.store(this.#word('abortLocalRank'), 0, localRank);
    Atomics.store(this.#word('abortLength'), 0, text.length);
    Atomics.store(this.#abortState, 0, 2);
    // A sleeper looks at abortState whenever it wakes.
    this.#generation.futex.wakeAll();
  }

  async #sleepUntil(epoch: number, options: WaitOptions): Promise<void> {
    const timeoutMs = options.timeoutMs ?? this.#options.timeoutMs;
    const deadline = performance.now() + timeoutMs;
    const { value } = this.#generation;
    try {
      await waitForWord(this.#generation, {
        ready: () => ((Atomics.load(value, 0) - epoch) | 0) >= 0,
        check: () => {
          this.#throwIfBroken();
          options.signal?.throwIfAborted();
          this.#throwIfLost(epoch);
          if (performance.now() >= deadline) throw this.#timeout(epoch, timeoutMs);
        },
        spinMicroseconds: this.#options.spinMicroseconds,
      });
    } catch (error) {
      this.#breakWith(error);
      throw error;
    }
  }

  #missing(epoch: number): number[] {
    const missing: number[] = [];
    for (let index = 0; index < this.#arrivals.length; index++) {
      if (((Atomics.load(this.#arrivals[index] as Int32Array, 0) - epoch) | 0) < 0) missing.push(index);
    }
    return missing;
  }

  #throwIfLost(epoch: number): void {
    const gone = this.#missing(epoch).filter((index) => !this.#options.isAlive(index));
    if (gone.length === 0) return;
    // ORDER: a rank arrives before it leaves. One that did both since we looked is not lost, so look again.
    const missing = this.#missing(epoch);
    const lost = gone.filter((index) => missing.includes(index));
    if (lost.length === 0) return;
    const ranks = lost.map((index) => this.#options.ranks[index] as number);
    throw new WeftlineError('WL_PEER_LOST', `${rankList(ranks)} ended or left while this rank was waiting for it`, {
      details: { ranks },
    });
  }

  #timeout(epoch: number, timeoutMs: number): WeftlineError {
    const ranks = this.#missing(epoch).map((index) => this.#options.ranks[index] as number);
    return new WeftlineError(
      'WL_TIMEOUT',
      `${rankList(ranks)} did not arrive within ${timeoutMs} ms; its process lives: it may still compute (raise --timeout) or wait elsewhere (all ranks must make the same calls in the same order)`,
      { details: { ranks, timeoutMs } },
    );
  }

  #compareCalls(epoch: number, call: number): void {
    const { ranks } = this.#options;
    const describeCall = (word: number): string => this.#options.describeCall(word);
    for (const [index, arrival] of this.#arrivals.entries()) {
      const theirs = Atomics.load(arrival, 1 + (epoch & 1)) >>> 0;
      if (theirs === call >>> 0) continue;
      const error = new WeftlineError(
        'WL_CONFIG_MISMATCH',
        `This rank is in ${describeCall(call >>> 0)}, but rank ${ranks[index]} is in ${describeCall(theirs)}; all ranks must make the same calls in the same order`,
        { details: { rank: ranks[index], here: describeCall(call >>> 0), there: describeCall(theirs) } },
      );
      this.#breakWith(error);
      throw error;
    }
  }

  #breakWith(error: unknown): void {
    const known = error instanceof WeftlineError;
    this.#broken ??= known
      ? error
      : new WeftlineError('WL_CLOSED', 'A wait on this window was aborted', { cause: error });
    this.abort({
      code: this.#broken.code,
      message: this.#broken.message,
      details: {},
    });
  }

  #throwIfBroken(): void {
    if (this.#broken !== undefined) throw this.#broken;
    if (Atomics.load(this.#abortState, 0) !== 2) return;
    const { header, headerOffset, ranks } = this.#options;
    const rank = ranks[Atomics.load(this.#word('abortLocalRank'), 0)] ?? -1;
    const length = Math.min(Atomics.load(this.#word('abortLength'), 0), ABORT_MESSAGE_BYTES);
    const bytes = new Uint8Array(header, headerOffset + windowHeader.offset.abortMessage, length).slice();
    this.#broken = new WeftlineError('WL_PEER_FAILED', `Rank ${rank} gave up: ${new TextDecoder().decode(bytes)}`, {
      details: { rank },
      rank,
    });
    throw this.#broken;
  }

  #word(field: 'abortLocalRank' | 'abortLength'): Int32Array {
    const { header, headerOffset } = this.#options;
    return new Int32Array(header, headerOffset + windowHeader.offset[field], 1);
  }
}

function rankList(ranks: readonly number[]): string {
  return ranks.length === 1 ? `Rank ${ranks[0]}` : `Ranks ${ranks.join(', ')}`;
}
