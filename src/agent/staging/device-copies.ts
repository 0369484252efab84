// The work of a device that staging needs: copies between its memory and a ring, additions to counters, and what is done.

/** `out`: from the device's memory to a ring. `in`: from a ring to the device's memory, where additions are made too. */
export type CopyWay = 'out' | 'in';

/** What is copied together. Made once and filled again. */
export class CopyRun {
  readonly to: Float64Array;
  readonly from: Float64Array;
  readonly bytes: Float64Array;
  count = 0;

  constructor(capacity: number) {
    this.to = new Float64Array(capacity);
    this.from = new Float64Array(capacity);
    this.bytes = new Float64Array(capacity);
  }

  clear(): void {
    this.count = 0;
  }

  add(to: number, from: number, bytes: number): void {
    const at = this.count++;
    this.to[at] = to;
    this.from[at] = from;
    this.bytes[at] = bytes;
  }
}

/** There is no room for more work now. */
export const NO_TICKET = -1;

/** Hot path but for `ready` and `close`. What goes one way is carried out in order. */
export interface DeviceCopies {
  /** Resolves when nothing more has to be loaded, which could wait for a running kernel. */
  readonly ready: Promise<void>;
  /** The ticket of the work; NO_TICKET if there is no room for it now. Fails with the device's error. */
  copy(way: CopyWay, run: CopyRun): number;
  /** Adds to a cell of 64 bits, after all that was copied in before. `sum` is what it then holds, -1 if that is not known. */
  add(address: number, value: number, sum: number): number;
  /** That work, and all before it on this way, is done and visible. Fails with the device's error. */
  isDone(way: CopyWay, ticket: number): boolean;
  /** The ticket of the latest work. */
  latest(way: CopyWay): number;
  /** Work is under way: nobody rings when it ends. */
  readonly isBusy: boolean;
  close(): Promise<void>;
}
