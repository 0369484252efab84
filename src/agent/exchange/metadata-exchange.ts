// Agents exchange metadata over connections: one listens, others send theirs, ask for its, or tell it to forget them.
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { deadlineOf, waitOptionNames, type WaitOptions } from '../../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { quote } from '../../core/quote.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import type { Credentials } from '../../meeting/credentials.ts';
import { call } from '../../meeting/dial.ts';
import { type FrameLimits, protocolError } from '../../meeting/frames.ts';
import { type HelloOptions, receiveHello } from '../../meeting/hello.ts';
import { MeetingListener } from '../../meeting/listener.ts';
import type { MetadataOptions } from '../agent-options.ts';
import { type Agent, credentialsOfAgent } from '../agent.ts';
import { requireAgent } from './metadata-store.ts';

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
