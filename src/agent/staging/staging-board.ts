// The memory that an agent's thread and its staging thread share: commands one way, states and counts the other.
import {
  STAGED_CHANNELS,
  STAGED_TRANSFERS,
  STAGING_BOARD_WORDS,
  STAGING_COMMAND_FIELDS,
  STAGING_COMMANDS,
  stagingBoardWord,
} from './board-layout.ts';

const COMMANDS_AT = STAGING_BOARD_WORDS * 4;
const STATES_AT = COMMANDS_AT + STAGING_COMMANDS * STAGING_COMMAND_FIELDS * 8;
const DELIVERED_AT = STATES_AT + STAGED_TRANSFERS * 4;
const FAILED_AT = DELIVERED_AT + STAGED_CHANNELS * 4;
const BYTES = FAILED_AT + STAGED_CHANNELS * 4;

export class StagingBoard {
  /** For the other thread, which makes its own board over it. */
  readonly buffer: SharedArrayBuffer;
  /** By transfer: one of `stagedStates`. */
  readonly states: Int32Array;
  /** By channel: operations that are delivered, and 1 if it has failed. */
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
