// Tells the owner of memory what a sender's GPUs still do with it: streams go on after the step that filled them.
import { mailboxSender } from '../../../abi/agent-mailbox.ts';
import { slotOffset } from './mailbox-layout.ts';

const BEGUN = mailboxSender.offset.deviceBegun / 4;
const ENDED = mailboxSender.offset.deviceEnded / 4;

/** Of one link; the agent's thread only. */
export class DeviceWork {
  #words: Int32Array;
  /** Tickets of unfinished work, oldest first. */
  readonly #open: number[] = [];

  /** `buffer`: the peer's mailbox. */
  constructor(buffer: ArrayBuffer, slot: number) {
    this.#words = new Int32Array(buffer, slotOffset(slot), mailboxSender.size / 4);
    // A sender that had the slot before may have died with work under way.
    Atomics.store(this.#words, ENDED, Atomics.load(this.#words, BEGUN));
  }

  /** The ticket of the latest piece of work. */
  get latest(): number {
    return this.#words[BEGUN]!;
  }

  /** Hot path. To be called within a step, before the work is given to a GPU. Returns a ticket. */
  begin(): number {
    const ticket = (Atomics.add(this.#words, BEGUN, 1) + 1) | 0;
    this.#open.push(ticket);
    return ticket;
  }

  /** Hot path. That piece of work touches nothing any more. */
  end(ticket: number): void {
    const at = this.#open.indexOf(ticket);
    if (at === -1) return;
    this.#open.splice(at, 1);
    const oldest = this.#open[0];
    Atomics.store(this.#words, ENDED, oldest === undefined ? this.latest : (oldest - 1) | 0);
  }

  /** The mailbox is about to be unmapped. */
  close(): void {
    this.#words = new Int32Array(mailboxSender.size / 4);
  }

  /** True if that piece of work and all before it are over. */
  hasEnded(ticket: number): boolean {
    const oldest = this.#open[0];
    return oldest === undefined || ((oldest - ticket) | 0) > 0;
  }
}
