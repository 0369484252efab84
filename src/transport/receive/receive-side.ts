// The receiving side of a connection: what has arrived, what it may still be sent, and the ack that is due.
// data-input.ts takes in segments, admission.ts grants receives their bytes.
import type { Landing } from './landing.ts';
import type { ControlLog } from '../control/control-log.ts';
import type { Region } from '../engine/region.ts';
import { type Request, RequestQueue } from '../engine/request.ts';
import type { CreditAccount } from '../send/receiver-credits.ts';
import { controlKinds, EAGER_SLOTS } from '../wire/packet-layout.ts';

/** `now`: before the next flush. `later`: with more, or at its deadline. */
export const ackDue = { no: 0, later: 1, now: 2 } as const;

/** No deadline. */
const NEVER = Number.POSITIVE_INFINITY;

interface ReceiveSideOptions {
  /** Messages of at most so many bytes come before their receives are announced; 0: none. */
  readonly eagerBytes: number;
  readonly paths: number;
  /** Words of the bitmap that fit an ack. */
  readonly ackWords: number;
  /** Number at which numbers that wrap begin. */
  readonly start: number;
  /** What the peer may send before any credit. */
  readonly credit: number;
  readonly now: number;
  /** The log into which grants are written. */
  readonly control: ControlLog;
  /** Called when there is work for the next `onTimer`. */
  readonly wake: () => void;
  /** Cancelled messages and receives keep their places. */
  readonly keepsPlaces: boolean;
}

export class ReceiveSide {
  readonly window: ReceiveWindow;
  readonly arrivals: Arrivals;
  readonly signals = new PendingSignals();
  /** Exists once the peer has sent chunks of small ranges. */
  landing: Landing | undefined;
  /** Receives and reads whose control record did not fit yet. */
  readonly unannounced = new RequestQueue();
  readonly unannouncedReads = new RequestQueue();
  /** Receives that the peer was told of and has no message for, as far as this side knows. */
  unclaimedReceives = 0;
  /** Receives that want more than they were granted. */
  readonly grantQueue = new RequestQueue();
  waitsForGrant = false;
  /** Bytes that were granted to claimed receives and have not come, and since when they do not count: Infinity if they do. */
  // -0 is held as a double from the start. When the first 64-bit size came, all compiled code that knows a connection was lost.
  claimedBytes: number = -0;
  silentSince = Number.POSITIVE_INFINITY;
  /** If messages may come before their receives are announced: those that wait for a receive, and the flows. */
  readonly eager: EagerStore | undefined;
  readonly #flows = new Map<number, ReceiveFlow>();
  /** Flows that hold receives back, and when the first of them announces them. */
  readonly holding: ReceiveFlow[] = [];
  holdDeadline = NEVER;
  /** Some of them would announce receives now, but found no room. */
  holdIsBlocked = false;
  /** Account of receiver credits. */
  readonly credit: CreditAccount;

  /** When a packet of the peer last came. */
  heardAt: number;
  readonly ackWords: number;
  ackDue: number = ackDue.no;
  ackDeadline = 0;
  /** Segments that arrived since the last ack. */
  unackedArrivals = 0;
  lastRejection = 0;
  lastRejectionAt = Number.NEGATIVE_INFINITY;

  readonly #control: ControlLog;
  readonly #wake: () => void;
  readonly #keepsPlaces: boolean;
  readonly #start: number;

  constructor(options: ReceiveSideOptions) {
    const { paths, ackWords, start, credit, now, control, wake, keepsPlaces, eagerBytes } = options;
    this.eager = eagerBytes > 0 ? new EagerStore(eagerBytes) : undefined;
    this.window = new ReceiveWindow(start);
    this.arrivals = new Arrivals(paths, start);
    this.ackWords = ackWords;
    this.credit = { demand: start, granted: credit, given: () => (this.ackDue = ackDue.now) };
    this.heardAt = now;
    this.#control = control;
    this.#wake = wake;
    this.#keepsPlaces = keepsPlaces;
    this.#start = start;
  }

  flow(id: number): ReceiveFlow {
    const known = this.#flows.get(id);
    if (known !== undefined) return known;
    const flow = new ReceiveFlow(id, this.#start);
    this.#flows.set(id, flow);
    return flow;
  }

  /** A receive is not announced before `until`. */
  hold(flow: ReceiveFlow, request: Request, until: number): void {
    if (flow.held.head === undefined) flow.heldUntil = until;
    flow.held.push(request);
    if (flow.isHolding) return;
    flow.isHolding = true;
    this.holding.push(flow);
    this.holdDeadline = Math.min(this.holdDeadline, until);
  }

  /** An announced receive waits for a message no longer: another may be announced. */
  noteClaimed(request: Request): void {
    this.unclaimedReceives--;
    if (this.eager !== undefined) this.flow(request.flow).open.remove(request);
    if (this.unannounced.head !== undefined || this.holdIsBlocked) this.#wake();
  }

  /** Raises what a receive may be sent. False if the peer cannot be told now. */
  grant(request: Request, granted: number): boolean {
    const control = this.#control;
    if (!control.raiseLast(controlKinds.grant, request.handle, granted)) {
      if (!control.hasRoom()) return false;
      control.append(controlKinds.grant, request.flow);
      control.setIds(request.handle, 0, 0);
      control.setSizes(0, granted);
    }
    request.granted = granted;
    return true;
  }

  /** Takes a request out of whatever queue it stands in. */
  unqueue(request: Request): void {
    if (this.#keepsPlaces) this.unannounced.vacate(request);
    else this.unannounced.remove(request);
    this.unannouncedReads.remove(request);
    if (this.eager === undefined || request.kind !== 'receive') return;
    const { held, open } = this.flow(request.flow);
    if (this.#keepsPlaces) held.vacate(request);
    else held.remove(request);
    open.remove(request);
  }
}

// Notes which segments of a connection have arrived: a bitmap that moves with the oldest missing one. Hot path: no allocation.

// Sequences are signed 32-bit integers that wrap; they are compared by their difference.

/** Segments beyond the oldest missing one that are remembered; a power of two. */
export const RECEIVE_WINDOW_SEGMENTS = 8192;

const WORDS = RECEIVE_WINDOW_SEGMENTS / 32;
const WORD_MASK = WORDS - 1;

export class ReceiveWindow {
  /** The oldest segment that is missing. */
  next: number;
  /** One more than the newest that arrived. */
  end: number;
  /** INVARIANT: bits of segments outside [next, end) are clear. Word = (sequence >>> 5) modulo the window. */
  readonly #bits = new Int32Array(WORDS);

  constructor(first = 0) {
    this.next = first;
    this.end = first;
  }

  /** True if the whole run is expected next and nothing later has come: the usual case, O(1). */
  isNext(sequence: number): boolean {
    return sequence === this.next && this.end === this.next;
  }

  /** Takes a run for which `isNext` holds. */
  advance(count: number): void {
    this.next = (this.next + count) | 0;
    this.end = this.next;
  }

  isTooFar(sequence: number): boolean {
    // The comparison is no ">": a distance of the window's size would share its bit with the oldest missing segment.
    return ((sequence - this.next) | 0) >= RECEIVE_WINDOW_SEGMENTS - 32;
  }

  has(sequence: number): boolean {
    if (((sequence - this.next) | 0) < 0) return true;
    if (((sequence - this.end) | 0) >= 0) return false;
    return ((this.#bits[(sequence >>> 5) & WORD_MASK]! >>> (sequence & 31)) & 1) === 1;
  }

  /** Takes one segment that is new and not too far. */
  add(sequence: number): void {
    if (((sequence - this.end) | 0) >= 0) this.end = (sequence + 1) | 0;
    const bits = this.#bits;
    if (sequence !== this.next) {
      const word = (sequence >>> 5) & WORD_MASK;
      bits[word] = bits[word]! | (1 << (sequence & 31));
      return;
    }
    let next = (sequence + 1) | 0;
    while (next !== this.end) {
      const word = (next >>> 5) & WORD_MASK;
      const bit = 1 << (next & 31);
      if ((bits[word]! & bit) === 0) break;
      bits[word] = bits[word]! & ~bit;
      next = (next + 1) | 0;
    }
    this.next = next;
  }

  /** How many words an ack needs; 0 when nothing is missing. */
  words(): number {
    if (this.end === this.next) return 0;
    return ((this.end - (this.next & ~31) + 31) | 0) >>> 5;
  }

  /** Word `index` for an ack: bits before `next` are set. */
  word(index: number): number {
    const word = this.#bits[((this.next >>> 5) + index) & WORD_MASK]!;
    return index === 0 ? word | ((1 << (this.next & 31)) - 1) : word;
  }
}

// What has arrived on each path since the last ack, to be echoed. Hot path: no allocation.

/** Paths that one ack can echo. */
export const MAX_ECHOES = 16;

class Arrivals {
  /** Number, clock and arrival of the newest transmission of each path. */
  readonly sequence: Int32Array;
  readonly timestamp: Int32Array;
  readonly arrivedAt: Float64Array;
  readonly marks: Uint16Array;
  /** Paths to be echoed, each once. */
  readonly touched: Uint8Array;
  touchedCount = 0;
  /** The path of the newest packet: the best guess at a path that works; -1 before any. */
  latestPath = -1;
  readonly #isTouched: Uint8Array;

  /** `first`: the number before that of the first transmission. */
  constructor(paths: number, first = 0) {
    this.sequence = new Int32Array(paths).fill(first);
    this.timestamp = new Int32Array(paths);
    this.arrivedAt = new Float64Array(paths);
    this.marks = new Uint16Array(paths);
    this.touched = new Uint8Array(paths);
    this.#isTouched = new Uint8Array(paths);
  }

  /** A packet of a path came. An overtaken one changes nothing but its mark. */
  note(path: number, sequence: number, timestamp: number, now: number): void {
    if (((sequence - this.sequence[path]!) | 0) > 0) {
      this.sequence[path] = sequence;
      this.timestamp[path] = timestamp;
      this.arrivedAt[path] = now;
    }
    if (this.#isTouched[path] === 1) return;
    this.#isTouched[path] = 1;
    this.touched[this.touchedCount++] = path;
  }

  mark(path: number): void {
    this.marks[path] = Math.min(0xffff, this.marks[path]! + 1);
  }

  /** The last of the touched paths, no longer touched. There must be one. */
  take(): number {
    const path = this.touched[--this.touchedCount]!;
    this.#isTouched[path] = 0;
    return path;
  }
}

// Signals that have arrived before segments that precede them: they wait here, in the order of their segments, until those
// have come.

/** Room at first; it doubles where it does not suffice, up to the size of the receive window. */
const FIRST_CAPACITY = 16;

interface PendingSignal {
  sequence: number;
  region: Region | undefined;
  offset: number;
  add: number;
}

/** There is room for every segment of the window. Were one turned away, it could be the one that all others wait for. */
export class PendingSignals {
  /** A ring; its size is a power of two. */
  #items = Array.from({ length: FIRST_CAPACITY }, emptyItem);
  #first = 0;
  count = 0;

  /** `sequence` is in the receive window and not here yet. */
  add(sequence: number, region: Region, cell: { readonly offset: number; readonly add: number }): void {
    if (this.count === this.#items.length) this.#grow();
    const items = this.#items;
    const mask = items.length - 1;
    let at = this.#first + this.count;
    const item = items[at & mask] as PendingSignal;
    // Paths overtake each other. The reader of a counter must never see a later signal without those before it: a reader
    // of a ring would take bytes for a message whose own bytes are not counted yet.
    for (; at > this.#first; at--) {
      const earlier = items[(at - 1) & mask] as PendingSignal;
      if (((earlier.sequence - sequence) | 0) <= 0) break;
      items[at & mask] = earlier;
    }
    items[at & mask] = item;
    item.sequence = sequence;
    item.region = region;
    item.offset = cell.offset;
    item.add = cell.add;
    this.count++;
  }

  /** The region is no longer registered: what was to be added there is nobody's. */
  forget(region: Region): void {
    for (let index = 0; index < this.count; index++) {
      const item = this.#at(index);
      if (item.region === region) item.region = undefined;
    }
  }

  /** Carries out the signals before segment `next`, the oldest that is missing, in their order. True if there were any. */
  apply(next: number): boolean {
    const before = this.count;
    while (this.count > 0) {
      const item = this.#at(0);
      if (((item.sequence - next) | 0) >= 0) break;
      if (item.region !== undefined) addToCell(item.region, item.offset, item.add);
      item.region = undefined;
      this.#first = (this.#first + 1) & (this.#items.length - 1);
      this.count--;
    }
    return this.count < before;
  }

  #at(index: number): PendingSignal {
    return this.#items[(this.#first + index) & (this.#items.length - 1)] as PendingSignal;
  }

  #grow(): void {
    const { length } = this.#items;
    this.#items = Array.from({ length: 2 * length }, (_, index) => (index < length ? this.#at(index) : emptyItem()));
    this.#first = 0;
  }
}

function emptyItem(): PendingSignal {
  return { sequence: 0, region: undefined, offset: 0, add: 0 };
}

/** ORDER: atomic, so that a thread that sees the new count sees the data that was written before it. */
export function addToCell(region: Region, offset: number, add: number): void {
  const { buffer, byteOffset } = region.bytes;
  Atomics.add(new BigUint64Array(buffer, byteOffset + offset, 1), 0, BigInt(add));
}

// The receives of a flow that have no message yet, where messages may come before their receives are announced: both ends
// number the receives of a flow, so that either can say which message meets which.

export class ReceiveFlow {
  readonly id: number;
  /** The last number that was given; wraps. */
  numbered: number;
  /** Receives with numbers: announced ones, and those whose messages are on their way. */
  readonly open = new RequestQueue();
  /** Receives that are not announced for a while: the message before came without. */
  readonly held = new RequestQueue();
  /** When they are announced after all; and that somebody looks at this. */
  heldUntil = Number.POSITIVE_INFINITY;
  isHolding = false;
  /** The latest message came before its receive was announced, or while that was being told. */
  isEager = false;

  /** Numbers begin after `start`. */
  constructor(id: number, start: number) {
    this.id = id;
    this.numbered = start;
  }

  /** The receive of that number, if it has no message yet. */
  find(number: number): Request | undefined {
    let request = this.open.head;
    while (request !== undefined && request.number !== number) request = request.next;
    return request;
  }
}

/**
 * `withdrawn`: the sender has taken the message back, whether or not it had come; its place is not passed yet. Of the next
 * three the sender is to be told: `delivered` late, `refused`, and `released`, whose message will not be delivered. `told`:
 * it was told of one of the last two, and may not know it yet.
 */
export const slotStates = { free: 0, parked: 1, withdrawn: 2, delivered: 3, refused: 4, released: 5, told: 6 } as const;

/**
 * Messages that came before there was a receive for them: a slot of memory for each, which the sender has chosen. Hot path:
 * no allocation.
 */
export class EagerStore {
  /** Most of a message. */
  readonly bytes: number;
  readonly region: Region;
  /** Messages that are parked or withdrawn. */
  count = 0;
  /**
   * A bit for each slot whose message was not delivered. One that will not be keeps it until the sender knows that: an ack
   * of the message without the bit says that it was delivered.
   */
  parked = 0;
  /** A bit for each slot that the sender is to be told of. */
  #owed = 0;
  #told = 0;
  readonly #state = new Uint8Array(EAGER_SLOTS);
  readonly #flow = new Uint16Array(EAGER_SLOTS);
  readonly #number = new Int32Array(EAGER_SLOTS);
  readonly #handle = new Float64Array(EAGER_SLOTS);
  readonly #length = new Uint16Array(EAGER_SLOTS);
  readonly #reason = new Uint8Array(EAGER_SLOTS);
  readonly #room = new Float64Array(EAGER_SLOTS);
  readonly #record = new Int32Array(EAGER_SLOTS);

  constructor(bytes: number) {
    this.bytes = bytes;
    const memory = new Uint8Array(EAGER_SLOTS * bytes);
    this.region = { id: 0, key: 0, bytes: memory, address: 0, remote: { read: false, write: false } };
  }

  stateOf(slot: number): number {
    return this.#state[slot]!;
  }

  /** The slot of the message for receive `number` of a flow, if it is parked or withdrawn; -1 otherwise. */
  find(flow: number, number: number): number {
    if (this.count === 0) return -1;
    for (let slot = 0; slot < EAGER_SLOTS; slot++) if (this.isFor(slot, flow, number)) return slot;
    return -1;
  }

  isFor(slot: number, flow: number, number: number): boolean {
    const state = this.#state[slot];
    const isHere = state === slotStates.parked || state === slotStates.withdrawn;
    return isHere && this.#flow[slot] === flow && this.#number[slot] === number;
  }

  /** True if that message was withdrawn, as far as the sender may not know that its slot is free. */
  isWithdrawn(slot: number, flow: number, number: number): boolean {
    const state = this.#state[slot];
    const isOver = state === slotStates.withdrawn || state === slotStates.released || state === slotStates.told;
    return isOver && this.#flow[slot] === flow && this.#number[slot] === number;
  }

  /** True if the sender may have given the slot to another message. */
  isOpen(slot: number): boolean {
    const state = this.#state[slot];
    return state === slotStates.free || state === slotStates.delivered || state === slotStates.told;
  }

  offsetOf(slot: number): number {
    return slot * this.bytes;
  }

  lengthOf(slot: number): number {
    return this.#length[slot]!;
  }

  /** A message is new in a slot: `parked`, its bytes are at `offsetOf`, or `withdrawn`. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per message
  put(slot: number, state: number, flow: number, number: number, handle: number, length: number): void {
    this.clear(slot);
    this.#state[slot] = state;
    this.#flow[slot] = flow;
    this.#number[slot] = number;
    this.#handle[slot] = handle;
    this.#length[slot] = length;
    this.parked |= 1 << slot;
    this.count++;
  }

  /** The sender takes a parked message back. */
  withdraw(slot: number): void {
    this.#state[slot] = slotStates.withdrawn;
  }

  /** A parked message has its receive. */
  deliver(slot: number): void {
    this.#leave(slot, slotStates.delivered);
    this.parked &= ~(1 << slot);
  }

  /** A parked message cannot be delivered, for one of failReasons; `room` is what there was for it. */
  refuse(slot: number, reason: number, room: number): void {
    this.#leave(slot, slotStates.refused);
    this.#reason[slot] = reason;
    this.#room[slot] = room;
  }

  /** The place of a withdrawn message has been passed. */
  release(slot: number): void {
    this.#leave(slot, slotStates.released);
  }

  #leave(slot: number, state: number): void {
    this.count--;
    this.#state[slot] = state;
    this.#owed |= 1 << slot;
  }

  /** Nothing is in the slot. */
  clear(slot: number): void {
    const state = this.#state[slot];
    if (state === slotStates.parked || state === slotStates.withdrawn) this.count--;
    const bit = ~(1 << slot);
    this.#state[slot] = slotStates.free;
    this.parked &= bit;
    this.#owed &= bit;
    this.#told &= bit;
  }

  get owes(): boolean {
    return this.#owed !== 0;
  }

  /** The sender's request. */
  handleOf(slot: number): number {
    return this.#handle[slot]!;
  }

  /** Why a message was refused, and what room there was. */
  reasonOf(slot: number): number {
    return this.#reason[slot]!;
  }

  roomOf(slot: number): number {
    return this.#room[slot]!;
  }

  /** Calls `tell` for each slot that the sender is to be told of, until it says false; `record` is the next one's number. */
  tell(tell: (slot: number) => boolean, record: number): void {
    let next = record;
    for (let slot = 0; slot < EAGER_SLOTS; slot++) {
      const bit = 1 << slot;
      if ((this.#owed & bit) === 0) continue;
      if (!tell(slot)) return;
      if (this.#state[slot] === slotStates.delivered) {
        this.clear(slot);
      } else {
        this.#state[slot] = slotStates.told;
        this.#record[slot] = next;
        this.#told |= bit;
        this.#owed &= ~bit;
      }
      next = (next + 1) | 0;
    }
  }

  /** The sender has confirmed its records up to before `first`. */
  settle(first: number): void {
    if (this.#told === 0) return;
    for (let slot = 0; slot < EAGER_SLOTS; slot++) {
      if ((this.#told & (1 << slot)) !== 0 && ((first - this.#record[slot]!) | 0) > 0) this.clear(slot);
    }
  }
}
