// The memory that an agent's thread and its staging thread share: commands one way, states and counts the other.

/** Transfers, channels and lanes together. */
export const MAX_STAGED = 16_384;
/** Operations of a channel that may be under way. */
export const STAGED_OPERATIONS = 256;
/** A power of two. */
const STAGING_COMMANDS = 4096;
/** What is meant, and with a post the bytes of its message. */
const COMMAND_WORDS = 2;

/** In place of the bytes of a message. */
export const NO_MESSAGE = -1;
export const CANCEL = -2;

/** `pushed` and `taken` count commands, `news` what ended; all wrap. */
const stagingBoardWord = { pushed: 0, taken: 16, news: 32 } as const;
const STAGING_BOARD_WORDS = 48;

export const stagedStates = { idle: 0, pending: 1, done: 2, failed: 3 } as const;

const STATES_AT = (STAGING_BOARD_WORDS + STAGING_COMMANDS * COMMAND_WORDS) * 4;
const DELIVERED_AT = STATES_AT + MAX_STAGED * 4;
const BYTES = DELIVERED_AT + MAX_STAGED * 4;

export class StagingBoard {
  /** The memory over which the other thread makes its own board. */
  readonly buffer: SharedArrayBuffer;
  /** By number: one of `stagedStates`. */
  readonly states: Int32Array;
  /** By number of a channel: operations that are delivered, which wraps. */
  readonly delivered: Int32Array;
  readonly #words: Int32Array;
  readonly #commands: Int32Array;

  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(BYTES)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer, 0, STAGING_BOARD_WORDS);
    this.#commands = new Int32Array(buffer, STAGING_BOARD_WORDS * 4, STAGING_COMMANDS * COMMAND_WORDS);
    this.states = new Int32Array(buffer, STATES_AT, MAX_STAGED);
    this.delivered = new Int32Array(buffer, DELIVERED_AT, MAX_STAGED);
  }

  /** The agent's thread. */
  get hasRoom(): boolean {
    const pushed = this.#words[stagingBoardWord.pushed]!;
    return ((pushed - Atomics.load(this.#words, stagingBoardWord.taken)) | 0) < STAGING_COMMANDS;
  }

  /** The same. There must be room. `message`: bytes of a post's message, NO_MESSAGE or CANCEL. */
  push(number: number, message: number): void {
    const at = placeOf(this.#words[stagingBoardWord.pushed]!);
    this.#commands[at] = number;
    this.#commands[at + 1] = message;
    // ORDER: after the command was written.
    Atomics.add(this.#words, stagingBoardWord.pushed, 1);
  }

  /** The staging thread. Has each command carried out. True if there was one. */
  take(carryOut: (number: number, message: number) => void): boolean {
    const words = this.#words;
    const first = words[stagingBoardWord.taken]!;
    while (words[stagingBoardWord.taken] !== Atomics.load(words, stagingBoardWord.pushed)) {
      const at = placeOf(words[stagingBoardWord.taken]!);
      carryOut(this.#commands[at]!, this.#commands[at + 1]!);
      Atomics.add(words, stagingBoardWord.taken, 1);
    }
    return words[stagingBoardWord.taken] !== first;
  }

  /** Counts what ended. */
  get news(): number {
    return Atomics.load(this.#words, stagingBoardWord.news);
  }

  /** ORDER: after it can be seen. */
  tell(): void {
    Atomics.add(this.#words, stagingBoardWord.news, 1);
  }
}

function placeOf(command: number): number {
  return (command & (STAGING_COMMANDS - 1)) * COMMAND_WORDS;
}
