// Sleeping until a device has something to tell: descriptors of completions and events, and a thread that watches them.
import { Doorbell, ReadinessSet } from '../../native/readiness.ts';
import type { WakeWord } from '../../threads/wake-word.ts';
import { WatchThread } from '../../threads/watch-thread.ts';
import type { RdmaDevice } from './rdma-device.ts';

/** Numbers of the descriptors in the set. */
const numbers = { doorbell: 0, completions: 1, events: 2 } as const;

export class RdmaSleep {
  readonly #device: RdmaDevice;
  readonly #readiness = new ReadinessSet();
  readonly #doorbell = Doorbell.create();
  readonly #thread: WatchThread | undefined;
  #hasEvents = false;

  /** The thread, if there is one, rings `wake` for completions after `arm` and for events; else `nap` and `hasEvents` look. */
  constructor(device: RdmaDevice, { ownThread, wake }: { readonly ownThread: boolean; readonly wake: WakeWord }) {
    this.#device = device;
    const readiness = this.#readiness;
    const add = (fd: number, number: number): void =>
      ownThread ? readiness.addOnce(fd, number) : readiness.add(fd, number);
    for (const descriptor of device.descriptors) add(descriptor, numbers.completions);
    add(device.events.descriptor, numbers.events);
    if (!ownThread) return;
    readiness.add(this.#doorbell.fd, numbers.doorbell);
    this.#thread = new WatchThread({
      name: 'rdma',
      wake,
      source: { readiness: readiness.fd },
      ring: () => this.#doorbell.ring(),
    });
  }

  get hasThread(): boolean {
    return this.#thread !== undefined;
  }

  /** To be called before the device is armed. */
  takeChannelEvents(): void {
    if (this.#thread?.isReady(numbers.completions)) this.#device.takeChannelEvents();
  }

  /** To be called once it is: lets the thread watch what has been readable again. */
  watch(): void {
    if (!this.#thread?.isReady(numbers.completions)) return;
    this.#thread.forget(numbers.completions);
    for (const descriptor of this.#device.descriptors) this.#readiness.addAgain(descriptor, numbers.completions);
  }

  /** Hot path. The device has events; then `seenEvents`. */
  get hasEvents(): boolean {
    return this.#thread === undefined ? this.#hasEvents : this.#thread.isReady(numbers.events);
  }

  /** They were taken: later ones are told again. */
  seenEvents(): void {
    this.#hasEvents = false;
    if (this.#thread === undefined) return;
    this.#thread.forget(numbers.events);
    this.#readiness.addAgain(this.#device.events.descriptor, numbers.events);
  }

  /** Looks, and blocks for so many milliseconds at most if there is nothing. There is no thread. */
  nap(milliseconds: number): void {
    if (milliseconds > 0) this.#readiness.sleep(milliseconds * 1000);
    const count = this.#readiness.poll();
    for (let index = 0; index < count; index++) {
      if (this.#readiness.numberAt(index) === numbers.events) this.#hasEvents = true;
      else this.#device.takeChannelEvents();
    }
  }

  /** Called before the device is closed. */
  async close(): Promise<void> {
    await this.#thread?.close();
    this.#device.takeChannelEvents();
    this.#readiness[Symbol.dispose]();
    this.#doorbell[Symbol.dispose]();
  }
}
