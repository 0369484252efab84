// Listens for peers: one place that decides at which addresses, and how many strangers may be half-way in.
import { createServer, type Server, type Socket } from 'node:net';
import { WeftlineError } from '../core/errors.ts';
import type { Settings } from '../settings/settings.ts';
import { checkHost, checkPort } from './check-address.ts';
import { ControlChannel } from './control-channel.ts';
import type { Credentials } from './credentials.ts';
import { isLoopback, requireToken } from './loopback.ts';
import { strangers } from './strangers.ts';

/** Where to listen: at one address, or without `host` at all addresses of this host. */
export interface ListenTarget {
  readonly host?: string;
  readonly port: number;
}

export interface MeetingListenerOptions {
  readonly target: ListenTarget;
  readonly credentials: Credentials;
  readonly settings: Pick<Settings, 'maxStrangers' | 'greetingMs' | 'timeoutMs'>;
  /** What a caller's system may take to answer before the caller counts as gone. */
  readonly silenceMs?: number;
  /** Takes a caller over, from the hello on. It tells the caller why if it fails; others do not notice. */
  readonly serve: (channel: ControlChannel) => Promise<void>;
}

const BACKLOG = 4096;

export class MeetingListener {
  readonly #server: Server;
  readonly #options: MeetingListenerOptions;
  readonly #half = new Set<Socket>();

  /**
   * Fails with WL_INVALID_ARGUMENT (no address), WL_CONFIG (other hosts could call, and there is no token), WL_NATIVE (the
   * address cannot be had).
   */
  static async open(options: MeetingListenerOptions): Promise<MeetingListener> {
    const { target, credentials } = options;
    // What is wrong with them is better told now than to each caller.
    credentials.read();
    if (target.host !== undefined) checkHost(target.host);
    checkPort(target.port, 0);
    requireToken(target.host ?? '', credentials.kind, `listening at ${nameOf(target)}`);
    const server = createServer();
    await new Promise<void>((resolve, reject) => {
      server.once('error', (cause: NodeJS.ErrnoException) => reject(cannotListen(target, cause)));
      server.listen({ ...target, backlog: BACKLOG }, () => resolve());
    });
    const address = server.address();
    const bound = typeof address === 'object' ? (address?.address ?? '') : '';
    if (credentials.kind === 'user' && !isLoopback(bound)) {
      server.close();
      requireToken(bound, 'user', `listening at ${bound}`);
    }
    return new MeetingListener(server, options);
  }

  private constructor(server: Server, options: MeetingListenerOptions) {
    this.#server = server;
    this.#options = options;
    server.on('connection', (socket) => void this.#welcome(socket));
    server.on('error', () => {});
  }

  get port(): number {
    const address = this.#server.address();
    return typeof address === 'object' && address !== null ? address.port : 0;
  }

  /** It keeps the process alive no longer. */
  unref(): void {
    this.#server.unref();
  }

  /** Callers that have not proven themselves are dropped, others stay. Idempotent. */
  close(): void {
    this.#server.close();
    for (const socket of this.#half) socket.destroy();
  }

  async #welcome(socket: Socket): Promise<void> {
    const { settings, silenceMs, serve } = this.#options;
    const { maxStrangers: most, greetingMs, timeoutMs } = settings;
    const leave = strangers.enter(socket, { most, milliseconds: Math.min(greetingMs, timeoutMs) });
    if (leave === undefined) return;
    this.#half.add(socket);
    socket.once('close', () => this.#half.delete(socket));
    const channel = new ControlChannel(socket, performance.now() + timeoutMs, silenceMs);
    channel.onProven = () => {
      leave();
      this.#half.delete(socket);
    };
    try {
      await serve(channel);
    } catch {
      // The caller was told why; this side goes on for the others.
      socket.destroySoon();
    }
  }
}

function nameOf(target: ListenTarget): string {
  return `${target.host ?? 'all addresses'} port ${target.port}`;
}

function cannotListen(target: ListenTarget, cause: NodeJS.ErrnoException): WeftlineError {
  const advice: Readonly<Record<string, string>> = {
    EADDRINUSE: 'another process has this port: take another one, or 0 for any that is free',
    EADDRNOTAVAIL: 'this host does not have this address: take one that it has, or 0.0.0.0 for all',
    ENOTFOUND: 'no host has this name',
    EACCES: 'ports below 1024 need privileges: take a higher one',
  };
  const message = `Cannot listen at ${nameOf(target)}: ${advice[cause.code ?? ''] ?? cause.message}`;
  return new WeftlineError('WL_NATIVE', message, { details: { ...target, errno: cause.code }, cause });
}
