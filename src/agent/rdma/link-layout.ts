// What two agents share over RDMA: how metadata name a region, the mailboxes of a link, and the immediate data of writes.
import { defineLayout } from '../../abi/layout.ts';

/** Metadata name a region by its address, in so many bytes, and the key that the device's library gives to it. */
export const RDMA_REGION_HEAD_BYTES = 8;

/** Bytes of messages that the receiver has not taken. A power of two. */
export const RDMA_RING_BYTES = 256 * 1024;
/** Messages that the receiver has not taken, and wakes that it has not seen. Each has a receive posted there. */
export const RDMA_MESSAGES = 512;
export const RDMA_WAKES = 512;

/**
 * The sender's mailbox. The receiver writes `messages` and `wakes`, as one write of 8 bytes: how many it has taken so far,
 * modulo 2^32; a stale look shows fewer and costs time only. The device writes `oldValue`, which nobody reads: what a cell
 * was before an atomic addition. The ring holds messages at the same offsets as the receiver's inbox, which is a ring alone.
 */
export const rdmaMailboxHead = defineLayout(
  'RdmaMailbox',
  { messages: 'u32', wakes: 'u32', oldValue: 'u64', reserved: { of: 'u32', count: 12 } },
  64,
);

/** Messages begin at multiples of this in the ring. */
export const RDMA_MESSAGE_ALIGNMENT = 8;

const LENGTH_SHIFT = 15;
const FIELD_MASK = 0x7fff;
const WAKE = 1 << 30;

/** Immediate data of a write that tells the receiver to look at its cells. */
export const RDMA_WAKE = WAKE;

/** Immediate data of a write that brought a message: its place in the inbox, in units of RDMA_MESSAGE_ALIGNMENT, and its bytes. */
export function messageImmediate(offset: number, bytes: number): number {
  return offset / RDMA_MESSAGE_ALIGNMENT + (bytes << LENGTH_SHIFT);
}

export function immediateOffset(immediate: number): number {
  return (immediate & FIELD_MASK) * RDMA_MESSAGE_ALIGNMENT;
}

export function immediateBytes(immediate: number): number {
  return (immediate >>> LENGTH_SHIFT) & FIELD_MASK;
}

/** A message of so many bytes at most stands in the immediate data itself, and takes no room in the inbox. */
export const RDMA_SHORT_BYTES = 3;

const SHORT_LENGTH_SHIFT = 24;
const SHORT_MASK = 0x83ff_ffff;

/** Immediate data of a write that is its own message. */
export function shortImmediate(message: Uint8Array): number {
  const { length } = message;
  const bytes = (message[0] ?? 0) | ((message[1] ?? 0) << 8) | ((message[2] ?? 0) << 16);
  return (2 ** 31 + (length << SHORT_LENGTH_SHIFT) + bytes) >>> 0;
}

export function isShort(immediate: number): boolean {
  return immediate >= 2 ** 31;
}

/** False for immediate data that nobody makes. */
export function canBeShort(immediate: number): boolean {
  return (immediate & SHORT_MASK) >>> 0 === immediate;
}

/** A copy of the message. */
export function shortMessage(immediate: number): Uint8Array {
  const length = (immediate >>> SHORT_LENGTH_SHIFT) & RDMA_SHORT_BYTES;
  const message = new Uint8Array(length);
  for (let at = 0; at < length; at++) message[at] = immediate >>> (8 * at);
  return message;
}

/** Version of all of this, and of the hello of the backend. */
export const RDMA_AGENT_VERSION = 2;
