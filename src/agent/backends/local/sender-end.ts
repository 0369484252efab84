// What a sender does in a peer's mailbox: tells whether it is within a step, writes records. Hot path.
import {
  headerWord,
  MAILBOX_REGIONS,
  mailboxHeader,
  mailboxRegion,
  mailboxSender,
  type NotificationRing,
  REGIONS_OFFSET,
  ringDoorbell,
  ringOf,
  slotOffset,
} from './mailbox-layout.ts';
import { Futex } from '../../../native/libc.ts';

/** Whether a thread of the sender is within a step: each one that copies has a word of its own. */
type StepWord = 'agentStep' | 'copyStep';

interface ReleasableGrant extends RegionGrant {
  readonly isReleased: boolean;
}

/**
 * On x86-64 an atomic addition is a full barrier, and loads and stores otherwise stay in order; so ordinary ones suffice,
 * which cost a fraction of a call of Atomics.
 */
const IS_X64 = process.arch === 'x64';

export class PeerSteps {
  readonly #words: Int32Array;
  readonly #at: number;
  readonly #keys: Int32Array;

  /** `buffer`: the peer's mailbox. */
  constructor(buffer: ArrayBuffer, slot: number, word: StepWord) {
    this.#words = new Int32Array(buffer, slotOffset(slot), mailboxSender.size / 4);
    this.#at = mailboxSender.offset[word] / 4;
    this.#keys = new Int32Array(buffer, REGIONS_OFFSET, (MAILBOX_REGIONS * mailboxRegion.size) / 4);
  }

  /** ORDER: before the keys are looked at. From now until `end` the owner waits with what it takes back. Not reentrant. */
  begin(): void {
    Atomics.add(this.#words, this.#at, 1);
  }

  /** ORDER: after the last access to the peer's memory. */
  end(): void {
    if (IS_X64) this.#words[this.#at]! += 1;
    else Atomics.add(this.#words, this.#at, 1);
  }

  /** True if the peer has all of them registered. While this side is within a step, the peer's deregistration waits. */
  hold(grants: RegionGrants): boolean {
    return grants.areHeld(this.#keys);
  }

  /** The same of regions themselves; none of them may have been released by this side either. */
  mayTouch(regions: readonly ReleasableGrant[]): boolean {
    const keys = this.#keys;
    for (let index = 0; index < regions.length; index += 1) {
      const { isReleased, keyAt, keyValue } = regions[index] as ReleasableGrant;
      if (isReleased || (IS_X64 ? keys[keyAt] : Atomics.load(keys, keyAt)) !== keyValue) return false;
    }
    return true;
  }

  holds({ keyAt, keyValue }: RegionGrant): boolean {
    return Atomics.load(this.#keys, keyAt) === keyValue;
  }
}

// The peer's regions that a transfer touches, as keys to look up before each step. Shared by the threads that copy.

/** What a copy of a step fails with when the peer has taken a region back; neither an errno nor CUT_SHORT. */
export const REVOKED = -2;

/** Index of a word of the peer's table of regions, and what stands there as long as the region is registered. */
export interface RegionGrant {
  readonly keyAt: number;
  /** The value as a signed number. */
  readonly keyValue: number;
}

const WORDS = mailboxRegion.size / 4;

export function grantOf({ slot, key }: { readonly slot: number; readonly key: number }): RegionGrant {
  return { keyAt: slot * WORDS, keyValue: key | 0 };
}

export class RegionGrants {
  /** The memory that `RegionGrants.over` takes in another thread: index of a word of the table and its value, for each region. */
  readonly buffer: SharedArrayBuffer;
  readonly #pairs: Int32Array;

  static of(regions: readonly RegionGrant[]): RegionGrants {
    const buffer = new SharedArrayBuffer(regions.length * 8);
    new Int32Array(buffer).set(regions.flatMap(({ keyAt, keyValue }) => [keyAt, keyValue]));
    return new RegionGrants(buffer);
  }

  static over(buffer: SharedArrayBuffer): RegionGrants {
    return new RegionGrants(buffer);
  }

  private constructor(buffer: SharedArrayBuffer) {
    this.buffer = buffer;
    this.#pairs = new Int32Array(buffer);
  }

  /** Hot path. True if all of them are registered. `keys`: the table in the peer's mailbox. */
  areHeld(keys: Int32Array): boolean {
    const pairs = this.#pairs;
    for (let at = 0; at < pairs.length; at += 2) {
      if (Atomics.load(keys, pairs[at]!) !== pairs[at + 1]) return false;
    }
    return true;
  }
}

// A sender's end of a peer's mailbox: writes records to the peer and wakes it if it sleeps. Hot path.

export class RecordSender {
  readonly #header: Int32Array;
  readonly #doorbell: Futex;
  readonly ring: NotificationRing;

  /** `buffer`: the peer's mailbox. */
  constructor(buffer: ArrayBuffer, slot: number) {
    this.#header = new Int32Array(buffer, 0, mailboxHeader.size / 4);
    this.#doorbell = new Futex(this.#header.subarray(headerWord.doorbell, headerWord.doorbell + 1));
    this.ring = ringOf(buffer, slot);
  }

  /** False, with nothing written, if the peer has to read earlier records first. */
  push(record: Uint8Array): boolean {
    if (!this.ring.push(record)) return false;
    // ORDER: the record is stamped before this look.
    if (Atomics.load(this.#header, headerWord.sleepers) !== 0) ringDoorbell(this.#header, this.#doorbell);
    return true;
  }
}

// Tells the owner of memory what a sender's GPUs still do with it: streams go on after the step that filled them.

const BEGUN = mailboxSender.offset.deviceBegun / 4;
const ENDED = mailboxSender.offset.deviceEnded / 4;

/** Work of one link, on the agent's thread only. */
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
