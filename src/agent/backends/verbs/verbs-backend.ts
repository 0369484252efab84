// The agent's backend over RDMA queue pairs (RC): one-sided reads, writes and atomics between registered memory of hosts.
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import type { ControlChannel } from '../../../meeting/control-channel.ts';
import { credentialsOf } from '../../../meeting/credentials.ts';
import { MeetingListener } from '../../../meeting/listener.ts';
import { networkIdentity } from '../../../world/host-identity.ts';
import type { AgentMemory, MemoryKind } from '../../agent-memory.ts';
import type { Backend, BackendContext, BackendPeer, ConnectOptions } from '../../backend.ts';
import { whyNotAddress } from '../../peer-address.ts';
import { PortWatch } from './port-watch.ts';
import { unreachablePort, whyNotPort } from './queue-pair-end.ts';
import { VerbsDevice } from './verbs-device.ts';
import { VerbsGuest } from './verbs-guest.ts';
import { VerbsLink } from './verbs-link.ts';
import {
  acceptVerbsPeer,
  connectVerbsPeer,
  decodeVerbsInfo,
  encodeVerbsInfo,
  type VerbsCaller,
  type VerbsSelf,
} from './verbs-meeting.ts';
import { VerbsRegion } from './verbs-region.ts';
import { VerbsSleep } from './verbs-sleep.ts';

/** A link whose connection broke off is lost after so long without another one. */
const RECONNECT_MS = 10_000;
/** Without a thread of its own: how long the agent's thread may sleep. */
const POLL_INTERVAL_MS = 0.1;

/**
 * Fails with WL_UNSUPPORTED without libibverbs or a port that can be used, with WL_CONFIG for settings that name what this
 * host does not have.
 */
export async function createBackend(context: BackendContext): Promise<Backend<'verbs'>> {
  const { device, choice } = VerbsDevice.open(context.settings);
  try {
    return await VerbsBackend.open(context, device, choice.control?.addresses[0] ?? context.host);
  } catch (error) {
    device[Symbol.dispose]();
    throw error;
  }
}

class VerbsBackend implements Backend<'verbs'> {
  readonly name = 'verbs';
  readonly #context: BackendContext;
  readonly #device: VerbsDevice;
  readonly #sleep: VerbsSleep;
  readonly #ports: PortWatch;
  readonly #self: VerbsSelf;
  readonly #network = networkIdentity();
  #connectionInfo: Uint8Array = new Uint8Array(0);
  #listener: MeetingListener | undefined;
  readonly #links: VerbsLink[] = [];
  /** Links that are being connected. */
  readonly #opening = new Set<Promise<VerbsLink>>();
  /** Ends meetings with peers when the backend closes. */
  readonly #ending = new AbortController();
  /** In the order in which they came: of two from one peer, the messages of the older are delivered first. */
  readonly #guests: VerbsGuest[] = [];
  #closing: Promise<void> | undefined;

  static async open(context: BackendContext, device: VerbsDevice, host: string): Promise<VerbsBackend> {
    const credentials = credentialsOf(context.token);
    let backend: VerbsBackend | undefined;
    const listener = await MeetingListener.open({
      target: { host, port: 0 },
      credentials,
      settings: context.settings,
      serve: async (channel) => backend?.welcome(channel),
    });
    listener.unref();
    try {
      backend = new VerbsBackend(context, device, listener);
    } catch (error) {
      listener.close();
      throw error;
    }
    const { name, linkLayer } = device.port;
    backend.#connectionInfo = encodeVerbsInfo({
      host,
      port: listener.port,
      network: backend.#network,
      rail: { name, linkLayer },
    });
    return backend;
  }

  private constructor(context: BackendContext, device: VerbsDevice, listener: MeetingListener) {
    const { agentName: name, incarnation, token, ownThread, wake } = context;
    this.#context = context;
    this.#device = device;
    this.#listener = listener;
    this.#sleep = new VerbsSleep(device, { ownThread, wake });
    this.#ports = new PortWatch(device);
    this.#self = { credentials: credentialsOf(token), name, incarnation };
  }

  get connectionInfo(): Uint8Array {
    return this.#connectionInfo;
  }

  whyNotMemory({ kind }: AgentMemory): string | undefined {
    return this.whyNotRemote(kind);
  }

  whyNotRemote(kind: MemoryKind): string | undefined {
    return kind === 'host' ? undefined : 'it moves host memory only';
  }

  whyNotPeer({ connectionInfo }: BackendPeer): string | undefined {
    const info = decodeVerbsInfo(connectionInfo);
    if (info === undefined) return 'what the peer published is not understood';
    const why = whyNotAddress(info, { network: this.#network, token: this.#context.token });
    return why ?? whyNotPort(this.#device.port, info.rail);
  }

  /** The limit of locked memory may be too low for all that an agent registers; other backends need none. */
  mayLack(): boolean {
    return true;
  }

  async register(memory: AgentMemory): Promise<VerbsRegion> {
    const why = this.whyNotMemory(memory);
    if (why !== undefined) throw new WeftlineError('WL_UNSUPPORTED', `The backend verbs cannot use the memory: ${why}`);
    this.#requireOpen();
    return new VerbsRegion(this.#device.domain, memory);
  }

  async connect(peer: BackendPeer, options: ConnectOptions): Promise<VerbsLink> {
    this.#requireOpen();
    const opening = this.#open(peer, options);
    this.#opening.add(opening);
    try {
      return await opening;
    } finally {
      this.#opening.delete(opening);
    }
  }

  async #open(peer: BackendPeer, options: ConnectOptions): Promise<VerbsLink> {
    const address = decodeVerbsInfo(peer.connectionInfo);
    if (address === undefined) throw invalidArgument('connectionInfo', peer.name, 'that of a verbs backend');
    // The first connection belongs to the caller, later ones to the link.
    let wait = options;
    const { timeoutMs } = this.#context.settings;
    const link = await VerbsLink.open({
      peer: peer.name,
      device: this.#device,
      meet: async (end, left) => {
        const mine = wait;
        wait = { timeoutMs: Math.min(timeoutMs, RECONNECT_MS) };
        const signal = AbortSignal.any([
          left,
          this.#ending.signal,
          ...(mine.signal === undefined ? [] : [mine.signal]),
        ]);
        return connectVerbsPeer({ peer, address }, { ...this.#self, end }, { ...mine, signal });
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
        guest.close();
        this.#guests.splice(at--, 1);
      }
    }
    return hasNews;
  }

  get gainsFromPolling(): boolean {
    return this.#device.completions.isInUse;
  }

  prepareSleep(): number {
    if (!this.#device.completions.isInUse) return this.#ports.pauseMs;
    this.#lookAtLinks();
    this.#device.completions.arm();
    // ORDER: what completed before the queues were armed rings nobody.
    if (this.#device.completions.poll()) {
      this.#lookAtLinks();
      this.#context.wake.ring();
      return 0;
    }
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
    this.#ending.abort(closed());
    // ORDER: nothing makes queue pairs any more when the device is closed.
    await Promise.allSettled(this.#opening);
    await Promise.all([...this.#links].map((link) => link.close()));
    for (const guest of this.#guests.splice(0)) guest.close();
    await this.#sleep.close();
    this.#device[Symbol.dispose]();
  }

  async welcome(channel: ControlChannel): Promise<void> {
    await acceptVerbsPeer(channel, this.#self, (caller) => this.#receive(channel, caller));
  }

  #receive(channel: ControlChannel, caller: VerbsCaller): VerbsGuest['end'] {
    this.#requireOpen();
    const why = whyNotPort(this.#device.port, caller.end);
    if (why !== undefined) throw unreachablePort(why, caller.name);
    const guest = new VerbsGuest(this.#device, {
      caller,
      channel,
      onEnd: (left) => {
        left.leave();
        this.#context.wake.ring();
      },
    });
    this.#guests.push(guest);
    this.#context.wake.ring();
    return guest.end;
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
      if (performance.now() > end) return false;
      this.#progress();
      if (isSo()) return true;
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  #requireOpen(): void {
    if (this.#closing !== undefined) throw closed();
  }
}

function closed(): WeftlineError {
  return new WeftlineError('WL_CLOSED', 'The backend verbs was closed');
}

function remove<T>(list: T[], value: T): void {
  const at = list.indexOf(value);
  if (at >= 0) list.splice(at, 1);
}
