// A flow: its queues of requests, and the order in which the flows of a connection take turns.
import { type Request, RequestQueue } from './request.ts';

/** A receive of the peer that waits for a send of this side. */
export interface ClearToSend {
  readonly target: number;
  readonly bytes: number;
  /** Number of the control record that said so. */
  readonly record: number;
  granted: number;
  /** Of places of receives that were withdrawn: how many, one behind the other. 0 of one that waits. */
  vacancies: number;
}

/** Requests that are cut into segments one after the other. */
export class SendQueue extends RequestQueue {
  readonly flow: Flow;
  /** In the ring of queues with work. */
  scheduled = false;

  constructor(flow: Flow) {
    super();
    this.flow = flow;
  }

  /**
   * The first request that has a segment to make now. A message that waits for a grant does not hold up those behind it:
   * bytes that were granted must be sent, or the receiver has none left to grant to the first.
   */
  ready(): Request | undefined {
    let request = this.head;
    while (request !== undefined && !hasSegment(request)) request = request.next;
    return request;
  }
}

export class Flow {
  readonly id: number;
  /** Which congestion window counts its bytes, unless paths have them. */
  readonly controller: number;
  /** Messages that a receive of the peer has let go. */
  readonly messages = new SendQueue(this);
  /** Writes, signals and flushes: these keep their order. */
  readonly operations = new SendQueue(this);
  /** Answers to reads. */
  readonly replies = new SendQueue(this);
  /** Sends without a receive, or receives of the peer without a send: one of the two is empty. */
  readonly unmatched = new RequestQueue();
  readonly clears: ClearToSend[] = [];
  /**
   * The number of the last receive that has its message or is in `clears`: the peer has told of it, or a message was sent
   * for it before. Wraps. INVARIANT: one number, not one for each of the two: whichever stood still for 2^31 receives would
   * seem to be ahead of the other.
   */
  last: number;

  /** Receives are numbered from after `start` on. */
  constructor(id: number, controller: number, start: number) {
    this.id = id;
    this.controller = controller;
    this.last = start;
  }

  /** The next message goes before its receive is known. Returns the number of that. */
  passNext(): number {
    this.last = (this.last + 1) | 0;
    return this.last;
  }

  /** How many of the receives that the peer tells of, from number `first` on, have no message on its way to them. */
  announce(first: number, count: number): number {
    const end = (first + count - 1) | 0;
    const ahead = (end - this.last) | 0;
    if (ahead <= 0) return 0;
    this.last = end;
    return Math.min(count, ahead);
  }

  /** Receives that would stand at `at` among those of the peer were withdrawn. */
  addVacancies(at: number, count: number): void {
    const neighbour = [this.clears[at - 1], this.clears[at]].find(
      (clear) => clear !== undefined && clear.vacancies > 0,
    );
    if (neighbour === undefined)
      this.clears.splice(at, 0, { target: 0, bytes: 0, record: 0, granted: 0, vacancies: count });
    else neighbour.vacancies += count;
  }
}

/** Send queues with work, in turn. */
export class Schedule {
  readonly #ring: SendQueue[] = [];
  #turn = 0;

  get size(): number {
    return this.#ring.length;
  }

  add(queue: SendQueue): void {
    if (queue.scheduled) return;
    queue.scheduled = true;
    this.#ring.push(queue);
  }

  /** The queue whose turn it is; there must be one. */
  current(): SendQueue {
    if (this.#turn >= this.#ring.length) this.#turn = 0;
    return this.#ring[this.#turn] as SendQueue;
  }

  advance(): void {
    this.#turn++;
  }

  /** The current queue has no work. */
  dropCurrent(): void {
    const queue = this.current();
    queue.scheduled = false;
    const last = this.#ring.pop() as SendQueue;
    if (last !== queue) this.#ring[this.#turn] = last;
  }
}

/** True if the request has a segment to make now. */
function hasSegment(request: Request): boolean {
  if (request.kind === 'send') {
    return request.granted > request.position || (request.bytes === 0 && !request.segmented);
  }
  return !request.segmented;
}
