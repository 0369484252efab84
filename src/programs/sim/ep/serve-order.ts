// In which order a rank sends to other hosts, a chunk at a time, and how much of that may be under way.

export const serveOrders = ['rotated', 'hosts'] as const;
export type ServeOrderName = (typeof serveOrders)[number];

export interface ServeRule {
  /**
   * - rotated: a chunk for each host in turn, from the host behind one's own on, so that no two ranks begin with the same;
   * - hosts: likewise, from host 0 on.
   */
  readonly order: ServeOrderName;
  /** Chunks to one host that may be under way; Infinity for all of them. */
  readonly perHost: number;
}

interface ChunkSizeOptions {
  readonly hosts: number;
  readonly rowBytes: number;
  /** Longest chunk. */
  readonly chunkBytes: number;
  /** That may be under way to one rank from all others together; Infinity for any number. */
  readonly outstandingBytes: number;
}

/**
 * How long chunks are, in rows, and how many of them may be under way from one rank to one host: so that all its peers
 * together have no more under way to a rank than it can hold in queues, whoever sends to it, and two chunks to keep its
 * link busy while the first is acknowledged. A row is the least.
 */
export function chunkSize({ hosts, rowBytes, chunkBytes, outstandingBytes }: ChunkSizeOptions): {
  readonly rows: number;
  readonly perHost: number;
} {
  const most = Math.max(1, Math.floor(chunkBytes / rowBytes));
  if (outstandingBytes === Number.POSITIVE_INFINITY) return { rows: most, perHost: outstandingBytes };
  const share = Math.floor(outstandingBytes / (hosts - 1) / rowBytes);
  const rows = Math.min(most, Math.max(1, Math.floor(share / 2)));
  return { rows, perHost: Math.max(1, Math.floor(share / rows)) };
}

interface ServeOptions {
  readonly rule: ServeRule;
  /** The host of the rank that sends. */
  readonly own: number;
  /** By host; none for one's own. */
  readonly chunks: ArrayLike<number>;
}

export class ServeOrder {
  readonly #rule: ServeRule;
  readonly #start: number;
  readonly #chunks: ArrayLike<number>;
  readonly #sent: Float64Array;
  readonly #open: Float64Array;
  #openTotal = 0;
  #left = 0;

  constructor({ rule, own, chunks }: ServeOptions) {
    this.#rule = rule;
    this.#chunks = chunks;
    this.#start = rule.order === 'hosts' ? 0 : own + 1;
    this.#sent = new Float64Array(chunks.length);
    this.#open = new Float64Array(chunks.length);
    for (let host = 0; host < chunks.length; host += 1) this.#left += chunks[host]!;
  }

  /** Everything was sent and has arrived. */
  get isDone(): boolean {
    return this.#left === 0 && this.#openTotal === 0;
  }

  /** The host whose next chunk is to be sent now, which counts as sent; -1 if none may be. */
  next(): number {
    if (this.#left === 0) return -1;
    const hosts = this.#chunks.length;
    let best = -1;
    for (let step = 0; step < hosts; step += 1) {
      const host = (this.#start + step) % hosts;
      if (this.#sent[host] === this.#chunks[host] || this.#open[host]! >= this.#rule.perHost) continue;
      if (best === -1 || this.#sent[host]! < this.#sent[best]!) best = host;
    }
    if (best === -1) return -1;
    this.#sent[best] = this.#sent[best]! + 1;
    this.#open[best] = this.#open[best]! + 1;
    this.#openTotal += 1;
    this.#left -= 1;
    return best;
  }

  /** A chunk to the host has arrived. */
  arrived(host: number): void {
    this.#open[host] = this.#open[host]! - 1;
    this.#openTotal -= 1;
  }
}
