// What a lane carries: some pieces in order, and what each of their stages does. Hot path: no allocation.
import type { WeftlineError } from '../../core/errors.ts';

/** A job can be begun again when it is over; pieces of an earlier time may then still be under way. */
export abstract class Job {
  pieces = 0;
  /** Of this time: pieces that were opened, and that are over. */
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

  /** The slots that its next piece can go through. */
  abstract fits(slot: number): boolean;
  /** Fills the slot. Returns a ticket for `isFilled`; -1 if there is no room for the work now. */
  abstract open(piece: number, slot: number): number;
  abstract isFilled(piece: number, ticket: number): boolean;
  /** False if there is no room now. */
  abstract send(piece: number, slot: number): boolean;
  /** Fails with why the piece was refused. */
  abstract isBack(piece: number, slot: number): boolean;
  /** The same of a piece that nobody waits for; never fails. */
  abstract isDrained(piece: number, slot: number): boolean;
  /** Brings what came back to its place. Returns a ticket for `isLanded`; -1 if there is no room for the work now. */
  abstract land(piece: number, slot: number): number;
  abstract isLanded(piece: number, ticket: number): boolean;
  protected abstract ended(error: WeftlineError | undefined): void;
}
