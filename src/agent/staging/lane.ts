// The way of what an agent posts: jobs, cut into pieces as slots of a ring become free, which are filled, sent, come back, and
// land; on each channel of the ring in order. Hot path: no allocation.
import { alignUp } from '../../abi/layout.ts';
import { asWeftlineError, type WeftlineError } from '../../core/errors.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import type { PartTable } from '../../transport/part-table.ts';
import type { BackendRegion, BackendRemoteRegion } from '../backend.ts';
import { CopyRun, type CopyWay, type DeviceCopies, NO_TICKET, type StagedMemory } from './devices.ts';
import { MAX_PIECE_FRAGMENTS, pieceKinds, type RingMemory, slotOf, slotsOfChannel } from './ring.ts';

/** Fragments begin at multiples of it, so that copies are of whole words. */
const FRAGMENT_ALIGNMENT = 16;
/** A small transfer is cut into so many pieces, so that copies and the network overlap, */
const FEW_PIECES = 4;
/** of sizes between these; */
const MIN_PIECE_BYTES = 128 << 10;
const MIDDLE_PIECE_BYTES = 512 << 10;
/** a large one into so many or more: each piece costs the network two signals, whatever its size. */
const MANY_PIECES = 16;
const PAGE_BYTES = 4096;
/** A second put costs more than to copy fewer bytes. */
const MIN_FROM_PLACE = 32 << 10;

/** Bytes of the pieces of a transfer of so many: at most `pieceBytes`. */
export function capacityFor(total: number, pieceBytes: number): number {
  const small = Math.min(total / FEW_PIECES, MIDDLE_PIECE_BYTES);
  const fair = Math.ceil(Math.max(small, total / MANY_PIECES) / PAGE_BYTES) * PAGE_BYTES;
  return Math.min(pieceBytes, Math.max(fair, MIN_PIECE_BYTES));
}

/** Memory of the peer: named as its staging thread knows it, or as the backend imported it. */
export type PeerMemory = { readonly number: number; readonly key: number } | BackendRemoteRegion;

/** What a slot holds: ranges of memory of this side with their places in the slot and at the peer. Written again and again. */
export class Piece extends CopyRun {
  job: Job | undefined;
  /** The time of the job that it belongs to. */
  epoch = 0;
  /** What its device works on; 0 for nothing. */
  ticket = 0;
  kind: number = pieceKinds.nothing;
  /** All ranges lie in this memory of the peer, which has that index in the job's table. */
  remote: PeerMemory | undefined;
  remoteIndex = 0;
  readonly remoteOffset = new Float64Array(MAX_PIECE_FRAGMENTS);
  /** The device that owns all ranges of this side. */
  copies: DeviceCopies | undefined;
  /** From which the only range is sent without a copy to the slot. */
  source: BackendRegion | undefined;
  sourceOffset = 0;
  /** What a signal adds to the cell at `remoteOffset[0]`, and what that then holds, or -1. */
  increment = 0;
  sum = -1;

  constructor() {
    super(MAX_PIECE_FRAGMENTS);
  }

  /** The job that waits for it; undefined if that is over. */
  get owner(): Job | undefined {
    const { job } = this;
    return job !== undefined && !job.isOver && job.epoch === this.epoch ? job : undefined;
  }

  /** Fills the slot, or brings what came back to its place. False if the device has no room now. */
  copy(way: CopyWay): boolean {
    return this.took(this.copies!.copy(way, this));
  }

  /** The device has taken work for that ticket. False if it had no room. */
  took(ticket: number): boolean {
    if (ticket === NO_TICKET) return false;
    this.ticket = ticket;
    return true;
  }

  /** The device has done what it was last given. Fails with the device's error. */
  isCopied(way: CopyWay): boolean {
    return this.ticket === 0 || this.copies!.isDone(way, this.ticket);
  }
}

/** How pieces get to the peer. */
export interface PieceWay {
  /** Host memory that the backend reaches may be sent from its place. */
  readonly sendsFromPlace: boolean;
  /** Where in its slot the bytes of a piece of so many ranges begin. */
  placeOf(ranges: number): number;
  /** Writes into the slot what the peer must know. Left out: nothing. */
  describe?(slot: number, piece: Piece): void;
  /** False if there is no room now. */
  post(slot: number, piece: Piece): boolean;
  /** Fails with why the piece was refused. */
  isBack(slot: number): boolean;
  /** The same of a piece that nobody waits for; never fails. */
  isDrained(slot: number): boolean;
}

interface JobOptions {
  readonly way: PieceWay;
  readonly isRead: boolean;
  readonly parts: PartTable;
  /** Memory of this side and of the peer by index in the table. */
  readonly locals: readonly (StagedMemory | undefined)[];
  readonly remotes: readonly PeerMemory[];
  readonly onEnd: (error: WeftlineError | undefined) => void;
}

/**
 * Moves rows of a table. A row of no bytes is a signal: its strides are what it adds, and the sum. A job can be begun again
 * when it is over; pieces of an earlier time may then still be under way.
 */
export class Job {
  readonly way: PieceWay;
  isOver = true;
  /** Counts its times. */
  epoch = 0;
  /** Pieces of the present time that are under way. */
  #open = 0;
  readonly #options: JobOptions;
  #capacity = 0;
  /** Where the next piece begins: in that row, that range, behind so many bytes. */
  #row = 0;
  #range = 0;
  #done = 0;
  #end = 0;

  constructor(options: JobOptions) {
    this.way = options.way;
    this.#options = options;
  }

  /** Begins with so many rows from `first` on, in pieces of at most `capacity` bytes. */
  begin(first: number, rows: number, capacity: number): void {
    this.epoch++;
    this.isOver = false;
    this.#open = 0;
    this.#capacity = capacity;
    this.#row = first;
    this.#range = 0;
    this.#done = 0;
    this.#end = first + rows;
  }

  /** All pieces were opened. */
  get isCut(): boolean {
    return this.#row === this.#end;
  }

  get isUnderWay(): boolean {
    return !this.isOver && this.#open > 0;
  }

  uses(memory: StagedMemory): boolean {
    return !this.isOver && this.#options.locals.includes(memory);
  }

  /** Has the next piece begin in that slot. False if the device has no room now. */
  open(slot: number, piece: Piece, ring: RingMemory): boolean {
    const row = this.#row;
    const range = this.#range;
    const done = this.#done;
    this.#cut(piece);
    piece.address = ring.address + ring.slotOffset(slot) + this.way.placeOf(piece.count);
    const isCopied = piece.kind === pieceKinds.write && piece.source === undefined;
    if (isCopied && !piece.copy('out')) {
      this.#row = row;
      this.#range = range;
      this.#done = done;
      return false;
    }
    this.way.describe?.(slot, piece);
    piece.job = this;
    piece.epoch = this.epoch;
    this.#open++;
    return true;
  }

  /** One of its pieces is over. */
  close(): void {
    if (--this.#open === 0 && this.isCut) this.finish(undefined);
  }

  /** The first error, or the last piece, ends it. */
  finish(error: WeftlineError | undefined): void {
    if (this.isOver) return;
    this.isOver = true;
    this.#options.onEnd(error);
  }

  /** Takes as many ranges as a slot holds, of one device and one memory of the peer. */
  #cut(piece: Piece): void {
    const { parts, isRead, remotes } = this.#options;
    const first = this.#row;
    const remote = parts.remote[first]!;
    piece.begin(0);
    piece.ticket = 0;
    piece.remote = remotes[remote];
    piece.remoteIndex = remote;
    piece.source = undefined;
    piece.copies = undefined;
    if (parts.bytes[first] === 0) {
      piece.kind = pieceKinds.signal;
      piece.remoteOffset[0] = parts.remoteOffset[first]!;
      piece.increment = parts.localStride[first]!;
      piece.sum = parts.remoteStride[first]!;
      this.#row++;
      return;
    }
    const memory = this.#localOf(first);
    piece.kind = isRead ? pieceKinds.read : pieceKinds.write;
    piece.copies = memory.copies;
    while (this.#row < this.#end && parts.remote[this.#row] === remote) {
      if (this.#localOf(this.#row).copies !== piece.copies || !this.#takeRow(piece)) break;
    }
    if (isRead || !this.way.sendsFromPlace || piece.count > 1 || piece.length < MIN_FROM_PLACE) return;
    piece.source = memory.region;
    piece.sourceOffset = piece.memory[0]! - memory.address;
  }

  /** Takes ranges of the present row. False if not all of them went in. */
  #takeRow(piece: Piece): boolean {
    const { parts } = this.#options;
    const row = this.#row;
    const whole = parts.bytes[row]!;
    const address = this.#localOf(row).address + parts.localOffset[row]!;
    for (const ranges = parts.ranges[row]!; this.#range < ranges;) {
      const bytes = Math.min(this.#capacity, whole - this.#done);
      const place = alignUp(piece.length, FRAGMENT_ALIGNMENT);
      if (piece.count === MAX_PIECE_FRAGMENTS || place + bytes > this.#capacity) return false;
      const remoteOffset = parts.remoteOffset[row]! + this.#range * parts.remoteStride[row]!;
      piece.remoteOffset[piece.count] = remoteOffset + this.#done;
      piece.add(address + this.#range * parts.localStride[row]! + this.#done, place, bytes);
      this.#done += bytes;
      if (this.#done < whole) continue;
      this.#done = 0;
      this.#range++;
    }
    this.#range = 0;
    this.#row++;
    return true;
  }

  #localOf(row: number): StagedMemory {
    const { locals, parts } = this.#options;
    return locals[parts.local[row]!]!;
  }
}

/** What a lane needs whose receiver counts every piece. */
export interface LaneCarrier {
  /** The number of its channels. */
  readonly count: number;
  /** Tells the receiver that nothing comes in this slot. False if there is no room now. */
  skip(slot: number): boolean;
  /** Pieces of that channel that have come back, counted from the first. */
  returned(channel: number): number;
}

/** The slots of a channel, and its pieces so far. */
interface Track {
  readonly slots: number;
  opened: number;
  sent: number;
  returned: number;
  closed: number;
  /** No piece is opened on any channel before so many have come back on this one. */
  fence: number;
}

/** Slots that are filled between two looks at what can be sent. */
const OPENED_TOGETHER = 2;
/** Places of the queue that were passed are given back when there are so many. */
const MAX_GAPS = 256;

/** A ring's slots on their way: filled, sent, come back, landed; in order on each channel. */
export class Lane {
  readonly ring: RingMemory;
  readonly #carrier: LaneCarrier | undefined;
  /** Tracks by channel. */
  readonly #tracks: readonly Track[];
  /** By slot. */
  readonly #pieces: readonly Piece[];
  /** Pieces so far. */
  #opened = 0;
  #closed = 0;
  /** Counts what moves. */
  #moves = 0;
  /** Jobs in order; those before `#head` have opened all their pieces. */
  readonly #queue: Job[] = [];
  #head = 0;
  /** Why nothing goes on it any more. */
  error: WeftlineError | undefined;

  /** Each job knows when its pieces have come back if there is no carrier. */
  constructor(ring: RingMemory, carrier?: LaneCarrier) {
    const { slots } = ring.shape;
    const count = carrier?.count ?? 1;
    this.ring = ring;
    this.#carrier = carrier;
    this.#tracks = Array.from({ length: count }, (_, channel) => ({
      slots: slotsOfChannel(channel, count, slots),
      opened: 0,
      sent: 0,
      returned: 0,
      closed: 0,
      fence: 0,
    }));
    this.#pieces = Array.from({ length: slots }, () => new Piece());
  }

  /** Nothing is under way. */
  get isIdle(): boolean {
    return this.#closed === this.#opened && this.#head === this.#queue.length;
  }

  /** A job that has begun. One without pieces is over at once. */
  enqueue(job: Job): void {
    if (this.error === undefined && !job.isCut) this.#queue.push(job);
    else job.finish(this.error);
  }

  /** The job ends; pieces of it that were opened go on as nobody's. */
  end(job: Job, error: WeftlineError): void {
    const at = this.#queue.indexOf(job, this.#head);
    if (at >= 0) this.#queue.splice(at, 1);
    // ORDER: what was sent of it must not come behind what is posted next, on another channel, to the same place.
    if (job.isUnderWay) for (const track of this.#tracks) track.fence = track.opened;
    job.finish(error);
  }

  /** All jobs end, and none begins any more. */
  fail(error: WeftlineError): void {
    if (this.error !== undefined) return;
    this.error = error;
    const jobs = [...this.#pieces.map(({ job }) => job), ...this.#queue.splice(0)];
    this.#head = 0;
    for (const job of jobs) job?.finish(error);
  }

  /** Tells whether what was opened until now has come back: nothing of it is read or written at the peer any more. */
  fence(): () => boolean {
    const marks = this.#tracks.map(({ opened }) => opened);
    return () => this.error !== undefined || this.#tracks.every(({ returned }, at) => returned >= marks[at]!);
  }

  /** Goes on with everything. True if something moved. */
  step(): boolean {
    if (this.error !== undefined || this.isIdle) return false;
    const before = this.#moves;
    const channels = this.#tracks.length;
    for (let channel = 0; channel < channels; channel++) {
      this.#close(channel);
      this.#takeBack(channel);
    }
    // The first piece goes out before all slots are filled: to enqueue a copy takes a device some microseconds.
    for (let opened = -1; opened < this.#opened;) {
      opened = this.#opened;
      for (let count = 0; count < OPENED_TOGETHER && this.#open(); count++);
      for (let channel = 0; channel < channels; channel++) this.#send(channel);
    }
    return this.#moves > before;
  }

  /** Opens the next piece. False if there is none, or no room for it. */
  #open(): boolean {
    while (this.#head < this.#queue.length) {
      const channel = this.#freestChannel();
      if (channel < 0) return false;
      const track = this.#tracks[channel]!;
      const job = this.#queue[this.#head] as Job;
      const slot = this.#slotOf(channel, track.opened);
      const piece = this.#pieces[slot]!;
      piece.job = undefined;
      try {
        if (!job.open(slot, piece, this.ring)) return false;
      } catch (error) {
        this.end(job, asWeftlineError(error));
        continue;
      }
      traceBegin('staging.copy-out', slot);
      if (job.isCut) this.#pass();
      track.opened++;
      this.#opened++;
      this.#moves++;
      return true;
    }
    return false;
  }

  /** The one with the fewest pieces on their way; they differ in speed. -1 if all slots are taken, or fenced. */
  #freestChannel(): number {
    const tracks = this.#tracks;
    let best = -1;
    let least = Number.POSITIVE_INFINITY;
    for (let look = 0; look < tracks.length; look++) {
      // Channels that have the same take turns.
      const channel = (this.#opened + look) % tracks.length;
      const { slots, opened, returned, closed, fence } = tracks[channel]!;
      if (returned < fence) return -1;
      if (opened - closed === slots || opened - returned >= least) continue;
      least = opened - returned;
      best = channel;
    }
    return best;
  }

  #slotOf(channel: number, piece: number): number {
    return slotOf(channel, this.#tracks.length, piece % this.#tracks[channel]!.slots);
  }

  #pass(): void {
    this.#head++;
    if (this.#head < MAX_GAPS && this.#head < this.#queue.length) return;
    this.#queue.splice(0, this.#head);
    this.#head = 0;
  }

  #send(channel: number): void {
    const track = this.#tracks[channel]!;
    for (; track.sent < track.opened; track.sent++, this.#moves++) {
      const slot = this.#slotOf(channel, track.sent);
      const piece = this.#pieces[slot]!;
      const { owner } = piece;
      if (owner === undefined) {
        // A device may still write to the slot, into what its next piece says and holds.
        if (piece.job !== undefined && !isFilled(piece)) return;
        // What was never sent need not be awaited.
        piece.job = undefined;
        if (this.#carrier?.skip(slot) === false) return;
        continue;
      }
      try {
        if (!piece.isCopied('out') || !owner.way.post(slot, piece)) return;
        // Tickets of the two ways are counted apart.
        piece.ticket = 0;
        traceEnd('staging.copy-out', slot);
        traceBegin('staging.carry', slot);
      } catch (error) {
        this.end(owner, asWeftlineError(error));
        track.sent--;
      }
    }
  }

  #takeBack(channel: number): void {
    const carrier = this.#carrier;
    const track = this.#tracks[channel]!;
    const limit = Math.min(track.sent, carrier === undefined ? track.sent : carrier.returned(channel));
    for (; track.returned < limit; track.returned++, this.#moves++) {
      const slot = this.#slotOf(channel, track.returned);
      const piece = this.#pieces[slot]!;
      const { owner } = piece;
      if (owner === undefined) {
        if (piece.job?.way.isDrained(slot) === false) return;
        piece.job = undefined;
        continue;
      }
      try {
        if (!owner.way.isBack(slot) || (piece.kind === pieceKinds.read && !piece.copy('in'))) return;
        traceEnd('staging.carry', slot);
        traceBegin('staging.land', slot);
      } catch (error) {
        this.end(owner, asWeftlineError(error));
        track.returned--;
      }
    }
  }

  #close(channel: number): void {
    const track = this.#tracks[channel]!;
    for (; track.closed < track.returned; track.closed++, this.#closed++, this.#moves++) {
      const slot = this.#slotOf(channel, track.closed);
      const piece = this.#pieces[slot]!;
      if (piece.job === undefined) continue;
      const { owner } = piece;
      try {
        // A piece whose job has ended is asked, too: a device may still read the slot.
        if (!piece.isCopied('in')) return;
        traceEnd('staging.land', slot);
        piece.job = undefined;
        owner?.close();
      } catch (error) {
        if (owner !== undefined) this.end(owner, asWeftlineError(error));
      }
    }
  }
}

/** Whether a piece that nobody waits for is filled. */
function isFilled(piece: Piece): boolean {
  try {
    return piece.isCopied('out');
  } catch {
    // The device has failed, and writes nothing more.
    return true;
  }
}
