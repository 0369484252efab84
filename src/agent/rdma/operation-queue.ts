// The operations of a link in the order of their posts, as requests of its queue pair. What a broken connection has not
// carried out is posted again on the next one. Hot path: no allocation.
import { WeftlineError } from '../../core/errors.ts';
import type { OutMessages } from './rdma-messages.ts';
import type { SendQueue } from './rdma-device.ts';
import { areWithdrawn, type RdmaRemoteRegion, withdrawnError } from './rdma-region.ts';
import {
  type InboxAddress,
  NO_MESSAGE,
  operationKinds as kinds,
  type OperationOwner,
  QueuedOperation,
  type RequestParts,
  RequestWriter,
  type RequestWriterOptions,
} from './request-writer.ts';

/** Operations of a link that are under way. A power of two. */
export const OPERATIONS = 1024;
/** Requests under way. A power of two. */
export const SEND_REQUESTS = 1024;
/** Puts and signals that wait for each other, to go with one call. */
const BATCH = 16;

/** What is known of operations whose connection broke. */
interface StartedFacts {
  /** Messages of that connection that the peer has; undefined if it does not know: then nothing goes again. */
  readonly arrived: number | undefined;
  /** Keys of memory that the peer has taken back. */
  readonly withdrawn: ReadonlySet<number>;
  /** The error of what cannot go again. */
  readonly error: WeftlineError;
  /** The connection carried nothing: the oldest operation does not go again. */
  readonly isRepeated: boolean;
}

interface OperationQueueOptions extends RequestWriterOptions {
  readonly peer: string;
}

export class OperationQueue {
  readonly #messages: OutMessages;
  readonly #peer: string;
  readonly #operations = Array.from({ length: OPERATIONS }, (_, index) => new QueuedOperation(index));
  readonly #writer: RequestWriter;
  #ring: SendQueue | undefined;
  /** Sequence of the last request that is done. */
  #done = 0;
  /** Numbers of operations: the oldest, the first that is not started as a whole, the next. */
  #oldest = 0;
  #unstarted = 0;
  #next = 0;

  constructor(options: OperationQueueOptions) {
    this.#messages = options.messages;
    this.#peer = options.peer;
    this.#writer = new RequestWriter(options);
  }

  get isFull(): boolean {
    return this.#next - this.#oldest === OPERATIONS;
  }

  /** Fails with WL_BUSY if it is full. */
  requireRoom(): void {
    if (this.isFull) throw new WeftlineError('WL_BUSY', 'Too many operations are under way: wait for earlier ones');
  }

  /** The ranges of `parts`, then the message of that number, or -1. The caller has looked at `isFull`. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per post
  enterTransfer(owner: OperationOwner, parts: RequestParts, isRead: boolean, message: number): void {
    const operation = this.enter(owner, isRead ? kinds.read : kinds.write);
    operation.parts = parts;
    operation.message = message;
  }

  /** A put or signal, whose places the caller fills in before it hands it over. The caller has looked at `isFull`. */
  enter(owner: OperationOwner, kind: number): QueuedOperation {
    const operation = this.#at(this.#next++);
    operation.kind = kind;
    operation.owner = owner;
    operation.parts = undefined;
    operation.message = NO_MESSAGE;
    operation.isOver = false;
    return operation;
  }

  /** Starts what there is room for, and hands it over once it is worth a call. True if the first of a batch waits. */
  advance(): boolean {
    const ring = this.#ring;
    const before = ring?.unposted ?? 0;
    this.#start();
    if (ring === undefined) return false;
    if (ring.unposted >= BATCH) this.flush();
    return before === 0 && ring.unposted > 0;
  }

  /** Starts what there is room for, and hands all of it over by one call. Fails if the device refuses it. */
  flush(): void {
    this.#start();
    const ring = this.#ring;
    if (ring === undefined) return;
    const writer = this.#writer;
    if (writer.owesWake && writer.canWake && ring.room > 0) writer.startWake(ring);
    if (ring.unposted === 0) return;
    ring.signal();
    ring.post();
  }

  /** All requests up to this one are done. */
  done(sequence: number): void {
    this.#ring?.doneUntil(sequence);
    this.#done = sequence;
    this.#retire();
  }

  /** A request was refused: the peer has carried out all before it and nothing behind it. Nothing is started until the next. */
  halt(sequence: number): void {
    this.#done = (sequence - 1) >>> 0;
    this.#retire();
    this.#ring = undefined;
  }

  /** After `halt`: the operation of the refused request ends with the error. Returns the region that it was about. */
  refuse(tag: number, error: WeftlineError): RdmaRemoteRegion | undefined {
    if (this.#oldest === this.#next) return undefined;
    const operation = this.#at(this.#oldest);
    this.#end(operation, error);
    if (operation.parts === undefined) return operation.region;
    const { table, remotes } = operation.parts;
    return tag < table.count ? remotes[table.remote[tag]!] : undefined;
  }

  /** A connection is there: what an earlier one has not carried out goes first. */
  resume(ring: SendQueue, inbox: InboxAddress): void {
    this.#ring = ring;
    this.#writer.restart(inbox);
    this.#done = (ring.nextSequence - 1) >>> 0;
    this.#unstarted = this.#oldest;
    let first: number | undefined;
    for (let number = this.#oldest; number < this.#next && first === undefined; number++) {
      const { isOver, message } = this.#at(number);
      if (!isOver && message !== NO_MESSAGE) first = message;
    }
    this.#messages.restart(first);
    this.flush();
  }

  /** The connection is over: nothing is started until the next. */
  stop(): void {
    this.#ring = undefined;
    if (this.#writer.isPartial) this.#unstarted++;
    this.#writer.next();
  }

  /** Keys of the peer's memory that started operations name. */
  startedKeys(): Set<number> {
    const keys = new Set<number>();
    for (let number = this.#oldest; number < this.#unstarted; number++) {
      for (const { key } of this.#at(number).remotes) keys.add(key);
    }
    return keys;
  }

  /**
   * After `stop`, of a device that does not tell what the peer has carried out. It has everything up to the last message that
   * arrived there. Transfers behind it go again, which changes nothing that the peer was told of; puts and signals might, so
   * their channels end. What names withdrawn memory was refused.
   */
  settleStarted({ arrived, withdrawn, error, isRepeated }: StartedFacts): void {
    let known = this.#oldest;
    for (let number = this.#oldest; number < this.#unstarted; number++) {
      const { message } = this.#at(number);
      if (message !== NO_MESSAGE && this.#messages.hasArrived(message, arrived ?? 0)) known = number + 1;
    }
    let mustEnd = isRepeated;
    for (let number = this.#oldest; number < this.#unstarted; number++) {
      const operation = this.#at(number);
      if (operation.isOver) continue;
      const refused = number < known ? [] : operation.remotes.filter(({ key }) => withdrawn.has(key));
      for (const remote of refused) remote.isWithdrawn = true;
      if (number < known) this.#end(operation, undefined);
      else if (refused.length > 0) this.#end(operation, withdrawnError(this.#peer));
      else if (mustEnd || arrived === undefined || operation.parts === undefined) this.#end(operation, error);
      else continue;
      mustEnd = false;
    }
  }

  /** The link is over, and no device touches memory for it any more. */
  abandon(error: WeftlineError): void {
    this.#ring = undefined;
    while (this.#oldest < this.#next) this.#end(this.#at(this.#oldest++), error);
    this.#unstarted = this.#next;
  }

  /** The peer had not seen earlier wakes, and is to get one more. */
  get owesWake(): boolean {
    return this.#writer.owesWake;
  }

  /** There is a connection, and nothing is under way on it. */
  get isIdle(): boolean {
    const ring = this.#ring;
    return ring !== undefined && this.isEmpty && ((ring.nextSequence - this.#done - 1) | 0) === 0;
  }

  /** The next flush() has the peer look, for which it needs nothing else to do. */
  wake(): void {
    this.#writer.owesWake = true;
  }

  /** Something is not with the device yet: it waits for company, for room or for a connection. */
  get holdsBack(): boolean {
    return this.#unstarted !== this.#next || (this.#ring?.unposted ?? 0) > 0;
  }

  /**
   * The owner's transfer ends with the error if nothing of it was started. If something was, nothing more will be, and the
   * transfer ends when the device is through. False if its message is on its way, which cannot be held back: it ends by itself, and soon.
   */
  cancel(owner: OperationOwner, error: WeftlineError): boolean {
    for (let number = this.#oldest; number < this.#next; number++) {
      const operation = this.#at(number);
      if (operation.owner !== owner || operation.isOver) continue;
      const isStarted = number < this.#unstarted + (this.#writer.isPartial ? 1 : 0);
      if (!isStarted) this.#end(operation, error);
      return !isStarted || operation.message === NO_MESSAGE || number >= this.#unstarted;
    }
    return false;
  }

  get isEmpty(): boolean {
    return this.#oldest === this.#next;
  }

  #at(number: number): QueuedOperation {
    return this.#operations[number % OPERATIONS]!;
  }

  #end(operation: QueuedOperation, error: WeftlineError | undefined): void {
    if (operation.isOver) return;
    operation.isOver = true;
    if (error !== undefined && operation.message !== NO_MESSAGE) this.#messages.drop(operation.message);
    operation.owner.ended(error);
  }

  #retire(): void {
    while (this.#oldest < this.#unstarted) {
      const operation = this.#at(this.#oldest);
      if (!operation.isOver) {
        if (((this.#done - operation.last) | 0) < 0) return;
        this.#end(operation, undefined);
      }
      this.#oldest++;
    }
  }

  #start(): void {
    const ring = this.#ring;
    if (ring === undefined) return;
    let hasSkipped = false;
    while (this.#unstarted < this.#next) {
      const operation = this.#at(this.#unstarted);
      if (operation.isOver || !this.#isWanted(operation)) hasSkipped = true;
      else if (!this.#writer.start(ring, operation)) break;
      operation.last = (ring.nextSequence - 1) >>> 0;
      this.#unstarted++;
      this.#writer.next();
    }
    if (hasSkipped) this.#retire();
  }

  /** Ends it if its owner gave it up, or the peer has taken the memory back. What was started of it goes on. */
  #isWanted(operation: QueuedOperation): boolean {
    const isCancelled = !operation.owner.wants;
    if (!isCancelled && !this.#isWithdrawn(operation)) return true;
    if (operation.message !== NO_MESSAGE) this.#messages.drop(operation.message);
    operation.message = NO_MESSAGE;
    // ORDER: requests of it that were started still read or write its memory; it ends when they are done.
    if (isCancelled && this.#writer.isPartial) return false;
    this.#end(operation, isCancelled ? undefined : withdrawnError(this.#peer));
    return false;
  }

  #isWithdrawn({ parts, region }: QueuedOperation): boolean {
    if (parts === undefined) return region!.isWithdrawn;
    // Once something was started, the device finds out.
    return !this.#writer.isPartial && areWithdrawn(parts.remotes);
  }
}
