// The sender's side of a mailbox: messages wait here until their data has arrived. Hot path: no allocation.
import { MAILBOX_RING_BYTES, mailboxHead, mailboxRecord } from '../../../abi/multipath-mailbox.ts';
import { alignUp } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';

/** Messages that may wait; more than requests of a transport. A power of two. */
const MAX_MESSAGES = 8192;

export class MessageRing {
  /** Registered by the link, so that the peer can count what it has taken. */
  readonly bytes: Uint8Array = new Uint8Array(new SharedArrayBuffer(mailboxHead.size + MAILBOX_RING_BYTES));
  /** What `reserve` found, to post with: offset in `bytes`, and bytes of the record. */
  readonly message = { offset: 0, bytes: 0 };
  readonly #peer: string;
  readonly #taken: Int32Array;
  readonly #words: Uint32Array;
  /** Of the peer's ring: bytes that were promised to messages so far; wraps. */
  #promised = 0;
  /** Of this side's ring: where the next message goes, and the oldest that waits; both count up and wrap at 2^32. */
  #head = 0;
  #tail = 0;
  /** By message number: where it ends, and whether its transfer has ended. */
  readonly #ends = new Uint32Array(MAX_MESSAGES);
  readonly #ended = new Uint8Array(MAX_MESSAGES);
  #first = 0;
  #next = 0;

  constructor(peer: string) {
    this.#peer = peer;
    this.#taken = new Int32Array(this.bytes.buffer, mailboxHead.offset.counter, 1);
    this.#words = new Uint32Array(this.bytes.buffer, mailboxHead.size);
  }

  /** Copies a message. Returns its number; see `message`. Fails with WL_BUSY, leaving everything as it was. */
  reserve(text: Uint8Array): number {
    const { length } = text;
    const bytes = alignUp(mailboxRecord.size + length, 8);
    const untaken = (this.#promised - Atomics.load(this.#taken, 0)) | 0;
    const at = this.#head % MAILBOX_RING_BYTES;
    // A message lies in one piece here; what is left at the end is passed over.
    const skipped = at + bytes > MAILBOX_RING_BYTES ? MAILBOX_RING_BYTES - at : 0;
    const waiting = (this.#head - this.#tail + skipped + bytes) >>> 0;
    const isFull = this.#next - this.#first === MAX_MESSAGES;
    if (untaken + bytes > MAILBOX_RING_BYTES || waiting > MAILBOX_RING_BYTES || isFull) throw this.#full(length);
    const offset = skipped > 0 ? 0 : at;
    this.#words[offset / 4] = length;
    this.bytes.set(text, mailboxHead.size + offset + mailboxRecord.size);
    this.#head = (this.#head + skipped + bytes) >>> 0;
    this.#promised = (this.#promised + bytes) | 0;
    const number = this.#next++;
    this.#ends[number % MAX_MESSAGES] = this.#head;
    this.#ended[number % MAX_MESSAGES] = 0;
    this.message.offset = mailboxHead.size + offset;
    this.message.bytes = bytes;
    return number;
  }

  /** The transfer has ended, and its message's place is free; one that was not sent takes nothing of the peer's ring. */
  release(number: number, wasSent: boolean, bytes: number): void {
    if (!wasSent) this.#promised = (this.#promised - bytes) | 0;
    this.#ended[number % MAX_MESSAGES] = 1;
    while (this.#first < this.#next && this.#ended[this.#first % MAX_MESSAGES] === 1) {
      this.#tail = this.#ends[this.#first % MAX_MESSAGES]!;
      this.#first++;
    }
  }

  #full(length: number): WeftlineError {
    return new WeftlineError(
      'WL_BUSY',
      `Cannot send a message of ${length} bytes to ${this.#peer}: ${MAILBOX_RING_BYTES} bytes of earlier messages wait to be taken there`,
      { details: { peer: this.#peer, bytes: length, waiting: MAILBOX_RING_BYTES } },
    );
  }
}
