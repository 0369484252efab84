// The backend over weftline's own transport: host memory, any peer that UDP reaches.
import { isIP } from 'node:net';
import { z } from '#zod';
import { WeftlineError } from '../../../core/errors.ts';
import {
  type Connection,
  type Guest as TransportGuest,
  Transport,
  type TransportListener,
} from '../../../transport/index.ts';
import { networkIdentity } from '../../../world/host-identity.ts';
import type { AgentMemory, MemoryKind } from '../../agent-memory.ts';
import type { Backend, BackendContext, BackendPeer, ConnectOptions } from '../../backend.ts';
import { whyNotAddress } from '../../peer-address.ts';
import { type Hello, readHello, readWelcome } from './agent-words.ts';
import { Guest } from './guest.ts';
import { Inbox } from './inbox.ts';
import { MessageRing } from './message-ring.ts';
import { MultipathLink } from './multipath-link.ts';
import { MultipathRegion } from './multipath-region.ts';

/** A view of more aborts Node 20. */
const MAX_REGION_BYTES = 2 ** 32 - 65_536;
/** Without a thread of its own. */
const POLL_INTERVAL_MS = 0.1;

const MAX_NETWORK_LENGTH = 200;

const infoSchema = z.object({
  host: z.string().refine((host) => isIP(host) !== 0),
  port: z.number().int().min(1).max(65_535),
  /** `networkIdentity()` */
  network: z.string().max(MAX_NETWORK_LENGTH),
});

export async function createBackend(context: BackendContext): Promise<Backend<'multipath'>> {
  const { agentName, token, settings, ownThread, wake } = context;
  const transport = await Transport.create({
    name: agentName,
    token,
    settings: { ...settings, transportThread: settings.transportThread && ownThread },
    wake,
  });
  try {
    return await MultipathBackend.open(context, transport);
  } catch (error) {
    await transport.close();
    throw error;
  }
}

class MultipathBackend implements Backend<'multipath'> {
  readonly name = 'multipath';
  readonly #context: BackendContext;
  readonly #transport: Transport;
  #connectionInfo: Uint8Array = new Uint8Array(0);
  readonly #network = networkIdentity();
  #listener: TransportListener | undefined;
  readonly #links = new Set<MultipathLink>();
  readonly #guests = new Set<Guest>();
  #closing: Promise<void> | undefined;

  static async open(context: BackendContext, transport: Transport): Promise<MultipathBackend> {
    const backend = new MultipathBackend(context, transport);
    const { host } = context;
    const receive = (words: unknown): Promise<TransportGuest<Connection>> => backend.#receive(readHello(words));
    const listener = await transport.listen({ host, port: 0 }, { receive });
    backend.#listener = listener;
    backend.#connectionInfo = Buffer.from(JSON.stringify({ host, port: listener.port, network: backend.#network }));
    return backend;
  }

  private constructor(context: BackendContext, transport: Transport) {
    this.#context = context;
    this.#transport = transport;
  }

  get connectionInfo(): Uint8Array {
    return this.#connectionInfo;
  }

  whyNotMemory({ kind, bytes }: AgentMemory): string | undefined {
    if (kind !== 'host') return 'it moves host memory only';
    return bytes > MAX_REGION_BYTES ? `its regions have at most ${MAX_REGION_BYTES} bytes` : undefined;
  }

  whyNotRemote(kind: MemoryKind): string | undefined {
    return kind === 'host' ? undefined : 'it moves host memory only';
  }

  whyNotPeer({ connectionInfo }: BackendPeer): string | undefined {
    const address = parseInfo(connectionInfo);
    if (address === undefined) return 'what the peer published is not an address';
    return whyNotAddress(address, { network: this.#network, token: this.#context.token });
  }

  get lanes(): number {
    return this.#transport.engines;
  }

  async register(memory: AgentMemory): Promise<MultipathRegion> {
    const region = await this.#transport.register(memory.view as Uint8Array, { read: true, write: true });
    return new MultipathRegion(this.#transport, region);
  }

  async connect(peer: BackendPeer, options: ConnectOptions): Promise<MultipathLink> {
    const address = parseInfo(peer.connectionInfo);
    if (address === undefined) throw new WeftlineError('WL_PROTOCOL', `${peer.name} published no address of multipath`);
    const transport = this.#transport;
    const messages = new MessageRing(peer.name);
    const messageRegion = await transport.register(messages.bytes, { write: true });
    let connection: Connection | undefined;
    try {
      const { agentName, incarnation } = this.#context;
      const { remoteRegion: region, remoteKey: key } = messageRegion.remote;
      const hello: Hello = { name: agentName, incarnation, expects: peer.incarnation, region, key };
      connection = await transport.connect(address, { ...options, retry: false, hello, who: `agent ${peer.name}` });
      const welcome = readWelcome(connection.hello, peer.name);
      if (welcome.incarnation !== peer.incarnation) throw stale(peer, welcome.incarnation);
      const onClose = (closed: MultipathLink): void => void this.#links.delete(closed);
      const link = await MultipathLink.open({ transport, connection, messages, messageRegion, welcome, onClose });
      this.#links.add(link);
      return link;
    } catch (error) {
      await connection?.close();
      await transport.release(messageRegion).catch(() => {});
      throw error;
    }
  }

  poll(): boolean {
    const transport = this.#transport;
    if (!transport.settings.transportThread) transport.progress();
    let hasNews = false;
    for (const link of this.#links) if (link.poll()) hasNews = true;
    for (const guest of this.#guests) {
      if (this.#pollGuest(guest)) hasNews = true;
    }
    return hasNews;
  }

  prepareSleep(): number {
    return this.#transport.settings.transportThread ? Number.POSITIVE_INFINITY : POLL_INTERVAL_MS;
  }

  nap(milliseconds: number): boolean {
    const transport = this.#transport;
    if (transport.settings.transportThread) return false;
    transport.progress(milliseconds);
    return true;
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#listener?.close();
    await Promise.all([...this.#links].map((link) => link.close()));
    await this.#transport.close();
  }

  #pollGuest(guest: Guest): boolean {
    try {
      const hasNews = guest.poll();
      if (guest.isDone) this.#dismiss(guest);
      return hasNews;
    } catch {
      // Its messages make no sense: it is not heard any more, and learns so from the end of the connection.
      this.#dismiss(guest);
      return false;
    }
  }

  #dismiss(guest: Guest): void {
    this.#guests.delete(guest);
    void guest.close().catch(() => {});
  }

  /** Gives a caller that has proven itself an inbox, unless it expects an earlier incarnation of this agent. */
  async #receive(hello: Hello): Promise<TransportGuest<Connection>> {
    const { agentName: name, incarnation, wake } = this.#context;
    if (hello.expects !== incarnation) throw stale({ name, incarnation: hello.expects }, incarnation);
    const transport = this.#transport;
    const inbox = new Inbox();
    const inboxRegion = await transport.register(inbox.bytes, { write: true });
    const { remoteRegion: region, remoteKey: key } = inboxRegion.remote;
    return {
      answer: { incarnation, region, key },
      adopt: (connection) => {
        this.#guests.add(new Guest({ transport, connection, inbox, inboxRegion, hello }, this.#context));
        // Its first message may have been quicker.
        wake.ring();
      },
      abandon: () => void transport.release(inboxRegion).catch(() => {}),
    };
  }
}

function parseInfo(info: Uint8Array): z.infer<typeof infoSchema> | undefined {
  try {
    return infoSchema.parse(JSON.parse(Buffer.from(info).toString('utf8')));
  } catch {
    return undefined;
  }
}

function stale({ name, incarnation }: Pick<BackendPeer, 'name' | 'incarnation'>, now: string): WeftlineError {
  return new WeftlineError(
    'WL_STALE',
    `Agent ${name} has restarted: its metadata here is of incarnation ${incarnation}, it is ${now} now; load its metadata anew`,
    { details: { peer: name, incarnation, now } },
  );
}
