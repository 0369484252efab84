// What one transfer copies between memory of hosts: its native arguments, in memory that two threads share.
import { copyMemory } from '../../../native/libc.ts';
import { copyRanges, MAX_RANGES, RangeList } from '../../../native/process-memory.ts';

/** One piece of a transfer: where it is here, where it is there. */
export interface CopyPart {
  readonly local: number;
  readonly remote: number;
  readonly bytes: number;
}

export interface CopyTableParts {
  /** Both sides are mapped in this process. */
  readonly mapped: readonly CopyPart[];
  /** The far side is memory of the process `pid`. */
  readonly process: readonly CopyPart[];
  readonly pid: number;
  readonly isRead: boolean;
  /** About so much is copied in one step. */
  readonly stepBytes: number;
}

/** Longest range of another process's memory, so that a call of the kernel stays short. */
const RANGE_BYTES = 4 << 20;

/** Columns of a row. `process`: 0 for a copy of mapped memory, else pid to write into, or -pid to read from. */
const column = { process: 0, to: 1, from: 2, bytes: 3, ranges: 4 } as const;
const COLUMNS = 5;
/** Steps and rows, before the first row of each step, before the rows. */
const HEAD_WORDS = 2;

/** What `copy` returns for a range that ended early: its end is no longer mapped over there. */
export const CUT_SHORT = -1;

export class CopyTable {
  /** For `CopyTable.over` in another thread. */
  readonly buffer: SharedArrayBuffer;
  readonly bytes: number;
  readonly steps: number;
  /** Kept because their addresses stand in rows. */
  readonly ranges: RangeList | undefined;
  readonly #firstRows: Int32Array;
  readonly #rows: Float64Array;

  static of(parts: CopyTableParts): CopyTable {
    const { ranges, rows: processRows } = rowsOfProcess(parts);
    const rows = [...rowsOfMapped(parts), ...processRows];
    const firstRows: number[] = [];
    let bytes = Number.POSITIVE_INFINITY;
    for (const [index, row] of rows.entries()) {
      if (bytes + (row[column.bytes] as number) > parts.stepBytes) {
        firstRows.push(index);
        bytes = 0;
      }
      bytes += row[column.bytes] as number;
    }
    const steps = firstRows.length;
    const words = HEAD_WORDS + Math.ceil((steps + 1) / 2) * 2;
    const buffer = new SharedArrayBuffer(words * 4 + rows.length * COLUMNS * 8);
    new Int32Array(buffer).set([steps, rows.length, ...firstRows, rows.length]);
    new Float64Array(buffer, words * 4).set(rows.flat());
    return new CopyTable(buffer, ranges);
  }

  /** In another thread; the one that made it must keep it. */
  static over(buffer: SharedArrayBuffer): CopyTable {
    return new CopyTable(buffer, undefined);
  }

  private constructor(buffer: SharedArrayBuffer, ranges: RangeList | undefined) {
    const [steps, rows] = new Int32Array(buffer, 0, HEAD_WORDS) as unknown as [number, number];
    this.buffer = buffer;
    this.steps = steps;
    this.ranges = ranges;
    this.#firstRows = new Int32Array(buffer, HEAD_WORDS * 4, steps + 1);
    const words = HEAD_WORDS + Math.ceil((steps + 1) / 2) * 2;
    this.#rows = new Float64Array(buffer, words * 4, rows * COLUMNS);
    this.bytes = this.#sum(0, rows);
  }

  bytesOf(step: number): number {
    return this.#sum(this.#firstRows[step] as number, this.#firstRows[step + 1] as number);
  }

  /** Hot path. Returns 0, or why not all of the step could be copied: an errno, or CUT_SHORT. */
  copy(step: number): number {
    const rows = this.#rows;
    const end = (this.#firstRows[step + 1] as number) * COLUMNS;
    for (let at = (this.#firstRows[step] as number) * COLUMNS; at < end; at += COLUMNS) {
      const process = rows[at] as number;
      const to = rows[at + column.to] as number;
      const from = rows[at + column.from] as number;
      const bytes = rows[at + column.bytes] as number;
      if (process === 0) {
        copyMemory(to, from, bytes);
        continue;
      }
      const copied = copyRanges(process, to, from, rows[at + column.ranges] as number);
      if (copied !== bytes) return copied < 0 ? -copied : CUT_SHORT;
    }
    return 0;
  }

  #sum(first: number, end: number): number {
    let sum = 0;
    for (let row = first; row < end; row += 1) sum += this.#rows[row * COLUMNS + column.bytes] as number;
    return sum;
  }
}

function rowsOfMapped({ mapped, isRead, stepBytes }: CopyTableParts): number[][] {
  return cut(mapped, stepBytes).map(({ local, remote, bytes }) => [
    0,
    ...(isRead ? [local, remote] : [remote, local]),
    bytes,
    0,
  ]);
}

/** As many ranges in a call of the kernel as it takes. */
function rowsOfProcess({ process, pid, isRead, stepBytes }: CopyTableParts): {
  readonly rows: number[][];
  readonly ranges: RangeList | undefined;
} {
  if (process.length === 0) return { rows: [], ranges: undefined };
  const pieces = cut(process, Math.min(stepBytes, RANGE_BYTES));
  const ranges = new RangeList(pieces.length);
  const calls: { first: number; count: number; bytes: number }[] = [];
  for (const [index, piece] of pieces.entries()) {
    ranges.set(index, piece);
    const call = calls.at(-1);
    if (
      call === undefined ||
      call.count === MAX_RANGES ||
      call.bytes + piece.bytes > Math.min(stepBytes, RANGE_BYTES)
    ) {
      calls.push({ first: index, count: 1, bytes: piece.bytes });
    } else {
      call.count += 1;
      call.bytes += piece.bytes;
    }
  }
  const rows = calls.map(({ first, count, bytes }) => {
    const { local, remote } = ranges.addressesOf(first);
    return isRead ? [-pid, local, remote, bytes, count] : [pid, remote, local, bytes, count];
  });
  return { rows, ranges };
}

function cut(parts: readonly CopyPart[], longest: number): CopyPart[] {
  const pieces: CopyPart[] = [];
  for (const { local, remote, bytes } of parts) {
    for (let at = 0; at < bytes; at += longest) {
      pieces.push({ local: local + at, remote: remote + at, bytes: Math.min(longest, bytes - at) });
    }
  }
  return pieces;
}
