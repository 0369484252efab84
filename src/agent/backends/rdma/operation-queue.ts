// The operations of a link in the order of their posts, as requests of its queue pair. What a broken connection has not
// carried out is posted again on the next one. Hot path: no allocation.
import { RDMA_WAKE, RDMA_WAKES } from '../../../abi/rdma-agent.ts';
import { sendFlag, sendOpcode } from '../../../abi/verbs-words.ts';
import type { WeftlineError } from '../../../core/errors.ts';
import type { Mailbox } from './mailbox.ts';
import { operationKinds as kinds, type OperationOwner, type RequestParts, type RequestPlace } from './operation.ts';
import type { OutMessages } from './out-messages.ts';
import type { SendQueue } from './rdma-device.ts';
import { areWithdrawn, type RdmaRemoteRegion, withdrawnError } from './rdma-region.ts';

/** Operations of a link that are under way. A power of two. */
export const OPERATIONS = 1024;
/** Requests under way. A power of two. */
export const SEND_REQUESTS = 1024;
/** Of a long operation each so many-th request is signalled, so that its ring goes round. */
const SIGNAL_EVERY = 128;
/** Puts and signals that wait for each other, to go with one call. */
const BATCH = 16;
const NO_MESSAGE = -1;
/** Tag of requests that belong to no part. */
const NO_PART = 0xffff_ffff;

/** The peer's inbox. */
export interface InboxAddress {
  readonly address: number;
  readonly key: number;
}

export interface OperationQueueOptions {
  readonly mailbox: Mailbox;
  readonly messages: OutMessages;
  readonly chunkBytes: number;
  readonly peer: string;
}

export class OperationQueue {
  readonly #mailbox: Mailbox;
  readonly #messages: OutMessages;
  readonly #chunkBytes: number;
  readonly #peer: string;
  #ring: SendQueue | undefined;
  #inbox: InboxAddress = { address: 0, key: 0 };
  /** Sequence of the last request that is done. */
  #done = 0;
  #wakesSent = 0;
  #owesWake = false;
  /** Numbers of operations: the oldest, the first that is not started as a whole, the next. */
  #oldest = 0;
  #unstarted = 0;
  #next = 0;
  /** How far the first that is not started as a whole is. */
  #part = 0;
  #offset = 0;
  // By operation, modulo OPERATIONS.
  readonly #kind = new Uint8Array(OPERATIONS);
  readonly #owner: (OperationOwner | undefined)[] = Array.from({ length: OPERATIONS }, () => undefined);
  readonly #post = new Float64Array(OPERATIONS);
  readonly #parts: (RequestParts | undefined)[] = Array.from({ length: OPERATIONS }, () => undefined);
  readonly #region: (RdmaRemoteRegion | undefined)[] = Array.from({ length: OPERATIONS }, () => undefined);
  readonly #remoteAddress = new Float64Array(OPERATIONS);
  readonly #localAddress = new Float64Array(OPERATIONS);
  readonly #localKey = new Uint32Array(OPERATIONS);
  readonly #bytes = new Float64Array(OPERATIONS);
  readonly #low = new Uint32Array(OPERATIONS);
  readonly #high = new Uint32Array(OPERATIONS);
  readonly #message = new Float64Array(OPERATIONS);
  /** Sequence of its last request. */
  readonly #last = new Uint32Array(OPERATIONS);
  /** 1: its owner has heard of its end. */
  readonly #isOver = new Uint8Array(OPERATIONS);

  constructor({ mailbox, messages, chunkBytes, peer }: OperationQueueOptions) {
    this.#mailbox = mailbox;
    this.#messages = messages;
    this.#chunkBytes = chunkBytes;
    this.#peer = peer;
  }

  get isFull(): boolean {
    return this.#next - this.#oldest === OPERATIONS;
  }

  /** The ranges of `parts`, then the message of that number, or -1. The caller has looked at `isFull`. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per post
  enterTransfer(owner: OperationOwner, post: number, parts: RequestParts, isRead: boolean, message: number): void {
    const at = this.#enter(owner, post, isRead ? kinds.read : kinds.write);
    this.#parts[at] = parts;
    this.#message[at] = message;
  }

  /** A put or signal. The caller has looked at `isFull`. */
  enterPlace(owner: OperationOwner, post: number, kind: number, place: Readonly<RequestPlace>): void {
    const at = this.#enter(owner, post, kind);
    this.#parts[at] = undefined;
    this.#message[at] = NO_MESSAGE;
    this.#region[at] = place.remote;
    this.#remoteAddress[at] = place.remote!.address + place.remoteOffset;
    this.#localAddress[at] = place.localAddress;
    this.#localKey[at] = place.localKey;
    this.#bytes[at] = place.bytes;
    this.#low[at] = place.low;
    this.#high[at] = place.high;
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
    if (this.#owesWake && this.#canWake && ring.room > 0) this.#startWake(ring);
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

  /**
   * The first request that has failed; the peer has carried out all before it and nothing behind it. Its operation ends with
   * the error. Returns the region that it was about.
   */
  fail(sequence: number, tag: number, error: WeftlineError): RdmaRemoteRegion | undefined {
    this.#done = (sequence - 1) >>> 0;
    this.#retire();
    this.#ring = undefined;
    if (this.#oldest === this.#next) return undefined;
    const at = this.#oldest % OPERATIONS;
    this.#end(at, error);
    const parts = this.#parts[at];
    if (parts === undefined) return this.#region[at];
    return tag < parts.count ? parts.remotes[parts.remote[tag]!] : undefined;
  }

  /** A connection is there: what an earlier one has not carried out goes first. */
  resume(ring: SendQueue, inbox: InboxAddress): void {
    this.#ring = ring;
    this.#inbox = inbox;
    this.#done = (ring.nextSequence - 1) >>> 0;
    this.#unstarted = this.#oldest;
    this.#part = 0;
    this.#offset = 0;
    this.#wakesSent = 0;
    // Cells that the old connection has changed may not have been told of; and it shows at once whether there is a way.
    this.#owesWake = true;
    let first: number | undefined;
    for (let number = this.#oldest; number < this.#next && first === undefined; number++) {
      const at = number % OPERATIONS;
      if (this.#isOver[at] === 0 && this.#message[at] !== NO_MESSAGE) first = this.#message[at];
    }
    this.#messages.restart(first);
    this.flush();
  }

  /** The connection is over: nothing is started until the next. */
  stop(): void {
    this.#ring = undefined;
    if (this.#part === 0 && this.#offset === 0) return;
    this.#unstarted++;
    this.#part = 0;
    this.#offset = 0;
  }

  /** Keys of the peer's memory that started operations name. */
  startedKeys(): Set<number> {
    const keys = new Set<number>();
    for (let number = this.#oldest; number < this.#unstarted; number++) {
      for (const { key } of this.#remotesOf(number % OPERATIONS)) keys.add(key);
    }
    return keys;
  }

  /**
   * After `stop`. Nobody knows what of it the peer has carried out: all that was started ends with the error, and what names
   * memory with one of these keys as withdrawn.
   */
  failStarted(error: WeftlineError, withdrawn: ReadonlySet<number>): void {
    while (this.#oldest < this.#unstarted) {
      const at = this.#oldest++ % OPERATIONS;
      let isRefused = false;
      for (const remote of this.#remotesOf(at)) {
        if (!withdrawn.has(remote.key)) continue;
        remote.isWithdrawn = true;
        isRefused = true;
      }
      this.#end(at, isRefused ? withdrawnError(this.#peer) : error);
    }
  }

  /** The link is over, and no device touches memory for it any more. */
  abandon(error: WeftlineError): void {
    this.#ring = undefined;
    while (this.#oldest < this.#next) this.#end(this.#oldest++ % OPERATIONS, error);
    this.#unstarted = this.#next;
  }

  /** The peer had not seen earlier wakes, and is to get one more. */
  get owesWake(): boolean {
    return this.#owesWake;
  }

  /** Something is not with the device yet: it waits for company, for room or for a connection. */
  get holdsBack(): boolean {
    return this.#unstarted !== this.#next || (this.#ring?.unposted ?? 0) > 0;
  }

  /** False if the message of the owner's post is on its way: what has begun cannot be taken back. */
  canCancel(owner: OperationOwner, post: number): boolean {
    for (let number = this.#oldest; number < this.#next; number++) {
      const at = number % OPERATIONS;
      if (this.#owner[at] !== owner || this.#post[at] !== post || this.#isOver[at] === 1) continue;
      return this.#message[at] === NO_MESSAGE || number >= this.#unstarted;
    }
    return false;
  }

  get isEmpty(): boolean {
    return this.#oldest === this.#next;
  }

  #remotesOf(at: number): readonly RdmaRemoteRegion[] {
    const parts = this.#parts[at];
    return parts === undefined ? [this.#region[at]!] : parts.remotes;
  }

  #enter(owner: OperationOwner, post: number, kind: number): number {
    const at = this.#next++ % OPERATIONS;
    this.#kind[at] = kind;
    this.#owner[at] = owner;
    this.#post[at] = post;
    this.#isOver[at] = 0;
    return at;
  }

  #end(at: number, error: WeftlineError | undefined): void {
    if (this.#isOver[at] === 1) return;
    this.#isOver[at] = 1;
    if (error !== undefined && this.#message[at] !== NO_MESSAGE) this.#messages.drop(this.#message[at]!);
    this.#owner[at]!.ended(this.#post[at]!, error);
  }

  #retire(): void {
    while (this.#oldest < this.#unstarted) {
      const at = this.#oldest % OPERATIONS;
      if (this.#isOver[at] === 0) {
        if (((this.#done - this.#last[at]!) | 0) < 0) return;
        this.#end(at, undefined);
      }
      this.#oldest++;
    }
  }

  #start(): void {
    const ring = this.#ring;
    if (ring === undefined) return;
    let hasSkipped = false;
    while (this.#unstarted < this.#next) {
      const at = this.#unstarted % OPERATIONS;
      if (this.#isOver[at] === 0) {
        if (!this.#isWanted(at)) hasSkipped = true;
        else if (!this.#startOne(ring, at)) break;
      } else hasSkipped = true;
      this.#last[at] = (ring.nextSequence - 1) >>> 0;
      this.#unstarted++;
      this.#part = 0;
      this.#offset = 0;
    }
    if (hasSkipped) this.#retire();
  }

  /** Ends it if its owner gave it up, or the peer has taken the memory back. What was started of it goes on. */
  #isWanted(at: number): boolean {
    const isCancelled = !this.#owner[at]!.wants(this.#post[at]!);
    const isWithdrawn = !isCancelled && this.#isWithdrawn(at);
    if (!isCancelled && !isWithdrawn) return true;
    // ORDER: requests of it that were started still read or write its memory; it ends when they are done.
    if (isCancelled && (this.#part > 0 || this.#offset > 0)) this.#dropMessage(at);
    else if (isCancelled) this.#skip(at, undefined);
    else this.#skip(at, withdrawnError(this.#peer));
    return false;
  }

  #skip(at: number, error: WeftlineError | undefined): void {
    this.#dropMessage(at);
    this.#isOver[at] = 1;
    this.#owner[at]!.ended(this.#post[at]!, error);
  }

  #dropMessage(at: number): void {
    if (this.#message[at] !== NO_MESSAGE) this.#messages.drop(this.#message[at]!);
    this.#message[at] = NO_MESSAGE;
  }

  #isWithdrawn(at: number): boolean {
    const parts = this.#parts[at];
    if (parts === undefined) return this.#region[at]!.isWithdrawn;
    // Once something was started, the device finds out.
    return this.#part === 0 && this.#offset === 0 && areWithdrawn(parts.remotes);
  }

  /** False if there is no room for all of it; the rest follows. */
  #startOne(ring: SendQueue, at: number): boolean {
    const parts = this.#parts[at];
    if (parts !== undefined) return this.#startTransfer(ring, at, parts);
    return this.#kind[at] === kinds.put ? this.#startPut(ring, at) : this.#startSignal(ring, at);
  }

  #startTransfer(ring: SendQueue, at: number, parts: RequestParts): boolean {
    const isRead = this.#kind[at] === kinds.read;
    const opcode = isRead ? sendOpcode.read : sendOpcode.write;
    const message = this.#message[at]!;
    // A short message goes with the last of the data, as one request.
    const isCarried = message !== NO_MESSAGE && !isRead && this.#messages.isShort(message);
    const { count, bytes, localAddress, remoteAddress, localKey, remoteKey } = parts;
    while (this.#part < count) {
      const part = this.#part;
      const offset = this.#offset;
      const left = bytes[part]! - offset;
      const chunk = Math.min(left, this.#chunkBytes);
      const isEnd = part === count - 1 && chunk === left;
      const carries = isEnd && isCarried;
      const isLast = isEnd && (carries || message === NO_MESSAGE);
      const flags = isLast || ring.nextSequence % SIGNAL_EVERY === 0 ? sendFlag.signaled : 0;
      if (!ring.start(carries ? sendOpcode.writeWithImmediate : opcode, flags, part)) return false;
      ring.add(localAddress[part]! + offset, chunk, localKey[part]!);
      ring.target(remoteAddress[part]! + offset, remoteKey[part]!);
      if (carries) {
        ring.immediate(this.#messages.immediateOf(message));
        this.#messages.posted(message);
      }
      if (chunk === left) {
        this.#part++;
        this.#offset = 0;
      } else this.#offset += chunk;
    }
    return message === NO_MESSAGE || (isCarried && count > 0) || this.#startMessage(ring, message, isRead);
  }

  /** Behind the data: requests of a connection are carried out in order, and the fence makes it wait for reads. */
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

  #startPut(ring: SendQueue, at: number): boolean {
    const bytes = this.#bytes[at]!;
    while (this.#offset < bytes) {
      const chunk = Math.min(bytes - this.#offset, this.#chunkBytes);
      if (!ring.start(sendOpcode.write, ring.nextSequence % SIGNAL_EVERY === 0 ? sendFlag.signaled : 0, NO_PART))
        return false;
      ring.add(this.#localAddress[at]! + this.#offset, chunk, this.#localKey[at]!);
      ring.target(this.#remoteAddress[at]! + this.#offset, this.#region[at]!.key);
      this.#offset += chunk;
    }
    return true;
  }

  /** A number of 64 bits that is added or stored, and a wake of the peer, which may sleep until it comes. */
  #startSignal(ring: SendQueue, at: number): boolean {
    if (ring.room < 2) return false;
    const isAdd = this.#kind[at] === kinds.add;
    const canWake = this.#canWake;
    const remoteAddress = this.#remoteAddress[at]!;
    const { key } = this.#region[at]!;
    const { region, oldValueAddress } = this.#mailbox;
    const [low, high] = [this.#low[at]!, this.#high[at]!];
    if (isAdd) {
      ring.start(sendOpcode.fetchAdd, 0, NO_PART);
      ring.order();
      ring.add(oldValueAddress, 8, region.localKey);
      ring.addend(remoteAddress, key, low, high);
      if (canWake) this.#startWake(ring);
    } else {
      ring.start(canWake ? sendOpcode.writeWithImmediate : sendOpcode.write, 0, NO_PART);
      ring.order();
      ring.add(this.#mailbox.setCell(at, low, high), 8, region.localKey);
      ring.target(remoteAddress, key);
      if (canWake) {
        ring.immediate(RDMA_WAKE);
        this.#wakesSent = (this.#wakesSent + 1) | 0;
      }
    }
    // The peer has many that it has not seen; once it has, it gets one more.
    if (!canWake) this.#owesWake = true;
    return true;
  }

  get #canWake(): boolean {
    return ((this.#wakesSent - this.#mailbox.wakesSeen) | 0) < RDMA_WAKES;
  }

  #startWake(ring: SendQueue): void {
    ring.start(sendOpcode.writeWithImmediate, 0, NO_PART);
    ring.target(this.#inbox.address, this.#inbox.key);
    ring.immediate(RDMA_WAKE);
    this.#wakesSent = (this.#wakesSent + 1) | 0;
    this.#owesWake = false;
  }
}
