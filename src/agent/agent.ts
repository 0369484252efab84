// A P2P agent: registers memory, tells peers of it, reads and writes theirs, notifies and is notified.
import { randomBytes } from 'node:crypto';
import { checkOptions, type OptionNames, requireFlag } from '../core/check-options.ts';
import { waitOptionNames, type WaitOptions } from '../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { isLogged, log } from '../core/log.ts';
import { quote } from '../core/quote.ts';
import { answerTo } from '../core/waits.ts';
import { type Credentials, credentialsOf } from '../meeting/credentials.ts';
import { startMetrics } from '../metrics/start-metrics.ts';
import { describePlan, planRails } from '../rails/rail-list.ts';
import { readSettings, readToken, type Settings } from '../settings/settings.ts';
import { WakeWord } from '../threads/wake-word.ts';
import { startTracing } from '../tracing/start-tracing.ts';
import { isRank } from '../world/environment.ts';
import { hostIdentity } from '../world/host-identity.ts';
import { addressOfAgent } from './agent-address.ts';
import {
  agentOptionNames,
  type AgentOptions,
  type ChannelParts,
  loadOptionNames,
  type LoadOptions,
  metadataOptionNames,
  type MetadataOptions,
  peerOptionNames,
  type PeerOptions,
  prepareOptionNames,
  type PrepareOptions,
} from './agent-options.ts';
import type { BackendLink } from './backend.ts';
import { type BackendName, BackendSet, type NamedBackend } from './backends/backend-table.ts';
import { checkAgentName, decodeMetadata, encodeMetadata } from './metadata.ts';
import {
  type Message,
  messageBytes,
  NextNotification,
  type Notification,
  type NotificationFilter,
  Notifications,
} from './notifications.ts';
import { type BackendVerdict, PeerLinks } from './peer-links.ts';
import { areOpen, type RegisterOptions, type Registrable, type Registration, Registrations } from './registration.ts';
import { RemoteAgents, type RemoteMemory } from './remote-agent.ts';
import { checkOperation } from './transfer-plan.ts';
import { Transfer } from './transfer.ts';
import { type Awaited, Waiter } from './waiting.ts';

type BlockingFilter = NotificationFilter & { readonly timeoutMs?: number };

const blockingNames: OptionNames<BlockingFilter> = { timeoutMs: true, from: true };
const nextOptionNames: OptionNames<NotificationFilter & WaitOptions> = { ...waitOptionNames, from: true };

/** An agent polls at least this often between waits, for events that no backend rings for. */
const PUMP_MS = 1000;
/** An agent polls at most this often between waits where backends must be polled. */
const LAZY_PUMP_MS = 20;

/**
 * All calls belong to the thread that created it. Calls that wait fail with WL_TIMEOUT, naming agent, peer and backend, and
 * take a signal. After `close` everything fails with WL_CLOSED.
 */
export class Agent implements AsyncDisposable {
  readonly name: string;
  /** Tells this agent from others of its name. Random, since clocks are set back and differ between hosts. */
  readonly incarnation: string;
  readonly settings: Settings;
  /** The numeric address at which it listens, and which its metadata tell peers. */
  readonly host: string;
  readonly #wake: WakeWord;
  readonly #set: BackendSet;
  readonly #unname: () => void;
  readonly #waiter: Waiter;
  readonly #notifications: Notifications;
  readonly #registrations: Registrations;
  readonly #remotes = new RemoteAgents((peer, wait) => this.#links.answer(peer, wait));
  readonly #links: PeerLinks;
  readonly #underWay: Transfer[] = [];
  readonly #closers = new Set<() => Promise<void>>();
  #nextNumber = 1;
  #closing: Promise<void> | undefined;

  /**
   * Fails with WL_INVALID_ARGUMENT for a host that is no address of this host, WL_CONFIG for settings, and for a host that
   * others can reach without a token, WL_UNSUPPORTED if a backend that was named cannot work here.
   * @param name By which peers know it, unique among them.
   * @param options Backends, token, host, settings.
   */
  static async create(name: string, options: AgentOptions = {}): Promise<Agent> {
    checkAgentName(name, (why) => new WeftlineError('WL_INVALID_ARGUMENT', `Invalid name ${quote(name)}: ${why}`));
    checkOptions(options, agentOptionNames, 'options of Agent.create');
    requireFlag('ownThread', options.ownThread);
    const settings = readSettings(options.settings);
    startTracing(settings);
    // join() has started them in a rank.
    if (settings.metrics !== '' && !isRank()) await startMetrics(settings);
    const incarnation = randomBytes(8).toString('hex');
    const token = readToken(options.token);
    const credentials = credentialsOf(token);
    const host = await addressOfAgent(options.host, credentials.kind);
    logRails(name, settings);
    const wake = new WakeWord();
    const notifications = new Notifications(settings.notificationBytes, () => wake.ring());
    const set = await BackendSet.create(options.backends, {
      agentName: name,
      incarnation,
      settings,
      token,
      wake,
      host,
      ownThread: options.ownThread ?? true,
      stagesHostMemory: options.stagesHostMemory ?? false,
      deliver: (peer, message) => notifications.push(peer, message),
      mayDeliver: (peer) => notifications.hasRoom(peer),
    });
    return new Agent({ name, incarnation, settings, host, credentials, wake, notifications, set });
  }

  /** @internal Of a simulated rank, over the backend that it has, which rings `wake`. */
  static simulated(
    name: string,
    of: Pick<Agent, 'settings'> & { readonly wake: WakeWord; backend: NamedBackend },
  ): Agent {
    const { settings, wake, backend } = of;
    const notifications = new Notifications(settings.notificationBytes, () => wake.ring());
    const incarnation = randomBytes(8).toString('hex');
    const facts = { name, incarnation, settings, host: '127.0.0.1', credentials: credentialsOf('') };
    return new Agent({ ...facts, wake, notifications, set: new BackendSet([backend]) });
  }

  private constructor(parts: {
    readonly name: string;
    readonly incarnation: string;
    readonly settings: Settings;
    readonly host: string;
    readonly credentials: Credentials;
    readonly wake: WakeWord;
    readonly notifications: Notifications;
    readonly set: BackendSet;
  }) {
    const { settings, wake, set } = parts;
    this.name = parts.name;
    this.incarnation = parts.incarnation;
    this.settings = settings;
    this.host = parts.host;
    credentialsByAgent.set(this, parts.credentials);
    this.#wake = wake;
    this.#notifications = parts.notifications;
    this.#set = set;
    this.#registrations = new Registrations(this.name, set, settings.timeoutMs);
    const registrations = this.#registrations;
    this.#links = new PeerLinks({ agent: this.name, set, registrations, timeoutMs: settings.timeoutMs });
    this.#unname = answerTo(this.name);
    this.#waiter = new Waiter({
      wake,
      timeoutMs: settings.timeoutMs,
      spinUs: settings.agentSpinUs,
      poll: () => this.poll(),
      set,
    });
    void this.#pump();
  }

  /** The backends that work here, in the order of preference. */
  get backends(): readonly BackendName[] {
    return this.#set.backends.map(({ name }) => name);
  }

  /**
   * Registers memory with every backend that takes it. Fails with WL_UNSUPPORTED if none does, telling why.
   * @param memory A Uint8Array (its buffer must neither be resizable nor be transferred while it is registered), a tensor (close the registration before the tensor, which frees its memory), or a range of GPU memory.
   * @param options A name that peers see.
   */
  register(memory: Registrable, options: RegisterOptions = {}): Promise<Registration> {
    this.#checkOpen();
    return this.#registrations.add(memory, options);
  }

  /**
   * Zeroed host memory that every backend can use, registered. It is freed when the registration is closed.
   * @param bytes 1 or more.
   * @param options A name that peers see.
   */
  async allocate(bytes: number, options: RegisterOptions = {}): Promise<Registration> {
    this.#checkOpen();
    return this.#registrations.allocate(bytes, this.settings.reserveSharedMemory, options);
  }

  /** What a peer needs to reach this agent and its memory: all of it, unless `regions` is given, which may be empty. */
  localMetadata(options: MetadataOptions = {}): Uint8Array {
    this.#checkOpen();
    checkOptions(options, metadataOptionNames, 'options of localMetadata');
    const { regions, withdrawn = [], connections = true } = options;
    requireFlag('connections', connections);
    return encodeMetadata({
      name: this.name,
      incarnation: this.incarnation,
      host: hostIdentity(),
      process: process.pid,
      isWhole: regions === undefined,
      connections: connections ? this.#set.connections : new Map(),
      regions: this.#registrations.describe(regions),
      withdrawn: this.#registrations.withdrawn(withdrawn),
    });
  }

  /**
   * Learns a peer's metadata and returns its name. Those of another life than the known one are taken if that answers and the
   * known one does not, whose transfers then fail with WL_STALE. If not, it fails with WL_STALE; for no metadata, with WL_PROTOCOL.
   */
  async loadRemoteMetadata(blob: Uint8Array, options: LoadOptions = {}): Promise<string> {
    this.#checkOpen();
    checkOptions(options, loadOptionNames, 'options of loadRemoteMetadata');
    if (!(blob instanceof Uint8Array)) throw invalidArgument('blob', blob, "a Uint8Array: a peer's localMetadata()");
    return this.#remotes.load(decodeMetadata(blob), this.#links.waitOf(options), options.heard);
  }

  /** Forgets a peer: its links close, its transfers fail with WL_STALE. False if it was not known. */
  async forget(peer: string): Promise<boolean> {
    return this.#remotes.forget(peer);
  }

  /** @internal Memory of a known peer that this side needs no more, until metadata name it again. */
  forgetMemory(peer: string, numbers: readonly number[]): void {
    this.#remotes.get(peer, this.name).forget(numbers);
  }

  /** @internal The incarnation of a peer whose metadata are known; undefined if there are none. */
  incarnationOf(peer: string): string | undefined {
    return this.#remotes.find(peer)?.incarnation;
  }

  /** Memory of a peer, in the order in which it registered it. Fails with WL_INVALID_ARGUMENT if the peer is not known. */
  remoteMemory(peer: string): readonly RemoteMemory[] {
    return this.#remotes.get(peer, this.name).memory;
  }

  /** Tells which backends can reach the peer, and why not the others; with descriptors, which can carry them. */
  explain(peer: string, lists?: Pick<PrepareOptions, 'local' | 'remote'>): readonly BackendVerdict[] {
    return this.#links.explain(this.#remotes.get(peer, this.name), lists);
  }

  /** Connects now rather than at the first transfer. Returns the backend that was chosen. */
  async connect(peer: string, options: PeerOptions = {}): Promise<BackendName> {
    checkOptions(options, peerOptionNames, 'options of connect');
    const { backend } = await this.#links.linkFor(this.#remotes.get(peer, this.name), options);
    return backend.name;
  }

  /** @internal A link that tells by its state when the peer is lost, by the backend that would carry most. */
  async linkTo(peer: string): Promise<BackendLink> {
    return (await this.#links.linkFor(this.#remotes.get(peer, this.name), {})).link;
  }

  /**
   * Makes a transfer that can be posted many times, each time whole or, with `bySelection`, some of its entries. Fails with WL_INVALID_ARGUMENT (ranges outside of registered memory,
   * lists that do not fit), WL_UNSUPPORTED (no backend, with the reasons), WL_PEER_LOST, WL_STALE, WL_TIMEOUT.
   */
  async prepare(options: PrepareOptions): Promise<Transfer> {
    this.#checkOpen();
    checkOptions(options, prepareOptionNames, 'options of prepare');
    const { operation, local, remote, merge = true, bySelection = false } = options;
    checkOperation(operation);
    requireFlag('merge', merge);
    requireFlag('bySelection', bySelection);
    const peer = this.#remotes.get(options.peer, this.name);
    const lists = { local, remote };
    const selections = bySelection ? this.#links.planSelections(peer, lists, merge) : undefined;
    const planned = selections?.plan ?? this.#links.plan(peer, lists, merge);
    const wait = this.#links.waitOf(options);
    const { backend, link } = await this.#links.linkFor(peer, { ...wait, backend: options.backend }, planned);
    const remotes = await Promise.all(planned.remotes.map(({ number }) => peer.region(backend, number, wait)));
    const { parts, isBySelection } = planned;
    const locals = planned.locals.map((registration) => registration.regionBy(backend.name));
    return new Transfer({
      number: this.#nextNumber++,
      agent: this.name,
      peer,
      operation,
      backend: backend.name,
      link,
      inner: await link.prepare(operation, { locals, remotes, parts, isBySelection }),
      parts,
      size: selections ?? { entries: local.length, bytes: local.bytes },
      select: selections && ((selection) => selections.select(selection)),
      waiter: this.#waiter,
      onPost: (posted) => this.#underWay.push(posted),
      isLocalOpen: () => areOpen(planned.locals),
    });
  }

  /**
   * Sends up to MAX_NOTIFICATION_BYTES (a string as UTF-8) to a peer, behind the data of all transfers to it that were seen
   * to be done. Connects if need be. Fails with WL_INVALID_ARGUMENT for a longer message, having sent nothing, and with
   * WL_BUSY while the peer does not take its notifications.
   * @param peer Name of an agent whose metadata were loaded.
   * @param message A string, sent as UTF-8, or bytes.
   * @param options Which backend, how long to connect.
   */
  async notify(peer: string, message: Message, options: PeerOptions = {}): Promise<void> {
    const bytes = messageBytes(message);
    checkOptions(options, peerOptionNames, 'options of notify');
    const link = await this.#links.messageLink(this.#remotes.get(peer, this.name), options);
    link.notify(bytes);
  }

  /**
   * All notifications that are here, oldest first. Never waits. While the setting `notificationBytes` of a peer wait, its
   * posts with messages fail with WL_BUSY.
   */
  takeNotifications(): Notification[] {
    this.poll();
    return this.#notifications.takeAll();
  }

  /** The next notification, as soon as it comes. */
  async nextNotification(options: NotificationFilter & WaitOptions = {}): Promise<Notification> {
    checkOptions(options, nextOptionNames, 'options of nextNotification');
    const next = new NextNotification(this.#notifications, options, this.name);
    await this.#waiter.wait(next, options);
    return next.found as Notification;
  }

  /**
   * Notifications as they come, for `for await`: each step waits as nextNotification() does, `timeoutMs` for itself, and fails as
   * it does; what fails ends the loop. return() ends a step that waits, which takes nothing.
   */
  notifications(options: NotificationFilter & WaitOptions = {}): AsyncIterableIterator<Notification> {
    checkOptions(options, nextOptionNames, 'options of notifications');
    const ending = new AbortController();
    const signals = [ending.signal, ...(options.signal === undefined ? [] : [options.signal])];
    const own = { ...options, signal: AbortSignal.any(signals) };
    const over = { done: true, value: undefined } as const;
    const iterator: AsyncIterableIterator<Notification> = {
      next: async () => {
        try {
          return ending.signal.aborted ? over : { value: await this.nextNotification(own) };
        } catch (error) {
          if (ending.signal.aborted) return over;
          throw error;
        }
      },
      return: async () => {
        ending.abort();
        return over;
      },
      [Symbol.asyncIterator]: () => iterator,
    };
    return iterator;
  }

  /** nextNotification(), but blocks this thread. */
  nextNotificationBlocking(options: BlockingFilter = {}): Notification {
    checkOptions(options, blockingNames, 'options of nextNotificationBlocking');
    const next = new NextNotification(this.#notifications, options, this.name);
    this.#waiter.waitBlocking(next, options.timeoutMs);
    return next.found as Notification;
  }

  /** @internal For a device's command queue: what puts from this memory to the peer's memory of that number need. */
  async channelParts(
    peer: string,
    local: Registration,
    remote: number,
    options: PeerOptions = {},
  ): Promise<ChannelParts> {
    this.#checkOpen();
    return this.#links.channelParts(this.#remotes.get(peer, this.name), { local, remote }, options);
  }

  /**
   * @internal Waits for what the caller looks at, such as channels and cells that peers add to. It is asked after each look
   * at the backends, and at least every 100 ms.
   */
  until(awaited: Awaited, wait?: WaitOptions): Promise<void> {
    return this.#waiter.wait(awaited, wait);
  }

  /** @internal The same, but blocks this thread. Hot path: no allocation. */
  untilBlocking(awaited: Awaited, timeoutMs?: number): void {
    this.#waiter.waitBlocking(awaited, timeoutMs);
  }

  /** @internal Whatever news this agent's own waits would wake up for rings this bell too. See WakeWord. */
  alsoRing(bell: Parameters<WakeWord['alsoRing']>[0]): (() => void) | undefined {
    return this.#wake.alsoRing(bell);
  }

  /** @internal Hot path. Behind a poll that brought nothing: whether all that comes until the next poll will ring. */
  ringsForAll(): boolean {
    return this.#set.prepareSleep() === Number.POSITIVE_INFINITY;
  }

  /** Hot path. Takes in what has happened; waits do so by themselves. True if anything happened. */
  poll(): boolean {
    if (this.#closing !== undefined) throw this.#closed();
    const hasNews = this.#set.poll();
    const underWay = this.#underWay;
    let kept = 0;
    for (let at = 0; at < underWay.length; at++) {
      const transfer = underWay[at] as Transfer;
      if (!transfer.look()) underWay[kept++] = transfer;
    }
    if (kept !== underWay.length) underWay.length = kept;
    return hasNews;
  }

  /** @internal It keeps the process alive no longer, except while calls wait. */
  unref(): void {
    this.#set.unref();
  }

  /** @internal Whether the memory is registered with this agent, and not closed. */
  has(memory: Registration): boolean {
    return this.#registrations.has(memory);
  }

  /** @internal Something that ends before the agent's backends do, such as a listener. Returns how to take it back. */
  closeWith(close: () => Promise<void>): () => void {
    this.#checkOpen();
    this.#closers.add(close);
    return () => this.#closers.delete(close);
  }

  /** Releases transfers and memory, closes links and backends. Awaited, idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    this.#unname();
    this.#wake.ring();
    await Promise.allSettled([...this.#closers].map((close) => close()));
    await this.#remotes.close(this.#closed());
    try {
      await this.#set.close();
    } finally {
      await this.#registrations.close();
    }
  }

  /** Takes in what peers send between waits, because their senders wait for it, until the agent closes or its backends fail. */
  async #pump(): Promise<void> {
    while (this.#closing === undefined) {
      const { seen } = this.#wake;
      let hasNews: boolean;
      try {
        hasNews = this.poll();
      } catch {
        // The next poll or wait throws the error.
        return;
      }
      const pause = hasNews ? 0 : this.#set.prepareSleep();
      if (hasNews) await new Promise((resolve) => setImmediate(resolve));
      else if (pause >= LAZY_PUMP_MS) await this.#wake.sleep(seen, Math.min(pause, PUMP_MS));
      else await new Promise((resolve) => setTimeout(resolve, LAZY_PUMP_MS).unref());
    }
  }

  #checkOpen(): void {
    if (this.#closing !== undefined) throw this.#closed();
  }

  #closed(): WeftlineError {
    return new WeftlineError('WL_CLOSED', `Agent ${this.name} was closed`, { details: { agent: this.name } });
  }
}

/** Credentials of agents' listeners and callers; outside of the object, so that printing an agent does not show them. */
const credentialsByAgent = new WeakMap<Agent, Credentials>();

export function credentialsOfAgent(agent: Agent): Credentials {
  return credentialsByAgent.get(agent) as Credentials;
}

/** Fails with WL_CONFIG for a wrong list of rails. */
export function logRails(agent: string, { transportRails }: Settings): void {
  if (!isLogged('agent', 'debug')) return;
  for (const line of describePlan(planRails(transportRails))) log('agent', 'debug', `rails of ${agent}: ${line}`);
}

/**
 * Hosts of a job may be containers of one machine, whose processes can copy into each other. They share no memory all the
 * same, which signals within a machine need: then the next backend carries. Undefined: the agent's choice.
 */
export function carrierAcrossHosts(agent: Pick<Agent, 'explain'>, peer: string): BackendName | undefined {
  const usable = agent.explain(peer).filter(({ isUsable }) => isUsable);
  return usable[0]?.backend === 'local' ? usable[1]?.backend : undefined;
}
