// What has arrived on each path since the last ack, to be echoed. Hot path: no allocation.

/** Paths that one ack can echo. */
export const MAX_ECHOES = 16;

export class Arrivals {
  /** Per path: number, clock and arrival of the newest transmission. */
  readonly sequence: Int32Array;
  readonly timestamp: Int32Array;
  readonly arrivedAt: Float64Array;
  readonly marks: Uint16Array;
  /** Paths to be echoed, each once. */
  readonly touched: Uint8Array;
  touchedCount = 0;
  /** Where the newest packet came from: the best guess at a path that works; -1 before any. */
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
