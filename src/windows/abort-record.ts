// Why a window was given up, in its header: written once by the first rank that gives up, read by all others.
import { defineLayout } from '../abi/layout.ts';
import { blamedRanks, encodeError, type ErrorDetails, WeftlineError } from '../core/errors.ts';
import { yieldProcessor } from '../native/libc.ts';
import { rankList } from '../world/membership.ts';

// Why a wait on a window cannot end well: the window was given up, a rank is gone, or the time is over.

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

  /** A wait also ends, from now on, for what this tells: why a rank of another host gave up. */
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

// The first page of a shared window file: what it is, who has arrived at its barrier, and why it was given up.

/** "WLWN", little endian. */
export const WINDOW_MAGIC = 0x4e574c57;
export const WINDOW_VERSION = 1;
/** The header takes one WASM page, so that the windows behind it can be mapped as memory pages. */
export const WINDOW_HEADER_BYTES = 65_536;
export const MAX_LOCAL_RANKS = 256;
/** Each rank's arrival cell is alone on its cache line. */
export const ARRIVAL_STRIDE = 64;
const ABORT_MESSAGE_BYTES = 960;

/**
 * One per window file. Words that several processes touch:
 *
 * - `generation`: the last barrier that everyone reached. Written by the rank that sees the last arrival, read by all; its
 *   store publishes everything that any rank wrote to any window before it arrived. Also the futex word. Wraps after
 *   2^32 barriers; compared by signed difference.
 * - `waiters`: how many sleep on `generation`; a rank that dies asleep leaves it too high, which costs one system call
 *   per barrier and nothing else.
 * - `abortState`: 0 none, 1 being written, 2 readable. Taken by compare-and-set, never reset: the group is over.
 */
export const windowHeader = defineLayout('WindowHeader', {
  magic: 'u32',
  version: 'u32',
  ranks: 'u32',
  reserved: 'u32',
  windowBytes: 'u64',
  generation: 'u32',
  waiters: 'u32',
  abortState: 'u32',
  abortLocalRank: 'u32',
  abortLength: 'u32',
  abortMessage: { of: 'u8', count: ABORT_MESSAGE_BYTES },
});

/**
 * One per rank, at ARRIVAL_OFFSET + ARRIVAL_STRIDE * local rank. `epoch` is the last barrier the rank arrived at (only
 * its owner writes it); `call` says, for even and odd epochs, in which call: a peer can be at most one barrier ahead,
 * so the word of the barrier just passed is still there when everyone reads it.
 */
export const windowArrival = defineLayout('WindowArrival', {
  epoch: 'u32',
  call: { of: 'u32', count: 2 },
});

export const ARRIVAL_OFFSET = 4096;

/** Values of the header's abortState. */
const NONE = 0;
const WRITING = 1;
const READABLE = 2;
/** Ranks that are named besides the text. */
const MAX_BLAMED = 16;

/** What decodeAbort() made: other ranks hear it as it stands, as the words of the rank where it began. */
const passedOn = new WeakSet<object>();

/**
 * Why a rank gave up, for other ranks: the ranks to blame, a line break, then text for an error.
 * @param error What ended the use of an object here.
 * @param rank This rank, of the world.
 * @param most Bytes that there is room for.
 */
export function encodeAbort(error: unknown, rank: number, most: number): Uint8Array {
  const { code, message } = encodeError(error);
  const blamed = blamedRanks(error).slice(0, MAX_BLAMED).join(',');
  const wasHeard = typeof error === 'object' && error !== null && passedOn.has(error);
  const own = `Rank ${rank} gave up: ${error instanceof WeftlineError ? `${code}: ` : ''}${message}`;
  return new TextEncoder().encode(`${blamed}\n${wasHeard ? message : own}`).subarray(0, most);
}

/** WL_PEER_FAILED from encodeAbort() of the rank of the world with that number. */
export function decodeAbort(bytes: Uint8Array, rank: number): WeftlineError {
  // A decoder takes no shared memory; a character that was cut off at the end is left out.
  const text = new TextDecoder().decode(bytes.slice(), { stream: true });
  const firstLine = text.indexOf('\n');
  const blamed = text.slice(0, firstLine).split(',').filter(Boolean).map(Number);
  const details = { rank, blamed };
  const error = new WeftlineError('WL_PEER_FAILED', text.slice(firstLine + 1), { details, rank: blamed[0] ?? rank });
  passedOn.add(error);
  return error;
}

interface AbortRecordOptions {
  /** The window's header in this process. */
  readonly header: SharedArrayBuffer;
  readonly headerOffset: number;
  /** World ranks by scale-up index. */
  readonly ranks: readonly number[];
  /** This rank's scale-up index. */
  readonly index: number;
}

export class AbortRecord {
  readonly #options: AbortRecordOptions;
  readonly #state: Int32Array;
  #reason: WeftlineError | undefined;

  constructor(options: AbortRecordOptions) {
    this.#options = options;
    this.#state = this.#word('abortState');
  }

  /** The error that ended the use of this window, here or elsewhere; undefined while it is in use. */
  reason(): WeftlineError | undefined {
    if (this.#reason === undefined && Atomics.load(this.#state, 0) === READABLE) this.#reason = this.#read();
    return this.#reason;
  }

  /** True while a rank writes its reason, or if it died meanwhile. */
  get isBeingWritten(): boolean {
    return Atomics.load(this.#state, 0) === WRITING;
  }

  /** Gives the window up for all ranks. The first one's reason stays, and can be read by all when this returns. */
  raise(error: unknown): void {
    const { index, ranks } = this.#options;
    this.#reason ??=
      error instanceof WeftlineError
        ? error
        : new WeftlineError('WL_CLOSED', `An earlier call on this window failed: ${encodeError(error).message}`, {
            cause: error,
          });
    if (Atomics.compareExchange(this.#state, 0, NONE, WRITING) !== NONE) return this.#untilReadable();
    const bytes = encodeAbort(error, ranks[index]!, ABORT_MESSAGE_BYTES);
    this.#message(bytes.length).set(bytes);
    Atomics.store(this.#word('abortLocalRank'), 0, index);
    Atomics.store(this.#word('abortLength'), 0, bytes.length);
    // ORDER: the state last; a rank that reads READABLE then reads a whole record.
    Atomics.store(this.#state, 0, READABLE);
  }

  /** Another rank writes the reason. Whoever hears of this rank's failure afterwards must not find the window in use. */
  #untilReadable(): void {
    const end = performance.now() + WRITING_MS;
    while (this.isBeingWritten && performance.now() < end) yieldProcessor();
  }

  #read(): WeftlineError {
    const rank = this.#options.ranks[Atomics.load(this.#word('abortLocalRank'), 0)] ?? -1;
    const length = Math.min(Atomics.load(this.#word('abortLength'), 0), ABORT_MESSAGE_BYTES);
    return decodeAbort(this.#message(length), rank);
  }

  #message(bytes: number): Uint8Array {
    const { header, headerOffset } = this.#options;
    return new Uint8Array(header, headerOffset + windowHeader.offset.abortMessage, bytes);
  }

  #word(field: 'abortState' | 'abortLocalRank' | 'abortLength'): Int32Array {
    const { header, headerOffset } = this.#options;
    return new Int32Array(header, headerOffset + windowHeader.offset[field], 1);
  }
}
