// What the agent's backends over RDMA share: one-sided reads, writes and atomics between registered memory of hosts.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { log } from '../../core/log.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import { credentialsOf } from '../../meeting/credentials.ts';
import { MeetingListener } from '../../meeting/listener.ts';
import { Doorbell, ReadinessSet } from '../../native/readiness.ts';
import type { WakeWord } from '../../threads/wake-word.ts';
import { WatchThread } from '../../threads/watch-thread.ts';
import { networkIdentity } from '../../world/host-identity.ts';
import type { AgentMemory, Backend, BackendContext, BackendPeer, ConnectOptions, PathMemory } from '../backend.ts';
import { whyNotAddress } from '../agent-address.ts';
import { type RdmaDevice, whyNotPort } from './rdma-device.ts';
import { RdmaGuest } from './rdma-guest.ts';
import { RdmaLink } from './rdma-link.ts';
import {
  acceptRdmaPeer,
  connectRdmaPeer,
  decodeRdmaInfo,
  encodeRdmaInfo,
  type RdmaCaller,
  type RdmaSelf,
  type RdmaWelcome,
} from './rdma-meeting.ts';
import { RdmaRegion } from './rdma-region.ts';

/** A link whose connection broke off is lost after so long without another one. */
const RECONNECT_MS = 10_000;
/** The longest sleep of the agent's thread if the backend has no thread of its own. */
const POLL_INTERVAL_MS = 0.1;

/** The pause between looks for completions that nothing rings for, if the backend has no thread. */
const BUSY_INTERVAL_MS = 0.05;
const MAX_DEPARTED = 1024;
/** A connection that is not ready by then, its caller gives up. */
const SPEAK_MS = 10_000;

/** What is special about a backend. */
interface RdmaKind<Name extends string> {
  readonly name: Name;
  readonly device: RdmaDevice;
  /** The address to listen at. */
  readonly host: string;
}

/** Closes the device in any case. */
export async function openRdmaBackend<Name extends string>(
  context: BackendContext,
  kind: RdmaKind<Name>,
): Promise<Backend<Name>> {
  try {
    return await RdmaBackend.open(context, kind);
  } catch (error) {
    kind.device[Symbol.dispose]();
    throw error;
  }
}

class RdmaBackend<Name extends string> implements Backend<Name> {
  readonly name: Name;
  readonly #context: BackendContext;
  readonly #device: RdmaDevice;
  readonly #sleep: RdmaSleep;
  readonly #ports: PortWatch;
  readonly #self: RdmaSelf;
  readonly #network = networkIdentity();
  #connectionInfo: Uint8Array = new Uint8Array(0);
  #listener: MeetingListener | undefined;
  readonly #links: RdmaLink[] = [];
  /** Links that are being connected. */
  readonly #opening = new Set<Promise<RdmaLink>>();
  /** Ends meetings with peers when the backend closes. */
  readonly #ending = new AbortController();
  /** Guests in the order in which they came: the messages of the older of two from one peer are delivered first. */
  readonly #guests: RdmaGuest[] = [];
  /** How many messages came of those that have left last: their peers may ask when they connect anew. */
  readonly #departed = new Map<string, number>();
  #closing: Promise<void> | undefined;
  #isDisposed = false;

  static async open<Name extends string>(context: BackendContext, kind: RdmaKind<Name>): Promise<RdmaBackend<Name>> {
    const { host } = kind;
    const credentials = credentialsOf(context.token);
    let backend: RdmaBackend<Name> | undefined;
    const listener = await MeetingListener.open({
      target: { host, port: 0 },
      credentials,
      settings: context.settings,
      serve: async (channel) => backend?.welcome(channel),
    });
    listener.unref();
    try {
      backend = new RdmaBackend(context, kind, listener);
    } catch (error) {
      listener.close();
      throw error;
    }
    const { name, linkLayer } = kind.device.port;
    backend.#connectionInfo = encodeRdmaInfo({
      host,
      port: listener.port,
      network: backend.#network,
      rail: { name, linkLayer },
    });
    return backend;
  }

  private constructor(context: BackendContext, { name: backend, device }: RdmaKind<Name>, listener: MeetingListener) {
    this.name = backend;
    const { agentName: name, incarnation, token, ownThread, wake } = context;
    this.#context = context;
    this.#device = device;
    this.#listener = listener;
    this.#sleep = new RdmaSleep(device, { ownThread, wake });
    this.#ports = new PortWatch(device);
    this.#self = { protocol: backend, credentials: credentialsOf(token), name, incarnation };
  }

  get connectionInfo(): Uint8Array {
    return this.#connectionInfo;
  }

  whyNotMemory(memory: AgentMemory): string | undefined {
    if (memory.kind === 'host') return undefined;
    const gpu = this.#device.gpuMemory?.(memory);
    if (gpu === undefined) return 'it moves host memory only';
    return gpu.way === 'pinned' ? gpu.reason : undefined;
  }

  /** The peer's device may have registered memory of a GPU. */
  whyNotRemote(): string | undefined {
    return undefined;
  }

  describePath(memory: readonly PathMemory[]): string | undefined {
    const own = memory.flatMap(({ local }) =>
      local instanceof RdmaRegion && local.gpu !== undefined ? [local.gpu] : [],
    );
    const isRemote = memory.some(({ kind, remote }) => kind === 'cuda' && remote !== undefined);
    const parts = [
      ...new Set(own.map(({ way, reason }) => `GPU memory by ${way}: ${reason}`)),
      ...(isRemote ? ["the peer's GPU memory by its RDMA device"] : []),
    ];
    return parts.length === 0 ? undefined : parts.join('; ');
  }

  whyNotPeer({ connectionInfo }: BackendPeer): string | undefined {
    const info = decodeRdmaInfo(connectionInfo);
    if (info === undefined) return 'what the peer published is not understood';
    const why = whyNotAddress(info, { network: this.#network, token: this.#context.token });
    return why ?? whyNotPort(this.#device.port, info.rail);
  }

  /** The limit of locked memory may be too low for all that an agent registers; other backends need none. */
  isOptionalFor(): boolean {
    return true;
  }

  async register(memory: AgentMemory): Promise<RdmaRegion> {
    const why = this.whyNotMemory(memory);
    if (why !== undefined)
      throw new WeftlineError('WL_UNSUPPORTED', `The backend ${this.name} cannot use the memory: ${why}`);
    this.#requireOpen();
    return new RdmaRegion(this.#device, memory);
  }

  async connect(peer: BackendPeer, options: ConnectOptions): Promise<RdmaLink> {
    this.#requireOpen();
    const opening = this.#open(peer, options);
    this.#opening.add(opening);
    try {
      return await opening;
    } finally {
      this.#opening.delete(opening);
    }
  }

  async #open(peer: BackendPeer, options: ConnectOptions): Promise<RdmaLink> {
    const address = decodeRdmaInfo(peer.connectionInfo);
    if (address === undefined) throw invalidArgument('connectionInfo', peer.name, `that of a backend ${this.name}`);
    // The first connection belongs to the caller, later ones to the link.
    let wait = options;
    const { timeoutMs } = this.#context.settings;
    const link = await RdmaLink.open({
      peer: peer.name,
      device: this.#device,
      meet: async (own, left) => {
        const mine = wait;
        wait = { timeoutMs: Math.min(timeoutMs, RECONNECT_MS) };
        const signal = AbortSignal.any([
          left,
          this.#ending.signal,
          ...(mine.signal === undefined ? [] : [mine.signal]),
        ]);
        return connectRdmaPeer({ peer, address }, { ...this.#self, ...own }, { ...mine, signal });
      },
      onEnd: (ended) => remove(this.#links, ended),
      ring: () => this.#context.wake.ring(),
      until: (isSo) => this.#until(isSo),
    });
    if (this.#closing !== undefined) await link.close();
    if (link.error !== undefined) throw link.error;
    this.#links.push(link);
    this.#context.wake.ring();
    return link;
  }

  poll(): boolean {
    const sleep = this.#sleep;
    if (!sleep.hasThread) sleep.nap(0);
    if (sleep.hasEvents) this.#takeEvents();
    if (this.#ports.isDown) this.#endUnreachable();
    let hasNews = this.#progress();
    for (let at = 0; at < this.#guests.length; at++) {
      const guest = this.#guests[at]!;
      if (guest.poll(this.#context)) hasNews = true;
      if (guest.isDone) {
        this.#forget(guest);
        this.#guests.splice(at--, 1);
      }
    }
    return hasNews;
  }

  get prefersPolling(): boolean {
    return this.#device.completions.isInUse;
  }

  prepareSleep(): number {
    const { completions } = this.#device;
    if (!completions.isInUse) return this.#ports.pauseMs;
    this.#lookAtLinks();
    this.#sleep.takeChannelEvents();
    const isArmed = completions.arm();
    // ORDER: what completed before the queues were armed rings nobody.
    if (completions.poll() || !isArmed) {
      this.#lookAtLinks();
      this.#context.wake.ring();
      return 0;
    }
    this.#sleep.watch();
    if (completions.isBusy) return BUSY_INTERVAL_MS;
    return Math.min(this.#sleep.hasThread ? Number.POSITIVE_INFINITY : POLL_INTERVAL_MS, this.#ports.pauseMs);
  }

  nap(milliseconds: number): boolean {
    if (this.#sleep.hasThread) return false;
    this.#sleep.nap(milliseconds);
    return true;
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#listener?.close();
    this.#ending.abort(closed(this.name));
    // ORDER: nothing makes queue pairs any more when the device is closed.
    await Promise.allSettled(this.#opening);
    await Promise.all([...this.#links].map((link) => link.close()));
    for (const guest of this.#guests.splice(0)) guest.close();
    await this.#sleep.close();
    this.#isDisposed = true;
    this.#device[Symbol.dispose]();
  }

  async welcome(channel: ControlChannel): Promise<void> {
    await acceptRdmaPeer(channel, this.#self, (caller) => this.#receive(channel, caller));
  }

  #receive(channel: ControlChannel, caller: RdmaCaller): RdmaWelcome {
    this.#requireOpen();
    const earlier = caller.after === undefined ? undefined : this.#guests.find(({ id }) => id === caller.after);
    // ORDER: what has come of it is final once it has left.
    earlier?.leave();
    const arrived = earlier?.arrivedCount ?? this.#departed.get(caller.after ?? '');
    const guest = new RdmaGuest(this.#device, {
      caller,
      channel,
      onEnd: (left) => {
        left.leave();
        this.#context.wake.ring();
      },
    });
    this.#guests.push(guest);
    this.#context.wake.ring();
    void this.#helpToConnect(guest);
    const gone = caller.asked.filter((name) => !this.#device.isRegistered(name));
    return { end: guest.end, guest: guest.id, gone, ...(arrived === undefined ? {} : { arrived }) };
  }

  #forget(guest: RdmaGuest): void {
    this.#departed.set(guest.id, guest.arrivedCount);
    if (this.#departed.size > MAX_DEPARTED) this.#departed.delete(this.#departed.keys().next().value!);
    guest.close();
  }

  /** Some connections are made only while both sides look at their devices. */
  async #helpToConnect(guest: RdmaGuest): Promise<void> {
    const end = performance.now() + SPEAK_MS;
    while (!guest.hasSpoken && !guest.hasLeft && this.#closing === undefined && performance.now() < end) {
      if (this.#device.completions.poll()) this.#context.wake.ring();
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  /** Hot path. Takes in what has completed, and goes on with what waits. True if anything happened. */
  #progress(): boolean {
    const hasNews = this.#device.completions.poll();
    this.#lookAtLinks();
    return hasNews;
  }

  #lookAtLinks(): void {
    const links = this.#links;
    // A link that ends takes itself out of the list.
    for (let at = links.length - 1; at >= 0; at--) links[at]?.look();
  }

  #takeEvents(): void {
    this.#ports.take();
    this.#sleep.seenEvents();
  }

  #endUnreachable(): void {
    const why = this.#ports.failure;
    if (why === undefined) return;
    for (const link of this.#links.toReversed()) link.portFailed(why);
  }

  /** Looks at the device until the condition holds; false if it does not in time. */
  async #until(isSo: () => boolean): Promise<boolean> {
    const end = performance.now() + this.#context.settings.timeoutMs;
    for (;;) {
      // ORDER: asked first, because the queues of a backend that was closed meanwhile must not be looked at any more.
      if (isSo()) return true;
      if (performance.now() > end || this.#isDisposed) return false;
      this.#progress();
      if (isSo()) return true;
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  #requireOpen(): void {
    if (this.#closing !== undefined) throw closed(this.name);
  }
}

function closed(name: string): WeftlineError {
  return new WeftlineError('WL_CLOSED', `The backend ${name} was closed`);
}

function remove<T>(list: T[], value: T): void {
  const at = list.indexOf(value);
  if (at >= 0) list.splice(at, 1);
}

// What the device says of itself between requests: a port that went down, a device that failed.

/** A port that is up again by then loses no link: requests are repeated for about as long. */
const GRACE_MS = 3000;

class PortWatch {
  readonly #device: RdmaDevice;
  #downSince: number | undefined;
  #why = '';
  #hasFailed = false;

  constructor(device: RdmaDevice) {
    this.#device = device;
  }

  /** Takes all events. */
  take(): void {
    const { events, portNumber } = this.#device;
    for (let event = events.take(); event !== undefined; event = events.take()) {
      const { name, meaning, port } = event;
      if (port !== undefined && port !== portNumber) continue;
      if (name === 'IBV_EVENT_PORT_ERR') {
        this.#downSince ??= performance.now();
        this.#why = `${meaning} (${name})`;
        log('agent', 'warn', this.#why);
      } else if (name === 'IBV_EVENT_PORT_ACTIVE') {
        this.#downSince = undefined;
        log('agent', 'info', meaning);
      } else if (name === 'IBV_EVENT_DEVICE_FATAL') {
        this.#hasFailed = true;
        this.#why = `${meaning} (${name})`;
        log('agent', 'warn', this.#why);
      } else log('agent', 'debug', `${meaning} (${name})`);
    }
  }

  /** Hot path. */
  get isDown(): boolean {
    return this.#hasFailed || this.#downSince !== undefined;
  }

  /** Milliseconds until the next look is due; infinite if there is nothing to wait for. */
  get pauseMs(): number {
    if (this.#downSince === undefined) return Number.POSITIVE_INFINITY;
    // Once the time is over there is nothing to look for.
    const left = this.#downSince + GRACE_MS - performance.now();
    return left > 0 ? left : Number.POSITIVE_INFINITY;
  }

  /** Why links are of no use any more; undefined while they may be. */
  get failure(): string | undefined {
    if (this.#hasFailed) return this.#why;
    return this.#downSince !== undefined && this.pauseMs === Number.POSITIVE_INFINITY ? this.#why : undefined;
  }
}

// Sleeping until a device has something to tell: descriptors of completions and events, and a thread that watches them.

/** Numbers of the descriptors in the set. */
const numbers = { doorbell: 0, completions: 1, events: 2 } as const;

class RdmaSleep {
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
