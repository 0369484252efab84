// Copies to one peer that two threads share: they take steps of the first transfer in turn; the one that copies the
// last step sends its message and tells the agent. Hot path: no allocation.
import { jobStates, jobWord, laneWord } from '../../../abi/copy-words.ts';
import type { SharedLock } from '../../../threads/shared-lock.ts';
import type { WakeWord } from '../../../threads/wake-word.ts';
import type { CopyTable } from './copy-table.ts';
import type { PeerSteps } from './peer-steps.ts';
import type { RecordSender } from './record-sender.ts';
import { type RegionGrants, REVOKED } from './region-grants.ts';

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
  /** Of all lanes and of what writes to the same peers. */
  readonly lock: SharedLock;
  readonly sender: () => RecordSender;
  /** Of the thread that this object belongs to. */
  readonly steps: () => PeerSteps;
  /** Where jobs are found by their ids. */
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
      // Also of a thread that fails: the other one goes on alone.
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

  /** Under the lock; the job is the first one and all of its steps are over. */
  #end({ words, message }: CopyJob): CopyOutcome {
    const { words: lane, sender, wake, onWork } = this.#parts;
    if (words[jobWord.hasMessage] === 1 && words[jobWord.failure] === 0) {
      const records = sender();
      records.catchUp();
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
