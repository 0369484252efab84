// The way of pieces through a ring: filled, sent, come back, landed, each stage in order. Hot path: no allocation.
import { asWeftlineError, type WeftlineError } from '../../core/errors.ts';
import type { Job } from './job.ts';
import type { RingMemory } from './ring-memory.ts';

/** Of lanes whose receiver counts every piece. */
export interface LaneCarrier {
  /** Tells the receiver that nothing comes in this slot. False if there is no room now. */
  skip(slot: number): boolean;
  /** Pieces that have come back, counted from the first. */
  readonly returned: number;
}

/** Slots that are filled between two looks at what can be sent. */
const OPENED_TOGETHER = 2;
/** Places of the queue that were passed are given back when there are so many. */
const MAX_GAPS = 256;

export class Lane {
  readonly ring: RingMemory;
  readonly #carrier: LaneCarrier | undefined;
  readonly #slots: number;
  /** By slot: whose piece, of which time of the job, which one, and the ticket of its device work. */
  readonly #jobs: (Job | undefined)[];
  readonly #epochs: Float64Array;
  readonly #pieces: Int32Array;
  readonly #tickets: Float64Array;
  /** Pieces so far; a piece's slot is its number modulo the number of slots. */
  #opened = 0;
  #sent = 0;
  #returned = 0;
  #closed = 0;
  /** Those before `#head` have opened all their pieces. */
  readonly #queue: Job[] = [];
  #head = 0;
  #error: WeftlineError | undefined;

  /** Without a carrier, each job knows when its pieces have come back. */
  constructor(ring: RingMemory, carrier?: LaneCarrier) {
    this.ring = ring;
    this.#carrier = carrier;
    this.#slots = ring.shape.slots;
    this.#jobs = Array.from({ length: this.#slots }, () => undefined);
    this.#epochs = new Float64Array(this.#slots);
    this.#pieces = new Int32Array(this.#slots);
    this.#tickets = new Float64Array(this.#slots);
  }

  get error(): WeftlineError | undefined {
    return this.#error;
  }

  /** Nothing is under way. */
  get isIdle(): boolean {
    return this.#closed === this.#opened && this.#head === this.#queue.length;
  }

  /** A job that has begun. */
  enqueue(job: Job): void {
    if (this.#error === undefined) this.#queue.push(job);
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
    const before = this.#opened + this.#sent + this.#returned + this.#closed;
    this.#close();
    this.#takeBack();
    // The first piece goes out before all slots are filled: to enqueue a copy takes a device some microseconds.
    for (let opened = -1; opened < this.#opened;) {
      opened = this.#opened;
      this.#open();
      this.#send();
    }
    return this.#opened + this.#sent + this.#returned + this.#closed > before;
  }

  #open(): void {
    const most = Math.min(this.#opened + OPENED_TOGETHER, this.#closed + this.#slots);
    while (this.#head < this.#queue.length && this.#opened < most) {
      const job = this.#queue[this.#head] as Job;
      const slot = this.#opened % this.#slots;
      this.#jobs[slot] = undefined;
      if (job.fits(slot)) {
        try {
          const ticket = job.open(job.opened, slot);
          if (ticket < 0) return;
          this.#tickets[slot] = ticket;
        } catch (error) {
          this.end(job, asWeftlineError(error));
          continue;
        }
        this.#jobs[slot] = job;
        this.#epochs[slot] = job.epoch;
        this.#pieces[slot] = job.opened++;
        if (job.opened === job.pieces) this.#pass();
      }
      this.#opened++;
    }
  }

  #pass(): void {
    this.#head++;
    if (this.#head < MAX_GAPS && this.#head < this.#queue.length) return;
    this.#queue.splice(0, this.#head);
    this.#head = 0;
  }

  #send(): void {
    for (; this.#sent < this.#opened; this.#sent++) {
      const slot = this.#sent % this.#slots;
      const job = this.#owner(slot);
      if (job === undefined) {
        // A device may still write to the slot, into what its next piece says and holds.
        if (!this.#isFilled(slot)) return;
        // What was never sent need not be awaited.
        this.#jobs[slot] = undefined;
        if (this.#carrier?.skip(slot) === false) return;
        continue;
      }
      const piece = this.#pieces[slot]!;
      try {
        if (!job.isFilled(piece, this.#tickets[slot]!) || !job.send(piece, slot)) return;
      } catch (error) {
        this.end(job, asWeftlineError(error));
        this.#sent--;
      }
    }
  }

  #takeBack(): void {
    const carrier = this.#carrier;
    const limit = carrier === undefined ? this.#sent : carrier.returned;
    for (; this.#returned < Math.min(limit, this.#sent); this.#returned++) {
      const slot = this.#returned % this.#slots;
      const job = this.#owner(slot);
      const piece = this.#pieces[slot]!;
      if (job === undefined) {
        if (this.#jobs[slot]?.isDrained(piece, slot) === false) return;
        this.#jobs[slot] = undefined;
        continue;
      }
      try {
        if (!job.isBack(piece, slot)) return;
        const ticket = job.land(piece, slot);
        if (ticket < 0) return;
        this.#tickets[slot] = ticket;
      } catch (error) {
        this.end(job, asWeftlineError(error));
        this.#returned--;
      }
    }
  }

  #close(): void {
    for (; this.#closed < this.#returned; this.#closed++) {
      const slot = this.#closed % this.#slots;
      const job = this.#jobs[slot];
      if (job === undefined) continue;
      const isWanted = this.#owner(slot) === job;
      try {
        // Also of a job that has ended: a device may still read the slot.
        if (!job.isLanded(this.#pieces[slot]!, this.#tickets[slot]!)) return;
      } catch (error) {
        if (isWanted) this.end(job, asWeftlineError(error));
        continue;
      }
      this.#jobs[slot] = undefined;
      if (isWanted && ++job.closed === job.pieces) job.finish(undefined);
    }
  }

  /** Of a piece that nobody waits for. */
  #isFilled(slot: number): boolean {
    try {
      return this.#jobs[slot]?.isFilled(this.#pieces[slot]!, this.#tickets[slot]!) !== false;
    } catch {
      // The device has failed, and writes nothing more.
      return true;
    }
  }

  /** Whose the piece is, unless that job is over. */
  #owner(slot: number): Job | undefined {
    const job = this.#jobs[slot];
    return job !== undefined && !job.isOver && job.epoch === this.#epochs[slot] ? job : undefined;
  }
}
