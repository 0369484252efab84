// Agents exchange metadata: over connections, where one listens and others send theirs, ask for its, or tell it to forget them;
// or in a store that all of them reach.
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { deadlineOf, remaining, startCall, waitOptionNames, type WaitOptions } from '../../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { quote } from '../../core/quote.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import type { Credentials } from '../../meeting/credentials.ts';
import { call } from '../../meeting/dial.ts';
import { type FrameLimits, protocolError } from '../../meeting/frames.ts';
import { type HelloOptions, receiveHello } from '../../meeting/hello.ts';
import { MeetingListener } from '../../meeting/listener.ts';
import type { Settings } from '../../settings/settings.ts';
import type { Store } from '../../world/store.ts';
import type { MetadataOptions } from '../agent-options.ts';
import { type Agent, credentialsOfAgent } from '../agent.ts';

/** The address at which a MetadataListener listens. */
export interface ListenOptions {
  /** The agent's by default. Others than loopback addresses need a token. */
  readonly host?: string;
  /** Any free one by default. */
  readonly port?: number;
}

const listenOptionNames: OptionNames<ListenOptions> = { host: true, port: true };

/** A caller that has not finished so long after it has proven itself is dropped. */
const CALLER_MS = 10_000;

/** Closes with its agent. */
export class MetadataListener implements AsyncDisposable {
  readonly #agent: Agent;
  readonly #callers = new Set<ControlChannel>();
  readonly #onLoad: (peer: string) => void;
  readonly #forget: () => void;
  #listener: MeetingListener | undefined;
  #closing: Promise<void> | undefined;

  /** Fails with WL_NATIVE if it cannot listen, WL_CONFIG if other hosts could call and the agent has no token. */
  static async open(
    agent: Agent,
    options: ListenOptions = {},
    /** Hears the name of each agent whose metadata came. */
    onLoad: (peer: string) => void = () => {},
  ): Promise<MetadataListener> {
    requireAgent(agent);
    checkOptions(options, listenOptionNames, 'options of MetadataListener.open');
    if (typeof onLoad !== 'function') throw invalidArgument('onLoad', onLoad, 'a function');
    const { host = agent.host, port = 0 } = options;
    const opened = new MetadataListener(agent, onLoad);
    try {
      opened.#listener = await MeetingListener.open({
        target: { host, port },
        credentials: credentialsOfAgent(agent),
        settings: agent.settings,
        serve: (channel) => opened.#serve(channel),
      });
    } catch (error) {
      await opened.close();
      throw error;
    }
    // The agent may have been closed meanwhile.
    if (opened.#closing !== undefined) opened.#listener.close();
    return opened;
  }

  private constructor(agent: Agent, onLoad: (peer: string) => void) {
    this.#agent = agent;
    this.#onLoad = onLoad;
    this.#forget = agent.closeWith(() => this.close());
  }

  /** The TCP port that it listens at. */
  get port(): number {
    return this.#listener?.port ?? 0;
  }

  /** Idempotent. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    this.#forget();
    this.#listener?.close();
    for (const caller of this.#callers) caller.hangUp();
  }

  async #serve(channel: ControlChannel): Promise<void> {
    await receiveHello(channel, metadataHello(credentialsOfAgent(this.#agent)), () => ({}));
    channel.deadline = performance.now() + CALLER_MS;
    this.#callers.add(channel);
    try {
      const talk = new MetadataChannel(channel);
      for (let request = await talk.nextRequest(); request !== undefined; request = await talk.nextRequest()) {
        await this.#answer(talk, request);
      }
      channel.hangUp();
    } catch (error) {
      channel.refuse(error);
    } finally {
      this.#callers.delete(channel);
    }
  }

  async #answer(talk: MetadataChannel, request: MetadataRequest): Promise<void> {
    const agent = this.#agent;
    switch (request.verb) {
      case 'load': {
        const name = await agent.loadRemoteMetadata(request.blob, { heard: true });
        this.#onLoad(name);
        talk.answer(name);
        return;
      }
      case 'fetch':
        talk.answer(agent.name, agent.localMetadata());
        return;
      case 'invalidate':
        await agent.forget(request.name);
        talk.answer(request.name);
        return;
      default:
        request satisfies never;
    }
  }
}

// Asks another agent's listener: gives it this agent's metadata, takes its own.

/** The address at which a MetadataListener listens, and how long a call of it may take. */
export interface ListenerAddress extends WaitOptions {
  readonly host: string;
  readonly port: number;
}

export const addressNames: OptionNames<ListenerAddress> = { ...waitOptionNames, host: true, port: true };

/**
 * Each fails with WL_TIMEOUT, WL_PEER_LOST (nobody listens, or it broke off), WL_UNAUTHORIZED (another token or user), WL_PROTOCOL
 * (not an agent). What is learnt of another life of the agent is replaced, whether that still answers or not.
 * @param agent Whose metadata.
 * @param address Where the listener is.
 * @param options Which part of them.
 */
export async function sendMetadata(agent: Agent, address: ListenerAddress, options?: MetadataOptions): Promise<void> {
  requireAgent(agent);
  const blob = agent.localMetadata(options);
  await ask(agent, address, (channel) => channel.ask({ verb: 'load', blob }));
}

/**
 * Loads the listener's metadata; returns its name.
 * @param agent Which learns them.
 * @param address Where the listener is.
 */
export async function fetchMetadata(agent: Agent, address: ListenerAddress): Promise<string> {
  return ask(agent, address, (channel) => fetchFrom(agent, channel));
}

/**
 * Both at once: afterwards the two agents know each other. Returns the other's name.
 * @param agent This side.
 * @param address Where the listener is.
 */
export async function exchangeMetadata(agent: Agent, address: ListenerAddress): Promise<string> {
  return ask(agent, address, async (channel) => {
    await channel.ask({ verb: 'load', blob: agent.localMetadata() });
    return fetchFrom(agent, channel);
  });
}

/**
 * Tells the listener's agent to forget this one.
 * @param agent Which is to be forgotten.
 * @param address Where the listener is.
 */
export async function sendInvalidation(agent: Agent, address: ListenerAddress): Promise<void> {
  await ask(agent, address, (channel) => channel.ask({ verb: 'invalidate', name: agent.name }));
}

async function fetchFrom(agent: Agent, channel: MetadataChannel): Promise<string> {
  const { blob } = await channel.ask({ verb: 'fetch' });
  if (blob === undefined) throw new WeftlineError('WL_PROTOCOL', 'A listener answered without metadata');
  return agent.loadRemoteMetadata(blob, { heard: true });
}

async function ask<T>(
  agent: Agent,
  address: ListenerAddress,
  talk: (channel: MetadataChannel) => Promise<T>,
): Promise<T> {
  requireAgent(agent);
  checkOptions(address, addressNames, 'address of the listener');
  const hello = metadataHello(credentialsOfAgent(agent));
  const { host, port, signal } = address;
  // The channel keeps it for what is said after the hello.
  const deadline = deadlineOf(address, agent.settings.timeoutMs);
  const { channel } = await call({ host, port }, { deadline, signal, hello, body: {}, who: 'agent', retry: false });
  channel.peer = `The listener at ${host} port ${port}`;
  const abort = (): void => channel.hangUp();
  signal?.addEventListener('abort', abort);
  try {
    const exchange = new MetadataChannel(channel);
    const result = await talk(exchange);
    exchange.end();
    return result;
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  } finally {
    signal?.removeEventListener('abort', abort);
    channel.hangUp();
  }
}

// What both sides ask of each other, once both have proven themselves.

const VERSION = 2;
/** Metadata of tens of thousands of regions. */
const metadataLimits: FrameLimits = { headerBytes: 4096, payloadBytes: 64 << 20 };

/** What one side asks of the other: take these metadata, give yours, forget an agent. */
type MetadataRequest =
  | { readonly verb: 'load'; readonly blob: Uint8Array }
  | { readonly verb: 'fetch' }
  | { readonly verb: 'invalidate'; readonly name: string };

interface MetadataAnswer {
  readonly name: string;
  /** The answer to a fetch. */
  readonly blob: Uint8Array | undefined;
}

function metadataHello(credentials: Credentials): HelloOptions {
  return { protocol: 'weftline-agent', version: VERSION, credentials };
}

export class MetadataChannel {
  readonly #channel: ControlChannel;

  /** Takes a connection whose other end has proven itself. */
  constructor(channel: ControlChannel) {
    this.#channel = channel;
    channel.limits = metadataLimits;
  }

  /** Fails with what the other side answers if it cannot do it. */
  async ask(request: MetadataRequest): Promise<MetadataAnswer> {
    if (request.verb === 'load') this.#channel.send({ verb: 'load' }, [request.blob]);
    else this.#channel.send(request);
    const { header, parts } = await this.#channel.receiveFrame('answer');
    if (typeof header['name'] !== 'string') throw protocolError('an answer without a name');
    return { name: header['name'], blob: parts[0] };
  }

  /** The next request, or undefined when the other side has no more. */
  async nextRequest(): Promise<MetadataRequest | undefined> {
    const { header, parts } = await this.#channel.receiveFrame('request');
    const { verb, name } = header;
    if (verb === 'bye') return undefined;
    if (verb === 'load' && parts[0] !== undefined) return { verb, blob: parts[0] };
    if (verb === 'fetch') return { verb };
    if (verb === 'invalidate' && typeof name === 'string') return { verb, name };
    throw protocolError(verb === undefined ? 'a request without a verb' : `a request ${quote(verb, 40)}`);
  }

  answer(name: string, ...parts: readonly Uint8Array[]): void {
    this.#channel.send({ name }, parts);
  }

  /** No more requests follow. */
  end(): void {
    this.#channel.send({ verb: 'bye' });
  }
}

// Metadata under agents' names in a store.

const KEY_PREFIX = 'agent/';
const STALE_PAUSE_MS = 50;
/** The share of the time that is left that one life of an agent gets to answer: newer metadata may come while a dead one is silent. */
const ANSWER_SHARE = 1 / 4;
const MIN_ANSWER_MS = 1000;

/** Implementations: the world's store, etcd. */
export interface MetadataStore {
  /** A function that is returned takes back what nobody has replaced, when the agent closes; always the same of a name. */
  put(name: string, blob: Uint8Array): Promise<(() => Promise<void>) | void>;
  /** Waits until there is some. Fails with WL_TIMEOUT, naming the agent that is missing. */
  get(name: string, options: WaitOptions): Promise<Uint8Array>;
  /** Takes back what was published under a name. */
  delete(name: string): Promise<void>;
}

/**
 * Tells all agents that reach the store; again after memory was registered or a registration closed. In etcd they are gone when the
 * agent closes, and some time after its process has ended.
 * @param agent Whose metadata.
 * @param store Where to; each name has one entry.
 * @param options Which part of them.
 */
export async function publishMetadata(agent: Agent, store: MetadataStore, options?: MetadataOptions): Promise<void> {
  requireAgent(agent);
  requireStore(store);
  const release = await store.put(agent.name, agent.localMetadata(options));
  if (release === undefined) return;
  try {
    agent.closeWith(release);
  } catch (error) {
    // It was closed meanwhile, so what was published too late is taken back here.
    await release();
    throw error;
  }
}

/** What takes metadata: an agent, or what has one. */
interface MetadataLoader {
  readonly settings: Pick<Settings, 'timeoutMs'>;
  loadRemoteMetadata(blob: Uint8Array, options?: WaitOptions): Promise<string>;
}

/**
 * Loads what an agent has published, as soon as it has. Returns its name. While the store still holds what an earlier life
 * of the agent published than the one that is known here, it waits for newer ones, and fails with WL_STALE if none come.
 * @param agent Which learns them.
 * @param store Where from.
 * @param name Of the agent that published.
 * @param options How long to wait.
 */
export async function loadPublished(
  agent: MetadataLoader,
  store: MetadataStore,
  name: string,
  options?: WaitOptions,
): Promise<string> {
  requireCalls('agent', agent, ['loadRemoteMetadata'], 'an agent of Agent.create()');
  requireStore(store);
  if (typeof name !== 'string') throw invalidArgument('name', name, 'a string');
  const wait = startCall(options ?? {}, agent.settings.timeoutMs);
  for (;;) {
    const blob = await store.get(name, remaining(wait));
    const { leftMs } = wait.deadline;
    const timeoutMs = Math.ceil(Math.min(leftMs, Math.max(MIN_ANSWER_MS, leftMs * ANSWER_SHARE)));
    try {
      return await agent.loadRemoteMetadata(blob, { ...remaining(wait), timeoutMs });
    } catch (error) {
      const mayBeOld = error instanceof WeftlineError && (error.code === 'WL_STALE' || error.code === 'WL_TIMEOUT');
      if (!mayBeOld || STALE_PAUSE_MS > wait.deadline.leftMs) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, STALE_PAUSE_MS));
    wait.signal?.throwIfAborted();
  }
}

/**
 * Takes it back; agents that have loaded it keep it.
 * @param agent Whose metadata.
 * @param store Where they are.
 */
export async function withdrawMetadata(agent: Agent, store: MetadataStore): Promise<void> {
  requireAgent(agent);
  requireStore(store);
  await store.delete(agent.name);
}

/**
 * The rendezvous store of a world: `worldMetadataStore(world.store)`.
 * @param store `world.store`, or that of a group.
 */
export function worldMetadataStore(store: Store): MetadataStore {
  requireCalls('store', store, ['set', 'get', 'delete'], 'world.store, or the store of a group');
  return {
    put: (name, blob) => store.set(KEY_PREFIX + name, blob),
    get: (name, options) => store.get(KEY_PREFIX + name, options),
    delete: async (name) => void (await store.delete(KEY_PREFIX + name)),
  };
}

// Checks of the agent and the store that calls for metadata take, before anything is sent.

/** Fails with WL_INVALID_ARGUMENT for what has no metadata of its own, or takes none. */
function requireAgent(agent: unknown): void {
  requireCalls('agent', agent, ['localMetadata', 'loadRemoteMetadata'], 'an agent of Agent.create()');
}

function requireStore(store: unknown): void {
  const expected =
    'a store of metadata: worldMetadataStore(world.store), etcdMetadataStore({ endpoint }), or one like them';
  requireCalls('store', store, ['put', 'get', 'delete'], expected);
}

function requireCalls(name: string, value: unknown, calls: readonly string[], expected: string): void {
  const given = typeof value === 'object' && value !== null ? (value as Readonly<Record<string, unknown>>) : {};
  if (!calls.every((verb) => typeof given[verb] === 'function')) throw invalidArgument(name, value, expected);
}
