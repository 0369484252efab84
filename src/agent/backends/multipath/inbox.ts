// The receiver's side of a mailbox: takes messages out of the ring in the order in which they arrived.
import { MAILBOX_RING_BYTES, mailboxHead, mailboxRecord } from '../../../abi/multipath-mailbox.ts';
import { alignUp } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { MAX_NOTIFICATION_BYTES } from '../../backend.ts';

/** Where messages go, and whether there is room for another. */
export interface InboxDelivery {
  readonly mayDeliver: () => boolean;
  readonly deliver: (message: Uint8Array) => void;
}

export class Inbox {
  /** Registered for the sender to write to. */
  readonly bytes: Uint8Array = new Uint8Array(new SharedArrayBuffer(mailboxHead.size + MAILBOX_RING_BYTES));
  readonly #arrived: Int32Array = new Int32Array(this.bytes.buffer, mailboxHead.offset.counter, 1);
  readonly #words: Uint32Array = new Uint32Array(this.bytes.buffer, mailboxHead.size);
  /** Bytes taken so far; wraps. */
  #taken = 0;

  /** Hot path while nothing has arrived. Returns the bytes that were taken, which the sender is to be told. */
  drain(delivery: InboxDelivery): number {
    // ORDER: the atomic load before the reads of what it announces.
    const arrived = Atomics.load(this.#arrived, 0);
    const before = this.#taken;
    while (((arrived - this.#taken) | 0) > 0 && delivery.mayDeliver()) {
      const at = (this.#taken >>> 0) % MAILBOX_RING_BYTES;
      const length = this.#words[at / 4]!;
      const left = (arrived - this.#taken) | 0;
      if (
        length > MAX_NOTIFICATION_BYTES ||
        alignUp(mailboxRecord.size + length, 8) > left ||
        left > MAILBOX_RING_BYTES
      )
        throw new WeftlineError(
          'WL_PROTOCOL',
          `A peer sent a message of ${length} bytes, with ${left} bytes in a ring of ${MAILBOX_RING_BYTES}: expected at most ${MAX_NOTIFICATION_BYTES}`,
        );
      delivery.deliver(this.#copy((at + mailboxRecord.size) % MAILBOX_RING_BYTES, length));
      this.#taken = (this.#taken + alignUp(mailboxRecord.size + length, 8)) | 0;
    }
    return (this.#taken - before) | 0;
  }

  /** All that has arrived was taken. */
  get isEmpty(): boolean {
    return Atomics.load(this.#arrived, 0) === this.#taken;
  }

  #copy(at: number, length: number): Uint8Array {
    const message = new Uint8Array(length);
    const first = Math.min(length, MAILBOX_RING_BYTES - at);
    message.set(this.bytes.subarray(mailboxHead.size + at, mailboxHead.size + at + first));
    if (first < length) message.set(this.bytes.subarray(mailboxHead.size, mailboxHead.size + length - first), first);
    return message;
  }
}
