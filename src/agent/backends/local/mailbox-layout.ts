// Where things stand in a mailbox, for its owner and for senders.
import {
  mailboxHeader,
  mailboxSender,
  ringsOffset,
  SENDER_NAME_BYTES,
  SENDER_RING_BYTES,
  SENDERS_OFFSET,
} from '../../../abi/agent-mailbox.ts';
import { Block, wordOffsets } from '../../../abi/layout.ts';
import type { Futex } from '../../../native/libc.ts';
import { NotificationRing } from './notification-ring.ts';

/** The owner's lock; that of a sender is at 1 + its slot. */
export const OWNER_LOCK = 0;

/** Where each word of the header stands, in words. */
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
    slotOffset: slotOffset(slot),
    ringOffset: ringsOffset(sendersOf(buffer)) + slot * SENDER_RING_BYTES,
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
