// Rank 1 writes three pages into memory of rank 0 and tells it so. npx weftline run -n 2 agent.mjs
import assert from 'node:assert/strict';
import { Agent, DescriptorList, loadPublished, publishMetadata, worldMetadataStore } from 'weftline/agent';
import { join } from 'weftline/world';

const world = await join();
if (world.size !== 2) throw new Error('start it with: npx weftline run -n 2 agent.mjs');
const agent = await Agent.create(`rank ${world.rank}`, { token: world.secret });
try {
  const store = worldMetadataStore(world.store);
  const blocks = { blockBytes: 4096, count: 64 };
  // Pages of a cache. `register` takes memory that is there: a Uint8Array, or a tensor of either device.
  const pages = await agent.allocate(64 * 4096, { name: 'pages' });

  if (world.rank === 0) {
    await publishMetadata(agent, store);
    // The data of a transfer is here before its notification.
    const { peer, message } = await agent.nextNotification();
    console.log(`${peer} wrote ${Buffer.from(message)}`);
    for (const page of [7, 8, 30])
      assert.ok(pages.bytes.subarray(page * 4096, (page + 1) * 4096).every((byte) => byte === 42));
    assert.equal(pages.bytes[9 * 4096], 0);
  } else if (world.rank === 1) {
    const peer = await loadPublished(agent, store, 'rank 0');
    const [remote] = agent.remoteMemory(peer);
    pages.bytes.fill(42);
    // Entry i of one list goes to entry i of the other. Neighbours on both sides are moved as one.
    const transfer = await agent.prepare({
      operation: 'write',
      peer,
      local: DescriptorList.blocks(pages, blocks).select([0, 1, 2]),
      remote: DescriptorList.blocks(remote, blocks).select([7, 8, 30]),
    });
    transfer.post(Buffer.from('pages 7, 8 and 30')); // never waits, and may be posted again when it is done
    await transfer.wait({ timeoutMs: 5000 }); // done: the bytes are visible at the peer
    const { descriptors, parts } = transfer.telemetry;
    console.log(`${descriptors} pages in ${parts} parts by ${transfer.backend}`);
    for (const { backend, isUsable, why } of agent.explain(peer))
      if (!isUsable) console.log(`not by ${backend}: ${why}`);
  }
  await world.barrier('the pages have been seen');
} finally {
  await agent.close();
  await world.close();
}
