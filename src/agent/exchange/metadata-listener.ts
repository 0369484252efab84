// Gives an agent's metadata to peers that connect and have proven themselves, and takes theirs.
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import { receiveHello } from '../../meeting/hello.ts';
import { MeetingListener } from '../../meeting/listener.ts';
import type { Agent } from '../agent.ts';
import { credentialsOfAgent } from '../agent-credentials.ts';
import { MetadataChannel, metadataHello, type MetadataRequest } from './metadata-channel.ts';
import { requireAgent } from './require-agent.ts';

/** Where a MetadataListener listens. */
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
        await agent.invalidate(request.name);
        talk.answer(request.name);
        return;
      default:
        request satisfies never;
    }
  }
}
