// What waits in the queue of a link, and how it becomes requests of its connection. Hot path: no allocation.
import type { WeftlineError } from '../../core/errors.ts';
import { sendFlag, sendOpcode } from '../../native/verbs/c-structs.ts';
import type { PartTable } from '../../transport/part-table.ts';
import type { SendQueue } from './rdma-device.ts';
import { type Mailbox, type OutMessages, RDMA_UNREAD_OFFSET, RDMA_WAKE, RDMA_WAKES } from './rdma-messages.ts';
import type { RdmaRegion, RdmaRemoteRegion } from './rdma-region.ts';

export const operationKinds = { write: 0, read: 1, put: 2, add: 3, store: 4 } as const;

/** The one that has posted an operation. */
export interface OperationOwner {
  /** Hot path. False if what it has posted is not to be started any more. */
  readonly wants: boolean;
  /** Hot path. The device does not touch its memory any more; with an error, it was not carried out, or not all of it. */
  ended(error: WeftlineError | undefined): void;
}

/** Nobody asks for the end of a message of notify(), which ends as its connection does. */
export const nobody: OperationOwner = { wants: true, ended: () => {} };

/** Ranges of a transfer, and the regions of both sides that they lie in. */
export interface RequestParts {
  readonly table: PartTable;
  readonly locals: readonly RdmaRegion[];
  readonly remotes: readonly RdmaRemoteRegion[];
  /** Memory that the transfer writes to and that shows it late: the peer's for a write, this side's for a read. */
  readonly flushed: readonly FlushedMemory[];
}

/** Memory of a GPU that does not show what a device writes in its order, as requests name it. */
interface FlushedMemory {
  readonly address: number;
  /** The key of memory of this side. */
  readonly localKey?: number;
  /** The key of memory of the peer. */
  readonly key?: number;
}

export const NO_MESSAGE = -1;

/** An operation of a link, from when it is entered until it is over; then its object is another's. */
export class QueuedOperation {
  /** The place among the operations of the link. */
  readonly index: number;
  /** One of operationKinds. */
  kind = 0;
  owner: OperationOwner = nobody;
  /** Parts of transfers. */
  parts: RequestParts | undefined;
  /** Region of puts and signals, and what they move: bytes of this side, or both halves of a number. */
  region: RdmaRemoteRegion | undefined;
  remoteAddress = 0;
  localAddress = 0;
  localKey = 0;
  bytes = 0;
  low = 0;
  high = 0;
  message = NO_MESSAGE;
  /** Sequence of its last request. */
  last = 0;
  /** Its owner has heard of its end. */
  isOver = true;

  constructor(index: number) {
    this.index = index;
  }

  get remotes(): readonly RdmaRemoteRegion[] {
    return this.parts?.remotes ?? [this.region!];
  }
}

/** One in so many requests of a long operation is signalled, so that its ring goes round. */
const SIGNAL_EVERY = 128;
/** Tag of requests that belong to no row of parts. */
const NO_PART = 0xffff_ffff;

/** The peer's inbox. */
export interface InboxAddress {
  readonly address: number;
  readonly key: number;
}

export interface RequestWriterOptions {
  readonly mailbox: Mailbox;
  readonly messages: OutMessages;
  readonly chunkBytes: number;
}

export class RequestWriter {
  /**
   * How far the operation is that is started now: rows of parts, ranges of the next row, and bytes of the next range. Behind
   * the rows, memory that is flushed counts on.
   */
  row = 0;
  range = 0;
  offset = 0;
  /** The peer had not seen earlier wakes, and is to get one more. */
  owesWake = false;
  readonly #mailbox: Mailbox;
  readonly #messages: OutMessages;
  readonly #chunkBytes: number;
  #inbox: InboxAddress = { address: 0, key: 0 };
  #wakesSent = 0;
  /** A flush was started, and no request behind it waits for it. */
  #isFlushing = false;

  constructor({ mailbox, messages, chunkBytes }: RequestWriterOptions) {
    this.#mailbox = mailbox;
    this.#messages = messages;
    this.#chunkBytes = chunkBytes;
  }

  /** A new connection. */
  restart(inbox: InboxAddress): void {
    this.#inbox = inbox;
    this.next();
    this.#wakesSent = 0;
    this.#isFlushing = false;
    // Cells that the old connection has changed may not have been told of; and it shows at once whether there is a way.
    this.owesWake = true;
  }

  /** The operation is started as a whole, or is not to be. */
  next(): void {
    this.row = 0;
    this.range = 0;
    this.offset = 0;
  }

  /** Requests of the operation were started, and not all. */
  get isPartial(): boolean {
    return this.row > 0 || this.range > 0 || this.offset > 0;
  }

  /** Starts the first operation that is not started as a whole. False if there is no room for all of it; the rest follows. */
  start(ring: SendQueue, operation: QueuedOperation): boolean {
    const { kind, parts, message } = operation;
    if (parts !== undefined) return this.#startTransfer(ring, parts, kind === operationKinds.read, message);
    return kind === operationKinds.put ? this.#startPut(ring, operation) : this.#startSignal(ring, operation);
  }

  #startTransfer(ring: SendQueue, parts: RequestParts, isRead: boolean, message: number): boolean {
    const { table, flushed } = parts;
    const hasFlush = flushed.length > 0;
    const hasMessage = message !== NO_MESSAGE;
    // A short message goes with the last of the data, as one request, unless a flush comes between them.
    const isCarried = hasMessage && !isRead && !hasFlush && table.count > 0 && this.#messages.isShort(message);
    const isEnd = !hasFlush && hasMessage === isCarried;
    if (!this.#startRows(ring, parts, isRead, isEnd, isCarried ? message : NO_MESSAGE)) return false;
    if (hasFlush && !this.#startFlushes(ring, parts, isRead, !hasMessage)) return false;
    return hasMessage === isCarried || this.#startMessage(ring, message, isRead || hasFlush);
  }

  /** `isEnd`: nothing follows. `message`: the one that goes with the last of the data. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per post
  #startRows(ring: SendQueue, parts: RequestParts, isRead: boolean, isEnd: boolean, message: number): boolean {
    const opcode = isRead ? sendOpcode.read : sendOpcode.write;
    const { table } = parts;
    const { count } = table;
    while (this.row < count) {
      const { row, offset } = this;
      const left = table.bytes[row]! - offset;
      const chunk = Math.min(left, this.#chunkBytes);
      const isLast = row === count - 1 && this.range + 1 === table.ranges[row] && chunk === left;
      const carries = isLast && message !== NO_MESSAGE;
      const flags = (isLast && isEnd) || ring.nextSequence % SIGNAL_EVERY === 0 ? sendFlag.signaled : 0;
      if (!ring.start(carries ? sendOpcode.writeWithImmediate : opcode, flags, row)) return false;
      this.#place(ring, parts, chunk);
      if (carries) {
        ring.immediate(this.#messages.immediateOf(message));
        this.#messages.posted(message);
      }
      this.#pass(table, chunk);
    }
    return true;
  }

  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per post
  #startFlushes(
    ring: SendQueue,
    { table: { count }, flushed }: RequestParts,
    isRead: boolean,
    isEnd: boolean,
  ): boolean {
    const end = count + flushed.length;
    for (; this.row < end; this.row++) {
      const memory = flushed[this.row - count]!;
      const flags = isEnd && this.row + 1 === end ? sendFlag.signaled : 0;
      if (!(isRead ? this.#flushOwn(ring, memory, flags) : this.#flushRemote(ring, memory, flags))) return false;
    }
    return true;
  }

  /**
   * The peer's device reads a byte where this side has written. ORDER: on the PCI bus a read pushes the writes before it to
   * where they go, so they are shown once its answer is here.
   */
  #flushRemote(ring: SendQueue, { address, key }: FlushedMemory, flags: number): boolean {
    if (!ring.start(sendOpcode.read, flags, NO_PART)) return false;
    const { oldValueAddress, region } = this.#mailbox;
    ring.add(oldValueAddress, 1, region.localKey);
    ring.target(address, key!);
    this.#isFlushing = true;
    return true;
  }

  /**
   * This side's device reads a byte where it has put what the peer answered, in order to send it to where nobody looks.
   * ORDER: the fence makes it wait until the answers are written; as above, they are shown when the byte is read.
   */
  #flushOwn(ring: SendQueue, { address, localKey }: FlushedMemory, flags: number): boolean {
    if (!ring.start(sendOpcode.write, flags | sendFlag.fence, NO_PART)) return false;
    ring.add(address, 1, localKey!);
    ring.target(this.#inbox.address + RDMA_UNREAD_OFFSET, this.#inbox.key);
    return true;
  }

  /** Where the next bytes come from, and where they go. */
  #place(ring: SendQueue, { table, locals, remotes }: RequestParts, bytes: number): void {
    const { row, range, offset } = this;
    const local = locals[table.local[row]!]!;
    const remote = remotes[table.remote[row]!]!;
    const localOffset = table.localOffset[row]! + range * table.localStride[row]! + offset;
    const remoteOffset = table.remoteOffset[row]! + range * table.remoteStride[row]! + offset;
    ring.add(local.address + localOffset, bytes, local.localKey);
    ring.target(remote.address + remoteOffset, remote.key);
  }

  #pass({ bytes, ranges }: PartTable, started: number): void {
    this.offset += started;
    if (this.offset < bytes[this.row]!) return;
    this.offset = 0;
    this.range++;
    if (this.range < ranges[this.row]!) return;
    this.range = 0;
    this.row++;
  }

  /** The message goes behind the data: requests of a connection are carried out in order, and the fence makes it wait for reads. */
  #startMessage(ring: SendQueue, message: number, isFenced: boolean): boolean {
    const flags = sendFlag.signaled | (isFenced ? sendFlag.fence : 0);
    if (!ring.start(sendOpcode.writeWithImmediate, flags, NO_PART)) return false;
    ring.order();
    const offset = this.#messages.offsetOf(message);
    const { address, ringOffset, region } = this.#mailbox;
    if (!this.#messages.isShort(message)) {
      ring.add(address + ringOffset + offset, this.#messages.lengthOf(message), region.localKey);
    }
    ring.target(this.#inbox.address + offset, this.#inbox.key);
    ring.immediate(this.#messages.immediateOf(message));
    this.#messages.posted(message);
    return true;
  }

  #startPut(ring: SendQueue, { bytes, localAddress, localKey, remoteAddress, region }: QueuedOperation): boolean {
    while (this.offset < bytes) {
      const chunk = Math.min(bytes - this.offset, this.#chunkBytes);
      if (!ring.start(sendOpcode.write, ring.nextSequence % SIGNAL_EVERY === 0 ? sendFlag.signaled : 0, NO_PART))
        return false;
      ring.add(localAddress + this.offset, chunk, localKey);
      ring.target(remoteAddress + this.offset, region!.key);
      this.offset += chunk;
    }
    return !region!.isFlushed || this.#flushRemote(ring, region!, 0);
  }

  /** A number of 64 bits that is added or stored, and a wake of the peer, which may sleep until it comes. */
  #startSignal(ring: SendQueue, { index, kind, remoteAddress, region, low, high }: QueuedOperation): boolean {
    if (ring.room < 2) return false;
    const { canWake } = this;
    // ORDER: what was put before is shown when the flush behind it has been answered.
    const flags = this.#isFlushing ? sendFlag.fence : 0;
    this.#isFlushing = false;
    const { key } = region!;
    const { region: own, oldValueAddress } = this.#mailbox;
    if (kind === operationKinds.add) {
      ring.start(sendOpcode.fetchAdd, flags, NO_PART);
      ring.order();
      ring.add(oldValueAddress, 8, own.localKey);
      ring.addend(remoteAddress, key, low, high);
      if (canWake) this.startWake(ring);
    } else {
      ring.start(canWake ? sendOpcode.writeWithImmediate : sendOpcode.write, flags, NO_PART);
      ring.order();
      ring.add(this.#mailbox.setCell(index, low, high), 8, own.localKey);
      ring.target(remoteAddress, key);
      if (canWake) {
        ring.immediate(RDMA_WAKE);
        this.#wakesSent = (this.#wakesSent + 1) | 0;
      }
    }
    // The peer has many that it has not seen; once it has, it gets one more.
    if (!canWake) this.owesWake = true;
    return true;
  }

  get canWake(): boolean {
    return ((this.#wakesSent - this.#mailbox.wakesSeen) | 0) < RDMA_WAKES;
  }

  /** The peer's look at its cells. There is room, and `canWake`. */
  startWake(ring: SendQueue): void {
    ring.start(sendOpcode.writeWithImmediate, 0, NO_PART);
    ring.target(this.#inbox.address, this.#inbox.key);
    ring.immediate(RDMA_WAKE);
    this.#wakesSent = (this.#wakesSent + 1) | 0;
    this.owesWake = false;
  }
}
