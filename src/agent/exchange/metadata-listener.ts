// Gives an agent's metadata to peers that connect and hold the token, and takes theirs.
import { createServer, type Server, type Socket } from 'node:net';
import { encodeError, WeftlineError } from '../../core/errors.ts';
import type { Agent } from '../agent.ts';
import { MetadataChannel, type MetadataRequest } from './metadata-channel.ts';

export interface ListenOptions {
  /** 127.0.0.1 by default. */
  readonly host?: string;
  /** Any free one by default. */
  readonly port?: number;
}

/** Callers at a time; of more, the oldest are dropped. */
const MOST_CALLERS = 64;
/** A caller that has not finished by then is dropped. */
const CALLER_MS = 10_000;

/** Closes with its agent. */
export class MetadataListener implements AsyncDisposable {
  readonly #agent: Agent;
  readonly #server: Server;
  readonly #callers = new Set<Socket>();
  readonly #forget: () => void;
  #closing: Promise<void> | undefined;

  /** Fails with the system's error if it cannot listen. */
  static open(agent: Agent, { host = '127.0.0.1', port = 0 }: ListenOptions = {}): Promise<MetadataListener> {
    return new Promise((resolve, reject) => {
      const server = createServer();
      server.once('error', reject);
      server.listen({ host, port }, () => resolve(new MetadataListener(agent, server)));
    });
  }

  private constructor(agent: Agent, server: Server) {
    this.#agent = agent;
    this.#server = server;
    this.#forget = agent.closeWith(() => this.close());
    server.on('error', () => {});
    server.on('connection', (socket) => void this.#serve(socket));
  }

  get port(): number {
    const address = this.#server.address();
    return typeof address === 'object' && address !== null ? address.port : 0;
  }

  /** Idempotent. */
  close(): Promise<void> {
    this.#closing ??= new Promise((resolve) => {
      this.#forget();
      this.#server.close(() => resolve());
      for (const caller of this.#callers) caller.destroy();
    });
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #serve(socket: Socket): Promise<void> {
    this.#callers.add(socket);
    socket.on('close', () => this.#callers.delete(socket));
    if (this.#callers.size > MOST_CALLERS) [...this.#callers][0]?.destroy();
    using channel = new MetadataChannel(socket, CALLER_MS, 'A caller');
    try {
      await channel.provePeer(this.#agent.token);
      for (let request = await channel.nextRequest(); request !== undefined; request = await channel.nextRequest()) {
        await this.#answer(channel, request);
      }
    } catch (error) {
      // The caller learns why; this side goes on for the others.
      const { code, message } = encodeError(error);
      channel.send({ error: encodeError(new WeftlineError(code, message)) });
    }
  }

  async #answer(channel: MetadataChannel, request: MetadataRequest): Promise<void> {
    const agent = this.#agent;
    switch (request.verb) {
      case 'load':
        channel.send({ name: await agent.loadRemoteMetadata(request.blob) });
        return;
      case 'fetch':
        channel.send({ name: agent.name }, agent.localMetadata());
        return;
      case 'invalidate':
        await agent.invalidate(request.name);
        channel.send({ name: request.name });
        return;
      default:
        request satisfies never;
    }
  }
}
