// The thread that carries out large copies of an agent, so that they go on while the agent's thread does something else.
import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import {
  CLAIM_FIELDS,
  type CheckedCopies,
  type CopyJob,
  CopyRows,
  CopyLane,
  JOB_WORDS,
  LANE_WORDS,
  THREAD_WORDS,
  threadWord,
} from './copy-lane.ts';
import { packageFile } from '../../../core/package-file.ts';
import { bindDeclaredFunctions, viewAt } from '../../../native/library.ts';
import { PooledWork } from '../../../threads/thread-pool.ts';
import { SharedLock, WakeWord } from '../../../threads/wake-word.ts';
import { type PeerMailbox, PeerSteps, RecordSender, RegionGrants } from './peer-mailbox.ts';

export class CopyThread {
  readonly #words = new Int32Array(new SharedArrayBuffer(THREAD_WORDS * 4));
  readonly #lock: SharedLock;
  readonly #wake: WakeWord;
  readonly #jobs = new Map<number, CopyJob>();
  readonly #work: PooledWork | undefined;
  #nextId = 1;

  /** Without a thread of its own, the agent's copies all. */
  constructor({ wake, ownThread }: { readonly wake: WakeWord; readonly ownThread: boolean }) {
    this.#wake = wake;
    const shared = this.#words.buffer;
    this.#lock = new SharedLock(shared, threadWord.lock * 4);
    if (!ownThread) return;
    const data: CopyWorkerData = { words: shared, wake: wake.buffer };
    this.#work = new PooledWork({
      entry: packageFile('./copy-thread.js', import.meta.url),
      name: 'copies',
      data,
      // The agent's own thread copies all without this one, in turns of its event loop.
      onEnd: () => Atomics.store(this.#words, threadWord.isRunning, 0),
    });
    this.#work.unref();
  }

  /** False while it starts. */
  get isRunning(): boolean {
    return Atomics.load(this.#words, threadWord.isRunning) === 1;
  }

  /** Whether the process stays alive for it. */
  set keepsAlive(keeps: boolean) {
    if (keeps) this.#work?.ref();
    else this.#work?.unref();
  }

  openLane({ address, bytes, slot, sender, steps }: PeerMailbox): LaneToPeer {
    const id = this.#nextId++;
    const words = new Int32Array(new SharedArrayBuffer(LANE_WORDS * 4));
    this.#order({ do: 'open lane', id, words, mailbox: address, mailboxBytes: bytes, slot });
    const copies = new CopyLane({
      words,
      lock: this.#lock,
      sender: () => sender,
      steps: () => steps,
      wake: this.#wake,
      jobs: (job) => this.#jobs.get(job) as CopyJob,
      onWork: () => this.#ring(),
    });
    return { id, copies, lock: this.#lock };
  }

  /** The lane's jobs must be gone. */
  closeLane({ id }: LaneToPeer): void {
    this.#order({ do: 'close lane', id });
  }

  /** `previous` is forgotten: messages of another length need a job of their own. */
  makeJob(copies: CheckedCopies, messageBytes: number, previous?: CopyJob): CopyJob {
    if (previous !== undefined) this.forgetJob(previous);
    const { rows, grants } = copies;
    const id = this.#nextId++;
    const words = new Int32Array(new SharedArrayBuffer(JOB_WORDS * 4));
    const claim = new Float64Array(new SharedArrayBuffer(CLAIM_FIELDS * 8));
    const message = new Uint8Array(new SharedArrayBuffer(messageBytes));
    this.#order({ do: 'make job', id, words, claim, rows: rows.shared, grants: grants.buffer, message });
    const job = { id, words, claim, rows, grants, message };
    this.#jobs.set(id, job);
    return job;
  }

  /** It must not be queued. */
  forgetJob({ id }: CopyJob): void {
    this.#jobs.delete(id);
    this.#order({ do: 'forget job', id });
  }

  async close(): Promise<void> {
    Atomics.store(this.#words, threadWord.mustStop, 1);
    this.#ring();
    this.#work?.ref();
    await this.#work?.over;
  }

  #order(order: CopyOrder): void {
    this.#work?.port.postMessage(order);
  }

  #ring(): void {
    Atomics.add(this.#words, threadWord.bell, 1);
    Atomics.notify(this.#words, threadWord.bell);
  }
}

/** What a link holds of the thread. */
export interface LaneToPeer {
  readonly id: number;
  readonly copies: CopyLane;
  /** The lock that is held while something is written to the peer. */
  readonly lock: SharedLock;
}

// What the agent's thread and the thread that copies for it tell each other.

interface CopyWorkerData {
  /** Words as `threadWord` names them. */
  readonly words: SharedArrayBuffer;
  /** The memory of the agent's WakeWord. */
  readonly wake: SharedArrayBuffer;
}

/** Sent before the bell is rung for what they speak of. */
type CopyOrder =
  | {
      readonly do: 'open lane';
      readonly id: number;
      readonly words: Int32Array;
      /** Native address of the peer's mailbox, mapped until no job of the lane is queued any more; the sender's place in it. */
      readonly mailbox: number;
      readonly mailboxBytes: number;
      readonly slot: number;
    }
  | { readonly do: 'close lane'; readonly id: number }
  | {
      readonly do: 'make job';
      readonly id: number;
      readonly words: Int32Array;
      readonly claim: Float64Array;
      readonly rows: CopyRows['shared'];
      readonly message: Uint8Array;
      /** The memory of RegionGrants. */
      readonly grants: SharedArrayBuffer;
    }
  | { readonly do: 'forget job'; readonly id: number };

// The thread's side: takes steps of the copies of an agent's links until told to stop.

/** How long a message waits for the peer's next look at its ring. */
const BLOCKED_MS = 1;

export function run(data: CopyWorkerData, port: MessagePort): void {
  bindDeclaredFunctions();
  const words = new Int32Array(data.words);
  const lock = new SharedLock(data.words, threadWord.lock * 4);
  const wake = new WakeWord(data.wake);
  const lanes = new Map<number, CopyLane>();
  const jobs = new Map<number, CopyJob>();

  Atomics.store(words, threadWord.isRunning, 1);
  let heard = -1;
  for (;;) {
    // ORDER: the bell before everything that it is rung for, so that no ring is slept through.
    const seen = Atomics.load(words, threadWord.bell);
    if (Atomics.load(words, threadWord.mustStop) === 1) break;
    if (seen !== heard) takeOrders();
    heard = seen;
    const outcome = stepAll();
    if (outcome === 'nothing') Atomics.wait(words, threadWord.bell, seen);
    else if (outcome === 'blocked') Atomics.wait(words, threadWord.bell, seen, BLOCKED_MS);
  }
  Atomics.store(words, threadWord.isRunning, 0);

  function stepAll(): ReturnType<CopyLane['step']> {
    let all: ReturnType<CopyLane['step']> = 'nothing';
    for (const lane of lanes.values()) {
      const outcome = lane.step();
      if (outcome === 'moved') all = 'moved';
      else if (outcome === 'blocked' && all === 'nothing') all = 'blocked';
    }
    return all;
  }

  function takeOrders(): void {
    for (let found = receiveMessageOnPort(port); found !== undefined; found = receiveMessageOnPort(port)) {
      take(found.message as CopyOrder);
    }
  }

  function take(order: CopyOrder): void {
    switch (order.do) {
      case 'open lane':
        lanes.set(order.id, openLane(order));
        break;
      case 'close lane':
        lanes.delete(order.id);
        break;
      case 'make job': {
        const { id, message, claim, words: own } = order;
        const grants = RegionGrants.over(order.grants);
        jobs.set(id, { id, words: own, claim, message, grants, rows: CopyRows.over(order.rows) });
        break;
      }
      case 'forget job':
        jobs.delete(order.id);
        break;
      default:
        order satisfies never;
    }
  }

  function openLane(order: Extract<CopyOrder, { do: 'open lane' }>): CopyLane {
    let mailbox: ArrayBuffer | undefined;
    let sender: RecordSender | undefined;
    let steps: PeerSteps | undefined;
    // It is guaranteed to exist only while the lane has a job.
    const buffer = (): ArrayBuffer => (mailbox ??= viewAt(order.mailbox, order.mailboxBytes));
    return new CopyLane({
      words: order.words,
      lock,
      sender: () => (sender ??= new RecordSender(buffer(), order.slot)),
      steps: () => (steps ??= new PeerSteps(buffer(), order.slot, 'copyStep')),
      wake,
      jobs: findJob,
      // The loop looks at every lane again before it sleeps.
      onWork: () => {},
    });
  }

  /** Called under the lock. */
  function findJob(id: number): CopyJob {
    // It may have been queued since the last look at the orders, which came before.
    if (!jobs.has(id)) takeOrders();
    return jobs.get(id) as CopyJob;
  }
}
