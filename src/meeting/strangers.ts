// The callers of this thread's listeners that have not proven themselves yet: few, for a short time, and nobody holds all places.
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

/** A caller that has said nothing for so long goes before others. Honest ones answer the challenge at once. */
const SILENT_MS = 250;
/** Of the open files that the process may have. */
const SHARE_OF_FILES = 4;

class Strangers {
  /** In the order of arrival. */
  readonly #byAddress = new Map<string, Set<Stranger>>();
  #count = 0;
  #filesAllow: number | undefined;

  get count(): number {
    return this.#count;
  }

  /** Takes a caller in, and drops others if there are too many. Returns how to take it out when it has proven itself. */
  enter(socket: Socket, { most, milliseconds }: StrangerLimits): () => void {
    const address = socket.remoteAddress ?? '';
    const dropLate = (): void => drop(socket, `it did not prove itself within ${milliseconds} ms`);
    const timer = setTimeout(dropLate, milliseconds).unref();
    const stranger: Stranger = { socket, address, since: performance.now(), timer };
    const own = this.#byAddress.get(address) ?? new Set();
    this.#byAddress.set(address, own.add(stranger));
    this.#count += 1;
    const leave = (): void => this.#leave(stranger);
    socket.once('close', leave);
    this.#filesAllow ??= Math.max(1, Math.floor(openFileLimit() / SHARE_OF_FILES));
    while (this.#count > Math.min(most, this.#filesAllow)) this.#dropOne(stranger);
    return leave;
  }

  /** Of the address that holds most: the oldest that has said nothing for a while, else the oldest. */
  #dropOne(newest: Stranger): void {
    let crowd: Set<Stranger> = new Set();
    for (const group of this.#byAddress.values()) if (group.size > crowd.size) crowd = group;
    const silentSince = performance.now() - SILENT_MS;
    let victim: Stranger | undefined;
    for (const stranger of crowd) {
      if (stranger === newest && crowd.size > 1) continue;
      victim ??= stranger;
      if (stranger.since > silentSince) break;
      if (stranger.socket.bytesRead > 0) continue;
      victim = stranger;
      break;
    }
    if (victim === undefined) return;
    this.#leave(victim);
    drop(victim.socket, 'too many callers that have not proven themselves');
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

/** Without a word, so that an honest caller tries again. */
function drop(socket: Socket, why: string): void {
  socket.destroy(new WeftlineError('WL_TIMEOUT', `A caller was dropped: ${why}`));
}

function openFileLimit(): number {
  try {
    const [, soft] = /^Max open files\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? [];
    return soft === undefined ? Number.POSITIVE_INFINITY : Number(soft);
  } catch {
    return Number.POSITIVE_INFINITY;
  }
}
