// The thread that serves command queues, as a service: owners of queues in shared memory give them to it, register
// memory, meets peers, and opens requests that the commands of the queues name. DeviceHost is one of its users.
import { MAX_DEVICE_REQUESTS } from '../../abi/device-api.ts';
import type { ListenerAddress } from '../../agent/exchange/metadata-exchange.ts';
import { type CallWait, checkTimeout } from '../../core/deadline.ts';
import { decodeError, type EncodedError, WeftlineError } from '../../core/errors.ts';
import { packageFile } from '../../core/package-file.ts';
import { readSettings } from '../../settings/settings.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { type ArgumentOf, type ResultOf, WorkerLink } from '../../threads/worker-link.ts';
import type { MetadataExchangeOptions, ProxyCalls, ProxyThread } from './proxy-worker.ts';

/** The numbers by which commands name the requests of a host. */
class RequestNumbers {
  readonly #isTaken = new Uint8Array(MAX_DEVICE_REQUESTS);
  #next = 0;

  /**
   * The one that was given back longest ago: a command of a request that was released too early then names none, instead of
   * another. Fails with WL_CAPACITY; `owner` is for the error.
   */
  take(owner: string): number {
    for (let looks = 0; looks < MAX_DEVICE_REQUESTS; looks += 1) {
      const number = this.#next;
      this.#next = (number + 1) % MAX_DEVICE_REQUESTS;
      if (this.#isTaken[number] === 1) continue;
      this.#isTaken[number] = 1;
      return number;
    }
    throw new WeftlineError(
      'WL_CAPACITY',
      `${owner} has ${MAX_DEVICE_REQUESTS} requests, which is the most: release some first`,
    );
  }

  giveBack(number: number): void {
    this.#isTaken[number] = 0;
  }
}

interface ProxyServiceOptions extends Omit<ProxyThread, 'wake'> {
  /** Hears of commands that failed, of peers that died, and of the thread's end unless it was closed: once per cause. */
  readonly onFailure: (error: WeftlineError) => void;
  /** What the thread may take for a call, its start included. */
  readonly timeoutMs?: number;
  /** The module that the thread runs, for tests. */
  readonly script?: URL;
}

/** Every call fails with WL_CLOSED after close(), WL_TIMEOUT if the thread does not answer, WL_INTERNAL if it ended. */
export class ProxyService implements AsyncDisposable {
  readonly name: string;
  readonly #wake = new WakeWord();
  readonly #link: WorkerLink<ProxyCalls, EncodedError>;
  readonly #numbers = new RequestNumbers();

  /** The thread starts at once; if it cannot, the first call fails with the reason. */
  constructor({ onFailure, timeoutMs, script, ...thread }: ProxyServiceOptions) {
    const data: ProxyThread = { ...thread, wake: this.#wake.buffer };
    this.name = thread.name;
    this.#link = new WorkerLink({
      entry: script ?? packageFile('./proxy-worker.js', import.meta.url),
      name: 'proxy',
      what: 'thread that serves the command queues',
      closedMessage: 'The device host was closed',
      data,
      // Kernels may be given less than it takes to start a thread.
      timeoutMs: timeoutMs ?? Math.max(thread.settings.timeoutMs, readSettings().timeoutMs),
      lateReason: 'it waits for a peer, or for a kernel that does not end',
      onCall: () => this.wake(),
      onEvent: (error) => onFailure(decodeError(error)),
      // Otherwise kernels would wait until their deadlines for a thread that is gone.
      onEnd: onFailure,
    });
  }

  /**
   * Has the thread carry out a call of ProxyCalls. Fails with what the thread answers; with WL_TIMEOUT some time after the
   * thread should have failed itself. One that does not even begin to serve is ended.
   */
  call<Name extends keyof ProxyCalls>(
    name: Name,
    ...argument: ArgumentOf<ProxyCalls, Name>
  ): Promise<ResultOf<ProxyCalls, Name>> {
    return this.#link.callWith({ endsThread: name === 'serve' }, name, ...argument);
  }

  /** Called after a push of a writer that shares memory with the thread, which may sleep. */
  wake(): void {
    this.#wake.ring();
  }

  /**
   * From now on commands may come without a wake(): the thread looks for them ten times as often where it would sleep. Returns a
   * function that ends this.
   */
  expectUnannounced(): () => void {
    return this.#wake.expectUnannounced();
  }

  /** Asks another's listener; returns the peer's name, if metadata came. */
  async exchange(how: MetadataExchangeOptions['how'], address: ListenerAddress): Promise<string | undefined> {
    const { signal, ...plain } = address;
    const { timeoutMs } = plain;
    if (timeoutMs !== undefined) checkTimeout(timeoutMs);
    return this.#link.callWith({ timeoutMs, signal }, 'exchange', { how, address: plain });
  }

  /** A number for the call `request`, or for a request whose writes need no queue. Fails with WL_CAPACITY. */
  takeNumber(): number {
    return this.#numbers.take(this.name);
  }

  /** The number is free again; a command that still names it fails. */
  async releaseRequest(number: number): Promise<void> {
    await this.call('releaseRequest', number);
    this.#numbers.giveBack(number);
  }

  /** Resolves when all commands that were pushed before are delivered or have failed. */
  settle(wait: CallWait = {}): Promise<void> {
    const { timeoutMs, signal } = wait;
    return this.#link.callWith({ timeoutMs, signal }, 'settle', undefined);
  }

  /** Forgets requests, peers and registrations, and ends the thread. Idempotent. */
  close(): Promise<void> {
    return this.#link.stop();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
