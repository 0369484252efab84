// Sleeping until a device has something to tell: descriptors of completions and events, and a thread that watches them.
import { rdmaWatchWords as at, RDMA_WATCH_WORDS } from './watch-words.ts';
import { log } from '../../core/log.ts';
import { packageFile } from '../../core/package-file.ts';
import { Doorbell, ReadinessSet } from '../../native/readiness.ts';
import { PooledWork } from '../../threads/thread-pool.ts';
import type { WakeWord } from '../../threads/wake-word.ts';
import type { RdmaDevice } from './rdma-device.ts';
import { readinessNumbers, type RdmaWatchOptions } from './rdma-watch-thread-options.ts';

export class RdmaSleep {
  readonly #device: RdmaDevice;
  readonly #readiness = new ReadinessSet();
  readonly #doorbell = Doorbell.create();
  readonly #words = new Int32Array(new SharedArrayBuffer(RDMA_WATCH_WORDS * 4));
  readonly #thread: PooledWork | undefined;

  /** The thread, if there is one, rings `wake` for completions after `arm` and for events; else `nap` and `hasEvents` look. */
  constructor(device: RdmaDevice, { ownThread, wake }: { readonly ownThread: boolean; readonly wake: WakeWord }) {
    this.#device = device;
    for (const descriptor of device.descriptors) this.#readiness.add(descriptor, readinessNumbers.completions);
    this.#readiness.add(device.events.descriptor, readinessNumbers.events);
    if (!ownThread) return;
    this.#readiness.add(this.#doorbell.fd, readinessNumbers.doorbell);
    const data: RdmaWatchOptions = {
      words: this.#words.buffer,
      readiness: this.#readiness.fd,
      channel: device.channelAddress,
      completions: device.descriptors,
      events: device.events.descriptor,
      wake: wake.buffer,
    };
    this.#thread = new PooledWork({
      entry: packageFile('./rdma-watch-thread.js', import.meta.url),
      name: 'rdma',
      data,
      onEnd: (cause) => {
        if (cause instanceof Error)
          log('agent', 'warn', `The thread that watches RDMA devices failed: ${cause.message}`);
      },
    });
    this.#thread.unref();
  }

  get hasThread(): boolean {
    return this.#thread !== undefined;
  }

  /** Lets the thread watch descriptors that only a look at the device makes unreadable, each until it was readable. */
  watch(): void {
    if (Atomics.load(this.#words, at.isTaken) === 0) return;
    Atomics.store(this.#words, at.isTaken, 0);
    for (const descriptor of this.#device.descriptors) {
      this.#readiness.remove(descriptor);
      this.#readiness.add(descriptor, readinessNumbers.completions);
    }
  }

  /** Hot path. The device has events; then `seenEvents`. */
  get hasEvents(): boolean {
    return Atomics.load(this.#words, at.events) === 1;
  }

  /** They were taken: later ones are told again. */
  seenEvents(): void {
    Atomics.store(this.#words, at.events, 0);
    if (this.hasThread) this.#readiness.add(this.#device.events.descriptor, readinessNumbers.events);
  }

  /** Looks, and blocks for so many milliseconds at most if there is nothing. There is no thread. */
  nap(milliseconds: number): void {
    if (milliseconds > 0) this.#readiness.sleep(milliseconds * 1000);
    const count = this.#readiness.poll();
    for (let index = 0; index < count; index++) {
      if (this.#readiness.numberAt(index) === readinessNumbers.events) Atomics.store(this.#words, at.events, 1);
      else this.#device.takeChannelEvents();
    }
  }

  /** Called before the device is closed. */
  async close(): Promise<void> {
    const thread = this.#thread;
    if (thread !== undefined) {
      thread.ref();
      Atomics.store(this.#words, at.stop, 1);
      this.#doorbell.ring();
      await thread.over;
    }
    this.#device.takeChannelEvents();
    this.#readiness[Symbol.dispose]();
    this.#doorbell[Symbol.dispose]();
  }
}
