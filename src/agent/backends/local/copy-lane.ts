// Copies to one peer that two threads share: they take steps of the first transfer in turn; the one that copies the
// last step sends its message and tells the agent. Hot path: no allocation.
import { copyMemory } from '../../../native/libc.ts';
import { IovecList, MAX_RANGES } from '../../../native/process-memory.ts';
import type { SharedLock, WakeWord } from '../../../threads/wake-word.ts';
import { PartTable } from '../../../transport/part-table.ts';
import { type PeerSteps, type RecordSender, type RegionGrants, REVOKED } from './peer-mailbox.ts';

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
 * - `active`: threads that are within a step.
 * - `failure`: why a step failed, as CopyRows.copy says it, or REVOKED; 0 if none has.
 * - `hasMessage`: 1 if a message is to follow.
 */
export const jobWord = { next: 0, state: 1, active: 2, failure: 3, hasMessage: 4 } as const;
export const JOB_WORDS = 5;

/** Where the next step of a job begins, as CopyCursor says it. Read and written under the lock alone. */
const claimField = { row: 0, range: 1, offset: 2 } as const;
export const CLAIM_FIELDS = 3;
export const jobStates = { idle: 0, queued: 1, ended: 2 } as const;

/** Ids of the first and the last job; 0 if there is none. */
const laneWord = { first: 0, last: 1 } as const;
export const LANE_WORDS = 2;

// What one transfer copies between memory of hosts, read in place by two threads: the rows of its parts, and where regions begin.

/** How far copies have come: the row of the next byte, its range in the row, and its place in the range. */
export class CopyCursor {
  row = 0;
  range = 0;
  offset = 0;

  follow({ row, range, offset }: Readonly<Omit<CopyCursor, 'follow'>>): void {
    this.row = row;
    this.range = range;
    this.offset = offset;
  }
}

/** Where a region of the peer begins: a native address of this process, or if `process` is not 0, one of that process. */
interface RemotePlace {
  readonly process: number;
  readonly address: number;
}

interface CopyRowsParts {
  readonly parts: PartTable;
  readonly isRead: boolean;
  /** Native addresses of the regions of this side. */
  readonly locals: readonly number[];
  readonly remotes: readonly RemotePlace[];
}

/** What another thread needs of CopyRows: the memory of the PartTable, and of the places. */
interface SharedRows {
  readonly parts: SharedArrayBuffer;
  readonly places: SharedArrayBuffer;
}

/** The first numbers of the places; those of the peer's regions follow, two each, then those of this side's. */
const placeField = { isRead: 0, remotes: 1 } as const;
const FIRST_PLACE = 2;

/** What `copy` returns for a range that ended early: its end is no longer mapped over there. */
export const CUT_SHORT = -1;

/** Where copies begin. Nobody moves it. */
const BEGIN: Readonly<CopyCursor> = new CopyCursor();

export class CopyRows {
  readonly shared: SharedRows;
  readonly parts: PartTable;
  readonly #isRead: boolean;
  readonly #processes: Float64Array;
  readonly #remotes: Float64Array;
  readonly #locals: Float64Array;
  readonly #end = new CopyCursor();

  static of({ parts, isRead, locals, remotes }: CopyRowsParts): CopyRows {
    const places = new SharedArrayBuffer((FIRST_PLACE + 2 * remotes.length + locals.length) * 8);
    const numbers = [isRead ? 1 : 0, remotes.length];
    for (const { process } of remotes) numbers.push(process);
    for (const { address } of remotes) numbers.push(address);
    new Float64Array(places).set([...numbers, ...locals]);
    return CopyRows.over({ parts: parts.buffer, places });
  }

  static over(shared: SharedRows): CopyRows {
    return new CopyRows(shared);
  }

  private constructor(shared: SharedRows) {
    const places = new Float64Array(shared.places);
    const remotes = places[placeField.remotes]!;
    this.shared = shared;
    this.parts = PartTable.over(shared.parts);
    this.#isRead = places[placeField.isRead] === 1;
    this.#processes = places.subarray(FIRST_PLACE, FIRST_PLACE + remotes);
    this.#remotes = places.subarray(FIRST_PLACE + remotes, FIRST_PLACE + 2 * remotes);
    this.#locals = places.subarray(FIRST_PLACE + 2 * remotes);
  }

  /** Target, source and bytes of the only copy, if there is one range, of mapped memory. */
  get only(): readonly [to: number, from: number, bytes: number] | undefined {
    const { parts } = this;
    if (parts.count !== 1 || parts.ranges[0] !== 1 || this.#processes[parts.remote[0]!] !== 0) return undefined;
    const here = this.#locals[parts.local[0]!]! + parts.localOffset[0]!;
    const there = this.#remotes[parts.remote[0]!]! + parts.remoteOffset[0]!;
    return this.#isRead ? [here, there, parts.bytes[0]!] : [there, here, parts.bytes[0]!];
  }

  /**
   * Hot path. Moves the cursor by a step: about so many bytes, in at most so many pieces; ranges that are longer are cut.
   */
  move(cursor: CopyCursor, stepBytes: number, stepPieces: number): void {
    const { bytes, ranges, count } = this.parts;
    let [room, pieces] = [stepBytes, stepPieces];
    let { row, range, offset } = cursor;
    for (; row < count; row++, range = 0) {
      const size = bytes[row]!;
      // One range that fits: most rows of long tables.
      if (ranges[row] === 1 && offset === 0 && size <= room && pieces > 0) {
        room -= size;
        pieces--;
        continue;
      }
      while (range < ranges[row]!) {
        const left = size - offset;
        // What the rest of a step does not hold begins the next one.
        if (pieces === 0 || (left > room && room < stepBytes)) break;
        const whole = Math.min(ranges[row]! - range, Math.floor(room / left), offset > 0 ? 1 : pieces);
        room -= whole > 0 ? whole * left : room;
        pieces -= Math.max(1, whole);
        offset = whole > 0 ? 0 : offset + stepBytes;
        range += whole;
      }
      if (range < ranges[row]!) break;
    }
    cursor.row = row;
    cursor.range = range;
    cursor.offset = offset;
  }

  /** Hot path. Copies everything. Returns as `copy` does. */
  copyAll(): number {
    this.#end.row = this.parts.count;
    return this.copy(BEGIN, this.#end);
  }

  /** Hot path. Copies what lies between two places. Returns 0, or why not all could be copied: an errno, or CUT_SHORT. */
  copy(start: Readonly<CopyCursor>, end: Readonly<CopyCursor>): number {
    const { local, localOffset, remote, remoteOffset, bytes, ranges, count } = this.parts;
    const isRead = this.#isRead;
    // Columns that would tell nothing are not read: of a long table, they come from memory.
    const isOnePair = this.#locals.length + this.#remotes.length === 2;
    const last = Math.min(end.row, count - 1);
    /** The first row that is copied from its beginning. */
    const firstWhole = start.range === 0 && start.offset === 0 ? start.row : start.row + 1;
    let [from, to, here, there, isMapped] = [-1, -1, 0, 0, false];
    for (let row = start.row; row <= last; row++) {
      if (from === -1 || (!isOnePair && (local[row] !== from || remote[row] !== to))) {
        from = local[row]!;
        to = remote[row]!;
        here = this.#locals[from]!;
        there = this.#remotes[to]!;
        isMapped = this.#processes[to] === 0;
      }
      if (isMapped && ranges[row] === 1 && row >= firstWhole && row < end.row) {
        const near = here + localOffset[row]!;
        const far = there + remoteOffset[row]!;
        if (isRead) copyMemory(near, far, bytes[row]!);
        else copyMemory(far, near, bytes[row]!);
        continue;
      }
      const failure = this.#copyRow(row, start, end);
      if (failure !== 0) return failure;
    }
    return batch === undefined ? 0 : batch.flush();
  }

  /** Copies the ranges of a row that lie between the two places. */
  #copyRow(row: number, start: Readonly<CopyCursor>, end: Readonly<CopyCursor>): number {
    const { parts } = this;
    const process = this.#processes[parts.remote[row]!]!;
    const bytes = parts.bytes[row]!;
    const here = this.#locals[parts.local[row]!]! + parts.localOffset[row]!;
    const there = this.#remotes[parts.remote[row]!]! + parts.remoteOffset[row]!;
    const localStride = parts.localStride[row]!;
    const remoteStride = parts.remoteStride[row]!;
    let range = row === start.row ? start.range : 0;
    let offset = row === start.row ? start.offset : 0;
    const whole = row === end.row ? end.range : parts.ranges[row]!;
    const rest = row === end.row ? end.offset : 0;
    for (; range < whole || (range === whole && offset < rest); range++) {
      const length = (range < whole ? bytes : rest) - offset;
      const near = here + range * localStride + offset;
      const far = there + range * remoteStride + offset;
      offset = 0;
      if (process === 0) {
        if (this.#isRead) copyMemory(near, far, length);
        else copyMemory(far, near, length);
        continue;
      }
      const failure = (batch ??= new ProcessBatch()).add(process, this.#isRead, near, far, length);
      if (failure !== 0) return failure;
    }
    return 0;
  }
}

/** Ranges of another process's memory that go with one call of the kernel. Hot path: no allocation. */
class ProcessBatch {
  readonly #list = new IovecList(MAX_RANGES);
  readonly #range = { local: 0, remote: 0, bytes: 0 };
  #process = 0;
  #isRead = false;
  #count = 0;
  #bytes = 0;

  /** Returns 0, or why earlier ones failed: see CopyRows.copy. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per range
  add(process: number, isRead: boolean, local: number, remote: number, bytes: number): number {
    this.#process = process;
    this.#isRead = isRead;
    const range = this.#range;
    range.local = local;
    range.remote = remote;
    range.bytes = bytes;
    this.#list.set(this.#count++, range);
    this.#bytes += bytes;
    return this.#count === MAX_RANGES ? this.flush() : 0;
  }

  flush(): number {
    const [count, bytes] = [this.#count, this.#bytes];
    if (count === 0) return 0;
    this.#count = 0;
    this.#bytes = 0;
    const copied = this.#list.copy(this.#process, this.#isRead, 0, count);
    if (copied === bytes) return 0;
    return copied < 0 ? -copied : CUT_SHORT;
  }
}

/** That of this thread, once it was needed. */
let batch: ProcessBatch | undefined;

/** What a thread copies of a larger transfer before it looks up; threads share it in steps of this. */
export const STEP_BYTES: number = 256 << 10;
/** Small pieces cost by their number: most in one step. */
const STEP_PIECES = 4096;

/** Copies, and the peer's regions that must be registered for each step of them. */
export interface CheckedCopies {
  readonly rows: CopyRows;
  readonly grants: RegionGrants;
}

/** One transfer's copies. Each thread has an object of its own over the same memory. */
export interface CopyJob extends CheckedCopies {
  readonly id: number;
  readonly words: Int32Array;
  readonly claim: Float64Array;
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
  /** The step that this thread is within. */
  readonly #from = new CopyCursor();
  readonly #to = new CopyCursor();

  constructor(parts: CopyLaneParts) {
    this.#parts = parts;
  }

  /** The agent's thread. The job must not be queued. */
  add({ id, words, claim }: CopyJob, hasMessage: boolean): void {
    const { lock, words: lane, jobs, onWork } = this.#parts;
    lock.take();
    words[jobWord.next] = 0;
    claim.fill(0);
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
    lock.take();
    try {
      const first = lane[laneWord.first]!;
      if (first === 0) return 'nothing';
      job = jobs(first);
      const { words } = job;
      if (isClaimed(job)) return words[jobWord.active] === 0 ? this.#end(job) : 'nothing';
      this.#claim(job);
      Atomics.add(words, jobWord.active, 1);
    } finally {
      // A thread that fails releases it, too: the other one goes on alone.
      lock.release();
    }
    this.#endStep(job, this.#copy(job));
    return 'moved';
  }

  /** Called under the lock. */
  #claim({ rows, claim }: CopyJob): void {
    const from = this.#from;
    const to = this.#to;
    from.row = claim[claimField.row]!;
    from.range = claim[claimField.range]!;
    from.offset = claim[claimField.offset]!;
    to.follow(from);
    rows.move(to, STEP_BYTES, STEP_PIECES);
    claim[claimField.row] = to.row;
    claim[claimField.range] = to.range;
    claim[claimField.offset] = to.offset;
  }

  #copy({ rows, grants }: CopyJob): number {
    const steps = this.#parts.steps();
    steps.begin();
    try {
      return steps.hold(grants) ? rows.copy(this.#from, this.#to) : REVOKED;
    } finally {
      steps.end();
    }
  }

  #endStep(job: CopyJob, failure: number): void {
    const { lock, onWork } = this.#parts;
    const { words } = job;
    lock.take();
    try {
      const isQueued = words[jobWord.state] === jobStates.queued;
      if (failure !== 0 && isQueued) {
        words[jobWord.failure] = failure;
        claimRest(job);
      }
      if (Atomics.sub(words, jobWord.active, 1) !== 1) return;
      if (!isQueued) Atomics.notify(words, jobWord.active);
      // The other thread may have gone to sleep because this one was within the last step.
      else if (isClaimed(job) && this.#end(job) === 'blocked') onWork();
    } finally {
      lock.release();
    }
  }

  /** The agent's thread. Ends a job early, if it has not ended; when it returns, no thread is within a step of it. */
  remove(job: CopyJob): void {
    const { id, words } = job;
    const { lock } = this.#parts;
    lock.take();
    if (words[jobWord.state] === jobStates.queued) {
      claimRest(job);
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

/** All steps of the job are begun. Called under the lock. */
function isClaimed({ rows, claim }: CopyJob): boolean {
  return claim[claimField.row] === rows.parts.count;
}

/** No step of the job is begun any more. Called under the lock. */
function claimRest({ rows, claim }: CopyJob): void {
  claim[claimField.row] = rows.parts.count;
}
