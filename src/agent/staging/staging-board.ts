// The memory that an agent's thread and its staging thread share: commands one way, states and counts the other.

export const STAGED_TRANSFERS = 16_384;
export const STAGED_CHANNELS = 1024;
/** Operations of a channel that may be under way: whoever posts counts them, so there is always a place for a command. */
export const STAGED_OPERATIONS = 256;
/** A power of two. */
const STAGING_COMMANDS = 4096;

export const stagingCommandKinds = { post: 1, cancel: 2, put: 3, signal: 4 } as const;

/** Places of a command's fields, as numbers of 64 bits. `number` is that of the transfer or channel. */
export const stagingCommandField = {
  kind: 0,
  number: 1,
  /** Bytes of a post's message, -1 for none. */
  message: 2,
  local: 2,
  localOffset: 3,
  remote: 4,
  remoteOffset: 5,
  bytes: 6,
  add: 7,
  /** What the cell of a signal then holds; -1 if that is not known. */
  sum: 8,
} as const;
const STAGING_COMMAND_FIELDS = 9;

/** `pushed` and `taken` count commands, `news` what ended; all wrap. */
const stagingBoardWord = { pushed: 0, taken: 16, news: 32 } as const;
const STAGING_BOARD_WORDS = 48;

export const stagedStates = { idle: 0, pending: 1, done: 2, failed: 3 } as const;

/** Bytes of the ring of messages of a lane that were written and taken; both wrap. */
export const stagedMessageWord = { written: 0, taken: 16 } as const;
export const STAGED_MESSAGE_WORDS = 32;
/** Holds the longest notification twice. A power of two. */
export const STAGED_MESSAGE_BYTES = 65_536 * 2;

const COMMANDS_AT = STAGING_BOARD_WORDS * 4;
const STATES_AT = COMMANDS_AT + STAGING_COMMANDS * STAGING_COMMAND_FIELDS * 8;
const DELIVERED_AT = STATES_AT + STAGED_TRANSFERS * 4;
const FAILED_AT = DELIVERED_AT + STAGED_CHANNELS * 4;
const BYTES = FAILED_AT + STAGED_CHANNELS * 4;

export class StagingBoard {
  /** The memory over which the other thread makes its own board. */
  readonly buffer: SharedArrayBuffer;
  /** One of `stagedStates` for each transfer. */
  readonly states: Int32Array;
  /** Columns by channel: operations that are delivered, and 1 if it has failed. */
  readonly delivered: Int32Array;
  readonly failed: Int32Array;
  readonly #words: Int32Array;
  readonly #commands: Float64Array;

  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(BYTES)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer, 0, STAGING_BOARD_WORDS);
    this.#commands = new Float64Array(buffer, COMMANDS_AT, STAGING_COMMANDS * STAGING_COMMAND_FIELDS);
    this.states = new Int32Array(buffer, STATES_AT, STAGED_TRANSFERS);
    this.delivered = new Int32Array(buffer, DELIVERED_AT, STAGED_CHANNELS);
    this.failed = new Int32Array(buffer, FAILED_AT, STAGED_CHANNELS);
  }

  /** The agent's thread. Where the next command goes in `commands`; -1 if there is no room now. */
  get place(): number {
    const pushed = this.#words[stagingBoardWord.pushed]!;
    const taken = Atomics.load(this.#words, stagingBoardWord.taken);
    if (((pushed - taken) | 0) >= STAGING_COMMANDS) return -1;
    return (pushed & (STAGING_COMMANDS - 1)) * STAGING_COMMAND_FIELDS;
  }

  get commands(): Float64Array {
    return this.#commands;
  }

  /** ORDER: after the command was written. */
  push(): void {
    Atomics.add(this.#words, stagingBoardWord.pushed, 1);
  }

  /** The staging thread. Where the oldest command lies; -1 if there is none. */
  get next(): number {
    const taken = this.#words[stagingBoardWord.taken]!;
    if (taken === Atomics.load(this.#words, stagingBoardWord.pushed)) return -1;
    return (taken & (STAGING_COMMANDS - 1)) * STAGING_COMMAND_FIELDS;
  }

  take(): void {
    Atomics.add(this.#words, stagingBoardWord.taken, 1);
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
