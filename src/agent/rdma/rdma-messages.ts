// Messages over RDMA: what words say, the sender's memory of a link, and the receiver's. Hot paths: no allocation.
import { alignUp, defineLayout, wordOffsets } from '../../abi/layout.ts';
import { protocolError } from '../../meeting/frames.ts';
import { NativeBlock } from '../../native/library.ts';
import { MAX_NOTIFICATION_BYTES } from '../backend.ts';
import { MessageRing } from '../message-ring.ts';
import type { OwnMemory, RdmaDevice } from './rdma-device.ts';

// What two agents share: how metadata name a region, the mailboxes of a link, and the immediate data of writes.

/**
 * What metadata say of a region; behind it stands the key that the device's library gives to it. `isFlushed` is 1 of memory
 * of a GPU that does not show writes in their order: whoever writes there reads from there before telling anybody.
 */
export const rdmaRegionInfo = defineLayout('RdmaRegionInfo', { address: 'u64', isFlushed: 'u32', reserved: 'u32' });

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
const rdmaMailboxHead = defineLayout(
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
const RDMA_SHORT_BYTES = 3;

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
export const RDMA_AGENT_VERSION = 3;

// The sender's memory, registered as one region: credits from the peer, cells of signals, messages on their way.

const word = wordOffsets(rdmaMailboxHead);
const CELL_BYTES = 8;

export class Mailbox implements Disposable {
  readonly bytes: Uint8Array;
  readonly address: number;
  readonly region: OwnMemory;
  /** The ring of messages, as an offset from the address of the mailbox. */
  readonly ringOffset: number;
  readonly #words: Int32Array;
  readonly #cells: Uint32Array;

  /** `cells`: numbers of 64 bits that may be on their way. Fails with WL_CAPACITY. */
  constructor(device: RdmaDevice, cells: number) {
    this.ringOffset = rdmaMailboxHead.size + cells * CELL_BYTES;
    const size = this.ringOffset + RDMA_RING_BYTES;
    const block = new NativeBlock(size);
    this.bytes = block.bytes;
    this.address = block.address;
    this.#words = new Int32Array(block.bytes.buffer, block.bytes.byteOffset, rdmaMailboxHead.size / 4);
    this.#cells = block.words.subarray(rdmaMailboxHead.size / 4, this.ringOffset / 4);
    this.region = device.register({ address: block.address, bytes: size, isOffered: false });
  }

  /** Messages that the peer has taken, modulo 2^32. ORDER: the device writes it behind nothing; a stale look costs time only. */
  get messagesTaken(): number {
    return Atomics.load(this.#words, word.messages);
  }

  get wakesSeen(): number {
    return Atomics.load(this.#words, word.wakes);
  }

  /** A new connection counts from 0. */
  resetCredits(): void {
    Atomics.store(this.#words, word.messages, 0);
    Atomics.store(this.#words, word.wakes, 0);
  }

  /** The place where the device puts what nobody wants to know: old values, and bytes that were read for their flush. */
  get oldValueAddress(): number {
    return this.address + rdmaMailboxHead.offset.oldValue;
  }

  /** Hot path. Puts a number of 64 bits where a request can take it from; returns its address. */
  setCell(index: number, low: number, high: number): number {
    this.#cells[index * 2] = low;
    this.#cells[index * 2 + 1] = high;
    return this.address + rdmaMailboxHead.size + index * CELL_BYTES;
  }

  [Symbol.dispose](): void {
    this.region.close();
  }
}

// Messages of this side, which lie at the same offsets here and in the peer's inbox.

/** What has become of a message. */
const states = { waiting: 0, posted: 1, dropped: 2 } as const;

export class OutMessages {
  readonly #mailbox: Mailbox;
  readonly #ring: MessageRing;
  // Columns by message number.
  readonly #length = new Uint32Array(RDMA_MESSAGES);
  readonly #immediate = new Uint32Array(RDMA_MESSAGES);
  readonly #state = new Uint8Array(RDMA_MESSAGES);
  /** The message's number on the connection, from 0, once posted. */
  readonly #index = new Uint32Array(RDMA_MESSAGES);
  #posted = 0;
  /** How many the peer has taken, as far as this side has looked. */
  #taken = 0;

  constructor(mailbox: Mailbox, peer: string) {
    this.#mailbox = mailbox;
    this.#ring = new MessageRing({ bytes: RDMA_RING_BYTES, most: RDMA_MESSAGES, peer });
  }

  /** Copies a message. Returns its number. Fails with WL_BUSY, leaving everything as it was. */
  reserve(message: Uint8Array): number {
    this.#reclaim();
    const { length } = message;
    const place = length <= RDMA_SHORT_BYTES ? 0 : alignUp(length, RDMA_MESSAGE_ALIGNMENT);
    const number = this.#ring.take(length, place);
    const offset = this.#ring.offsetOf(number);
    const slot = number % RDMA_MESSAGES;
    this.#length[slot] = length;
    this.#state[slot] = states.waiting;
    this.#immediate[slot] = place === 0 ? shortImmediate(message) : messageImmediate(offset, length);
    if (place > 0) this.#mailbox.bytes.set(message, this.#mailbox.ringOffset + offset);
    return number;
  }

  offsetOf(number: number): number {
    return this.#ring.offsetOf(number);
  }

  lengthOf(number: number): number {
    return this.#length[number % RDMA_MESSAGES]!;
  }

  immediateOf(number: number): number {
    return this.#immediate[number % RDMA_MESSAGES]!;
  }

  /** True if immediate data hold all of the message: any write to the peer can carry them. */
  isShort(number: number): boolean {
    return this.lengthOf(number) <= RDMA_SHORT_BYTES;
  }

  /** Notes that the message's request was posted. */
  posted(number: number): void {
    this.#state[number % RDMA_MESSAGES] = states.posted;
    this.#index[number % RDMA_MESSAGES] = this.#posted++;
  }

  /** It is among the first `count` messages of the connection. */
  hasArrived(number: number, count: number): boolean {
    return this.#state[number % RDMA_MESSAGES] === states.posted && this.#index[number % RDMA_MESSAGES]! < count;
  }

  /** It will not be sent: what should have come before it failed. */
  drop(number: number): void {
    this.#state[number % RDMA_MESSAGES] = states.dropped;
    this.#ring.free(number);
  }

  /**
   * A new connection has an empty inbox: `first` is the oldest message that is still to be sent, undefined if all were.
   * Those before it lie in the inbox of the old connection, where the peer finds them.
   */
  restart(first = this.#ring.next): void {
    const { next } = this.#ring;
    for (let number = this.#ring.first; number < first; number++) this.drop(number);
    for (let number = first; number < next; number++) {
      const slot = number % RDMA_MESSAGES;
      if (this.#state[slot] === states.posted) this.#state[slot] = states.waiting;
    }
    this.#mailbox.resetCredits();
    this.#posted = 0;
    this.#taken = 0;
  }

  /** Gives back the places of messages that the peer has taken; those that are not posted come behind all that are. */
  #reclaim(): void {
    const ring = this.#ring;
    const taken = this.#mailbox.messagesTaken;
    while (ring.first < ring.next && ((taken - this.#taken) | 0) > 0) {
      if (this.#state[ring.first % RDMA_MESSAGES] !== states.posted) return;
      this.#taken = (this.#taken + 1) | 0;
      ring.free(ring.first);
    }
  }
}

// Messages of the peer, and the credits that it is told.

/** Credits go in one request when this part of them waits: the sender always has more left than it needs for a message. */
const MESSAGES_TOLD = RDMA_MESSAGES / 8;
const BYTES_TOLD = RDMA_RING_BYTES / 4;
const CREDIT_BYTES = 8;
/** Behind ring and credits, a byte that the sender writes to and nobody reads. */
export const RDMA_UNREAD_OFFSET: number = RDMA_RING_BYTES + CREDIT_BYTES;
const INBOX_BYTES = RDMA_UNREAD_OFFSET + 8;

export class Inbox implements Disposable {
  readonly address: number;
  readonly region: OwnMemory;
  readonly creditAddress: number;
  readonly #bytes: Uint8Array;
  readonly #credits: Uint32Array;
  /** Immediates of messages that wait for the agent. */
  readonly #waiting = new Uint32Array(RDMA_MESSAGES);
  #first = 0;
  #next = 0;
  #wakes = 0;
  #untoldMessages = 0;
  #untoldBytes = 0;
  #untoldWakes = 0;

  /** Fails with WL_CAPACITY. */
  constructor(device: RdmaDevice) {
    const block = new NativeBlock(INBOX_BYTES);
    this.address = block.address;
    this.creditAddress = block.address + RDMA_RING_BYTES;
    this.#bytes = block.bytes;
    this.#credits = block.words.subarray(RDMA_RING_BYTES / 4);
    this.region = device.register({
      address: block.address,
      bytes: INBOX_BYTES,
      isOffered: false,
    });
  }

  /** Hot path. A message has come. Fails with WL_PROTOCOL if it cannot be one. */
  arrived(immediate: number): void {
    if (!canBe(immediate) || this.#next - this.#first === RDMA_MESSAGES) {
      throw protocolError(`immediate data ${immediate.toString(16)} of a message that cannot be`);
    }
    this.#waiting[this.#next++ % RDMA_MESSAGES] = immediate;
  }

  woken(): void {
    this.#wakes = (this.#wakes + 1) >>> 0;
    this.#untoldWakes++;
  }

  /** Messages that have come. */
  get arrivedCount(): number {
    return this.#next;
  }

  get isEmpty(): boolean {
    return this.#first === this.#next;
  }

  /** A copy of the oldest message, which is taken. */
  take(): Uint8Array {
    const immediate = this.#waiting[this.#first % RDMA_MESSAGES]!;
    this.#first++;
    this.#untoldMessages++;
    if (isShort(immediate)) return shortMessage(immediate);
    const bytes = immediateBytes(immediate);
    const offset = immediateOffset(immediate);
    this.#untoldBytes += bytes;
    return this.#bytes.slice(offset, offset + bytes);
  }

  /** The sender should be told. */
  get owesCredits(): boolean {
    return (
      this.#untoldMessages >= MESSAGES_TOLD || this.#untoldWakes >= MESSAGES_TOLD || this.#untoldBytes >= BYTES_TOLD
    );
  }

  /** What the sender is told next lies at `creditAddress` in memory. */
  writeCredits(): void {
    this.#credits[0] = this.#first >>> 0;
    this.#credits[1] = this.#wakes;
    this.#untoldMessages = 0;
    this.#untoldBytes = 0;
    this.#untoldWakes = 0;
  }

  [Symbol.dispose](): void {
    this.region.close();
  }
}

function canBe(immediate: number): boolean {
  if (isShort(immediate)) return canBeShort(immediate);
  const bytes = immediateBytes(immediate);
  return bytes <= MAX_NOTIFICATION_BYTES && immediateOffset(immediate) + bytes <= RDMA_RING_BYTES;
}
