// The places of a mailbox, for its owner and for senders, and its rings of records.
import { Block, defineLayout, wordOffsets } from '../../../abi/layout.ts';
import type { Futex } from '../../../native/libc.ts';
import { MAX_NOTIFICATION_BYTES } from '../../backend.ts';

// The memory through which agents of one host reach an agent: who it is, what it has registered, notifications per sender.

/** "WLMB", little endian. */
export const MAILBOX_MAGIC = 0x424d4c57;
export const MAILBOX_VERSION = 4;
/** A power of two. */
export const SENDER_RING_BYTES = 65_536;
export const MAILBOX_REGIONS = 4096;
export const SENDER_NAME_BYTES = 256;

export const mailboxStates = { open: 1, closed: 2 } as const;
export const senderStates = { free: 0, open: 1, closed: 2 } as const;

/**
 * The first page. Words that change stand alone on their cache lines.
 *
 * - `senders`: slots of this mailbox, as the owner's settings say; everything behind them is placed by it.
 * - `state`: written by the owner; tells a peer that closed from one that died.
 * - `usedSenders`: one more than the highest slot that was ever taken. Raised by senders before `joins`, so that the owner
 *   looks no further.
 * - `joins`: senders that have come so far, wraps. Added to by a sender behind its slot; the owner then looks at all slots.
 * - `admitted`: the `joins` up to which the owner has looked at the slots: its answer to those that came.
 * - `doorbell`: futex word. Added to by senders when the owner sleeps; wraps.
 * - `sleepers`: waits of the owner that sleep on `doorbell`. ORDER: the owner adds to it, then looks at all rings once
 *   more; a sender stamps its record, then looks at it. So one of the two sees the other.
 * - `address`: where the owner has this page mapped, so that peers can try whether they may read its memory.
 */
export const mailboxHeader = defineLayout(
  'MailboxHeader',
  {
    magic: 'u32',
    version: 'u32',
    incarnation: 'u64',
    address: 'u64',
    pid: 'u32',
    state: 'u32',
    senders: 'u32',
    statePad: { of: 'u32', count: 7 },
    joins: 'u32',
    usedSenders: 'u32',
    admitted: 'u32',
    joinsPad: { of: 'u32', count: 13 },
    doorbell: 'u32',
    doorbellPad: { of: 'u32', count: 15 },
    sleepers: 'u32',
    sleepersPad: { of: 'u32', count: 15 },
  },
  4096,
);

/**
 * One per sender. The sender holds the lock of byte 1 + slot of the file, the owner that of byte 0; the kernel drops them
 * when their processes end. A sender takes a slot by holding its lock and finding it free; the owner frees it once the
 * sender is gone and its ring is empty.
 *
 * - `tail`: bytes written so far, for the threads of the sender alone: the owner looks at the stamps of records, so that
 *   a message costs it one cache line. Wraps.
 * - `head`: bytes read so far. Written by the owner; the sender may write over what lies before it. Wraps.
 * - `agentStep`, `copyStep`: of the sender's two threads that touch the owner's memory: odd while the thread is within a step
 *   of a copy. ORDER: a thread makes its word odd, then looks at the keys of the regions of the step; the owner takes a key
 *   away, then looks at the words. So either the thread finds the key gone, or the owner finds the word odd and waits for it
 *   to change. Both wrap.
 * - `deviceBegun`, `deviceEnded`: pieces of work that the sender gave to a GPU so far, and how many of them, counted from
 *   the first, are over. ORDER: `deviceBegun` goes up before the keys are looked at. Both wrap.
 */
export const mailboxSender = defineLayout(
  'MailboxSender',
  {
    tail: 'u32',
    state: 'u32',
    nameBytes: 'u32',
    agentStep: 'u32',
    deviceBegun: 'u32',
    deviceEnded: 'u32',
    tailPad: { of: 'u32', count: 10 },
    head: 'u32',
    headPad: { of: 'u32', count: 15 },
    copyStep: 'u32',
    copyPad: { of: 'u32', count: 15 },
    name: { of: 'u8', count: SENDER_NAME_BYTES },
  },
  64,
);

/** What is in front of each record of a ring; records begin at multiples of 8 and never wrap in the middle. */
export const notificationHead = defineLayout('NotificationHead', {
  /** Bytes of what follows; SKIP_RECORD: the next record is at the beginning of the ring. */
  bytes: 'u32',
  /**
   * One more than the bytes written before the record: its store publishes the record. INVARIANT: where the next record
   * will begin, zero stands in its place before a record is published, so what a ring held a lap ago is never taken for one.
   */
  stamp: 'u32',
});
const SKIP_RECORD = 0xffff_ffff;

/** One per region that the owner has registered; a key of zero says that there is none (any more). */
export const mailboxRegion = defineLayout('MailboxRegion', {
  key: 'u32',
  reserved: 'u32',
});

export const REGIONS_OFFSET: number = mailboxHeader.size;
export const SENDERS_OFFSET: number = REGIONS_OFFSET + MAILBOX_REGIONS * mailboxRegion.size;

/** The offset of the rings in a mailbox of so many senders. Pages of it that nobody has touched take no memory. */
export function ringsOffset(senders: number): number {
  return Math.ceil((SENDERS_OFFSET + senders * mailboxSender.size) / 4096) * 4096;
}

export function mailboxBytes(senders: number): number {
  return ringsOffset(senders) + senders * SENDER_RING_BYTES;
}

/** The owner's lock; that of a sender is at 1 + its slot. */
export const OWNER_LOCK = 0;

/** Places of the header's words, counted in words. */
export const headerWord: typeof mailboxHeader.offset = wordOffsets(mailboxHeader);

/** How many slots the mailbox has, as its owner wrote. */
export function sendersOf(buffer: ArrayBuffer): number {
  return new Block(mailboxHeader, buffer, 0).get('senders');
}

export function slotOffset(slot: number): number {
  return SENDERS_OFFSET + slot * mailboxSender.size;
}

/** Index of the word of a slot in an Int32Array over the whole mailbox. */
export function slotWord(
  slot: number,
  name: 'state' | 'agentStep' | 'copyStep' | 'deviceBegun' | 'deviceEnded',
): number {
  return (slotOffset(slot) + mailboxSender.offset[name]) / 4;
}

export function ringOf(buffer: ArrayBuffer, slot: number): NotificationRing {
  return new NotificationRing({
    buffer,
    slotAt: slotOffset(slot),
    ringAt: ringsOffset(sendersOf(buffer)) + slot * SENDER_RING_BYTES,
  });
}

export function nameOf(buffer: ArrayBuffer, slot: number): string {
  const length = new Block(mailboxSender, buffer, slotOffset(slot)).get('nameBytes');
  const bytes = new Uint8Array(buffer, slotOffset(slot) + mailboxSender.offset.name, SENDER_NAME_BYTES);
  return Buffer.from(bytes.subarray(0, length)).toString();
}

/** Tells an owner that sleeps that something came. */
export function ringDoorbell(header: Int32Array, doorbell: Futex): void {
  Atomics.add(header, headerWord.doorbell, 1);
  doorbell.wakeAll();
}

// A ring of records in shared memory with one writer at a time and one reader, each of which may die. Hot path.

const HEAD_BYTES = notificationHead.size;
const MASK = SENDER_RING_BYTES - 1;

interface RingPlace {
  readonly buffer: ArrayBuffer;
  /** Offsets of the sender's slot and of its ring. */
  readonly slotAt: number;
  readonly ringAt: number;
}

/** Records have at most MAX_NOTIFICATION_BYTES, half of the ring: they fit an empty ring, wherever that begins. */
export class NotificationRing {
  readonly #control: Int32Array;
  readonly #bytes: Uint8Array;
  readonly #words: Int32Array;
  /** What this side has written, or read. */
  #own: number;
  /** The writer's last look at what the reader has read. */
  #seen: number;

  constructor({ buffer, slotAt, ringAt }: RingPlace) {
    this.#control = new Int32Array(buffer, slotAt, mailboxSender.size / 4);
    this.#bytes = new Uint8Array(buffer, ringAt, SENDER_RING_BYTES);
    this.#words = new Int32Array(buffer, ringAt, SENDER_RING_BYTES / 4);
    this.#own = Atomics.load(this.#control, HEAD) & ALIGNED;
    this.#seen = this.#own;
  }

  /** The writer's: false if the reader has to make room first. */
  push(record: Uint8Array): boolean {
    const needed = recordBytes(record.length);
    const at = this.#own & MASK;
    const skipped = at + needed > SENDER_RING_BYTES ? SENDER_RING_BYTES - at : 0;
    if (!this.#hasRoom(skipped + needed)) return false;
    const begin = (this.#own + skipped) | 0;
    const start = begin & MASK;
    const next = (begin + needed) | 0;
    this.#words[start >>> 2] = record.length;
    this.#bytes.set(record, start + HEAD_BYTES);
    this.#words[((next & MASK) >>> 2) + STAMP] = 0;
    this.#control[TAIL] = next;
    // ORDER: the last store is the one that the reader looks at.
    if (skipped > 0) {
      this.#words[(start >>> 2) + STAMP] = begin + 1;
      this.#words[at >>> 2] = SKIP_RECORD | 0;
    }
    Atomics.store(this.#words, (at >>> 2) + STAMP, (this.#own + 1) | 0);
    this.#own = next;
    return true;
  }

  /** The writer's: another thread of this process may have written since the last call. */
  catchUp(): void {
    this.#own = this.#control[TAIL]! & ALIGNED;
    this.#seen = Atomics.load(this.#control, HEAD);
  }

  /** The writer's: true if `push` would take a record of that length. */
  hasRoomFor(bytes: number): boolean {
    const needed = recordBytes(bytes);
    const at = this.#own & MASK;
    return this.#hasRoom(needed + (at + needed > SENDER_RING_BYTES ? SENDER_RING_BYTES - at : 0));
  }

  /** The reader's: true if a record is there. */
  get hasRecord(): boolean {
    return Atomics.load(this.#words, ((this.#own & MASK) >>> 2) + STAMP) === ((this.#own + 1) | 0);
  }

  /** The reader's, when there is no writer: as it was made. */
  reset(): void {
    this.#words.fill(0);
    this.#control[TAIL] = 0;
    Atomics.store(this.#control, HEAD, 0);
    this.#own = 0;
  }

  /** The reader's: the next record, a copy; undefined if there is none. Throws RangeError when the writer wrote nonsense. */
  take(): Uint8Array | undefined {
    if (!this.hasRecord) return undefined;
    let at = this.#own & MASK;
    let bytes = this.#words[at >>> 2]! >>> 0;
    if (bytes === SKIP_RECORD) {
      this.#own = (this.#own + SENDER_RING_BYTES - at) | 0;
      at = 0;
      bytes = this.#words[0]! >>> 0;
    }
    if (bytes > MAX_NOTIFICATION_BYTES || at + HEAD_BYTES + bytes > SENDER_RING_BYTES) {
      throw new RangeError(`a record of ${bytes} bytes at ${at}`);
    }
    const record = copyOut(this.#bytes, at + HEAD_BYTES, bytes);
    this.#own = (this.#own + recordBytes(bytes)) | 0;
    Atomics.store(this.#control, HEAD, this.#own);
    return record;
  }

  /** Room for so many bytes, and for the place of the next stamp. */
  #hasRoom(bytes: number): boolean {
    const most = SENDER_RING_BYTES - HEAD_BYTES;
    if (((this.#own - this.#seen) | 0) + bytes <= most) return true;
    this.#seen = Atomics.load(this.#control, HEAD);
    return ((this.#own - this.#seen) | 0) + bytes <= most;
  }
}

/** Up to this many bytes a loop is faster than a call of `slice`. */
const SHORT_BYTES = 64;

function copyOut(bytes: Uint8Array, begin: number, length: number): Uint8Array {
  if (length > SHORT_BYTES) return bytes.slice(begin, begin + length);
  const copy = new Uint8Array(length);
  for (let at = 0; at < length; at += 1) copy[at] = bytes[begin + at]!;
  return copy;
}

/** Records begin at multiples of 8, whatever the other side has written into the memory that both share. */
const ALIGNED = -8;
const TAIL = mailboxSender.offset.tail / 4;
const HEAD = mailboxSender.offset.head / 4;
const STAMP = notificationHead.offset.stamp / 4;

/** What a record of so many bytes takes. */
export function recordBytes(bytes: number): number {
  return HEAD_BYTES + Math.ceil(bytes / 8) * 8;
}
