// What the processes of the tests of KV stores agree on: the bytes under each key, and the layout of their blocks.
import { crc32 } from 'node:zlib';
import { Agent, type BackendName, type Registration } from 'weftline/agent';
import { type KvPart, vllmParts } from 'weftline/kv';
import { seededRandom } from '#lib/core/seeded-random.js';

const layers = 6;
const blockTokens = 16;
const tokenBytes = 96;
/** Bytes of an entry of the indexer. */
const indexBytes = 132;

export const BLOCK_BYTES: number = blockTokens * (2 * layers * tokenBytes + indexBytes);

/** A backend, or `multipath` with all memory staged as that of GPUs is. */
export type KvPath = BackendName | 'staged';

export interface KvSide {
  readonly agent: Agent;
  readonly parts: readonly KvPart[];
  readonly registrations: readonly Registration[];
  readonly blocks: number;
}

/** Layers of keys and values and an indexer, laid out as the engine of this side likes. */
export async function openSide(
  name: string,
  path: KvPath,
  { order, blocks }: { readonly order: 'kv-first' | 'blocks-first'; readonly blocks: number },
): Promise<KvSide> {
  const staged = { backends: ['multipath'], stagesHostMemory: true } as const;
  const how = path === 'staged' ? staged : { backends: [path] };
  const agent = await Agent.create(name, { ...how, token: 'secret', settings: { timeoutMs: 60_000 } });
  const registrations: Registration[] = [];
  const parts: KvPart[] = [];
  for (let layer = 0; layer < layers; layer++) {
    const bytes = 2 * blocks * blockTokens * tokenBytes;
    const memory = layer % 2 === 0 ? await agent.allocate(bytes) : await agent.register(new Uint8Array(bytes));
    registrations.push(memory);
    parts.push(...vllmParts(memory, { layer, order, blocks, blockTokens, tokenBytes }));
  }
  const indexer = await agent.allocate(blocks * blockTokens * indexBytes);
  parts.push(...vllmParts(indexer, { layer: 'indexer', order: 'mla', blocks, blockTokens, tokenBytes: indexBytes }));
  return { agent, parts, registrations: [...registrations, indexer], blocks };
}

/** The bytes of a block in place, part after part. */
export function viewsOf({ parts }: Pick<KvSide, 'parts'>, block: number): Uint8Array[] {
  return parts.map(({ memory, bytes, stride = bytes, offset = 0 }) =>
    memory.bytes.subarray(offset + block * stride, offset + block * stride + bytes),
  );
}

const contents = new Map<string, Buffer>();

/** The bytes of a block under this key. */
export function contentOf(key: string): Buffer {
  let content = contents.get(key);
  if (content === undefined) {
    const random = seededRandom(crc32(key));
    content = Buffer.from(Uint8Array.from({ length: BLOCK_BYTES }, () => random() * 256));
    contents.set(key, content);
  }
  return content;
}

/** Writes the parts from number `from` to `to`, without it; all by default. */
export function writeContent(side: KvSide, block: number, key: string, { from = 0, to = Infinity } = {}): void {
  let at = 0;
  for (const [part, view] of viewsOf(side, block).entries()) {
    if (part >= from && part < to) view.set(contentOf(key).subarray(at, at + view.length));
    at += view.length;
  }
}

/** Whether the block is what belongs under the key. */
export function isContent(side: KvSide, block: number, key: string): boolean {
  return Buffer.concat(viewsOf(side, block)).equals(contentOf(key));
}
