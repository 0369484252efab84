// Sleeps on the doorbell of a mailbox until told to stop.
import type { MessagePort } from 'node:worker_threads';
import { WakeWord } from '../../../threads/wake-word.ts';
import { Futex } from '../../../native/libc.ts';
import { bindDeclaredFunctions, viewAt } from '../../../native/library.ts';

export interface DoorbellWorkerData {
  /** Native address; mapped until the thread has ended. */
  readonly doorbell: number;
  /** The memory of the agent's WakeWord. */
  readonly wake: SharedArrayBuffer;
  /** One word, set to 1 before the doorbell is rung for the last time. */
  readonly stop: SharedArrayBuffer;
}

const LONGEST_SLEEP_NS = 900_000_000;

export function run(data: DoorbellWorkerData, port: MessagePort): void {
  bindDeclaredFunctions();
  const word = new Int32Array(viewAt(data.doorbell, 4));
  const futex = new Futex(word);
  const wake = new WakeWord(data.wake);
  const stop = new Int32Array(data.stop);

  port.postMessage('running');
  let seen = Atomics.load(word, 0);
  while (Atomics.load(stop, 0) === 0) {
    // The loop looks every millisecond where the kernel refuses to let it sleep.
    if (!futex.waitBlocking(seen, LONGEST_SLEEP_NS)) Atomics.wait(stop, 0, 0, 1);
    const now = Atomics.load(word, 0);
    if (now === seen) continue;
    seen = now;
    wake.ring();
  }
}
