// The backend over weftline's own transport: host memory, any peer that UDP reaches.
import { z } from '#zod';
import { alignUp } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import {
  type Connection,
  type MemoryRegion,
  type RequestHandle,
  Transport,
  type TransportListener,
} from '../../../transport/index.ts';
import { networkIdentity } from '../../../world/host-identity.ts';
import {
  type AgentMemory,
  type Backend,
  type BackendContext,
  type BackendPeer,
  type ConnectOptions,
  MAX_NOTIFICATION_BYTES,
  type MemoryKind,
  restarted,
} from '../../backend.ts';
import { publishedAddress, readPublished, whyNotAddress } from '../../agent-address.ts';
import {
  MAILBOX_RING_BYTES,
  mailboxHead,
  mailboxRecord,
  MultipathLink,
  MultipathRegion,
  OutMessages,
} from './multipath-link.ts';
import type { IncomingConnection } from '../../../transport/host/greeting.ts';

// The receiver's side of a mailbox: takes messages out of the ring in the order in which they arrived.

/** The receiver of messages, and whether there is room for another. */
interface InboxDelivery {
  readonly mayDeliver: () => boolean;
  readonly deliver: (message: Uint8Array) => void;
}

export class Inbox {
  /** Registered for the sender to write to. */
  readonly bytes: Uint8Array = new Uint8Array(new SharedArrayBuffer(mailboxHead.size + MAILBOX_RING_BYTES));
  readonly #arrived: Int32Array = new Int32Array(this.bytes.buffer, mailboxHead.offset.counter, 1);
  readonly #words: Uint32Array = new Uint32Array(this.bytes.buffer, mailboxHead.size);
  /** Bytes taken so far; wraps. */
  #taken = 0;

  /** Hot path while nothing has arrived. Returns the bytes that were taken, which the sender is to be told. */
  drain(delivery: InboxDelivery): number {
    // ORDER: the atomic load before the reads of what it announces.
    const arrived = Atomics.load(this.#arrived, 0);
    const before = this.#taken;
    while (((arrived - this.#taken) | 0) > 0 && delivery.mayDeliver()) {
      const at = (this.#taken >>> 0) % MAILBOX_RING_BYTES;
      const length = this.#words[at / 4]!;
      const left = (arrived - this.#taken) | 0;
      if (
        length > MAX_NOTIFICATION_BYTES ||
        alignUp(mailboxRecord.size + length, 8) > left ||
        left > MAILBOX_RING_BYTES
      )
        throw new WeftlineError(
          'WL_PROTOCOL',
          `A peer sent a message of ${length} bytes, with ${left} bytes in a ring of ${MAILBOX_RING_BYTES}: expected at most ${MAX_NOTIFICATION_BYTES}`,
        );
      delivery.deliver(this.#copy((at + mailboxRecord.size) % MAILBOX_RING_BYTES, length));
      this.#taken = (this.#taken + alignUp(mailboxRecord.size + length, 8)) | 0;
    }
    return (this.#taken - before) | 0;
  }

  /** All that has arrived was taken. */
  get isEmpty(): boolean {
    return Atomics.load(this.#arrived, 0) === this.#taken;
  }

  #copy(at: number, length: number): Uint8Array {
    const message = new Uint8Array(length);
    const first = Math.min(length, MAILBOX_RING_BYTES - at);
    message.set(this.bytes.subarray(mailboxHead.size + at, mailboxHead.size + at + first));
    if (first < length) message.set(this.bytes.subarray(mailboxHead.size, mailboxHead.size + length - first), first);
    return message;
  }
}

// A peer that connected to this agent: its messages arrive in an inbox, and it is told what was taken.

/**
 * That of the link's messages, so that the engines that carry them carry their credits as well: on a lane of its own, a
 * credit could come so late that a sender finds the ring full although every message was taken.
 */
const CREDIT_FLOW = 65_534;
const NONE = -1;

interface GuestParts {
  readonly transport: Transport;
  readonly connection: Connection;
  readonly inbox: Inbox;
  readonly inboxRegion: MemoryRegion;
  readonly hello: Hello;
}

class Guest {
  readonly name: string;
  readonly #parts: GuestParts;
  readonly #delivery: InboxDelivery;
  /** Bytes that were taken and not told yet, and the signal that tells of earlier ones. */
  #unsent = 0;
  #credit: RequestHandle = NONE;
  readonly #signal: { flow: number; remoteRegion: number; remoteKey: number; remoteOffset: number; add: number };

  constructor(parts: GuestParts, { deliver, mayDeliver }: Pick<BackendContext, 'deliver' | 'mayDeliver'>) {
    const { hello } = parts;
    const { name } = hello;
    this.name = name;
    this.#parts = parts;
    this.#delivery = { deliver: (message) => deliver(name, message), mayDeliver: () => mayDeliver(name) };
    this.#signal = { flow: CREDIT_FLOW, remoteRegion: hello.region, remoteKey: hello.key, remoteOffset: 0, add: 0 };
  }

  get isGone(): boolean {
    return this.#parts.connection.error !== undefined;
  }

  /** Gone, and all that it sent was taken. */
  get isDone(): boolean {
    return this.isGone && this.#parts.inbox.isEmpty;
  }

  /** Hot path while nothing has arrived. True if something has. */
  poll(): boolean {
    const taken = this.#parts.inbox.drain(this.#delivery);
    this.#unsent += taken;
    this.#reap();
    if (this.#unsent > 0 && this.#credit === NONE && !this.isGone) {
      this.#signal.add = this.#unsent;
      this.#credit = this.#parts.connection.signal(this.#signal);
      this.#unsent = 0;
    }
    return taken > 0;
  }

  async close(): Promise<void> {
    const { connection, inboxRegion } = this.#parts;
    await connection.close();
    this.#reap();
    await inboxRegion.close();
  }

  #reap(): void {
    const { transport } = this.#parts;
    if (this.#credit === NONE || transport.state(this.#credit) === 'pending') return;
    try {
      transport.take(this.#credit);
    } catch {
      // The peer is gone, or does not want to know.
    }
    this.#credit = NONE;
  }
}

// What two agents tell each other in the hello of their connection: who they are, whom they expect, where mailboxes lie.

const mailbox = {
  region: z
    .number()
    .int()
    .nonnegative()
    .max(2 ** 32 - 1),
  key: z
    .number()
    .int()
    .nonnegative()
    .max(2 ** 32 - 1),
};

/** Words of the agent that connects; `region` is its message ring. */
const helloWords = z.object({ name: z.string(), incarnation: z.string(), expects: z.string(), ...mailbox });
/** Words of the agent that is connected to; `region` is its inbox. */
const welcomeWords = z.object({ incarnation: z.string(), ...mailbox });

type Hello = z.infer<typeof helloWords>;
type Welcome = z.infer<typeof welcomeWords>;

/** Fails with WL_PROTOCOL for anything else. */
export function readHello(words: unknown): Hello {
  return read(helloWords, words, 'A caller');
}

/** Fails with WL_PROTOCOL for anything else. */
export function readWelcome(words: unknown, peer: string): Welcome {
  return read(welcomeWords, words, peer);
}

function read<T>(schema: z.ZodType<T>, words: unknown, peer: string): T {
  const { success, data } = schema.safeParse(words);
  if (success) return data;
  throw new WeftlineError('WL_PROTOCOL', `${peer} sent a greeting that is not one of an agent`);
}

/** A view of more aborts Node 20. */
const MAX_REGION_BYTES = 2 ** 32 - 65_536;
/** The pause between polls of a backend without a thread of its own. */
const POLL_INTERVAL_MS = 0.1;

const infoSchema = z.object(publishedAddress);

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
  connectionInfo: Uint8Array = new Uint8Array(0);
  readonly #network = networkIdentity();
  #listener: TransportListener | undefined;
  readonly #links = new Set<MultipathLink>();
  readonly #guests = new Set<Guest>();
  #closing: Promise<void> | undefined;

  static async open(context: BackendContext, transport: Transport): Promise<MultipathBackend> {
    const backend = new MultipathBackend(context, transport);
    const { host } = context;
    const receive = (words: unknown): Promise<IncomingConnection<Connection>> => backend.#receive(readHello(words));
    const listener = await transport.listen({ host, port: 0 }, { receive });
    backend.#listener = listener;
    backend.connectionInfo = Buffer.from(JSON.stringify({ host, port: listener.port, network: backend.#network }));
    return backend;
  }

  private constructor(context: BackendContext, transport: Transport) {
    this.#context = context;
    this.#transport = transport;
  }

  whyNotMemory({ kind, bytes }: AgentMemory): string | undefined {
    if (kind !== 'host') return 'it moves host memory only';
    return bytes > MAX_REGION_BYTES ? `its regions have at most ${MAX_REGION_BYTES} bytes` : undefined;
  }

  whyNotRemote(kind: MemoryKind): string | undefined {
    return kind === 'host' ? undefined : 'it moves host memory only';
  }

  whyNotPeer({ connectionInfo }: BackendPeer): string | undefined {
    const address = readPublished(infoSchema, connectionInfo);
    if (address === undefined) return 'what the peer published is not an address';
    return whyNotAddress(address, { network: this.#network, token: this.#context.token });
  }

  get lanes(): number {
    return this.#transport.engines;
  }

  async register(memory: AgentMemory): Promise<MultipathRegion> {
    const region = await this.#transport.register(memory.view as Uint8Array, { read: true, write: true });
    return new MultipathRegion(region);
  }

  async connect(peer: BackendPeer, options: ConnectOptions): Promise<MultipathLink> {
    const info = readPublished(infoSchema, peer.connectionInfo);
    if (info === undefined) throw new WeftlineError('WL_PROTOCOL', `${peer.name} published no address of multipath`);
    const transport = this.#transport;
    const messages = new OutMessages(peer.name);
    const messageRegion = await transport.register(messages.bytes, { write: true });
    let connection: Connection | undefined;
    try {
      const { agentName, incarnation } = this.#context;
      const { remoteRegion: region, remoteKey: key } = messageRegion.remote;
      const hello: Hello = { name: agentName, incarnation, expects: peer.incarnation, region, key };
      connection = await transport.connect(
        { host: info.host, port: info.port },
        { ...options, retry: false, hello, who: `agent ${peer.name}` },
      );
      const welcome = readWelcome(connection.hello, peer.name);
      if (welcome.incarnation !== peer.incarnation) throw restarted(peer.name, peer.incarnation, welcome.incarnation);
      const onClose = (closed: MultipathLink): void => void this.#links.delete(closed);
      const link = await MultipathLink.open({
        transport,
        connection,
        messages,
        messageRegion,
        inbox: welcome,
        onClose,
      });
      this.#links.add(link);
      return link;
    } catch (error) {
      await connection?.close();
      await messageRegion.close().catch(() => {});
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

  unref(): void {
    this.#listener?.unref();
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
    } catch (error) {
      // Its credits wait for a free request.
      if (error instanceof WeftlineError && error.code === 'WL_BUSY') return false;
      // The guest's messages make no sense: it is not heard any more, and learns so from the end of the connection.
      this.#dismiss(guest);
      return false;
    }
  }

  #dismiss(guest: Guest): void {
    this.#guests.delete(guest);
    void guest.close().catch(() => {});
  }

  /** Gives a caller that has proven itself an inbox, unless it expects an earlier incarnation of this agent. */
  async #receive(hello: Hello): Promise<IncomingConnection<Connection>> {
    const { agentName: name, incarnation, wake } = this.#context;
    if (hello.expects !== incarnation) throw restarted(name, hello.expects, incarnation);
    const transport = this.#transport;
    const inbox = new Inbox();
    const inboxRegion = await transport.register(inbox.bytes, { write: true });
    const { remoteRegion: region, remoteKey: key } = inboxRegion.remote;
    return {
      answer: { incarnation, region, key },
      accept: (connection) => {
        this.#guests.add(new Guest({ transport, connection, inbox, inboxRegion, hello }, this.#context));
        // The guest's first message may have been quicker.
        wake.ring();
      },
      cancel: () => void inboxRegion.close().catch(() => {}),
    };
  }
}
