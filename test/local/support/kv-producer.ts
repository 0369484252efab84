// A process with a store that fills, seals, hands out and reuses its blocks all the time, with short leases, until it is killed;
// now and then it writes to blocks that are sealed, or is in the middle of a block for a while.
import { setTimeout as sleep } from 'node:timers/promises';
import { KvStore, type KvTicket } from 'weftline/kv';
import { seededRandom } from '#lib/core/seeded-random.js';
import { type KvPath, openSide, viewsOf, writeContent } from './kv-content.ts';

export interface ProducerOrder {
  readonly seed: number;
  readonly path: KvPath;
}

export type ProducerWord = { readonly metadata: Uint8Array } | { readonly ticket: KvTicket };

const BLOCKS = 40;
const KEYS = 60;
/** Keys of a ticket. */
const MOST = 6;
const LEASES_MS = [2, 20, 200, 1000];

process.once('message', ({ seed, path }: ProducerOrder) => void produce(seed, path));

function tell(word: ProducerWord): void {
  process.send?.(word);
}

async function produce(seed: number, path: KvPath): Promise<void> {
  const random = seededRandom(seed);
  const below = (count: number): number => Math.floor(random() * count);
  const keysOf = (count: number): string[] => [...new Set(Array.from({ length: count }, () => `k${below(KEYS)}`))];
  const side = await openSide('producer', path, { order: 'kv-first', blocks: BLOCKS });
  const store = await KvStore.create(side.agent, { name: 'cache', blocks: BLOCKS, parts: side.parts, leases: 64 });
  tell({ metadata: side.agent.localMetadata() });
  for (;;) {
    const keys = keysOf(1 + below(MOST));
    if (random() < 0.3) store.evict(keys);
    const missing = keys.filter((key) => !store.has(key));
    try {
      const blocks = store.reserve(missing);
      for (const [index, block] of blocks.entries()) {
        const pause = below(side.parts.length);
        writeContent(side, block, missing[index]!, { to: pause });
        if (random() < 0.5) await new Promise((resolve) => setImmediate(resolve));
        writeContent(side, block, missing[index]!, { from: pause });
      }
      await store.seal(missing);
      tell({ ticket: store.ticket(keys, { leaseMs: LEASES_MS[below(LEASES_MS.length)]! }) });
    } catch (error) {
      // Leases hold too much, or all of them are taken.
      if ((error as { code?: string }).code !== 'WL_BUSY') throw error;
    }
    if (random() < 0.04) {
      const views = viewsOf(side, below(BLOCKS));
      const view = views[below(views.length)]!;
      if (random() < 0.5) view[below(view.length)]! ^= 1 << below(8);
      else view.set(view.subarray(below(view.length)));
    }
    await (random() < 0.5 ? sleep(1) : new Promise((resolve) => setImmediate(resolve)));
  }
}
