// A sender's end of a peer's mailbox: writes records to the peer and wakes it if it sleeps. Hot path.
import { mailboxHeader } from '../../../abi/agent-mailbox.ts';
import { Futex } from '../../../native/libc.ts';
import { headerWord, ringDoorbell, ringOf } from './mailbox-layout.ts';
import type { NotificationRing } from './notification-ring.ts';

export class RecordSender {
  readonly #header: Int32Array;
  readonly #doorbell: Futex;
  readonly #ring: NotificationRing;

  /** `buffer`: the peer's mailbox. */
  constructor(buffer: ArrayBuffer, slot: number) {
    this.#header = new Int32Array(buffer, 0, mailboxHeader.size / 4);
    this.#doorbell = new Futex(this.#header.subarray(headerWord.doorbell, headerWord.doorbell + 1));
    this.#ring = ringOf(buffer, slot);
  }

  /** True if a record of that length would find room now. */
  hasRoom(bytes: number): boolean {
    return this.#ring.hasRoomFor(bytes);
  }

  /** False, with nothing written, if the peer has to read earlier records first. */
  push(record: Uint8Array): boolean {
    if (!this.#ring.push(record)) return false;
    // ORDER: the record is stamped before this look.
    if (Atomics.load(this.#header, headerWord.sleepers) !== 0) ringDoorbell(this.#header, this.#doorbell);
    return true;
  }

  /** Another thread of this process may have written since the last call. */
  catchUp(): void {
    this.#ring.catchUp();
  }
}
