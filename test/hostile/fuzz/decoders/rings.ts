// Shared memory that a hostile peer has written: rings of notifications and mailboxes.
import {
  mailboxBytes,
  mailboxHeader,
  mailboxSender,
  notificationHead,
  NotificationRing,
  ringsOffset,
  SENDER_RING_BYTES,
  SENDERS_OFFSET,
  senderStates,
} from '#lib/agent/backends/local/mailbox-layout.js';
import { MAILBOX_RING_BYTES, mailboxHead, mailboxRecord } from '#lib/agent/backends/multipath/multipath-link.js';
import { Mailbox } from '#lib/agent/backends/local/mailbox.js';
import { PeerMailbox } from '#lib/agent/backends/local/peer-mailbox.js';
import { Inbox } from '#lib/agent/backends/multipath/multipath-backend.js';
import { SharedMemory } from '#lib/windows/shared-memory.js';
import { type Decoder, Fault } from '../decoder.ts';

const INCARNATION = '0123456789abcdef';
/** Senders of a mailbox. */
const SENDERS = 4;
const CLOSE_MS = 1000;
/** Its first page, the regions and some slots. */
const SEED_BYTES = SENDERS_OFFSET + 2 * mailboxSender.size;
const SLOT_BYTES = mailboxSender.size;
/** How much of the end of the ring an input also fills. */
const TAIL_BYTES = 256;
const MAX_DELIVERED = 100_000;

/** A slot and both ends of its ring, after real notifications. */
function ringSeed(records: readonly number[], start: number): Uint8Array {
  const buffer = new ArrayBuffer(SLOT_BYTES + SENDER_RING_BYTES);
  const control = new Int32Array(buffer, 0, SLOT_BYTES / 4);
  control[mailboxSender.offset.tail / 4] = start;
  control[mailboxSender.offset.head / 4] = start;
  control[mailboxSender.offset.state / 4] = senderStates.open;
  const ring = new NotificationRing({ buffer, slotAt: 0, ringAt: SLOT_BYTES });
  ring.catchUp();
  for (const bytes of records) ring.push(new Uint8Array(bytes).fill(bytes));
  const whole = new Uint8Array(buffer);
  const used = SLOT_BYTES + TAIL_BYTES + records.reduce((sum, bytes) => sum + bytes + 16, 64);
  const input = new Uint8Array(Math.min(used, 4096));
  input.set(whole.subarray(0, SLOT_BYTES));
  input.set(whole.subarray(-TAIL_BYTES), SLOT_BYTES);
  input.set(whole.subarray(SLOT_BYTES, SLOT_BYTES + input.length - SLOT_BYTES - TAIL_BYTES), SLOT_BYTES + TAIL_BYTES);
  return input;
}

/** The reverse: where the pieces of an input belong. */
function placeRing(input: Uint8Array, slot: Uint8Array, ring: Uint8Array): void {
  slot.set(input.subarray(0, SLOT_BYTES));
  ring.set(input.subarray(SLOT_BYTES + TAIL_BYTES).subarray(0, SENDER_RING_BYTES));
  const tail = input.subarray(SLOT_BYTES, SLOT_BYTES + TAIL_BYTES);
  ring.set(tail, SENDER_RING_BYTES - tail.length);
}

const ringSeeds = (): readonly Uint8Array[] => [
  ringSeed([], 0),
  ringSeed([5, 0, 16], 0),
  ringSeed([100, 200], SENDER_RING_BYTES - 128),
  ringSeed([40], -64),
];
const ringFields = [
  ...Object.values(mailboxSender.offset),
  ...[SLOT_BYTES, SLOT_BYTES + TAIL_BYTES, SLOT_BYTES + 128].flatMap((base) =>
    Object.values(notificationHead.offset).map((offset) => base + offset),
  ),
];

const localRing: Decoder = {
  name: 'local-notification-ring',
  codes: [],
  fields: ringFields,
  weight: 0.5,
  seeds: ringSeeds,
  run: (input) => {
    const buffer = new ArrayBuffer(SLOT_BYTES + SENDER_RING_BYTES);
    placeRing(input, new Uint8Array(buffer, 0, SLOT_BYTES), new Uint8Array(buffer, SLOT_BYTES));
    const ring = new NotificationRing({ buffer, slotAt: 0, ringAt: SLOT_BYTES });
    let taken = 0;
    try {
      while (ring.take() !== undefined) {
        if (++taken > SENDER_RING_BYTES) throw new Fault('the ring never ends');
      }
    } catch (error) {
      // How the ring says that its writer is to be left alone.
      if (!(error instanceof RangeError)) throw error;
    }
  },
};

/** Peers with slots of their own must be heard whatever one of them wrote. */
const localMailbox: Decoder = {
  name: 'local-mailbox-senders',
  codes: [],
  fields: ringFields,
  weight: 0.03,
  seeds: ringSeeds,
  run: async (input) => {
    const mailbox = new Mailbox(INCARNATION, SENDERS);
    const buffer = mailbox.memory.buffer();
    let delivered = 0;
    const delivery = {
      mayDeliver: () => true,
      deliver: (name: string) => {
        if (Buffer.byteLength(name) > 1024) throw new Fault(`a sender has a name of ${name.length} characters`);
        if (++delivered > MAX_DELIVERED) throw new Fault('notifications never end');
      },
    };
    const honest = PeerMailbox.open({
      peer: 'owner',
      incarnation: INCARNATION,
      place: mailbox.memory.name,
      sender: 'honest',
    });
    try {
      const slot = honest.slot + 1;
      placeRing(
        input,
        new Uint8Array(buffer, SENDERS_OFFSET + slot * SLOT_BYTES, SLOT_BYTES),
        new Uint8Array(buffer, ringsOffset(SENDERS) + slot * SENDER_RING_BYTES, SENDER_RING_BYTES),
      );
      const words = new Int32Array(buffer);
      Atomics.store(words, mailboxHeader.offset.usedSenders / 4, slot + 1);
      Atomics.add(words, mailboxHeader.offset.joins / 4, 1);
      mailbox.poll(delivery);
      mailbox.arm(delivery);
      mailbox.freeSenders(delivery);
      const before = delivered;
      honest.sender.push(Buffer.from('still here'));
      mailbox.poll(delivery);
      if (delivered === before) throw new Fault('another sender is not heard any more');
    } finally {
      honest[Symbol.dispose]();
      await mailbox.close(CLOSE_MS);
    }
  },
};

function mailboxPage(): Uint8Array {
  const mailbox = new Mailbox(INCARNATION, SENDERS);
  const page = new Uint8Array(mailbox.memory.buffer().slice(0, SEED_BYTES));
  void mailbox.close(CLOSE_MS);
  return page;
}

/** The owner of the mailbox is hostile: a sender opens it and writes a notification. */
const peerMailbox: Decoder = {
  name: 'local-mailbox-of-a-peer',
  codes: ['WL_PROTOCOL', 'WL_STALE', 'WL_PEER_LOST', 'WL_SHARED_MEMORY', 'WL_CAPACITY'],
  fields: [
    ...Object.values(mailboxHeader.offset),
    ...Object.values(mailboxSender.offset).map((offset) => SENDERS_OFFSET + offset),
  ],
  weight: 0.03,
  seeds: () => [mailboxPage()],
  run: (input) => {
    using memory = SharedMemory.create('mailbox', mailboxBytes(SENDERS), false);
    new Uint8Array(memory.buffer()).set(input.subarray(0, mailboxBytes(SENDERS)));
    using peer = PeerMailbox.open({
      peer: 'owner',
      incarnation: INCARNATION,
      place: memory.name,
      sender: 'x'.repeat(300),
    });
    void peer.ownerState;
    for (const bytes of [0, 5, 4096, 16_000, 32_000, 32_000, 32_000]) {
      peer.sender.ring.catchUp();
      if (peer.sender.ring.hasRoomFor(bytes)) peer.sender.push(new Uint8Array(bytes));
    }
  },
};

const INBOX_HEAD = 12;

/** Counter, where it stood before, then the ring. */
const multipathInbox: Decoder = {
  name: 'multipath-inbox',
  codes: ['WL_PROTOCOL'],
  fields: [0, 4, 8, INBOX_HEAD, INBOX_HEAD + mailboxRecord.size + 8],
  weight: 0.5,
  seeds: () => [[], [0], [5, 100], [3, 3, 3, 3]].map(inboxSeed),
  run: (input) => {
    const inbox = new Inbox();
    inbox.bytes.set(input.subarray(INBOX_HEAD).subarray(0, MAILBOX_RING_BYTES), mailboxHead.size);
    const counter = new Int32Array(inbox.bytes.buffer, mailboxHead.offset.counter, 1);
    const arrived = new DataView(input.buffer, input.byteOffset, input.byteLength);
    let delivered = 0;
    for (let step = 0; step + 4 <= Math.min(INBOX_HEAD, input.length); step += 4) {
      Atomics.store(counter, 0, arrived.getInt32(step, true));
      inbox.drain({
        mayDeliver: () => true,
        deliver: () => {
          if (++delivered > MAX_DELIVERED) throw new Fault('messages never end');
        },
      });
    }
  },
};

function inboxSeed(lengths: readonly number[]): Uint8Array {
  const sizes = lengths.map((length) => mailboxRecord.size + Math.ceil(length / 8) * 8);
  const bytes = new Uint8Array(INBOX_HEAD + sizes.reduce((sum, size) => sum + size, 0) + 64);
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (const [index, length] of lengths.entries()) {
    view.setUint32(INBOX_HEAD + at, length, true);
    at += sizes[index] as number;
  }
  for (let step = 0; step < INBOX_HEAD; step += 4) view.setInt32(step, at, true);
  return bytes;
}

export const ringDecoders: readonly Decoder[] = [localRing, localMailbox, peerMailbox, multipathInbox];
