// Why a wait on a window cannot end well: the window was given up, a rank is gone, or the time is over.
import { type ErrorDetails, WeftlineError } from '../core/errors.ts';
import { rankList } from '../world/rank-list.ts';
import { AbortRecord, type AbortRecordOptions } from './abort-record.ts';

export interface WindowFailureOptions extends AbortRecordOptions {
  /** Aborted when a rank of the group is lost or reports an error; its reason ends a wait. */
  readonly peerLost: AbortSignal;
  /** False when the process of the rank of that scale-up index has ended or left the window. */
  isAlive(index: number): boolean;
}

/** A reason is written within microseconds, unless the rank that writes it was killed or stopped meanwhile. */
const WRITING_MS = 1000;

/** Scale-up indices of the ranks that a wait still misses; looked up anew at each call. */
export type Missing = () => readonly number[];

export class WindowFailure {
  readonly #options: WindowFailureOptions;
  readonly #abort: AbortRecord;
  /** When a rank was first seen to write its reason; 0 before. */
  #writingSince = 0;
  #heard: () => WeftlineError | undefined = () => undefined;

  constructor(options: WindowFailureOptions) {
    this.#options = options;
    this.#abort = new AbortRecord(options);
  }

  /** The world rank of that scale-up index. */
  rankOf(index: number): number {
    return this.#options.ranks[index]!;
  }

  /** Hot path. The error that ended the use of the window, here or elsewhere; undefined while it is in use. */
  reason(): WeftlineError | undefined {
    return this.#abort.reason();
  }

  /** Gives the window up for all its ranks. The first one's reason stays. */
  raise(error: unknown): void {
    this.#abort.raise(error);
  }

  /** From now on a wait also ends for what this tells: why a rank of another host gave up. */
  alsoHear(heard: () => WeftlineError | undefined): void {
    this.#heard = heard;
  }

  /** Why a wait for these ranks should end; undefined while they may still come. */
  reasonToGiveUp(missing: Missing, signal: AbortSignal | undefined): unknown {
    const { peerLost } = this.#options;
    const aborted = this.#abort.reason() ?? this.#heard();
    if (aborted !== undefined) return aborted;
    if (signal?.aborted) return signal.reason;
    return this.#lost(missing) ?? (peerLost.aborted ? peerLost.reason : undefined);
  }

  /** `hint` follows the ranks and the time; `details` join theirs. */
  timeout(missing: Missing, timeoutMs: number, hint: string, details: ErrorDetails = {}): WeftlineError {
    const ranks = missing().map((index) => this.#options.ranks[index]!);
    const message = `${rankList(ranks, 'Rank')} did not arrive within ${timeoutMs} ms; ${hint}`;
    return new WeftlineError('WL_TIMEOUT', message, { details: { ...details, ranks, timeoutMs } });
  }

  #waitsTooLong(): boolean {
    const now = performance.now();
    if (this.#writingSince === 0) this.#writingSince = now;
    return now - this.#writingSince > WRITING_MS;
  }

  #lost(missing: Missing): WeftlineError | undefined {
    const gone = missing().filter((index) => !this.#options.isAlive(index));
    if (gone.length === 0) return undefined;
    // ORDER: a rank arrives before it leaves. One that did both since we looked is not lost, so look again.
    const stillMissing = missing();
    const ranks = gone.filter((index) => stillMissing.includes(index)).map((index) => this.#options.ranks[index]!);
    if (ranks.length === 0) return undefined;
    // ORDER: a rank that gives up says why before it leaves, so its reason can be read by now, or is just being written.
    if (this.#abort.isBeingWritten && !this.#waitsTooLong()) return undefined;
    const aborted = this.#abort.reason();
    if (aborted !== undefined) return aborted;
    const message = `${rankList(ranks, 'Rank')} ended or left while this rank was waiting for it`;
    return new WeftlineError('WL_PEER_LOST', message, { details: { ranks } });
  }
}
