// Callers of this thread's listeners that have not proven themselves yet: limited in number and time, with a fair share for each address.
import type { Socket } from 'node:net';
import { readFileSync } from 'node:fs';
import { WeftlineError } from '../core/errors.ts';

export interface StrangerLimits {
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
/** Of the open files that the process may have. */
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
  /** In the order of arrival. */
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
