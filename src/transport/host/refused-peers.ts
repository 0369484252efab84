// Peers that packets no longer reach, from the first sign of it until it counts.

/**
 * A peer that closes in good order says so over TCP, which another thread reads; that packets do not reach it counts only
 * after this.
 */
const PATIENCE_MS = 1_000;
const NONE: readonly number[] = [];

export class RefusedPeers {
  /** When a peer was first found so. */
  readonly #since = new Map<number, number>();

  /** Those whose time is over. `refused`: found now, which is emptied. */
  due(refused: number[]): readonly number[] {
    if (refused.length === 0 && this.#since.size === 0) return NONE;
    const now = performance.now();
    for (const peer of refused.splice(0)) if (!this.#since.has(peer)) this.#since.set(peer, now);
    return [...this.#since].flatMap(([peer, since]) => (now - since < PATIENCE_MS ? [] : [peer]));
  }

  /** The number is given up. */
  forget(peer: number): void {
    this.#since.delete(peer);
  }
}
