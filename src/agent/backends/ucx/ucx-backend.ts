// The agent's backend over UCX: the agent's side of its worker; meets peers, takes in what the worker says.
import { createServer, type Server, type Socket } from 'node:net';
import { decodeError, invalidArgument, WeftlineError } from '../../../core/errors.ts';
import { WakeWord } from '../../../core/wake-word.ts';
import { REQUEST_SLOTS } from '../../../abi/transport-command.ts';
import { localFiles } from '../../../native/file-probe.ts';
import { hasActiveRdmaPort } from '../../../native/rdma-ports.ts';
import { openUcx } from '../../../native/ucx.ts';
import { type EngineLink, openInlineLink, openThreadLink } from '../../../transport/host/engine-link.ts';
import { hostIdentity } from '../../../world/host-identity.ts';
import type { AgentMemory, MemoryKind } from '../../agent-memory.ts';
import type { Backend, BackendContext, BackendPeer, BackendRegion, ConnectOptions } from '../../backend.ts';
import { decodeUcxAddress, encodeUcxAddress } from './ucx-info.ts';
import type { UcxCall, UcxEvent } from './host-calls.ts';
import { UcxHost } from './ucx-host.ts';
import { UcxLink } from './ucx-link.ts';
import { receiveUcxGuest, type UcxMeeting, type UcxSelf, visitUcxPeer } from './ucx-meeting.ts';
import { UcxRegion } from './ucx-region.ts';
import type { UcxThreadOptions } from './ucx-thread.ts';

/** Callers that have not shown the token yet; of more, the oldest are dropped. */
const MAX_STRANGERS = 64;
/** Without a thread of its own nobody rings when something arrives. */
const INLINE_SLEEP_MS = 1;

/** Fails with WL_UNSUPPORTED without libucp. */
export async function createUcxBackend(context: BackendContext): Promise<Backend> {
  // Here, so that a missing library is an error of this thread.
  openUcx();
  return UcxBackend.open(context);
}

export class UcxBackend implements Backend {
  readonly name = 'ucx';
  readonly connectionInfo: Uint8Array;
  /** Of transfers of all links. */
  readonly slots: number[] = Array.from({ length: REQUEST_SLOTS }, (_, index) => REQUEST_SLOTS - 1 - index);
  readonly engine: EngineLink<UcxCall, UcxEvent>;
  /** Why a slot's transfer failed. */
  readonly errors = new Map<number, WeftlineError>();
  readonly #context: BackendContext;
  readonly #news: WakeWord;
  readonly #server: Server;
  readonly #self: Omit<UcxSelf, 'link'>;
  readonly #links = new Map<number, UcxLink>();
  readonly #strangers = new Set<Socket>();
  readonly #draining = new Map<string, () => void>();
  /** Oldest first; those of a peer stay while the agent has no room for them. */
  #notifications: { readonly from: UcxLink; readonly message: Uint8Array }[] = [];
  readonly #memories = new Map<number, Uint8Array | undefined>();
  #nextChannel = 1;
  #seen = 0;
  #closing: Promise<void> | undefined;

  static async open(context: BackendContext): Promise<UcxBackend> {
    const news = new WakeWord();
    const spinMicroseconds = context.settings.transportSpinUs;
    const data: UcxThreadOptions = { news: [news.buffer, context.wake.buffer], spinMicroseconds };
    const options = {
      name: 'ucx',
      wake: context.wake,
      thread: { entry: new URL('./ucx-thread.js', import.meta.url), data },
      inline: (requests: ConstructorParameters<typeof UcxHost>[0]['requests'], onEvent: (event: UcxEvent) => void) =>
        new UcxHost({ requests, onEvent, news: [news, context.wake], canSleep: false, spinMicroseconds }),
    };
    const engine = context.ownThread
      ? await openThreadLink<UcxCall, UcxEvent>(options)
      : openInlineLink<UcxCall, UcxEvent>(options);
    try {
      const address = (await engine.call({ name: 'address' })) as Uint8Array;
      const server = createServer();
      await listen(server, context.host);
      return new UcxBackend({ context, news, engine, server, address });
    } catch (error) {
      await engine.close();
      throw error;
    }
  }

  private constructor({ context, news, engine, server, address }: UcxBackendParts) {
    this.#context = context;
    this.#news = news;
    this.engine = engine;
    this.#server = server;
    const { agentName: name, incarnation, token } = context;
    this.#self = { token, name, incarnation, host: hostIdentity(), address, sharesMemory: sharesMemory() };
    const bound = server.address();
    const port = typeof bound === 'object' && bound !== null ? bound.port : 0;
    this.connectionInfo = encodeUcxAddress({ host: context.host, port });
    engine.onEvent = (event) => this.#handle(event);
    server.on('connection', (socket) => void this.#welcome(socket));
    server.on('error', () => {});
    server.unref();
  }

  whyNotMemory(memory: AgentMemory): string | undefined {
    return this.whyNotRemote(memory.kind);
  }

  whyNotPeer(peer: BackendPeer): string | undefined {
    return decodeUcxAddress(peer.connectionInfo) === undefined ? 'its address is not understood' : undefined;
  }

  get whyOnlyForced(): string | undefined {
    return hasActiveRdmaPort(localFiles()) ? undefined : 'this host has no RDMA device with an active port';
  }

  whyNotRemote(kind: MemoryKind): string | undefined {
    return kind === 'host' ? undefined : 'it moves host memory only';
  }

  async register(memory: AgentMemory): Promise<BackendRegion> {
    const why = this.whyNotMemory(memory);
    if (why !== undefined) throw new WeftlineError('WL_UNSUPPORTED', `The backend ucx cannot use the memory: ${why}`);
    const { address, bytes } = memory;
    const name = (await this.engine.call({ name: 'register', address, bytes })) as { number: number; key: number };
    this.#memories.set(name.number, memory.view);
    return new UcxRegion(address, name, () => this.#release(name.number));
  }

  async #release(region: number): Promise<void> {
    if (this.engine.failure === undefined) {
      await this.drain('region', region, { name: 'release', region });
    }
    this.#memories.delete(region);
  }

  async connect(peer: BackendPeer, options: ConnectOptions): Promise<UcxLink> {
    const address = decodeUcxAddress(peer.connectionInfo);
    if (address === undefined) throw invalidArgument('connectionInfo', peer.name, 'that of a ucx backend');
    const link = (await this.engine.call({ name: 'reserve' })) as number;
    const meeting = await visitUcxPeer({ peer, address }, { ...this.#self, link }, options);
    return this.#establish(link, meeting);
  }

  poll(): boolean {
    this.engine.progress();
    const { seen } = this.#news;
    const hasNews = seen !== this.#seen;
    if (hasNews) {
      this.#seen = seen;
      this.engine.readEvents();
    }
    return (this.#notifications.length > 0 && this.#deliver()) || hasNews;
  }

  /** True if there was room for any. */
  #deliver(): boolean {
    const { deliver, mayDeliver } = this.#context;
    const waiting = this.#notifications;
    this.#notifications = waiting.filter(({ from, message }) => {
      if (!mayDeliver(from.peer)) return true;
      from.tookNotification(message);
      deliver(from.peer, message);
      return false;
    });
    return this.#notifications.length < waiting.length;
  }

  prepareSleep(): number {
    if (this.#news.seen !== this.#seen) return 0;
    return this.#context.ownThread ? Number.POSITIVE_INFINITY : INLINE_SLEEP_MS;
  }

  nextChannel(): number {
    return this.#nextChannel++;
  }

  forgetLink(link: number): void {
    this.#links.delete(link);
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#server.close();
    for (const stranger of this.#strangers) stranger.destroy();
    await Promise.all([...this.#links.values()].map((link) => link.close()));
    await this.engine.close();
    for (const done of this.#draining.values()) done();
    this.#memories.clear();
  }

  /** Makes a call that gives up memory, and waits until the worker does not use it any more. */
  async drain(kind: 'transfer' | 'region', number: number, call: UcxCall): Promise<void> {
    const key = `${kind} ${number}`;
    const drained = new Promise<void>((resolve) => this.#draining.set(key, resolve));
    try {
      if ((await this.engine.call(call)) === true) return;
      // Without a thread of its own the worker works here only.
      const timer = this.#context.ownThread ? undefined : setInterval(() => this.engine.progress(), INLINE_SLEEP_MS);
      await drained;
      clearInterval(timer);
    } finally {
      this.#draining.delete(key);
    }
  }

  async #welcome(socket: Socket): Promise<void> {
    this.#strangers.add(socket);
    if (this.#strangers.size > MAX_STRANGERS) [...this.#strangers][0]?.destroy();
    try {
      const link = (await this.engine.call({ name: 'reserve' })) as number;
      const connect = async (meeting: UcxMeeting): Promise<void> => {
        await this.#establish(link, meeting);
      };
      await receiveUcxGuest(socket, { ...this.#self, link }, { timeoutMs: this.#context.settings.timeoutMs, connect });
    } catch {
      // The caller was told why; this side goes on for the others.
      socket.destroySoon();
    } finally {
      this.#strangers.delete(socket);
    }
  }

  async #establish(number: number, meeting: UcxMeeting): Promise<UcxLink> {
    const link = new UcxLink(this, number, meeting);
    const { address, remoteLink, peer, secretLow, secretHigh, mode } = meeting;
    const { words, ring } = link.shared;
    const keys = { secretLow, secretHigh, mode, words, ring };
    this.#links.set(number, link);
    try {
      await this.engine.call({ name: 'connect', options: { link: number, remoteLink, peer, address, ...keys } });
    } catch (error) {
      this.#links.delete(number);
      meeting.channel.refuse(error);
      throw error;
    }
    return link;
  }

  #handle(event: UcxEvent): void {
    switch (event.what) {
      case 'failed':
        this.errors.set(event.slot, decodeError(event.error));
        break;
      case 'channelFailed':
        for (const link of this.#links.values()) link.channelFailed(event.channel, decodeError(event.error));
        break;
      case 'ended':
        this.#links.get(event.link)?.ended(decodeError(event.error));
        break;
      case 'notification': {
        const from = this.#links.get(event.link);
        if (from !== undefined) this.#notifications.push({ from, message: event.message });
        break;
      }
      case 'drained':
        this.#draining.get(`${event.kind} ${event.number}`)?.();
        break;
      default:
        event satisfies never;
    }
  }
}

interface UcxBackendParts {
  readonly context: BackendContext;
  readonly news: WakeWord;
  readonly engine: EngineLink<UcxCall, UcxEvent>;
  readonly server: Server;
  readonly address: Uint8Array;
}

/** Whether UCX may use shared memory, as its variable UCX_TLS says. */
function sharesMemory(): boolean {
  const transports = process.env['UCX_TLS'] ?? 'all';
  const isListed = /(^|[\^,])\s*(all|shm|sm|mm|posix|sysv|xpmem)\b/.test(transports);
  return transports.startsWith('^') ? !isListed : isListed;
}

function listen(server: Server, host: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ host, port: 0, backlog: 1024 }, () => {
      server.removeListener('error', reject);
      resolve();
    });
  });
}
