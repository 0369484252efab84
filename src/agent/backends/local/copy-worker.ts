// Takes steps of the copies of an agent's links until told to stop.
import { type CopyJob, CopyLane, CopyRows, threadWord } from './copy-lane.ts';
import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import { SharedLock, WakeWord } from '../../../threads/wake-word.ts';
import { bindDeclaredFunctions, viewAt } from '../../../native/library.ts';
import type { CopyOrder, CopyWorkerData } from './copy-thread.ts';
import { PeerSteps, RecordSender, RegionGrants } from './sender-end.ts';

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
