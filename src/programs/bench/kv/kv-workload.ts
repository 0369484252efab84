// The caches whose pages the KV bench moves, and where each page of a request lies: those of CollectiveX's suite kv-transfer.
import { seededRandom } from '../../../core/seeded-random.ts';

export const kvOps = ['read', 'write'] as const;
export type KvOp = (typeof kvOps)[number];

/**
 * Layers of DeepSeek-V4-Pro as vLLM allocates them, which CollectiveX calls kv-dsv4: 30 with an entry of 576 bytes for each 4 tokens,
 * and an entry of an indexer beside it; 31 with one for each 128; all 61 with one for each of the last 128 tokens.
 */
const caches = [
  { name: 'compressed', layers: 30, tokensPerEntry: 4, entryBytes: 576, lastTokens: Infinity },
  { name: 'indexer', layers: 30, tokensPerEntry: 4, entryBytes: 132, lastTokens: Infinity },
  { name: 'heavily compressed', layers: 31, tokensPerEntry: 128, entryBytes: 576, lastTokens: Infinity },
  { name: 'window', layers: 61, tokensPerEntry: 1, entryBytes: 576, lastTokens: 128 },
] as const;

/** What both sides agree on: a prompt, pages of so many tokens, and requests at a time. */
export interface KvPoint {
  readonly tokens: number;
  readonly pageTokens: number;
  readonly requests: number;
}

/** Pages of one size: `pages` of a request in each layer, scattered over `poolPages` of that layer. */
interface KvPool {
  readonly name: string;
  readonly layers: number;
  readonly pageBytes: number;
  readonly pages: number;
  readonly poolPages: number;
  /** Where the pages of the first layer begin. */
  readonly offset: number;
}

export type KvPlan = ReturnType<typeof planKv>;

/** Pools have twice the pages of a request, or a quarter more than those of all requests, and 8 more. */
export function planKv({ tokens, pageTokens, requests }: KvPoint) {
  let poolBytes = 0;
  const pools = caches.map(({ name, layers, tokensPerEntry, entryBytes, lastTokens }): KvPool => {
    const entries = Math.ceil(Math.min(tokens, lastTokens) / tokensPerEntry);
    const entriesPerPage = Math.max(1, Math.floor(pageTokens / tokensPerEntry));
    const pages = Math.ceil(entries / entriesPerPage);
    const pageBytes = entriesPerPage * entryBytes;
    const poolPages = Math.floor(pages * Math.max(2, requests * 1.25)) + 8;
    const offset = poolBytes;
    poolBytes += layers * poolPages * pageBytes;
    return { name, layers, pageBytes, pages, poolPages, offset };
  });
  const sum = (of: (pool: KvPool) => number): number => pools.reduce((all, pool) => all + of(pool), 0);
  return {
    pools,
    poolBytes,
    /** Ranges and bytes of one request. */
    ranges: sum(({ layers, pages }) => layers * pages),
    bytes: sum(({ layers, pages, pageBytes }) => layers * pages * pageBytes),
  };
}

/**
 * The pages of each request, layer by layer, as entries of the list of all pages of all pools. They are in random order, and no two
 * requests have the same.
 */
export function pageEntries({ pools, ranges }: KvPlan, requests: number, seed: number): readonly Uint32Array[] {
  const random = seededRandom(seed);
  const all = Array.from({ length: requests }, () => new Uint32Array(ranges));
  let [first, at] = [0, 0];
  for (const { layers, pages, poolPages } of pools) {
    const order = Uint32Array.from({ length: poolPages }, (_, page) => page);
    for (let last = poolPages - 1; last > 0; last--) {
      const other = Math.floor(random() * (last + 1));
      [order[last], order[other]] = [order[other]!, order[last]!];
    }
    for (let layer = 0; layer < layers; layer++, first += poolPages, at += pages) {
      for (const [request, entries] of all.entries()) {
        for (let page = 0; page < pages; page++) entries[at + page] = first + order[request * pages + page]!;
      }
    }
  }
  return all;
}
