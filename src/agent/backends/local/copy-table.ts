// What one transfer copies between memory of hosts: its native arguments, in memory that two threads share.
import { COPY_COLUMNS, COPY_HEAD_BYTES, copyColumn, copyHeadWord } from '../../../abi/copy-words.ts';
import { copyMemory } from '../../../native/libc.ts';
import { copyRanges, MAX_RANGES, IovecList } from '../../../native/process-memory.ts';
import type { CopyList } from './copy-list.ts';

interface CopyTableParts {
  /** Both sides are mapped in this process. */
  readonly mapped: CopyList;
  /** The far side is memory of the process `pid`. */
  readonly process: CopyList;
  readonly pid: number;
  readonly isRead: boolean;
  /** About so much is copied in one step, in at most so many pieces. */
  readonly stepBytes: number;
  readonly stepPieces: number;
}

/** Longest range of another process's memory, so that a call of the kernel stays short. */
const RANGE_BYTES = 4 << 20;

/** A copy of so many bytes takes longer than to begin it. */
const PIECE_COST = 64;

/** What `copy` returns for a range that ended early: its end is no longer mapped over there. */
export const CUT_SHORT = -1;

export class CopyTable {
  /** For `CopyTable.over` in another thread. */
  readonly buffer: SharedArrayBuffer;
  readonly bytes: number;
  readonly steps: number;
  /** Kept because their addresses stand in rows. */
  readonly ranges: IovecList | undefined;
  readonly #firstRows: Int32Array;
  readonly #rows: Float64Array;

  static of(parts: CopyTableParts): CopyTable {
    const { mapped, stepBytes } = parts;
    const calls = callsOfProcess(parts);
    const mappedRows = mapped.countPieces(stepBytes);
    const count = mappedRows + calls.bytes.length;
    // No step is without a row.
    const buffer = new SharedArrayBuffer(COPY_HEAD_BYTES + count * COPY_COLUMNS * 8 + (count + 1) * 4);
    const rows = rowsIn(buffer, count);
    putMapped(rows, parts);
    putCalls(rows.subarray(mappedRows * COPY_COLUMNS), calls, parts);
    const head = new Int32Array(buffer, 0, COPY_HEAD_BYTES / 4);
    head[copyHeadWord.rows] = count;
    head[copyHeadWord.steps] = putSteps(firstRowsIn(buffer, count), rows, parts);
    return new CopyTable(buffer, calls.ranges);
  }

  /** In another thread; the one that made it must keep it. */
  static over(buffer: SharedArrayBuffer): CopyTable {
    return new CopyTable(buffer, undefined);
  }

  private constructor(buffer: SharedArrayBuffer, ranges: IovecList | undefined) {
    const head = new Int32Array(buffer, 0, COPY_HEAD_BYTES / 4);
    const count = head[copyHeadWord.rows]!;
    this.buffer = buffer;
    this.steps = head[copyHeadWord.steps]!;
    this.ranges = ranges;
    this.#firstRows = firstRowsIn(buffer, count);
    this.#rows = rowsIn(buffer, count);
    this.bytes = this.#sum(0, count);
  }

  /** In bytes, by the time that it takes: to begin a piece takes some, too. */
  costOf(step: number): number {
    const first = this.#firstRows[step]!;
    const end = this.#firstRows[step + 1]!;
    return Math.max(this.#sum(first, end), (end - first) * PIECE_COST);
  }

  /** Hot path. Returns 0, or why not all of the step could be copied: an errno, or CUT_SHORT. */
  copy(step: number): number {
    const rows = this.#rows;
    const end = this.#firstRows[step + 1]! * COPY_COLUMNS;
    for (let at = this.#firstRows[step]! * COPY_COLUMNS; at < end; at += COPY_COLUMNS) {
      const process = rows[at]!;
      const to = rows[at + copyColumn.to]!;
      const from = rows[at + copyColumn.from]!;
      const bytes = rows[at + copyColumn.bytes]!;
      if (process === 0) {
        copyMemory(to, from, bytes);
        continue;
      }
      const copied = copyRanges(process, to, from, rows[at + copyColumn.ranges]!);
      if (copied !== bytes) return copied < 0 ? -copied : CUT_SHORT;
    }
    return 0;
  }

  #sum(first: number, end: number): number {
    let sum = 0;
    for (let row = first; row < end; row += 1) sum += this.#rows[row * COPY_COLUMNS + copyColumn.bytes]!;
    return sum;
  }
}

function putMapped(rows: Float64Array, { mapped, isRead, stepBytes }: CopyTableParts): void {
  let at = 0;
  mapped.cut(stepBytes, (local, remote, bytes) => {
    rows[at + copyColumn.to] = isRead ? local : remote;
    rows[at + copyColumn.from] = isRead ? remote : local;
    rows[at + copyColumn.bytes] = bytes;
    at += COPY_COLUMNS;
  });
}

/** Copies of another process's memory, as calls of the kernel. */
interface ProcessCalls {
  readonly ranges: IovecList | undefined;
  /** By call: its first range, and the bytes of all its ranges. */
  readonly first: number[];
  readonly bytes: number[];
}

/** As many ranges in a call of the kernel as it takes. */
function callsOfProcess({ process, stepBytes, stepPieces }: CopyTableParts): ProcessCalls {
  const first: number[] = [];
  const bytes: number[] = [];
  if (process.count === 0) return { ranges: undefined, first, bytes };
  const longest = Math.min(stepBytes, RANGE_BYTES);
  const most = Math.min(stepPieces, MAX_RANGES);
  const ranges = new IovecList(process.countPieces(longest));
  let index = 0;
  let call = -1;
  process.cut(longest, (local, remote, pieceBytes) => {
    ranges.set(index, { local, remote, bytes: pieceBytes });
    const callParts = call < 0 ? most : index - first[call]!;
    const isFull = callParts === most;
    if (isFull || bytes[call]! + pieceBytes > longest) {
      call = first.push(index) - 1;
      bytes.push(0);
    }
    bytes[call]! += pieceBytes;
    index++;
  });
  first.push(index);
  return { ranges, first, bytes };
}

function putCalls(rows: Float64Array, { ranges, first, bytes }: ProcessCalls, { pid, isRead }: CopyTableParts): void {
  if (ranges === undefined) return;
  for (let call = 0; call < bytes.length; call++) {
    const { local, remote } = ranges.addressesOf(first[call]!);
    const at = call * COPY_COLUMNS;
    rows[at + copyColumn.process] = isRead ? -pid : pid;
    rows[at + copyColumn.to] = isRead ? local : remote;
    rows[at + copyColumn.from] = isRead ? remote : local;
    rows[at + copyColumn.bytes] = bytes[call]!;
    rows[at + copyColumn.ranges] = first[call + 1]! - (first[call] as number);
  }
}

/** Writes the first row of each step, then the end of the last one. Returns the number of steps. */
function putSteps(firstRows: Int32Array, rows: Float64Array, { stepBytes, stepPieces }: CopyTableParts): number {
  let steps = 0;
  let bytes = Number.POSITIVE_INFINITY;
  let pieces = 0;
  for (let at = 0; at < rows.length; at += COPY_COLUMNS) {
    const rowBytes = rows[at + copyColumn.bytes]!;
    const rowPieces = Math.max(1, rows[at + copyColumn.ranges]!);
    if (bytes + rowBytes > stepBytes || pieces + rowPieces > stepPieces) {
      firstRows[steps++] = at / COPY_COLUMNS;
      bytes = 0;
      pieces = 0;
    }
    bytes += rowBytes;
    pieces += rowPieces;
  }
  firstRows[steps] = rows.length / COPY_COLUMNS;
  return steps;
}

function rowsIn(buffer: SharedArrayBuffer, count: number): Float64Array {
  return new Float64Array(buffer, COPY_HEAD_BYTES, count * COPY_COLUMNS);
}

function firstRowsIn(buffer: SharedArrayBuffer, count: number): Int32Array {
  return new Int32Array(buffer, COPY_HEAD_BYTES + count * COPY_COLUMNS * 8, count + 1);
}
