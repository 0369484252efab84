// The way of pieces through a ring: filled, sent, come back, landed; on each channel of it in order. Hot path: no allocation.
import { asWeftlineError, type WeftlineError } from '../../core/errors.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import { type RingMemory, slotOf, slotsOfChannel } from './ring-memory.ts';

/** A job can be begun again when it is over; pieces of an earlier time may then still be under way. */
export abstract class Job {
  pieces = 0;
  /** Pieces of the present time: those that were opened, and those that are over. */
  opened = 0;
  closed = 0;
  /** Counts its times. */
  epoch = 0;
  isOver = true;

  begin(): void {
    this.opened = 0;
    this.closed = 0;
    this.epoch++;
    this.isOver = false;
  }

  /** The first error, or the last piece, ends it. */
  finish(error: WeftlineError | undefined): void {
    if (this.isOver) return;
    this.isOver = true;
    this.ended(error);
  }

  /** Fills the slot. Returns a ticket for `isFilled`; -1 if there is no room for the work now. */
  abstract open(piece: number, slot: number): number;
  abstract isFilled(slot: number, ticket: number): boolean;
  /** False if there is no room now. */
  abstract send(piece: number, slot: number): boolean;
  /** Fails with why the piece was refused. */
  abstract isBack(slot: number): boolean;
  /** The same of a piece that nobody waits for; never fails. */
  abstract isDrained(slot: number): boolean;
  /** Brings what came back to its place. Returns a ticket for `isLanded`; -1 if there is no room for the work now. */
  abstract land(slot: number): number;
  abstract isLanded(slot: number, ticket: number): boolean;
  protected abstract ended(error: WeftlineError | undefined): void;
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
  /** Columns by slot: whose piece, of which time of the job, which one, and the ticket of its device work. */
  readonly #jobs: (Job | undefined)[];
  readonly #epochs: Float64Array;
  readonly #pieces: Int32Array;
  readonly #tickets: Float64Array;
  /** Pieces so far. */
  #opened = 0;
  #closed = 0;
  /** Counts what moves. */
  #moves = 0;
  /** Jobs in order; those before `#head` have opened all their pieces. */
  readonly #queue: Job[] = [];
  #head = 0;
  #error: WeftlineError | undefined;

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
    }));
    this.#jobs = Array.from({ length: slots }, () => undefined);
    this.#epochs = new Float64Array(slots);
    this.#pieces = new Int32Array(slots);
    this.#tickets = new Float64Array(slots);
  }

  get error(): WeftlineError | undefined {
    return this.#error;
  }

  /** Nothing is under way. */
  get isIdle(): boolean {
    return this.#closed === this.#opened && this.#head === this.#queue.length;
  }

  /** A job that has begun. One without pieces is over at once. */
  enqueue(job: Job): void {
    if (this.#error === undefined && job.pieces > 0) this.#queue.push(job);
    else job.finish(this.#error);
  }

  /** The job ends; pieces of it that were opened go on as nobody's. */
  end(job: Job, error: WeftlineError): void {
    const at = this.#queue.indexOf(job, this.#head);
    if (at >= 0) this.#queue.splice(at, 1);
    job.finish(error);
  }

  /** All jobs end, and none begins any more. */
  fail(error: WeftlineError): void {
    if (this.#error !== undefined) return;
    this.#error = error;
    const jobs = [...this.#jobs, ...this.#queue.splice(0)];
    this.#head = 0;
    for (const job of jobs) job?.finish(error);
  }

  /** Goes on with everything. True if something moved. */
  step(): boolean {
    if (this.#error !== undefined || this.isIdle) return false;
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
      this.#jobs[slot] = undefined;
      try {
        const ticket = job.open(job.opened, slot);
        if (ticket < 0) return false;
        this.#tickets[slot] = ticket;
      } catch (error) {
        this.end(job, asWeftlineError(error));
        continue;
      }
      traceBegin('staging.copy-out', slot);
      this.#jobs[slot] = job;
      this.#epochs[slot] = job.epoch;
      this.#pieces[slot] = job.opened++;
      if (job.opened === job.pieces) this.#pass();
      track.opened++;
      this.#opened++;
      this.#moves++;
      return true;
    }
    return false;
  }

  /** The one with the fewest pieces on their way; they differ in speed. -1 if all slots are taken. */
  #freestChannel(): number {
    const tracks = this.#tracks;
    let best = -1;
    let least = Number.POSITIVE_INFINITY;
    for (let look = 0; look < tracks.length; look++) {
      // Channels that have the same take turns.
      const channel = (this.#opened + look) % tracks.length;
      const { slots, opened, returned, closed } = tracks[channel]!;
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
      const job = this.#owner(slot);
      if (job === undefined) {
        // A device may still write to the slot, into what its next piece says and holds.
        if (!this.#isFilled(slot)) return;
        // What was never sent need not be awaited.
        this.#jobs[slot] = undefined;
        if (this.#carrier?.skip(slot) === false) return;
        continue;
      }
      try {
        if (!job.isFilled(slot, this.#tickets[slot]!) || !job.send(this.#pieces[slot]!, slot)) return;
        traceEnd('staging.copy-out', slot);
        traceBegin('staging.carry', slot);
      } catch (error) {
        this.end(job, asWeftlineError(error));
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
      const job = this.#owner(slot);
      if (job === undefined) {
        if (this.#jobs[slot]?.isDrained(slot) === false) return;
        this.#jobs[slot] = undefined;
        continue;
      }
      try {
        if (!job.isBack(slot)) return;
        const ticket = job.land(slot);
        if (ticket < 0) return;
        this.#tickets[slot] = ticket;
        traceEnd('staging.carry', slot);
        traceBegin('staging.land', slot);
      } catch (error) {
        this.end(job, asWeftlineError(error));
        track.returned--;
      }
    }
  }

  #close(channel: number): void {
    const track = this.#tracks[channel]!;
    for (; track.closed < track.returned; track.closed++, this.#closed++, this.#moves++) {
      const slot = this.#slotOf(channel, track.closed);
      const job = this.#jobs[slot];
      if (job === undefined) continue;
      const isWanted = this.#owner(slot) === job;
      try {
        // A job that has ended is asked, too: a device may still read the slot.
        if (!job.isLanded(slot, this.#tickets[slot]!)) return;
        traceEnd('staging.land', slot);
      } catch (error) {
        if (isWanted) this.end(job, asWeftlineError(error));
        continue;
      }
      this.#jobs[slot] = undefined;
      if (isWanted && ++job.closed === job.pieces) job.finish(undefined);
    }
  }

  /** Whether a piece that nobody waits for is filled. */
  #isFilled(slot: number): boolean {
    try {
      return this.#jobs[slot]?.isFilled(slot, this.#tickets[slot]!) !== false;
    } catch {
      // The device has failed, and writes nothing more.
      return true;
    }
  }

  /** The job whose piece it is, unless that job is over. */
  #owner(slot: number): Job | undefined {
    const job = this.#jobs[slot];
    return job !== undefined && !job.isOver && job.epoch === this.#epochs[slot] ? job : undefined;
  }
}
