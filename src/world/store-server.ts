// The TCP server of the rendezvous store: accepts connections, keeps strangers few, tells ranks who left.
import { createServer, type Server } from 'node:net';
import { encodeError } from '../core/errors.ts';
import type { Departure } from './membership.ts';
import { StoreConnection } from './store-connection.ts';
import { StoreCore } from './store-core.ts';

/** Where to listen: an address, or a listening socket that was inherited. */
export type ListenTarget = { readonly host?: string; readonly port: number } | { readonly fd: number };

export interface StoreServerOptions {
  readonly listen: ListenTarget;
  readonly size: number;
  readonly token: string;
  readonly jobId: string;
  readonly maxValueBytes: number;
  /** How long a client may take to show the token; 10 s by default. */
  readonly handshakeMs?: number;
  /** A rank is lost when its system answers nothing for so long, at most 25 s, which is the default. */
  readonly silenceMs?: number;
}

export class StoreServer {
  readonly #server: Server;
  readonly #core: StoreCore;
  readonly #strangers = new Set<StoreConnection>();
  readonly #members = new Set<StoreConnection>();
  readonly #maxStrangers: number;
  #whenEmpty: (() => void) | undefined;

  /** Rejects with the system's error if it cannot listen. */
  static listen(options: StoreServerOptions): Promise<StoreServer> {
    return new Promise((resolve, reject) => {
      const store: StoreServer = new StoreServer(options);
      store.#server.once('error', reject);
      store.#server.listen({ ...options.listen, backlog: 4096 }, () => resolve(store));
    });
  }

  private constructor(options: StoreServerOptions) {
    this.#core = new StoreCore(options);
    this.#maxStrangers = Math.max(64, 2 * options.size);
    this.#server = createServer((socket) => {
      const connection = new StoreConnection(socket, {
        ...options,
        core: this.#core,
        handshakeMs: options.handshakeMs ?? 10_000,
        silenceMs: options.silenceMs ?? Number.POSITIVE_INFINITY,
        onMember: (member) => {
          this.#strangers.delete(member);
          this.#members.add(member);
        },
        onDeparture: (member, departure) => this.#departed(member, departure),
        onEnd: (ended) => {
          this.#strangers.delete(ended);
          this.#members.delete(ended);
          if (this.#members.size === 0) this.#whenEmpty?.();
        },
      });
      this.#strangers.add(connection);
      this.#limitStrangers();
    });
  }

  get port(): number {
    const address = this.#server.address();
    return typeof address === 'object' && address !== null ? address.port : 0;
  }

  /** Waits, at most `waitMs`, until all ranks that joined have left, then ends every connection. */
  async stop(waitMs: number): Promise<void> {
    if (this.#members.size > 0 && waitMs > 0) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, waitMs);
        this.#whenEmpty = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    this.#server.close();
    for (const stranger of this.#strangers) stranger.destroy();
    for (const member of this.#members) member.end();
  }

  /** The oldest half-open connection goes first: a rank's handshake takes milliseconds, and a rank tries again. */
  #limitStrangers(): void {
    const [oldest] = this.#strangers;
    if (this.#strangers.size > this.#maxStrangers) oldest?.destroy();
  }

  #departed(member: StoreConnection, departure: Departure): void {
    const { rank } = member;
    if (rank === undefined) return;
    this.#core.leave(rank, departure);
    if (departure.how === 'closed') return;
    const { stack: _hidden, ...error } = encodeError(this.#core.members.failure(rank, 'the job'));
    for (const other of this.#members) if (other !== member) other.announce(rank, error);
  }
}
