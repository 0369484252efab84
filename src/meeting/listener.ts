// Listens for peers: one place that decides at which addresses, and how many strangers may be half-way in.
import { readFileSync } from 'node:fs';
import { createServer, type Server, type Socket } from 'node:net';
import { WeftlineError } from '../core/errors.ts';
import type { Settings } from '../settings/settings.ts';
import { ControlChannel } from './control-channel.ts';
import type { Credentials } from './credentials.ts';
import { checkHost, checkPort, isLoopback, requireToken } from './route.ts';

// Callers of this thread's listeners that have not proven themselves yet: limited in number and time, with a fair share for each address.

interface StrangerLimits {
  /** Together, whichever listener they called. */
  readonly most: number;
  readonly milliseconds: number;
}

interface Stranger {
  readonly socket: Socket;
  readonly address: string;
  readonly since: number;
  readonly timer: NodeJS.Timeout;
}

/**
 * How long a caller keeps its place against others. Honest callers answer the challenge within that time; without it, a
 * flood would push each of them out before its answer was read.
 */
const GRACE_MS = 250;
/** Callers take at most one in so many of the open files that the process may have. */
const SHARE_OF_FILES = 4;

/** Made once: a flood must not cost a stack trace per caller. Callers are dropped without a word, and honest ones try again. */
const late = new WeftlineError(
  'WL_TIMEOUT',
  'A caller was dropped: it did not prove itself in time (setting greetingMs)',
);
const crowded = new WeftlineError(
  'WL_CAPACITY',
  'A caller was dropped: too many have not proven themselves (setting maxStrangers)',
);

class Strangers {
  /** Strangers in the order of arrival. */
  readonly #byAddress = new Map<string, Set<Stranger>>();
  #count = 0;
  #filesAllow: number | undefined;

  get count(): number {
    return this.#count;
  }

  /**
   * Admits a caller, and drops others if there are too many. Returns the function to call when it has proven itself;
   * undefined if the caller itself was dropped.
   */
  enter(socket: Socket, { most, milliseconds }: StrangerLimits): (() => void) | undefined {
    const address = socket.remoteAddress ?? '';
    this.#filesAllow ??= Math.max(1, Math.floor(openFileLimit() / SHARE_OF_FILES));
    while (this.#count >= Math.min(most, this.#filesAllow)) {
      if (this.#dropOne(address)) continue;
      socket.destroy();
      return undefined;
    }
    const timer = setTimeout(() => socket.destroy(late), milliseconds).unref();
    const stranger: Stranger = { socket, address, since: performance.now(), timer };
    const own = this.#byAddress.get(address) ?? new Set();
    this.#byAddress.set(address, own.add(stranger));
    this.#count += 1;
    const leave = (): void => this.#leave(stranger);
    socket.once('close', leave);
    return leave;
  }

  /**
   * Makes room for a caller of this address. Among the callers of the address that holds most places, drops the oldest that
   * has said nothing in its time of grace, else the oldest. Returns false if that would drop, within its time of grace, a
   * caller of the newcomer's own address.
   */
  #dropOne(newcomer: string): boolean {
    let crowd: Set<Stranger> = new Set();
    for (const group of this.#byAddress.values()) if (group.size > crowd.size) crowd = group;
    const [oldest] = crowd;
    if (oldest === undefined) return false;
    const graceFrom = performance.now() - GRACE_MS;
    const isOfCrowd = crowd.size === (this.#byAddress.get(newcomer)?.size ?? 0);
    if (isOfCrowd && oldest.since > graceFrom) return false;
    let victim = oldest;
    for (const stranger of crowd) {
      if (stranger.since > graceFrom) break;
      if (stranger.socket.bytesRead > 0) continue;
      victim = stranger;
      break;
    }
    this.#leave(victim);
    victim.socket.destroy(crowded);
    return true;
  }

  #leave(stranger: Stranger): void {
    clearTimeout(stranger.timer);
    const group = this.#byAddress.get(stranger.address);
    if (group?.delete(stranger) !== true) return;
    this.#count -= 1;
    if (group.size === 0) this.#byAddress.delete(stranger.address);
  }
}

/** One for all listeners of the thread, since they share its descriptors. */
export const strangers: Strangers = new Strangers();

function openFileLimit(): number {
  try {
    const [, soft] = /^Max open files\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? [];
    return soft === undefined ? Number.POSITIVE_INFINITY : Number(soft);
  } catch {
    return Number.POSITIVE_INFINITY;
  }
}

/** Place to listen at: one address, or without `host` all addresses of this host. */
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
