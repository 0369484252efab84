// Requests and the table that names them: a handle is a slot and a generation, so that a late look finds nothing.
import { failReasons } from '../wire/packet-layout.ts';
import { type ErrorCode, WeftlineError } from '../../core/errors.ts';
import { RangeCursor, type RangeList } from '../send/range-list.ts';
import type { Region } from './region.ts';
import { requestStatus, type RequestStatus } from './transport-engine.ts';

/** `reply` is what a peer's read makes this side send; nobody holds its handle. */
export type RequestKind = 'receive' | 'send' | 'write' | 'read' | 'reply' | 'signal' | 'flush';

/** 2^16 requests at a time, 2^16 generations of each. */
const SLOT_BITS = 16;
const MAX_REQUESTS = 2 ** SLOT_BITS;

/** What stands for a chunk if there is none. */
export const NO_CHUNK = -1;

/** The connection that a request belongs to. */
export interface RequestOwner {
  /** The peer's number as the I/O names it. */
  readonly peer: number;
  /** Fails a request for a reason of this side, and its other end, if it has one. */
  abandon(request: Request, error: WeftlineError): void;
  /** Takes the request out of whatever queue it stands in. */
  unqueue(request: Request): void;
  /** The request has ended. */
  ended(request: Request): void;
}

export class Request {
  handle = 0;
  kind: RequestKind = 'flush';
  status: RequestStatus = requestStatus.unknown;
  owner: RequestOwner | undefined;
  region: Region | undefined;
  error: WeftlineError | undefined;
  flow = 0;
  offset = 0;
  bytes = 0;
  /** The next of its queue. */
  next: Request | undefined;

  /** The target: a request or a region of the peer. */
  target = 0;
  targetKey = 0;
  base = 0;
  /** Bytes of the whole message, for a send that is a part. */
  wholeBytes = 0;
  /** What a scattered write carries, and the first range that is in no chunk yet. */
  ranges: RangeList | undefined;
  readonly nextRange = new RangeCursor();
  /** The first range of a read of many whose bytes have not come, and its chunks of places that are not answered. */
  readonly nextAnswer = new RangeCursor();
  asked = 0;
  /** The chunk that is being sent, and how much of it is in segments. */
  chunk: number = NO_CHUNK;
  chunkPosition = 0;
  /** How much of a long range that is next is in segments. */
  rangePosition = 0;
  /** Bytes that are in segments, and whether the last segment is made: a message of no bytes has one too. */
  position = 0;
  segmented = false;
  /** Segments that are made and have not arrived. */
  unacked = 0;
  /**
   * What a signal adds. For a flush, and for a signal whose segment has arrived, the segment before which everything must have arrived.
   */
  value = 0;
  /** Bytes that the receiver lets a send go, or that a receive lets go. */
  granted = 0;

  /**
   * Where messages may come before their receives are announced: the number of a receive in its flow, and of the one that a
   * message was sent for before it was known; the receiver's slot for that, and whether it was taken back.
   */
  number = 0;
  slot = -1;
  isRetracted = false;
  /** A write that was cancelled or refused while segments of it were under way: no further ones are made, and it fails when these have arrived. */
  isWithdrawn = false;

  /** The control record that announces a receive, or for a send the one that announced the receive it met. */
  record = 0;

  /** Size of the message of a receive or a read, -1 before it is known, and its bytes that have arrived. */
  messageBytes = -1;
  received = 0;
  announced = false;
  /** Somebody has a message for this receive. */
  claimed = false;

  get isPending(): boolean {
    return this.status === requestStatus.pending;
  }
}

export class RequestTable {
  readonly #slots: Request[] = [];
  readonly #free: Request[] = [];

  open(kind: RequestKind, owner: RequestOwner): Request {
    const request = this.#free.pop() ?? this.#grow();
    request.kind = kind;
    request.status = requestStatus.pending;
    request.owner = owner;
    request.position = 0;
    request.segmented = false;
    request.asked = 0;
    request.chunk = NO_CHUNK;
    request.chunkPosition = 0;
    request.rangePosition = 0;
    request.unacked = 0;
    request.value = 0;
    request.granted = 0;
    request.number = 0;
    request.slot = -1;
    request.isRetracted = false;
    request.isWithdrawn = false;
    request.record = 0;
    request.messageBytes = -1;
    request.received = 0;
    request.announced = false;
    request.claimed = false;
    return request;
  }

  hasRoom(): boolean {
    return this.#free.length > 0 || this.#slots.length < MAX_REQUESTS;
  }

  /** The request of a handle, if it is still that one. Takes any 32-bit number, as signed or unsigned. */
  find(handle: number): Request | undefined {
    const request = this.#slots[handle & (MAX_REQUESTS - 1)];
    return request !== undefined && request.handle === handle >>> 0 && request.status !== requestStatus.unknown
      ? request
      : undefined;
  }

  close(request: Request): void {
    request.status = requestStatus.unknown;
    request.owner = undefined;
    request.region = undefined;
    request.ranges = undefined;
    request.error = undefined;
    request.next = undefined;
    request.handle = nextHandle(request.handle);
    this.#free.push(request);
  }

  /** Every request that is not free. */
  *[Symbol.iterator](): IterableIterator<Request> {
    for (const request of this.#slots) if (request.status !== requestStatus.unknown) yield request;
  }

  #grow(): Request {
    const slot = this.#slots.length;
    if (slot === MAX_REQUESTS) {
      throw new WeftlineError(
        'WL_BUSY',
        `Cannot post another request: ${MAX_REQUESTS} of the engine are outstanding or were not forgotten`,
        { details: { requests: MAX_REQUESTS } },
      );
    }
    const request = new Request();
    request.handle = nextHandle(slot);
    this.#slots.push(request);
    return request;
  }
}

/** The same slot in its next generation. None is 0, so that no handle is, and a zeroed packet names no request. */
function nextHandle(handle: number): number {
  const next = handle + MAX_REQUESTS;
  return next < 2 ** 32 ? next : (next % MAX_REQUESTS) + MAX_REQUESTS;
}

/** True for what stands in a queue in place of requests that are over, as many as its `value`. */
export function isVacancy(request: Request): boolean {
  return request.status === requestStatus.unknown;
}

/** Requests in a row, linked through themselves. */
export class RequestQueue {
  head: Request | undefined;
  #tail: Request | undefined;

  push(request: Request): void {
    request.next = undefined;
    if (this.#tail === undefined) this.head = request;
    else this.#tail.next = request;
    this.#tail = request;
  }

  /** Puts it in order of `value`, a sequence, before those of the same value. */
  insertByValue(request: Request): void {
    let before: Request | undefined;
    for (let at = this.head; at !== undefined && ((at.value - request.value) | 0) < 0; at = at.next) before = at;
    if (before === this.#tail) {
      this.push(request);
      return;
    }
    request.next = before === undefined ? this.head : before.next;
    if (before === undefined) this.head = request;
    else before.next = request;
  }

  shift(): void {
    const { head } = this;
    if (head === undefined) return;
    this.head = head.next;
    head.next = undefined;
    if (this.head === undefined) this.#tail = undefined;
  }

  /** Leaves a vacancy in the place of a request. False if that is not in this queue. */
  vacate(request: Request): boolean {
    let before: Request | undefined;
    let at = this.head;
    while (at !== undefined && at !== request) {
      before = at;
      at = at.next;
    }
    if (at === undefined) return false;
    const { next } = request;
    const { flow } = request;
    const neighbour = [before, next].find((other) => other !== undefined && isVacancy(other) && other.flow === flow);
    if (neighbour !== undefined) {
      neighbour.value++;
      this.remove(request);
      return true;
    }
    const place = new Request();
    place.flow = flow;
    place.value = 1;
    place.next = next;
    if (before === undefined) this.head = place;
    else before.next = place;
    if (this.#tail === request) this.#tail = place;
    request.next = undefined;
    return true;
  }

  /** Takes a request out, wherever it stands. False if it is not in this queue. */
  remove(request: Request): boolean {
    if (this.head === request) {
      this.shift();
      return true;
    }
    for (let before = this.head; before !== undefined; before = before.next) {
      if (before.next !== request) continue;
      before.next = request.next;
      if (this.#tail === request) this.#tail = before;
      request.next = undefined;
      return true;
    }
    return false;
  }
}

// The error of a request that the peer refused or gave up.

/** `bytes`: the room that there was, or what the peer wanted to send. */
// oxlint-disable-next-line max-params -- what failed, who refused it, why and at how many bytes: no object would group them
export function peerFailure(peer: string, request: Request, reason: number, bytes: number): WeftlineError {
  const incoming = request.kind === 'receive' || request.kind === 'read';
  const size = request.ranges?.bytes ?? request.bytes;
  const what = `Cannot ${request.kind} ${size} bytes ${incoming ? 'from' : 'to'} ${peer}`;
  const [code, why] = explain(request, reason, bytes);
  return new WeftlineError(code, `${what}: ${why}`, {
    details: { peer, kind: request.kind, bytes: size, flow: request.flow, room: bytes },
  });
}

function explain(request: Request, reason: number, bytes: number): readonly [ErrorCode, string] {
  const region = `region ${request.target}`;
  switch (reason) {
    case failReasons.key:
      return ['WL_UNAUTHORIZED', `${region} is not registered there, or the key is not its key`];
    case failReasons.access:
      return ['WL_UNAUTHORIZED', `${region} was not registered for that`];
    case failReasons.bounds:
      return ['WL_INVALID_ARGUMENT', `${region} has ${bytes} bytes, and offset ${request.base} was asked`];
    case failReasons.tooLarge:
      return request.kind === 'receive'
        ? ['WL_CAPACITY', `the message has ${bytes} bytes`]
        : ['WL_CAPACITY', `the receive that it met has room for ${bytes}`];
    default:
      return ['WL_PEER_FAILED', 'the peer has cancelled it'];
  }
}
