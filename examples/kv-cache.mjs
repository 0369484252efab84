// Blocks of a KV cache from a prefill process to a decode process, with a lease and checksums. npx weftline run -n 2 kv-cache.mjs
import assert from 'node:assert/strict';
import { crc32 } from 'node:zlib';
import { WeftlineError } from 'weftline';
import { Agent, DescriptorList, loadPublished, publishMetadata, worldMetadataStore } from 'weftline/agent';
import { join } from 'weftline/world';

const world = await join();
if (world.size !== 2) throw new Error('start it with: npx weftline run -n 2 kv-cache.mjs');
const [blockBytes, count, LEASE_MS] = [16_384, 32, 10_000];
const roles = ['prefill', 'decode'];
const [me, other] = [roles[world.rank], roles[1 - world.rank]];
const agent = await Agent.create(me, { token: world.secret });
const cache = await agent.allocate(count * blockBytes, { name: 'kv-cache' });
const blockAt = (block) => cache.bytes.subarray(block * blockBytes, (block + 1) * blockBytes);
const send = (peer, message) => agent.notify(peer, JSON.stringify(message));
const next = async (timeoutMs) => {
  const { message } = await agent.nextNotification({ timeoutMs });
  return JSON.parse(String(Buffer.from(message)));
};
try {
  const store = worldMetadataStore(world.store);
  await publishMetadata(agent, store);
  const peer = await loadPublished(agent, store, other);

  if (me === 'prefill') {
    // The blocks belong to the request until decode has them, or until the lease is over: a peer that died holds nothing.
    const free = new Set(Array.from({ length: count }, (_, block) => block));
    const blocks = [3, 7, 8, 21];
    for (const block of blocks) {
      free.delete(block);
      blockAt(block).fill(block + 1); // in place of keys and values
    }
    const checksums = blocks.map((block) => crc32(blockAt(block)));
    await send(peer, { request: 'r1', blocks, checksums, leaseMs: LEASE_MS });
    try {
      const { request, state } = await next(LEASE_MS);
      console.log(`${request}: ${state}`);
    } catch (error) {
      if (!(error instanceof WeftlineError) || error.code !== 'WL_TIMEOUT') throw error;
      console.log('the lease is over');
    }
    for (const block of blocks) free.add(block);
    assert.equal(free.size, count);
  } else {
    const { request, blocks, checksums, leaseMs } = await next(LEASE_MS);
    // Where there is room. Half of the lease is left for the answer.
    const places = blocks.map((_, index) => index);
    const [remote] = agent.remoteMemory(peer);
    const transfer = await agent.prepare({
      operation: 'read',
      peer,
      local: DescriptorList.blocks(cache, { blockBytes }).select(places),
      remote: DescriptorList.blocks(remote, { blockBytes }).select(blocks),
    });
    transfer.post();
    await transfer.wait({ timeoutMs: leaseMs / 2 });
    const areWhole = places.every((place, index) => crc32(blockAt(place)) === checksums[index]);
    await send(peer, { request, state: areWhole ? 'taken' : 'damaged' });
    console.log(`${places.length} blocks by ${transfer.backend}, ${areWhole ? 'whole' : 'damaged'}`);
    assert.ok(areWhole);
  }
  await world.barrier('the blocks were handed over');
} finally {
  await agent.close();
  await world.close();
}
