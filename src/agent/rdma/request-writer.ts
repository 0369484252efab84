// What waits in the queue of a link, and how it becomes requests of its connection. Hot path: no allocation.
import type { WeftlineError } from '../../core/errors.ts';
import { sendFlag, sendOpcode } from '../../native/verbs/c-structs.ts';
import type { PartTable } from '../../transport/part-table.ts';
import type { SendQueue } from './rdma-device.ts';
import { type Mailbox, type OutMessages, RDMA_WAKE, RDMA_WAKES } from './rdma-messages.ts';
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
  /** How far the operation is that is started now: rows of parts, ranges of the next row, and bytes of the next range. */
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
    const opcode = isRead ? sendOpcode.read : sendOpcode.write;
    // A short message goes with the last of the data, as one request.
    const isCarried = message !== NO_MESSAGE && !isRead && this.#messages.isShort(message);
    const { table } = parts;
    const { count } = table;
    while (this.row < count) {
      const { row, offset } = this;
      const left = table.bytes[row]! - offset;
      const chunk = Math.min(left, this.#chunkBytes);
      const isEnd = row === count - 1 && this.range + 1 === table.ranges[row] && chunk === left;
      const carries = isEnd && isCarried;
      const isLast = isEnd && (carries || message === NO_MESSAGE);
      const flags = isLast || ring.nextSequence % SIGNAL_EVERY === 0 ? sendFlag.signaled : 0;
      if (!ring.start(carries ? sendOpcode.writeWithImmediate : opcode, flags, row)) return false;
      this.#place(ring, parts, chunk);
      if (carries) {
        ring.immediate(this.#messages.immediateOf(message));
        this.#messages.posted(message);
      }
      this.#pass(table, chunk);
    }
    return message === NO_MESSAGE || (isCarried && count > 0) || this.#startMessage(ring, message, isRead);
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
    return true;
  }

  /** A number of 64 bits that is added or stored, and a wake of the peer, which may sleep until it comes. */
  #startSignal(ring: SendQueue, { index, kind, remoteAddress, region, low, high }: QueuedOperation): boolean {
    if (ring.room < 2) return false;
    const { canWake } = this;
    const { key } = region!;
    const { region: own, oldValueAddress } = this.#mailbox;
    if (kind === operationKinds.add) {
      ring.start(sendOpcode.fetchAdd, 0, NO_PART);
      ring.order();
      ring.add(oldValueAddress, 8, own.localKey);
      ring.addend(remoteAddress, key, low, high);
      if (canWake) this.startWake(ring);
    } else {
      ring.start(canWake ? sendOpcode.writeWithImmediate : sendOpcode.write, 0, NO_PART);
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
