// Copies to one peer that two threads share: they take steps of the first transfer in turn; the one that copies the
// last step sends its message and tells the agent. Hot path: no allocation.
import { copyMemory } from '../../../native/libc.ts';
import { copyRanges, IovecList, MAX_RANGES } from '../../../native/process-memory.ts';
import type { SharedLock, WakeWord } from '../../../threads/wake-word.ts';
import { type PeerSteps, type RecordSender, type RegionGrants, REVOKED } from './sender-end.ts';

// What an agent's thread and the thread that copies for it share: the words of threads, lanes and jobs, and a job's table.

/** Words of the thread that copies.
 *
 * - `lock`: a SharedLock.
 * - `bell`: counts what there is to do, wraps; the thread that copies sleeps on it.
 * - `isRunning`: 1 while that thread takes steps. `mustStop`: set to 1 before the bell is rung for the last time.
 */
export const threadWord = { lock: 0, bell: 1, isRunning: 2, mustStop: 3 } as const;
export const THREAD_WORDS = 4;

/**
 * Words of a job. All but `active` and `state` are read and written under the lock alone.
 *
 * - `next`: the job behind it in its lane, 0 if none.
 * - `state`: of `jobStates`; the agent's thread also reads it without the lock.
 * - `claimed`: steps that a thread has begun. `active`: threads that are within a step.
 * - `failure`: why a step failed, as CopyTable.copy says it, or REVOKED; 0 if none has.
 * - `hasMessage`: 1 if a message is to follow.
 */
export const jobWord = { next: 0, state: 1, claimed: 2, active: 3, failure: 4, hasMessage: 5 } as const;
export const JOB_WORDS = 6;
export const jobStates = { idle: 0, queued: 1, ended: 2 } as const;

/** Ids of the first and the last job; 0 if there is none. */
const laneWord = { first: 0, last: 1 } as const;
export const LANE_WORDS = 2;

/** Columns of a row. `process`: 0 for a copy of mapped memory, else pid to write into, or -pid to read from. */
const copyColumn = { process: 0, to: 1, from: 2, bytes: 3, ranges: 4 } as const;
const COPY_COLUMNS = 5;
/** A head, the rows, then the first row of each step. */
const copyHeadWord = { steps: 0, rows: 1 } as const;
const COPY_HEAD_BYTES = 8;

// Copies that are to be made, in columns: where each piece is here, where it is there, how long it is.

export class CopyList {
  readonly local: Float64Array;
  readonly remote: Float64Array;
  readonly bytes: Float64Array;
  count = 0;

  constructor(capacity: number) {
    this.local = new Float64Array(capacity);
    this.remote = new Float64Array(capacity);
    this.bytes = new Float64Array(capacity);
  }

  add(local: number, remote: number, bytes: number): void {
    const at = this.count++;
    this.local[at] = local;
    this.remote[at] = remote;
    this.bytes[at] = bytes;
  }

  get totalBytes(): number {
    let sum = 0;
    for (let at = 0; at < this.count; at++) sum += this.bytes[at]!;
    return sum;
  }

  /** How many pieces `cut` gives. */
  countPieces(longest: number): number {
    let pieces = 0;
    for (let at = 0; at < this.count; at++) pieces += Math.ceil(this.bytes[at]! / longest);
    return pieces;
  }

  /** Hands over all copies in order, cut into pieces of at most `longest` bytes. */
  cut(longest: number, take: (local: number, remote: number, bytes: number) => void): void {
    for (let at = 0; at < this.count; at++) {
      const local = this.local[at]!;
      const remote = this.remote[at]!;
      const bytes = this.bytes[at]!;
      for (let done = 0; done < bytes; done += longest) {
        take(local + done, remote + done, Math.min(longest, bytes - done));
      }
    }
  }
}

// What one transfer copies between memory of hosts: its native arguments, in memory that two threads share.

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
  /** The memory that `CopyTable.over` takes in another thread. */
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

  /** Reads the table in another thread; the one that made it must keep it. */
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

  /** The time that a step takes, in bytes: to begin a piece takes some, too. */
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
  /** The first range of each call, and the bytes of all its ranges. */
  readonly first: number[];
  readonly bytes: number[];
}

/** Puts as many ranges into a call of the kernel as it takes. */
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

/** Copies, and the peer's regions that must be registered for each step of them. */
export interface CheckedCopies {
  readonly table: CopyTable;
  readonly grants: RegionGrants;
}

/** One transfer's copies. Each thread has an object of its own over the same memory. */
export interface CopyJob extends CheckedCopies {
  readonly id: number;
  readonly words: Int32Array;
  /** What is sent behind the data when `hasMessage` says so. */
  readonly message: Uint8Array;
}

interface CopyLaneParts {
  readonly words: Int32Array;
  /** Lock of all lanes and of what writes to the same peers. */
  readonly lock: SharedLock;
  readonly sender: () => RecordSender;
  /** Steps of the thread that this object belongs to. */
  readonly steps: () => PeerSteps;
  /** Finds a job by its id. */
  readonly jobs: (id: number) => CopyJob;
  /** Rung when a job has ended. */
  readonly wake: WakeWord;
  /** Called under the lock when there is work for both threads: a job begins to be the first, or its message waits for room. */
  readonly onWork: () => void;
}

/** `blocked`: the message of the first job waits for the peer to make room. */
type CopyOutcome = 'moved' | 'blocked' | 'nothing';

export class CopyLane {
  readonly #parts: CopyLaneParts;

  constructor(parts: CopyLaneParts) {
    this.#parts = parts;
  }

  /** The agent's thread. The job must not be queued. */
  add({ id, words }: CopyJob, hasMessage: boolean): void {
    const { lock, words: lane, jobs, onWork } = this.#parts;
    lock.take();
    words[jobWord.next] = 0;
    words[jobWord.claimed] = 0;
    words[jobWord.failure] = 0;
    words[jobWord.hasMessage] = hasMessage ? 1 : 0;
    Atomics.store(words, jobWord.state, jobStates.queued);
    const last = lane[laneWord.last]!;
    if (last === 0) lane[laneWord.first] = id;
    else jobs(last).words[jobWord.next] = id;
    lane[laneWord.last] = id;
    if (last === 0) onWork();
    lock.release();
  }

  /** Either thread. Copies one step of the first job, and ends the job if it was its last. */
  step(): CopyOutcome {
    const { lock, words: lane, jobs } = this.#parts;
    if (Atomics.load(lane, laneWord.first) === 0) return 'nothing';
    let job: CopyJob;
    let step: number;
    lock.take();
    try {
      const first = lane[laneWord.first]!;
      if (first === 0) return 'nothing';
      job = jobs(first);
      const { words, table } = job;
      step = words[jobWord.claimed]!;
      if (step === table.steps) return words[jobWord.active] === 0 ? this.#end(job) : 'nothing';
      words[jobWord.claimed] = step + 1;
      Atomics.add(words, jobWord.active, 1);
    } finally {
      // A thread that fails releases it, too: the other one goes on alone.
      lock.release();
    }
    this.#endStep(job, this.#copy(job, step));
    return 'moved';
  }

  #copy({ table, grants }: CopyJob, step: number): number {
    const steps = this.#parts.steps();
    steps.begin();
    try {
      return steps.hold(grants) ? table.copy(step) : REVOKED;
    } finally {
      steps.end();
    }
  }

  #endStep(job: CopyJob, failure: number): void {
    const { lock, onWork } = this.#parts;
    const { words, table } = job;
    lock.take();
    try {
      const isQueued = words[jobWord.state] === jobStates.queued;
      if (failure !== 0 && isQueued) {
        words[jobWord.failure] = failure;
        words[jobWord.claimed] = table.steps;
      }
      if (Atomics.sub(words, jobWord.active, 1) !== 1) return;
      if (!isQueued) Atomics.notify(words, jobWord.active);
      // The other thread may have gone to sleep because this one was within the last step.
      else if (words[jobWord.claimed] === table.steps && this.#end(job) === 'blocked') onWork();
    } finally {
      lock.release();
    }
  }

  /** The agent's thread. Ends a job early, if it has not ended; when it returns, no thread is within a step of it. */
  remove({ id, words, table }: CopyJob): void {
    const { lock } = this.#parts;
    lock.take();
    if (words[jobWord.state] === jobStates.queued) {
      words[jobWord.claimed] = table.steps;
      this.#unlink(id);
      Atomics.store(words, jobWord.state, jobStates.idle);
    }
    lock.release();
    for (;;) {
      const active = Atomics.load(words, jobWord.active);
      if (active === 0) return;
      Atomics.wait(words, jobWord.active, active);
    }
  }

  /** Called under the lock, when the job is the first one and all of its steps are over. */
  #end({ words, message }: CopyJob): CopyOutcome {
    const { words: lane, sender, wake, onWork } = this.#parts;
    if (words[jobWord.hasMessage] === 1 && words[jobWord.failure] === 0) {
      const records = sender();
      records.ring.catchUp();
      if (!records.push(message)) return 'blocked';
    }
    const next = words[jobWord.next]!;
    Atomics.store(lane, laneWord.first, next);
    if (next === 0) lane[laneWord.last] = 0;
    else onWork();
    // ORDER: behind the message and the failure.
    Atomics.store(words, jobWord.state, jobStates.ended);
    wake.ring();
    return 'moved';
  }

  #unlink(id: number): void {
    const { words: lane, jobs, onWork } = this.#parts;
    let before = 0;
    let at = lane[laneWord.first]!;
    while (at !== id) {
      before = at;
      at = jobs(at).words[jobWord.next]!;
    }
    const next = jobs(id).words[jobWord.next]!;
    if (before === 0) Atomics.store(lane, laneWord.first, next);
    else jobs(before).words[jobWord.next] = next;
    if (next === 0) lane[laneWord.last] = before;
    if (before === 0 && next !== 0) onWork();
  }
}
