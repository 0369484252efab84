// Why a window was given up, in its header: written once by the first rank that gives up, read by all others.
import { ABORT_MESSAGE_BYTES, windowHeader } from '../abi/window-header.ts';
import { blamedRanks, encodeError, WeftlineError } from '../core/errors.ts';

/** Values of the header's abortState. */
const NONE = 0;
const WRITING = 1;
const READABLE = 2;
/** Ranks that are named besides the text. */
const MAX_BLAMED = 16;

export interface AbortRecordOptions {
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

  /** Gives the window up for all ranks. The first one's reason stays. */
  raise(error: unknown): void {
    const { index, ranks } = this.#options;
    const { code, message } = encodeError(error);
    const known = error instanceof WeftlineError;
    this.#reason ??= known
      ? error
      : new WeftlineError('WL_CLOSED', `An earlier call on this window failed: ${message}`, { cause: error });
    if (Atomics.compareExchange(this.#state, 0, NONE, WRITING) !== NONE) return;
    const blamed = blamedRanks(error).slice(0, MAX_BLAMED).join(',');
    const reason = `Rank ${ranks[index]} gave up: ${known ? `${code}: ` : ''}${message}`;
    const text = new TextEncoder().encode(`${blamed}\n${reason}`);
    const bytes = text.subarray(0, ABORT_MESSAGE_BYTES);
    this.#message(bytes.length).set(bytes);
    Atomics.store(this.#word('abortLocalRank'), 0, index);
    Atomics.store(this.#word('abortLength'), 0, bytes.length);
    // ORDER: the state last; a rank that reads READABLE then reads a whole record.
    Atomics.store(this.#state, 0, READABLE);
  }

  #read(): WeftlineError {
    const rank = this.#options.ranks[Atomics.load(this.#word('abortLocalRank'), 0)] ?? -1;
    const length = Math.min(Atomics.load(this.#word('abortLength'), 0), ABORT_MESSAGE_BYTES);
    const text = new TextDecoder().decode(this.#message(length).slice());
    const firstLine = text.indexOf('\n');
    const blamed = text.slice(0, firstLine).split(',').filter(Boolean).map(Number);
    return new WeftlineError('WL_PEER_FAILED', text.slice(firstLine + 1), {
      details: { rank, blamed },
      rank: blamed[0] ?? rank,
    });
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
