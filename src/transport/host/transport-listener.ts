// Accepts connections: greets every caller, hands out those that hold the token, refuses the rest.
import type { Server, Socket } from 'node:net';
import { WeftlineError } from '../../core/errors.ts';
import type { Connection } from './connection.ts';

export interface ListenerOptions {
  readonly server: Server;
  readonly address: { readonly host: string; readonly port: number };
  readonly greet: (socket: Socket) => Promise<Connection>;
  readonly onClose: (listener: TransportListener) => void;
}

/** Callers whose greeting goes on, as many as the system lets wait; of more, the oldest are dropped. */
const MAX_STRANGERS = 1024;

export class TransportListener implements Disposable {
  readonly #options: ListenerOptions;
  readonly #strangers = new Set<Socket>();
  readonly #ready: Connection[] = [];
  readonly #waiting: { readonly resolve: (c: Connection) => void; readonly reject: (error: unknown) => void }[] = [];
  #isClosed = false;
  #refused = 0;
  #lastRefusal = '';

  static open(options: ListenerOptions): Promise<TransportListener> {
    return new Promise((resolve, reject) => {
      const { server, address } = options;
      server.once('error', (cause: NodeJS.ErrnoException) => reject(cannotListen(address, cause)));
      server.listen({ ...address, backlog: 1024 }, () => resolve(new TransportListener(options)));
    });
  }

  private constructor(options: ListenerOptions) {
    this.#options = options;
    options.server.on('connection', (socket) => void this.#welcome(socket));
    options.server.on('error', () => {});
  }

  get port(): number {
    const address = this.#options.server.address();
    return typeof address === 'object' && address !== null ? address.port : 0;
  }

  /** The next connection. Fails with WL_TIMEOUT, and with WL_CLOSED once the listener is closed. */
  accept({ timeoutMs }: { readonly timeoutMs?: number } = {}): Promise<Connection> {
    for (let ready = this.#ready.shift(); ready !== undefined; ready = this.#ready.shift()) {
      if (ready.error === undefined) return Promise.resolve(ready);
    }
    if (this.#isClosed) return Promise.reject(closed());
    return new Promise((resolve, reject) => {
      const entry = { resolve, reject };
      this.#waiting.push(entry);
      if (timeoutMs === undefined) return;
      setTimeout(() => {
        const index = this.#waiting.indexOf(entry);
        if (index === -1) return;
        this.#waiting.splice(index, 1);
        reject(this.#nobodyCame(timeoutMs));
      }, timeoutMs).unref();
    });
  }

  /** Connections that were handed out stay. Idempotent. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#options.server.close();
    for (const stranger of this.#strangers) stranger.destroy();
    for (const connection of this.#ready.splice(0)) void connection.close();
    for (const { reject } of this.#waiting.splice(0)) reject(closed());
    this.#options.onClose(this);
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #nobodyCame(timeoutMs: number): WeftlineError {
    const refused = this.#refused;
    const why = refused === 0 ? '' : `; refused: ${refused}, the last one because: ${this.#lastRefusal}`;
    const message = `Nobody connected to port ${this.port} within ${timeoutMs} ms${why}`;
    return new WeftlineError('WL_TIMEOUT', message, { details: { port: this.port, timeoutMs, refused } });
  }

  async #welcome(socket: Socket): Promise<void> {
    this.#strangers.add(socket);
    if (this.#strangers.size > MAX_STRANGERS) [...this.#strangers][0]?.destroy();
    try {
      const connection = await this.#options.greet(socket);
      const waiting = this.#waiting.shift();
      if (waiting !== undefined) waiting.resolve(connection);
      else if (this.#isClosed) void connection.close();
      else this.#ready.push(connection);
    } catch (error) {
      // The caller was told why; this side goes on for the others.
      this.#refused += 1;
      this.#lastRefusal = error instanceof Error ? error.message : String(error);
      socket.destroySoon();
    } finally {
      this.#strangers.delete(socket);
    }
  }
}

function cannotListen({ host, port }: ListenerOptions['address'], cause: NodeJS.ErrnoException): WeftlineError {
  const advice: Readonly<Record<string, string>> = {
    EADDRINUSE: 'another process has this port: take another one, or 0 for any that is free',
    EADDRNOTAVAIL: 'this host does not have this address: take one that it has, or 0.0.0.0 for all',
    EACCES: 'ports below 1024 need privileges: take a higher one',
  };
  const message = `Cannot listen at ${host} port ${port}: ${advice[cause.code ?? ''] ?? cause.message}`;
  return new WeftlineError('WL_NATIVE', message, { details: { host, port, errno: cause.code }, cause });
}

function closed(): WeftlineError {
  return new WeftlineError('WL_CLOSED', 'The listener was closed');
}
