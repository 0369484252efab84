// Connect, accept, register, send, receive, write, read: the interface of a P2P engine, over any backend of an agent.
import { randomBytes } from 'node:crypto';
import { z } from '#zod';
import { connectionOf, ENDPOINT_VERSION } from './message.ts';
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import {
  type CallWait,
  Deadline,
  deadlineOf,
  remaining,
  startCall,
  waitOptionNames,
  type WaitOptions,
  within,
} from '../../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { printable } from '../../core/quote.ts';
import { cudaDeviceCount } from '../../device/cuda/cuda-context.ts';
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import type { Credentials } from '../../meeting/credentials.ts';
import { call } from '../../meeting/dial.ts';
import { protocolError } from '../../meeting/frames.ts';
import { type HelloBody, type HelloOptions, receiveHello } from '../../meeting/hello.ts';
import { MeetingListener } from '../../meeting/listener.ts';
import type { Settings } from '../../settings/settings.ts';
import { agentOptionNames, type AgentOptions } from '../agent-options.ts';
import { Agent, credentialsOfAgent } from '../agent.ts';
import type { BackendName } from '../backends/backend-table.ts';
import type { Notification } from '../notifications.ts';
import type { Registrable, Registration } from '../registration.ts';
import { EndpointConnection } from './endpoint-connection.ts';

// Hands each notification to the connection that it names, if it comes from that connection's peer.

interface Early {
  readonly messages: Uint8Array[];
  hasOverflown: boolean;
}

/** Bytes of one peer's messages for connections that are being made. */
const MAX_EARLY_BYTES: number = 16 << 20;
/** What a message takes besides its bytes. */
const ENTRY_BYTES = 64;

export class MessageRouter {
  /** The endpoint's, by its numbers. */
  readonly #connections: ReadonlyMap<number, EndpointConnection>;
  /**
   * For connections that are being made: messages can be quicker than the end of the greeting. Whose connection it will
   * be is not known yet, so each peer has a list and a limit of its own.
   */
  readonly #early = new Map<number, Map<string, Early>>();
  readonly #earlyBytes = new Map<string, number>();

  constructor(connections: ReadonlyMap<number, EndpointConnection>) {
    this.#connections = connections;
  }

  /** A connection of that number is being made. */
  expect(id: number): void {
    this.#early.set(id, new Map());
  }

  /** Hands over what came before the connection was there. */
  deliverEarly(connection: EndpointConnection): void {
    const early = this.#early.get(connection.id)?.get(connection.peer);
    this.settle(connection.id);
    if (early === undefined) return;
    for (const message of early.messages) connection.handle(message);
    if (!early.hasOverflown) return;
    const { peer } = connection;
    const why = `The endpoint ${peer} sent more than ${MAX_EARLY_BYTES} bytes before the connection was there`;
    connection.end(new WeftlineError('WL_PROTOCOL', why, { details: { peer, allowed: MAX_EARLY_BYTES } }));
  }

  /** The connection of that number was made, or not. Idempotent. */
  settle(id: number): void {
    for (const [peer, { messages }] of this.#early.get(id) ?? []) {
      const bytes = messages.reduce((sum, message) => sum + message.length + ENTRY_BYTES, 0);
      const left = (this.#earlyBytes.get(peer) ?? 0) - bytes;
      if (left > 0) this.#earlyBytes.set(peer, left);
      else this.#earlyBytes.delete(peer);
    }
    this.#early.delete(id);
  }

  /** Never throws. Notifications that are not of an endpoint, or name a connection of another peer, are ignored. */
  hear({ peer, message }: Notification): void {
    const id = connectionOf(message);
    if (id === undefined) return;
    const connection = this.#connections.get(id);
    if (connection === undefined) this.#keepEarly(id, peer, message);
    else if (connection.peer === peer) connection.handle(message);
  }

  #keepEarly(id: number, peer: string, message: Uint8Array): void {
    const byPeer = this.#early.get(id);
    if (byPeer === undefined) return;
    const early = byPeer.get(peer) ?? { messages: [], hasOverflown: false };
    byPeer.set(peer, early);
    const bytes = (this.#earlyBytes.get(peer) ?? 0) + message.length + ENTRY_BYTES;
    // ORDER: behind a message that is missing, the others make no sense.
    if (early.hasOverflown || bytes > MAX_EARLY_BYTES) {
      early.hasOverflown = true;
      return;
    }
    this.#earlyBytes.set(peer, bytes);
    early.messages.push(message);
  }
}

// What two endpoints say of themselves in the hello of their connection: agents and connection numbers.

interface Introduction {
  readonly gpuIndex: number;
  /** This side's number of the connection. */
  readonly connection: number;
  /** Metadata of the agent, without regions. */
  readonly metadata: Uint8Array;
}

const introduction = z.object({
  gpuIndex: z.number().int().nonnegative(),
  connection: z.number().int().nonnegative(),
  metadata: z.string(),
});

export function endpointHello(credentials: Credentials): HelloOptions {
  return { protocol: 'weftline-endpoint', version: ENDPOINT_VERSION, credentials };
}

export function introduce({ gpuIndex, connection, metadata }: Introduction): HelloBody {
  return { gpuIndex, connection, metadata: Buffer.from(metadata).toString('base64') };
}

/** Fails with WL_PROTOCOL for anything else. */
export function readIntroduction(body: HelloBody): Introduction {
  const { success, data, error } = introduction.safeParse(body);
  if (!success)
    throw protocolError(`a greeting that is not one of an endpoint: ${printable(error.issues[0]?.message ?? '')}`);
  // A copy: a Buffer of the pool shares its memory with others.
  return { ...data, metadata: Uint8Array.from(Buffer.from(data.metadata, 'base64')) };
}

/** The address of an endpoint, and how its agent is made. */
export interface EndpointOptions extends AgentOptions {
  /**
   * Binds the endpoint to this GPU, if the machine has any: it is opened as `device`, and memory of others is refused. Peers
   * are told. Without it memory may lie anywhere, and peers are told 0.
   */
  readonly localGpuIndex?: number;
  /** Every connection takes this backend; else the agent chooses. */
  readonly backend?: BackendName;
  /** The port to accept at; 0, the default, takes any. */
  readonly port?: number;
}

const endpointOptionNames: OptionNames<EndpointOptions> = {
  ...agentOptionNames,
  localGpuIndex: true,
  backend: true,
  port: true,
};

const LONGEST_WAIT_MS = 86_400_000;
/** Maximum connections that wait for accept(); further ones are refused. */
const MAX_ARRIVED = 1024;

/**
 * Operations of a connection begin at once and are waited for with `operation.wait()`, or asked with `operation.state`.
 * Several parts make one message (the vectored calls). Until `close` the process is kept alive.
 */
export class Endpoint implements AsyncDisposable {
  readonly agent: Agent;
  readonly localGpuIndex: number;
  /** The GPU that the endpoint is bound to, closed with it; undefined if it is bound to none. */
  readonly device: CudaDevice | undefined;
  readonly #backend: BackendName | undefined;
  readonly #hello: HelloOptions;
  #listener: MeetingListener | undefined;
  readonly #connections = new Map<number, EndpointConnection>();
  readonly #channels = new Map<number, ControlChannel>();
  readonly #regions = new Set<Registration>();
  readonly #arrived: EndpointConnection[] = [];
  readonly #accepting: {
    readonly take: (connection: EndpointConnection) => void;
    readonly fail: (why: WeftlineError) => void;
  }[] = [];
  readonly #router = new MessageRouter(this.#connections);
  readonly #stop = new AbortController();
  #nextId = 0;
  /** Why the last caller was refused. */
  #lastRefusal: string | undefined;
  #closing: Promise<void> | undefined;

  /**
   * Listens at once. Fails as Agent.create does, with WL_NATIVE if the address cannot be listened at, with
   * WL_INVALID_ARGUMENT if there is no GPU of that index, and WL_CUDA if it cannot be opened. Hosts other than 127.0.0.1 need
   * a token.
   * @param options Where it listens, token, settings.
   */
  static async create(options: EndpointOptions = {}): Promise<Endpoint> {
    checkOptions(options, endpointOptionNames, 'options of Endpoint.create');
    const { localGpuIndex: _gpu, backend: _backend, port: _port, ...ofAgent } = options;
    const name = `endpoint-${process.pid}-${randomBytes(4).toString('hex')}`;
    const device = await openGpu(options.localGpuIndex, options.settings);
    let agent: Agent | undefined;
    try {
      agent = await Agent.create(name, ofAgent);
      const endpoint = new Endpoint(agent, device, options);
      endpoint.#listener = await MeetingListener.open({
        target: { host: agent.host, port: options.port ?? 0 },
        credentials: credentialsOfAgent(agent),
        settings: agent.settings,
        serve: (channel) => endpoint.#welcome(channel),
      });
      void endpoint.#listen();
      return endpoint;
    } catch (error) {
      await agent?.close();
      await device?.close();
      throw error;
    }
  }

  private constructor(agent: Agent, device: CudaDevice | undefined, { localGpuIndex = 0, backend }: EndpointOptions) {
    this.agent = agent;
    this.device = device;
    this.localGpuIndex = localGpuIndex;
    this.#hello = endpointHello(credentialsOfAgent(agent));
    this.#backend = backend;
  }

  /** The address that peers connect to. */
  get host(): string {
    return this.agent.host;
  }

  /** The TCP port that it listens at; 0 if it does not. */
  get port(): number {
    return this.#listener?.port ?? 0;
  }

  /**
   * Memory becomes usable for this endpoint's connections, and known to their peers. Fails as `agent.register` does, and with
   * WL_INVALID_ARGUMENT for memory of another GPU than the one that the endpoint is bound to.
   */
  async register(memory: Registrable, name = ''): Promise<Registration> {
    if (this.device !== undefined) checkGpu(memory, this.localGpuIndex);
    return this.#announce(await this.agent.register(memory, { name }));
  }

  /** Zeroed host memory that every backend can use, registered. */
  async allocate(bytes: number, name = ''): Promise<Registration> {
    return this.#announce(await this.agent.allocate(bytes, { name }));
  }

  /**
   * Fails with WL_TIMEOUT, WL_UNAUTHORIZED, WL_PROTOCOL, WL_CONFIG (another host, and no token) or, when no backend reaches
   * the peer, WL_UNSUPPORTED.
   */
  async connect(ip: string, port: number, options: WaitOptions = {}): Promise<EndpointConnection> {
    this.#checkOpen();
    checkOptions(options, waitOptionNames, 'options of connect');
    const wait = startCall(options, this.agent.settings.timeoutMs);
    return this.#establish(async (own) => {
      const met = await call({ host: ip, port }, { ...wait, who: 'endpoint', hello: this.#hello, body: own() });
      return { ...met, wait };
    });
  }

  /** The next connection that a peer made. Fails with WL_TIMEOUT, with WL_CLOSED once the endpoint is closed, or with the signal's reason. */
  async accept(options: WaitOptions = {}): Promise<EndpointConnection> {
    this.#checkOpen();
    checkOptions(options, waitOptionNames, 'options of accept');
    const deadline = deadlineOf(options, this.agent.settings.timeoutMs);
    const ready = this.#arrived.shift();
    if (ready !== undefined) return ready;
    const waiting = { take: (_came: EndpointConnection): void => {}, fail: (_why: WeftlineError): void => {} };
    const came = new Promise<EndpointConnection>((take, fail) => Object.assign(waiting, { take, fail }));
    this.#accepting.push(waiting);
    try {
      const wait = { deadline, signal: options.signal };
      return await within(came, wait, () => this.#nobodyCame(deadline.timeoutMs));
    } catch (error) {
      // One that came just now is the next caller's.
      came.then((connection) => this.#arrived.unshift(connection)).catch(() => {});
      throw error;
    } finally {
      const index = this.#accepting.indexOf(waiting);
      if (index !== -1) this.#accepting.splice(index, 1);
    }
  }

  /** Ends connections, frees what `allocate` gave. Idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @internal A notification that was taken from the agent while its thread was blocked. Never throws. */
  hear(notification: Notification): void {
    this.#router.hear(notification);
  }

  async #close(): Promise<void> {
    this.#listener?.close();
    for (const { fail } of this.#accepting.splice(0)) fail(closed());
    for (const connection of this.#connections.values()) await connection.close();
    this.#stop.abort(closed());
    await this.agent.close();
    await this.device?.close();
  }

  async #announce(region: Registration): Promise<Registration> {
    this.#regions.add(region);
    const { end } = region;
    region.end = () => this.#withdraw(region, end);
    for (const connection of this.#connections.values()) connection.announce(region);
    return region;
  }

  /** Peers forget the memory, which then becomes the caller's again. */
  async #withdraw(region: Registration, end: () => Promise<void>): Promise<void> {
    this.#regions.delete(region);
    await Promise.all([...this.#connections.values()].map((connection) => connection.forget(region)));
    const gone = end();
    for (const connection of this.#connections.values()) connection.announce(region);
    await gone;
  }

  async #welcome(channel: ControlChannel): Promise<void> {
    const connection = await this.#establish(async (own) => {
      let deadline: Deadline | undefined;
      const { body } = await receiveHello(channel, this.#hello, () => {
        // Strangers do not get this far, and have less time.
        deadline = new Deadline(this.agent.settings.timeoutMs);
        channel.deadline = deadline.endsAt;
        this.#checkRoom();
        return own();
      });
      return { channel, body, wait: { deadline } };
    }).catch((error: unknown) => {
      this.#lastRefusal = error instanceof Error ? error.message : String(error);
      throw error;
    });
    const waiting = this.#accepting.shift();
    if (waiting === undefined) this.#arrived.push(connection);
    else waiting.take(connection);
  }

  #nobodyCame(timeoutMs: number): WeftlineError {
    const why = this.#lastRefusal === undefined ? '' : `; the last caller was refused: ${this.#lastRefusal}`;
    return new WeftlineError('WL_TIMEOUT', `Nobody connected to port ${this.port} within ${timeoutMs} ms${why}`);
  }

  #checkRoom(): void {
    this.#checkOpen();
    if (this.#accepting.length > 0 || this.#arrived.length < MAX_ARRIVED) return;
    throw new WeftlineError('WL_CAPACITY', `${MAX_ARRIVED} connections to port ${this.port} wait to be accepted`);
  }

  async #establish(
    meet: (
      own: () => HelloBody,
    ) => Promise<{ readonly channel: ControlChannel; readonly body: HelloBody; readonly wait: CallWait }>,
  ): Promise<EndpointConnection> {
    const { agent, localGpuIndex: gpuIndex } = this;
    const id = this.#nextId++;
    this.#router.expect(id);
    let channel: ControlChannel | undefined;
    try {
      const own = (): HelloBody =>
        introduce({ gpuIndex, connection: id, metadata: agent.localMetadata({ regions: [] }) });
      const met = await meet(own);
      ({ channel } = met);
      const greeting = readIntroduction(met.body);
      const peer = await agent.loadRemoteMetadata(greeting.metadata, { ...remaining(met.wait), heard: true });
      const backend = await agent.connect(peer, {
        deadline: met.wait.deadline,
        signal: met.wait.signal,
        backend: this.#backend,
      });
      const connection = new EndpointConnection({
        agent,
        id,
        remoteId: greeting.connection,
        peer,
        ip: met.channel.remoteAddress,
        gpuIndex: greeting.gpuIndex,
        backend,
        onClose: () => this.#forget(id),
      });
      this.#connections.set(id, connection);
      this.#channels.set(id, met.channel);
      met.channel.watch((farewell) => connection.end(lost(connection, farewell)));
      for (const region of this.#regions) if (region.isOpen) connection.announce(region);
      this.#router.deliverEarly(connection);
      return connection;
    } catch (error) {
      channel?.close();
      throw error;
    } finally {
      this.#router.settle(id);
    }
  }

  #forget(id: number): void {
    this.#connections.delete(id);
    this.#channels.get(id)?.close();
    this.#channels.delete(id);
  }

  async #listen(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      try {
        const { signal } = this.#stop;
        this.hear(await this.agent.nextNotification({ timeoutMs: LONGEST_WAIT_MS, signal }));
      } catch (error) {
        if (error instanceof WeftlineError && error.code === 'WL_TIMEOUT') continue;
        // No notification will come any more, so everything that waits for a peer must fail.
        if (this.#stop.signal.aborted) return;
        const what = `The endpoint cannot take notifications: ${String(error)}`;
        const why = error instanceof WeftlineError ? error : new WeftlineError('WL_INTERNAL', what, { cause: error });
        for (const connection of this.#connections.values()) connection.end(why);
        return;
      }
    }
  }

  #checkOpen(): void {
    if (this.#closing !== undefined) throw closed();
  }
}

function closed(): WeftlineError {
  return new WeftlineError('WL_CLOSED', 'The endpoint was closed');
}

function lost({ peer, ip }: EndpointConnection, farewell: boolean): WeftlineError {
  const details = { peer, ip };
  if (farewell) {
    return new WeftlineError('WL_CLOSED', `The endpoint ${peer} at ${ip} closed the connection`, { details });
  }
  return new WeftlineError('WL_PEER_LOST', `The endpoint ${peer} at ${ip} is gone: its process ended`, { details });
}

// The GPU that an endpoint is bound to.

/**
 * Undefined if none is asked for, or the machine has none: memory is then of the host anyway. Fails with
 * WL_INVALID_ARGUMENT for what is no index, or lies beyond the GPUs that there are.
 */
async function openGpu(
  index: number | undefined,
  settings: Partial<Settings> | undefined,
): Promise<CudaDevice | undefined> {
  if (index === undefined) return undefined;
  const count = cudaDeviceCount();
  if (!Number.isInteger(index) || index < 0 || (count > 0 && index >= count)) {
    const limit = count > 0 ? ` below ${count}, the number of GPUs` : '';
    throw invalidArgument('localGpuIndex', index, `a whole number from 0${limit}`);
  }
  return count === 0 ? undefined : CudaDevice.create({ ...settings, ordinal: index });
}

/** Fails with WL_INVALID_ARGUMENT for memory of another GPU. */
function checkGpu(memory: Registrable, index: number): void {
  if (!('device' in memory) || !(memory.device instanceof CudaDevice)) return;
  const { ordinal } = memory.device.context;
  if (ordinal !== index)
    throw invalidArgument('memory', `memory of GPU ${ordinal}`, `memory of GPU ${index}, or the host`);
}
