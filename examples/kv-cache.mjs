// Blocks of a KV cache from a prefill process to a decode process: a miss, never a wrong hit. npx weftline run -n 2 kv-cache.mjs
import assert from 'node:assert/strict';
import { Agent, loadPublished, publishMetadata, worldMetadataStore } from 'weftline/agent';
import { KvReader, KvStore } from 'weftline/kv';
import { join } from 'weftline/world';

const world = await join();
if (world.size !== 2) throw new Error('start it with: npx weftline run -n 2 kv-cache.mjs');
const [blockBytes, blocks] = [16_384, 32];
const agent = await Agent.create(['prefill', 'decode'][world.rank], { token: world.secret });
const cache = await agent.allocate(blocks * blockBytes, { name: 'kv-cache' });
const memory = { blocks, parts: [{ memory: cache, bytes: blockBytes }] };
const blockAt = (block) => cache.bytes.subarray(block * blockBytes, (block + 1) * blockBytes);
try {
  const metadata = worldMetadataStore(world.store);
  if (world.rank === 0) {
    const store = await KvStore.create(agent, { name: 'prompts', ...memory });
    await publishMetadata(agent, metadata); // behind create(): readers look into the store's table
    const keys = ['hash of tokens 0 to 15', 'hash of tokens 0 to 31', 'hash of tokens 0 to 47'];
    const places = store.reserve(keys);
    for (const [index, block] of places.entries()) blockAt(block).fill(index + 1); // in place of keys and values
    await store.seal(keys);
    blockAt(places[1])[77] = 0; // a fault of this program
    await world.store.setJson('ticket', store.ticket([...keys, 'hash of tokens 0 to 63'], { leaseMs: 10_000 }));
    await world.barrier('the blocks were read');
    console.log(`${store.evict(keys).length} blocks are free again`);
  } else {
    const reader = await KvReader.create(agent, memory);
    const ticket = await world.store.getJson('ticket');
    await loadPublished(agent, metadata, ticket.agent);
    const lease = reader.open(ticket);
    const results = await lease.read([4, 5, 6, 7]); // where there is room
    await lease.release();
    for (const { key, ...result } of results)
      console.log(`${key}: ${result.isHit ? `block ${result.block}` : result.reason}`);
    assert.ok(blockAt(6).every((byte) => byte === 3));
    await world.barrier('the blocks were read');
  }
} finally {
  await agent.close();
  await world.close();
}
