// The memory through which agents of one host reach an agent: who it is, what it has registered, notifications per sender.
import { defineLayout } from './layout.ts';

/** "WLMB", little endian. */
export const MAILBOX_MAGIC = 0x424d4c57;
export const MAILBOX_VERSION = 4;
/** Most agents that the owner's setting may allow to have a link to it at a time. */
export const MAX_MAILBOX_SENDERS = 32_768;
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
  /** Of what follows; SKIP_RECORD: the next record is at the beginning of the ring. */
  bytes: 'u32',
  /**
   * One more than the bytes written before the record: its store publishes the record. INVARIANT: where the next record
   * will begin, zero stands in its place before a record is published, so what a ring held a lap ago is never taken for one.
   */
  stamp: 'u32',
});
export const SKIP_RECORD = 0xffff_ffff;

/** One per region that the owner has registered; a key of zero says that there is none (any more). */
export const mailboxRegion = defineLayout('MailboxRegion', {
  key: 'u32',
  reserved: 'u32',
});

export const REGIONS_OFFSET: number = mailboxHeader.size;
export const SENDERS_OFFSET: number = REGIONS_OFFSET + MAILBOX_REGIONS * mailboxRegion.size;

/** Where the rings begin in a mailbox of so many senders. Pages of it that nobody has touched take no memory. */
export function ringsOffset(senders: number): number {
  return Math.ceil((SENDERS_OFFSET + senders * mailboxSender.size) / 4096) * 4096;
}

export function mailboxBytes(senders: number): number {
  return ringsOffset(senders) + senders * SENDER_RING_BYTES;
}
