// The thread that serves command queues, as a service: owners of queues in shared memory give them to it, register
// memory, meets peers, and opens requests that the commands of the queues name. DeviceHost is one of its users.
import { MAX_DEVICE_REQUESTS } from '../../abi/device-api.ts';
import type { BackendName, ListenerAddress, ListenOptions } from '../../agent/index.ts';
import { type CallWait, checkTimeout } from '../../core/deadline.ts';
import { decodeError, type EncodedError, WeftlineError } from '../../core/errors.ts';
import { packageFile } from '../../core/package-file.ts';
import { readSettings, type Settings } from '../../settings/settings.ts';
import { WakeWord } from '../../threads/wake-word.ts';
import { type ArgumentOf, type ResultOf, WorkerLink } from '../../threads/worker-link.ts';
import type {
  AddRemoteOptions,
  Allocation,
  MetadataExchangeOptions,
  ProxyCalls,
  ProxyRegisterOptions,
  ProxyThread,
  QueueOptions,
  RequestOptions,
} from './proxy-messages.ts';
import { checkQueueLayout } from './command-queue.ts';

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

interface ProxyLinkOptions {
  /** What the thread may take for a call, its start included; by default what the waits of kernels may take. */
  readonly timeoutMs?: number;
  /** What it runs. */
  readonly script?: URL;
}

/** The thread that serves the queues of a ProxyService: starts it, calls it, hears of failures, ends it. */
export class ProxyLink implements AsyncDisposable {
  readonly wake: WakeWord = new WakeWord();
  readonly #link: WorkerLink<ProxyCalls, EncodedError>;

  /** `onFailure` hears of commands that failed, once per cause, and of the thread's end unless it was closed. */
  constructor(
    data: Omit<ProxyThread, 'wake'>,
    onFailure: (error: WeftlineError) => void,
    { timeoutMs = data.settings.timeoutMs, script }: ProxyLinkOptions = {},
  ) {
    const thread: ProxyThread = { ...data, wake: this.wake.buffer };
    this.#link = new WorkerLink({
      entry: script ?? packageFile('./proxy-worker.js', import.meta.url),
      name: 'proxy',
      what: 'thread that serves the command queues',
      closedMessage: 'The device host was closed',
      data: thread,
      timeoutMs,
      lateReason: 'it waits for a peer, or for a kernel that does not end',
      onCall: () => this.wake.ring(),
      onEvent: (error) => onFailure(decodeError(error)),
      // Otherwise kernels would wait until their deadlines for a thread that is gone.
      onEnd: onFailure,
    });
  }

  /**
   * Fails with what the thread answers; with WL_TIMEOUT some time after the thread should have failed itself. One that does
   * not even begin or stop to serve is ended.
   */
  call<Name extends keyof ProxyCalls>(
    name: Name,
    ...argument: ArgumentOf<ProxyCalls, Name>
  ): Promise<ResultOf<ProxyCalls, Name>> {
    return this.#link.callWith({ endsThread: name === 'serve' }, name, ...argument);
  }

  /** The same with a time of its own, or until the signal ends the wait. */
  callWithin<Name extends keyof ProxyCalls>(
    { timeoutMs, signal }: CallWait,
    name: Name,
    ...argument: ArgumentOf<ProxyCalls, Name>
  ): Promise<ResultOf<ProxyCalls, Name>> {
    return this.#link.callWith({ timeoutMs, signal }, name, ...argument);
  }

  /** Closes the agent and ends the thread. Idempotent. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.#link.stop();
  }
}

interface ProxyServiceOptions {
  /** What peers call it. */
  readonly name: string;
  readonly settings: Settings;
  /** Peers must have the same; see Agent. */
  readonly token: string;
  readonly backends?: readonly BackendName[] | undefined;
  /** The numeric address that peers of other hosts reach this one by. */
  readonly host?: string | undefined;
  /** See AgentOptions. */
  readonly stagesHostMemory?: boolean | undefined;
  /**
   * Peers are on other hosts, also where those are containers of this machine: the backend that carries memory within a
   * machine is left out. What a peer that has closed its side did not take counts as delivered, and `onFailure` hears of
   * each such peer, with WL_CLOSED.
   */
  readonly acrossHosts?: boolean | undefined;
  /** GPUs whose memory is registered; none by default. */
  readonly ordinals?: readonly number[];
  /** Hears of commands that failed, of peers that died, and of the thread's end: once per cause. */
  readonly onFailure: (error: WeftlineError) => void;
}

/** Every call fails with WL_CLOSED after close(), WL_TIMEOUT if the thread does not answer, WL_INTERNAL if it ended. */
export class ProxyService implements AsyncDisposable {
  readonly name: string;
  readonly #link: ProxyLink;
  readonly #numbers = new RequestNumbers();

  /** The thread starts at once; if it cannot, the first call fails with the reason. */
  constructor({ name, ordinals = [], onFailure, ...options }: ProxyServiceOptions) {
    const { settings, token, backends, host, stagesHostMemory, acrossHosts } = options;
    this.name = name;
    const data = { agent: name, settings, token, backends, ordinals, host, stagesHostMemory, acrossHosts };
    this.#link = new ProxyLink(data, onFailure, {
      // Kernels may be given less than it takes to start a thread.
      timeoutMs: Math.max(settings.timeoutMs, readSettings().timeoutMs),
    });
  }

  /** Carries out the commands of these queues, too, from now on. They stay in place until the service is closed. */
  serve(queues: QueueOptions): Promise<void> {
    checkQueueLayout(queues);
    return this.#link.call('serve', queues);
  }

  /** Called after a push of a writer that shares memory with the thread, which may sleep. */
  wake(): void {
    this.#link.wake.ring();
  }

  /** Zeroed memory of the host, registered. Freed when it is deregistered. */
  allocate(bytes: number): Promise<Allocation> {
    return this.#link.call('allocate', bytes);
  }

  /** Memory of this process: of the GPU `ordinal`, or of the host. Returns the number of the region. */
  register(memory: ProxyRegisterOptions): Promise<number> {
    return this.#link.call('register', memory);
  }

  /** Peers can no longer use the region; no request may. */
  deregister(region: number): Promise<void> {
    return this.#link.call('deregister', region);
  }

  /** What a peer's addRemote() takes. Of what is registered now. */
  metadata(): Promise<Uint8Array> {
    return this.#link.call('metadata');
  }

  /** Returns the peer's name. See Agent.loadRemoteMetadata. */
  addRemote(metadata: Uint8Array, options: Omit<AddRemoteOptions, 'metadata'> = {}): Promise<string> {
    return this.#link.call('addRemote', { metadata, ...options });
  }

  /** Fails with WL_INVALID_ARGUMENT if there is no peer of the name. Peers may have come by the listener. */
  checkRemote(peer: string): Promise<void> {
    return this.#link.call('checkRemote', peer);
  }

  /** Forgets a peer to which no request goes. False if it is not known. */
  removeRemote(peer: string): Promise<boolean> {
    return this.#link.call('removeRemote', peer);
  }

  /** Takes metadata of peers that connect, and gives its own. Returns the port. */
  listen(options: ListenOptions): Promise<number> {
    return this.#link.call('listen', options);
  }

  /** Asks another's listener; returns the peer's name, if metadata came. */
  async exchange(how: MetadataExchangeOptions['how'], address: ListenerAddress): Promise<string | undefined> {
    const { signal, ...plain } = address;
    const { timeoutMs } = plain;
    if (timeoutMs !== undefined) checkTimeout(timeoutMs);
    return this.#link.callWithin({ timeoutMs, signal }, 'exchange', { how, address: plain });
  }

  /** A number for openRequest(), or for a request whose writes need no queue. Fails with WL_CAPACITY. */
  takeNumber(): number {
    return this.#numbers.take(this.name);
  }

  /** Opens the way to the ranges of a peer: commands of the number are carried out from then on. Returns the backend. */
  openRequest(options: RequestOptions): Promise<BackendName> {
    return this.#link.call('request', options);
  }

  /** The number is free again; a command that still names it fails. */
  async releaseRequest(number: number): Promise<void> {
    await this.#link.call('releaseRequest', number);
    this.#numbers.giveBack(number);
  }

  /** Resolves when all commands that were pushed before are delivered or have failed. */
  settle(wait: CallWait = {}): Promise<void> {
    return this.#link.callWithin(wait, 'settle', undefined);
  }

  /** Forgets requests, peers and registrations, and ends the thread. Idempotent. */
  close(): Promise<void> {
    return this.#link[Symbol.asyncDispose]();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
