// The thread that sleeps on an agent's doorbell in shared memory, and rings the agent when a peer rang it.
import { packageFile } from '../../../core/package-file.ts';
import { PooledWork } from '../../../threads/thread-pool.ts';
import type { WakeWord } from '../../../threads/wake-word.ts';
import type { DoorbellWorkerData } from './doorbell-worker.ts';
import type { Mailbox } from './mailbox.ts';

export class DoorbellThread {
  readonly #mailbox: Mailbox;
  readonly #stop = new Int32Array(new SharedArrayBuffer(4));
  readonly #work: PooledWork;
  #isRunning = false;

  constructor(mailbox: Mailbox, wake: WakeWord) {
    this.#mailbox = mailbox;
    const data: DoorbellWorkerData = {
      doorbell: mailbox.doorbellAddress,
      wake: wake.buffer,
      stop: this.#stop.buffer,
    };
    this.#work = new PooledWork({
      entry: packageFile('./doorbell-worker.js', import.meta.url),
      name: 'doorbell',
      data,
      onMessage: () => (this.#isRunning = true),
      // Without the thread the agent only sleeps shorter.
      onEnd: () => (this.#isRunning = false),
    });
    this.#work.unref();
  }

  get isRunning(): boolean {
    return this.#isRunning;
  }

  async close(): Promise<void> {
    Atomics.store(this.#stop, 0, 1);
    this.#mailbox.ring();
    this.#work.ref();
    await this.#work.over;
  }
}
