// Messages on their way to a peer, which lie at the same offsets here and in its inbox. Hot path: no allocation.
import { alignUp } from '../../abi/layout.ts';
import {
  RDMA_MESSAGE_ALIGNMENT,
  RDMA_MESSAGES,
  RDMA_RING_BYTES,
  RDMA_SHORT_BYTES,
  messageImmediate,
  shortImmediate,
} from './link-layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { Mailbox } from './mailbox.ts';

/** What has become of a message. */
const states = { waiting: 0, posted: 1, dropped: 2 } as const;

export class OutMessages {
  readonly #mailbox: Mailbox;
  readonly #peer: string;
  /** Columns by message number. */
  readonly #offset = new Uint32Array(RDMA_MESSAGES);
  readonly #length = new Uint32Array(RDMA_MESSAGES);
  readonly #immediate = new Uint32Array(RDMA_MESSAGES);
  readonly #end = new Float64Array(RDMA_MESSAGES);
  readonly #state = new Uint8Array(RDMA_MESSAGES);
  /** The message's number on the connection, from 0, once posted. */
  readonly #index = new Uint32Array(RDMA_MESSAGES);
  #posted = 0;
  /** Numbers of the oldest that takes room, and of the next; bytes of the ring before them, which count up. */
  #first = 0;
  #next = 0;
  #tail = 0;
  #head = 0;
  /** How many the peer has taken, as far as this side has looked. */
  #taken = 0;

  constructor(mailbox: Mailbox, peer: string) {
    this.#mailbox = mailbox;
    this.#peer = peer;
  }

  /** Copies a message. Returns its number. Fails with WL_BUSY, leaving everything as it was. */
  reserve(message: Uint8Array): number {
    this.#reclaim();
    const { length } = message;
    const isShort = length <= RDMA_SHORT_BYTES;
    const room = isShort ? 0 : alignUp(length, RDMA_MESSAGE_ALIGNMENT);
    const at = this.#head % RDMA_RING_BYTES;
    // A message lies in one piece; what is left at the end is passed over.
    const skipped = at + room > RDMA_RING_BYTES ? RDMA_RING_BYTES - at : 0;
    const isFull = this.#next - this.#first === RDMA_MESSAGES;
    if (isFull || this.#head + skipped + room - this.#tail > RDMA_RING_BYTES) throw this.#full(length);
    const offset = skipped > 0 ? 0 : at;
    this.#head += skipped + room;
    const number = this.#next++;
    const slot = number % RDMA_MESSAGES;
    this.#offset[slot] = offset;
    this.#length[slot] = length;
    this.#end[slot] = this.#head;
    this.#state[slot] = states.waiting;
    this.#immediate[slot] = isShort ? shortImmediate(message) : messageImmediate(offset, length);
    if (!isShort) this.#mailbox.bytes.set(message, this.#mailbox.ringOffset + offset);
    return number;
  }

  offsetOf(number: number): number {
    return this.#offset[number % RDMA_MESSAGES]!;
  }

  lengthOf(number: number): number {
    return this.#length[number % RDMA_MESSAGES]!;
  }

  immediateOf(number: number): number {
    return this.#immediate[number % RDMA_MESSAGES]!;
  }

  /** True if immediate data hold all of the message: any write to the peer can carry them. */
  isShort(number: number): boolean {
    return this.lengthOf(number) <= RDMA_SHORT_BYTES;
  }

  /** Notes that the message's request was posted. */
  posted(number: number): void {
    this.#state[number % RDMA_MESSAGES] = states.posted;
    this.#index[number % RDMA_MESSAGES] = this.#posted++;
  }

  /** It is among the first `count` messages of the connection. */
  hasArrived(number: number, count: number): boolean {
    return this.#state[number % RDMA_MESSAGES] === states.posted && this.#index[number % RDMA_MESSAGES]! < count;
  }

  /** It will not be sent: what should have come before it failed. */
  drop(number: number): void {
    this.#state[number % RDMA_MESSAGES] = states.dropped;
  }

  /**
   * A new connection has an empty inbox: `first` is the oldest message that is still to be sent, undefined if all were.
   * Those before it lie in the inbox of the old connection, where the peer finds them.
   */
  restart(first: number | undefined): void {
    const end = first ?? this.#next;
    for (let number = this.#first; number < end; number++) this.drop(number);
    for (let number = end; number < this.#next; number++) {
      const slot = number % RDMA_MESSAGES;
      if (this.#state[slot] === states.posted) this.#state[slot] = states.waiting;
    }
    this.#mailbox.resetCredits();
    this.#posted = 0;
    this.#taken = 0;
  }

  #reclaim(): void {
    const taken = this.#mailbox.messagesTaken;
    while (this.#first < this.#next) {
      const slot = this.#first % RDMA_MESSAGES;
      const state = this.#state[slot];
      if (state === states.waiting) return;
      if (state === states.posted) {
        if (((taken - this.#taken) | 0) <= 0) return;
        this.#taken = (this.#taken + 1) | 0;
      }
      this.#tail = this.#end[slot]!;
      this.#first++;
    }
  }

  #full(length: number): WeftlineError {
    const details = { peer: this.#peer, bytes: length, waiting: this.#next - this.#first };
    return new WeftlineError(
      'WL_BUSY',
      `Cannot send a message of ${length} bytes to ${this.#peer}: ${details.waiting} earlier messages wait to be taken there`,
      { details },
    );
  }
}
