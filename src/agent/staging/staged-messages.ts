// Messages of staged transfers on their way to the staging thread: a ring that the agent's thread fills, in order.
import { alignUp } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { BackendLink } from '../backend.ts';

/** Bytes that were written and taken; both wrap. */
const word = { written: 0, taken: 16 } as const;
const WORDS = 32;
/** Holds the longest notification twice. A power of two. */
const RING_BYTES = 65_536 * 2;
const RING_AT = WORDS * 4;

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
    if (used + placeOf(message.length) > RING_BYTES) return false;
    const at = written & (RING_BYTES - 1);
    const first = Math.min(message.length, RING_BYTES - at);
    if (first === message.length) this.#ring.set(message, at);
    else {
      this.#ring.set(message.subarray(0, first), at);
      this.#ring.set(message.subarray(first), 0);
    }
    Atomics.store(this.#words, word.written, (written + placeOf(message.length)) | 0);
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
    Atomics.add(this.#words, word.taken, placeOf(bytes));
  }
}

/** An empty message takes a place too, so that the ring is never full of nothing. */
function placeOf(bytes: number): number {
  return alignUp(Math.max(bytes, 1), 8);
}

interface Entry {
  readonly transfer: number;
  readonly bytes: number;
  state: 'waiting' | 'ready' | 'dropped';
}

/** Messages of the transfers of one lane: each goes out behind its data, in the order of posting. */
export class MessageQueue {
  readonly #messages: StagedMessages;
  /** The link to the peer's agent. */
  readonly #link: BackendLink;
  readonly #entries: Entry[] = [];

  constructor(messages: StagedMessages, link: BackendLink) {
    this.#messages = messages;
    this.#link = link;
  }

  /** Messages wait that could go. */
  get isStuck(): boolean {
    return this.#entries[0]?.state === 'ready';
  }

  /** A transfer was posted with the next message of the ring. */
  add(transfer: number, bytes: number): void {
    this.#entries.push({ transfer, bytes, state: 'waiting' });
  }

  /** The post of that transfer has ended. */
  settle(transfer: number, isGood: boolean): void {
    const entry = this.#entries.find((known) => known.transfer === transfer && known.state === 'waiting');
    if (entry !== undefined) entry.state = isGood ? 'ready' : 'dropped';
    this.send();
  }

  /** Sends what can go. */
  send(): void {
    for (let entry = this.#entries[0]; entry !== undefined && entry.state !== 'waiting'; entry = this.#entries[0]) {
      if (entry.state === 'ready' && !this.#deliver(entry.bytes)) return;
      this.#messages.drop(entry.bytes);
      this.#entries.shift();
    }
  }

  /** False while the peer does not take messages; one that it will never take is dropped. */
  #deliver(bytes: number): boolean {
    try {
      this.#link.notify(this.#messages.read(bytes));
      return true;
    } catch (error) {
      return !(error instanceof WeftlineError && error.code === 'WL_BUSY');
    }
  }
}
