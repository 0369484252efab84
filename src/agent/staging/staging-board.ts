// The memory that an agent's thread and its staging thread share: commands and messages one way, states and counts the other.
import { alignUp } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { BackendLink } from '../backend.ts';

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
  /** One of `stagedStates`, by number. */
  readonly states: Int32Array;
  /** Operations of a channel that are delivered, by its number; wraps. */
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

/** Bytes that were written and taken; both wrap. */
const word = { written: 0, taken: 16 } as const;
const WORDS = 32;
/** Holds the longest notification twice. A power of two. */
const RING_BYTES = 65_536 * 2;
const RING_AT = WORDS * 4;

/** Messages of the transfers of a lane, in order: a ring that the agent's thread fills. */
export class StagedMessages {
  readonly buffer: SharedArrayBuffer;
  readonly #words: Int32Array;
  readonly #ring: Uint8Array;

  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(RING_AT + RING_BYTES)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer, 0, WORDS);
    this.#ring = new Uint8Array(buffer, RING_AT, RING_BYTES);
  }

  /** The agent's thread. False, with nothing written, if there is no room. */
  write(message: Uint8Array): boolean {
    const written = this.#words[word.written]!;
    const used = (written - Atomics.load(this.#words, word.taken)) | 0;
    if (used + roomOf(message.length) > RING_BYTES) return false;
    const at = written & (RING_BYTES - 1);
    const first = Math.min(message.length, RING_BYTES - at);
    if (first === message.length) this.#ring.set(message, at);
    else {
      this.#ring.set(message.subarray(0, first), at);
      this.#ring.set(message.subarray(first), 0);
    }
    Atomics.store(this.#words, word.written, (written + roomOf(message.length)) | 0);
    return true;
  }

  /** The staging thread: a copy of the oldest message, of so many bytes. */
  read(bytes: number): Uint8Array {
    const at = this.#words[word.taken]! & (RING_BYTES - 1);
    const message = new Uint8Array(bytes);
    const first = Math.min(bytes, RING_BYTES - at);
    message.set(this.#ring.subarray(at, at + first));
    if (first < bytes) message.set(this.#ring.subarray(0, bytes - first), first);
    return message;
  }

  /** The staging thread: the oldest message is over. */
  drop(bytes: number): void {
    Atomics.add(this.#words, word.taken, roomOf(bytes));
  }
}

/** An empty message takes a place too, so that the ring is never full of nothing. */
function roomOf(bytes: number): number {
  return alignUp(Math.max(bytes, 1), 8);
}

/** A message behind the data of a post: it goes when that has ended, if it ended well. */
interface Message {
  readonly bytes: number;
  isGood: boolean | undefined;
}

/** Messages of the transfers of one lane, in the order of posting. */
export class MessageQueue {
  readonly #ring: StagedMessages;
  /** The link to the peer's agent. */
  readonly #link: BackendLink;
  readonly #waiting: Message[] = [];

  constructor(buffer: SharedArrayBuffer, link: BackendLink) {
    this.#ring = new StagedMessages(buffer);
    this.#link = link;
  }

  /** Messages wait that could go. */
  get isStuck(): boolean {
    return this.#waiting[0]?.isGood === true;
  }

  /** A post comes with the next message of the ring. */
  add(bytes: number): Message {
    const message = { bytes, isGood: undefined };
    this.#waiting.push(message);
    return message;
  }

  /** The post of that message has ended. */
  settle(message: Message, isGood: boolean): void {
    message.isGood = isGood;
    this.send();
  }

  /** Sends what can go. A message that the peer will never take is dropped. */
  send(): void {
    for (let next = this.#waiting[0]; next?.isGood !== undefined; next = this.#waiting[0]) {
      try {
        if (next.isGood) this.#link.notify(this.#ring.read(next.bytes));
      } catch (error) {
        if (error instanceof WeftlineError && error.code === 'WL_BUSY') return;
      }
      this.#ring.drop(next.bytes);
      this.#waiting.shift();
    }
  }
}
