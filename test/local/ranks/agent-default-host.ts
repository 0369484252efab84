// A rank that meets the others' agents by the store: agents without any address given reach each other between machines.
import assert from 'node:assert/strict';
import { Agent, DescriptorList, Endpoint, loadPublished, publishMetadata, worldMetadataStore } from 'weftline/agent';
import { join } from 'weftline/world';

const world = await join();
// "staged": memory of the agents is staged as that of GPUs is, which takes addresses of its own.
const stagesHostMemory = process.argv[2] === 'staged';
const common = { token: world.secret, backends: ['multipath'] } as const;
const agent = await Agent.create(`rank ${world.rank}`, { ...common, stagesHostMemory });
const endpoint = await Endpoint.create(common);
try {
  const memory = await agent.allocate(4096, { name: 'memory' });
  memory.bytes.fill(world.rank + 1);
  const store = worldMetadataStore(world.store);
  await publishMetadata(agent, store);
  const peer = await loadPublished(agent, store, `rank ${1 - world.rank}`);
  const [theirs] = agent.remoteMemory(peer);
  assert.ok(theirs);
  const here = await agent.allocate(4096);
  const lists = { local: DescriptorList.of(here), remote: DescriptorList.of(theirs) };
  const read = await agent.prepare({ operation: 'read', peer, ...lists });
  read.post();
  await read.wait();
  assert.ok(here.bytes.every((byte) => byte === 2 - world.rank));
  if (world.rank === 0) {
    await world.store.setJson('endpoint', { host: endpoint.host, port: endpoint.port });
    await endpoint.accept();
  } else {
    const { host, port } = await world.store.getJson<{ host: string; port: number }>('endpoint');
    await endpoint.connect(host, port);
  }
  console.log(`rank ${world.rank}: read by ${read.backend} at ${agent.host}`);
  await world.barrier('all is read');
} finally {
  await endpoint.close();
  await agent.close();
  await world.close();
}
