// The thread that sleeps on an agent's doorbell in shared memory, and rings the agent when a peer rang it.
import type { Worker } from 'node:worker_threads';
import { packageFile } from '../../../core/package-file.ts';
import { startWorker } from '../../../threads/start-worker.ts';
import type { WakeWord } from '../../../threads/wake-word.ts';
import type { DoorbellWorkerData } from './doorbell-worker.ts';
import type { Mailbox } from './mailbox.ts';

export class DoorbellThread {
  readonly #mailbox: Mailbox;
  readonly #stop = new Int32Array(new SharedArrayBuffer(4));
  readonly #worker: Worker;
  readonly #exited: Promise<void>;
  #isRunning = false;

  constructor(mailbox: Mailbox, wake: WakeWord) {
    this.#mailbox = mailbox;
    const workerData: DoorbellWorkerData = {
      doorbell: mailbox.doorbellAddress,
      wake: wake.buffer,
      stop: this.#stop.buffer,
    };
    this.#worker = startWorker(packageFile('./doorbell-worker.js', import.meta.url), { workerData, name: 'doorbell' });
    this.#worker.once('message', () => (this.#isRunning = true));
    // Without the thread the agent only sleeps shorter.
    this.#worker.on('error', () => (this.#isRunning = false));
    this.#exited = new Promise((resolve) => this.#worker.once('exit', () => resolve()));
    this.#worker.unref();
  }

  get isRunning(): boolean {
    return this.#isRunning;
  }

  async close(): Promise<void> {
    Atomics.store(this.#stop, 0, 1);
    this.#mailbox.ring();
    this.#worker.ref();
    await this.#exited;
  }
}
