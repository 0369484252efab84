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

  static open(options: ListenerOptions): Promise<TransportListener> {
    return new Promise((resolve, reject) => {
      const { server, address } = options;
      server.once('error', reject);
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
        reject(new WeftlineError('WL_TIMEOUT', `Nobody connected to port ${this.port} within ${timeoutMs} ms`));
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

  async #welcome(socket: Socket): Promise<void> {
    this.#strangers.add(socket);
    if (this.#strangers.size > MAX_STRANGERS) [...this.#strangers][0]?.destroy();
    try {
      const connection = await this.#options.greet(socket);
      const waiting = this.#waiting.shift();
      if (waiting !== undefined) waiting.resolve(connection);
      else if (this.#isClosed) void connection.close();
      else this.#ready.push(connection);
    } catch {
      // The caller was told why; this side goes on for the others.
      socket.destroySoon();
    } finally {
      this.#strangers.delete(socket);
    }
  }
}

function closed(): WeftlineError {
  return new WeftlineError('WL_CLOSED', 'The listener was closed');
}
