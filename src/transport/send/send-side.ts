// The sending side of a connection: requests that wait to be cut into segments, segments in flight, and what bounds them.
// transmit.ts sends, ack-input.ts takes in acks and finds what was lost.
import { CHUNK_BYTES, DATA_HEADER_BYTES, EAGER_SLOTS, PLACE_BYTES } from '../wire/packet-layout.ts';
import { type Congestion, congestionRules } from '../../congestion/congestion.ts';
import { isVacancy, NO_CHUNK, type Request, RequestQueue } from '../engine/request.ts';
import type { TransportSettings } from '../engine/transport-settings.ts';
import type { ChunkSender } from './chunk-sender.ts';
import { BurstTable, SendWindow } from './send-window.ts';
import { ReceiverCredits } from './receiver-credits.ts';

/**
 * Chunks of places of a connection that are not answered; further ones are not sent. INVARIANT: the peer takes in as many. Were
 * one to wait there, answers of this side that are sent behind it would wait as well, and with both ends so, for ever.
 */
export const MAX_ASKED = 16;
/** Places of a full chunk. */
const PLACES = CHUNK_BYTES / PLACE_BYTES;

interface SendSideOptions {
  readonly settings: TransportSettings;
  /** The receiver gives credits. */
  readonly receiverCredits: boolean;
  readonly paths: number;
  /** Path p leaves by rail p modulo this. */
  readonly rails: number;
  /** Bytes of a full packet: all of it, and its payload. */
  readonly segmentBytes: number;
  readonly payloadBytes: number;
  /** Messages of at most so many bytes go before their receives are announced; 0: none. */
  readonly eagerBytes: number;
  /** Segments that may be outstanding. */
  readonly limit: number;
  /** Number at which numbers that wrap begin. */
  readonly start: number;
  readonly now: number;
  /** Called when there is work for the next `onTimer`. */
  readonly wake: () => void;
  /** Cancelled messages and receives keep their places. */
  readonly keepsPlaces: boolean;
  /** A receive of the peer, as request `target` there, has met a message that was cancelled. */
  readonly refuse: (target: number, flow: number) => void;
}

export class SendSide {
  readonly window: SendWindow;
  readonly bursts: BurstTable;
  readonly tolerance: ReorderTolerance;
  readonly flows = new Map<number, Flow>();
  readonly flowOrder: Flow[] = [];
  readonly schedule = new Schedule();
  /** Flushes, and signals that have arrived, in the order of the segments before which everything must have arrived. */
  readonly flushes = new RequestQueue();
  /** Sends that are too large for the receives they met: the next `onTimer` fails them. */
  readonly oversized = new RequestQueue();
  /** Sends that have met receives which were withdrawn: likewise. */
  readonly withdrawn = new RequestQueue();
  /** Receives of the peer that wait for a send of this side. */
  clearCount = 0;
  /** Sends that may have to ask for a first grant. */
  unrequested = 0;
  /** Answers that this side owes to reads of the peer. */
  replyCount = 0;
  /** Such answers of many ranges, and chunks of places that the peer has not answered. */
  answerCount = 0;
  #asked = 0;
  /** Exists once a scattered write was posted. */
  chunks: ChunkSender | undefined;
  /** Queues whose next request finds no free chunk, or is one read too many, in the order in which they began to wait. */
  readonly #chunkless: SendQueue[] = [];
  /** Payload that waits in send queues. */
  backlogBytes = 0;

  /** One per flow, or per path. */
  readonly congestion: Congestion[] = [];
  /** If the receiver gives credits: they bound what may be sent as well. */
  readonly credits: ReceiverCredits | undefined;
  /** If messages may go before their receives are announced. */
  readonly eager: EagerSlots | undefined;
  /** Time at which the next packet of each congestion window may go, with pacing. */
  nextSendAt: Float64Array;

  /** When one of this side's segments was last acknowledged. */
  progressAt: number;
  /** When sending goes on if nothing comes before. */
  deadline = Number.POSITIVE_INFINITY;
  /** A path may be silent for too long, not before this. */
  lossDeadline = Number.POSITIVE_INFINITY;

  readonly #options: SendSideOptions;

  constructor(options: SendSideOptions) {
    const { settings, receiverCredits, paths, rails, limit, start, now } = options;
    this.#options = options;
    this.window = new SendWindow(limit, start);
    this.bursts = new BurstTable(this.window.mask + 1, { paths, rails }, DATA_HEADER_BYTES);
    this.tolerance = new ReorderTolerance(settings.reorderSegments, settings.reorderShare);
    this.nextSendAt = new Float64Array(this.bursts.controllerBytes.length);
    this.progressAt = now;
    this.eager =
      options.eagerBytes > 0 ? new EagerSlots(Math.min(options.eagerBytes, options.payloadBytes)) : undefined;
    this.credits = receiverCredits ? new ReceiverCredits(start) : undefined;
    while (this.congestion.length < (settings.perPath ? paths : 1)) this.congestion.push(this.#newWindow());
  }

  /** Hot path. Bytes that may be sent now through a congestion window; may be negative. */
  allowance(window: number): number {
    const left = this.congestion[window]!.windowBytes - this.bursts.controllerBytes[window]!;
    return this.credits === undefined ? left : Math.min(left, this.credits.left);
  }

  flow(id: number): Flow {
    const known = this.flows.get(id);
    if (known !== undefined) return known;
    const { settings, start } = this.#options;
    const { perPath } = settings;
    const flow = new Flow(id, perPath ? 0 : this.flowOrder.length, start);
    if (!perPath && flow.controller > 0) this.congestion.push(this.#newWindow());
    this.bursts.reserveController(flow.controller);
    if (this.nextSendAt.length < this.bursts.controllerBytes.length) {
      const grown = new Float64Array(this.bursts.controllerBytes.length);
      grown.set(this.nextSendAt);
      this.nextSendAt = grown;
    }
    this.flows.set(id, flow);
    this.flowOrder.push(flow);
    return flow;
  }

  /** The request is ready to be cut into segments. */
  enqueue(queue: SendQueue, request: Request): void {
    queue.push(request);
    this.backlogBytes += request.bytes - request.position;
    this.schedule.add(queue);
    this.#options.wake();
  }

  /** Brings sends of a flow together with receives of the peer. */
  match(flow: Flow): void {
    const { unmatched, clears } = flow;
    while (unmatched.head !== undefined && clears.length > 0) {
      const request = unmatched.head;
      const clear = clears[0] as ClearToSend;
      const isOver = isVacancy(request);
      if (isOver && request.value > 1) request.value--;
      else unmatched.shift();
      if (clear.vacancies > 0) {
        clear.vacancies--;
        if (clear.vacancies === 0) clears.shift();
        if (isOver) continue;
        this.withdrawn.push(request);
        this.#options.wake();
        continue;
      }
      clears.shift();
      this.clearCount--;
      if (isOver) {
        this.#options.refuse(clear.target, flow.id);
        continue;
      }
      request.target = clear.target;
      request.record = clear.record;
      request.granted = Math.min(clear.granted, request.bytes);
      if (request.wholeBytes > clear.bytes) {
        request.granted = clear.bytes;
        this.oversized.push(request);
        this.#options.wake();
      } else {
        if (request.granted < request.bytes && clear.granted === 0) this.unrequested++;
        this.enqueue(flow.messages, request);
      }
    }
  }

  /** Sends a message that is alone in its flow before its receive is announced, if it is small and there is a slot for it. */
  sendEagerly(flow: Flow, request: Request): void {
    const { eager } = this;
    const fits = eager !== undefined && request.bytes <= eager.bytes && request.bytes === request.wholeBytes;
    if (!fits || !eager.hasFree) return;
    eager.take(request, flow.passNext());
    flow.unmatched.shift();
    request.granted = request.bytes;
    this.enqueue(flow.messages, request);
  }

  /** Hot path. Gathers a chunk of the request that has the turn. False if none may be sent: its flow then waits until one may. */
  gather(request: Request): boolean {
    const isRead = request.kind === 'read';
    if ((!isRead || this.#asked < MAX_ASKED) && this.chunks?.gather(request) === true) {
      if (isRead) this.noteAsked(request);
      return true;
    }
    this.#chunkless.push(this.schedule.current());
    this.schedule.dropCurrent();
    return false;
  }

  /** Hot path. So many segments of the request's chunk were cut, with `bytes`: none in the segment behind its last. */
  passChunk(request: Request, segments: number, bytes: number): void {
    const { chunk, ranges, nextRange } = request;
    this.chunks?.sent(chunk, segments);
    request.chunkPosition += bytes;
    if (bytes > 0) return;
    this.chunks?.close(chunk);
    request.chunk = NO_CHUNK;
    request.segmented = nextRange.passed === ranges?.count;
  }

  /** Hot path. Segments of a chunk were acknowledged, by what the window notes of the first. */
  acknowledgeChunk(entry: number, segments: number): void {
    if (this.chunks?.acknowledge(entry, segments) === true) this.#resumeChunkless();
  }

  /** Hot path. A read of many ranges has a chunk of places, or answers, more; or it has ended. */
  noteAsked(request: Request): void {
    const { ranges, nextRange, nextAnswer, isPending } = request;
    if (ranges === undefined) return;
    const asked = isPending ? Math.ceil(nextRange.passed / PLACES) - Math.floor(nextAnswer.passed / PLACES) : 0;
    const wasFull = this.#asked >= MAX_ASKED;
    this.#asked += asked - request.asked;
    request.asked = asked;
    if (wasFull && this.#asked < MAX_ASKED) this.#resumeChunkless();
  }

  #resumeChunkless(): void {
    for (const queue of this.#chunkless) this.schedule.add(queue);
    this.#chunkless.length = 0;
    this.#options.wake();
  }

  /** Takes a request out of whatever queue it stands in. */
  unqueue(request: Request): void {
    if (request.chunk !== NO_CHUNK) {
      // What has been cut of it is sent until it is acknowledged; nothing tells the peer to scatter it.
      this.chunks?.close(request.chunk);
      request.chunk = NO_CHUNK;
      this.#resumeChunkless();
    }
    this.flushes.remove(request);
    this.oversized.remove(request);
    this.withdrawn.remove(request);
    const flow = this.flows.get(request.flow);
    if (flow === undefined) return;
    if (this.#options.keepsPlaces) flow.unmatched.vacate(request);
    else flow.unmatched.remove(request);
    for (const queue of [flow.messages, flow.operations, flow.replies]) {
      if (queue.remove(request)) this.backlogBytes -= request.bytes - request.position;
    }
  }

  /** Bytes that the peer should let this side send altogether, for receiver credits; wraps. */
  demandNow(): number {
    const { credits } = this;
    if (credits === undefined) return 0;
    const { settings, segmentBytes, payloadBytes } = this.#options;
    const factor = segmentBytes / payloadBytes;
    const open = this.backlogBytes * factor + this.window.lostCount * segmentBytes;
    // What congestion control does not let go would be credit that others could use.
    let windows = segmentBytes;
    for (const { windowBytes } of this.congestion) windows += windowBytes;
    return (credits.spent + Math.min(open, settings.windowBytes, windows)) | 0;
  }

  #newWindow(): Congestion {
    const { settings, segmentBytes } = this.#options;
    const { windowBytes: maxWindow, targetDelay, linkRate } = settings;
    return congestionRules[settings.congestion].create({ segmentBytes, maxWindow, targetDelay, linkRate });
  }
}

// The distance by which later segments may overtake earlier ones before those count as lost; it follows what the peer reports.

/** Upper bounds: of a round trip, and in segments. */
const MAX_SHARE = 2;
const MAX_SEGMENTS = 256;
/** The tolerance grows and shrinks at most this often, in microseconds. */
const RAISE_INTERVAL = 1000;
const RELAX_INTERVAL = 250_000;

class ReorderTolerance {
  segments: number;
  /** Share of a round trip. */
  share: number;
  readonly #leastSegments: number;
  readonly #leastShare: number;
  /** The peer's last count of segments that came twice. */
  #duplicates = 0;
  #changedAt = 0;

  constructor(segments: number, share: number) {
    this.segments = segments;
    this.share = share;
    this.#leastSegments = segments;
    this.#leastShare = share;
  }

  /**
   * Hot path. The peer's count of segments that came twice; with `isOwnFault`, because this side sent some again. Those
   * were sent again too early, so the tolerance doubles; while that does not happen it halves back to where it began:
   * networks change, and tolerance makes losses show late.
   */
  note(duplicates: number, isOwnFault: boolean, now: number): void {
    const elapsed = now - this.#changedAt;
    const hasNew = ((duplicates - this.#duplicates) | 0) > 0;
    if (hasNew) this.#duplicates = duplicates;
    if (hasNew && isOwnFault) {
      if (elapsed >= RAISE_INTERVAL) this.#set(this.segments * 2, this.share * 2, now);
    } else if (elapsed >= RELAX_INTERVAL && (this.share > this.#leastShare || this.segments > this.#leastSegments)) {
      this.#set(Math.floor(this.segments / 2), this.share / 2, now);
    }
  }

  #set(segments: number, share: number, now: number): void {
    this.segments = Math.max(this.#leastSegments, Math.min(MAX_SEGMENTS, segments));
    this.share = Math.max(this.#leastShare, Math.min(MAX_SHARE, share));
    this.#changedAt = now;
  }
}

// A flow: its queues of requests, and the order in which the flows of a connection take turns.

/** A receive of the peer that waits for a send of this side. */
interface ClearToSend {
  readonly target: number;
  readonly bytes: number;
  /** Number of the control record that said so. */
  readonly record: number;
  granted: number;
  /** Number of places of receives that were withdrawn, one behind the other; 0 for one that waits. */
  vacancies: number;
}

/** Requests that are cut into segments one after the other. */
class SendQueue extends RequestQueue {
  readonly flow: Flow;
  /** Whether the queue stands in the ring of queues with work. */
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
  /** The congestion window that counts its bytes, unless paths have them. */
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
class Schedule {
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

  /** The current queue has no work. ORDER: the others keep theirs, or some that wait would be overtaken again and again. */
  dropCurrent(): void {
    this.current().scheduled = false;
    const ring = this.#ring;
    for (let at = this.#turn + 1; at < ring.length; at++) ring[at - 1] = ring[at]!;
    ring.pop();
  }
}

/** True if the request has a segment to make now. */
function hasSegment(request: Request): boolean {
  if (request.kind === 'send') {
    return request.granted > request.position || (request.bytes === 0 && !request.segmented);
  }
  return !request.segmented;
}

// Messages that are sent before their receives are announced: which of the receiver's slots they have. Hot path: no
// allocation.

/** What stands for a slot if there is none. */
export const NO_SLOT = -1;

class EagerSlots {
  /** Most of a message. */
  readonly bytes: number;
  /** A bit for each slot. */
  #free = 2 ** EAGER_SLOTS - 1;
  #retracts = 0;
  /** The messages that have the slots: their handles, their flows and the numbers of their receives. */
  readonly #handle = new Float64Array(EAGER_SLOTS);
  readonly #flow = new Uint16Array(EAGER_SLOTS);
  readonly #number = new Int32Array(EAGER_SLOTS);

  constructor(bytes: number) {
    this.bytes = bytes;
  }

  get hasFree(): boolean {
    return this.#free !== 0;
  }

  /** Gives a message a slot, of which there must be a free one, for the receive number `number` of its flow. */
  take(request: Request, number: number): void {
    const slot = 31 - Math.clz32(this.#free & -this.#free);
    this.#free &= ~(1 << slot);
    this.#handle[slot] = request.handle;
    this.#flow[slot] = request.flow;
    this.#number[slot] = number;
    request.slot = slot;
    request.number = number;
  }

  /** The message that has the slot, or had it last. */
  handleOf(slot: number): number {
    return this.#handle[slot]!;
  }

  /** The message no longer needs its slot. One that has it no more changes nothing. */
  free(slot: number, handle: number): void {
    if (this.#handle[slot] === handle) this.#free |= 1 << slot;
  }

  /** The message is withdrawn: the receiver is to be told. It says when the slot is free. */
  retract(request: Request): void {
    request.isRetracted = true;
    this.#retracts |= 1 << request.slot;
  }

  get hasRetracts(): boolean {
    return this.#retracts !== 0;
  }

  /** Calls `tell` with the messages that were withdrawn; one for which it says false is told later. */
  tellRetracts(tell: (handle: number, flow: number, number: number, slot: number) => boolean): void {
    for (let slot = 0; slot < EAGER_SLOTS; slot++) {
      const bit = 1 << slot;
      if ((this.#retracts & bit) === 0) continue;
      if (!tell(this.#handle[slot]!, this.#flow[slot]!, this.#number[slot]!, slot)) return;
      this.#retracts &= ~bit;
    }
  }
}
