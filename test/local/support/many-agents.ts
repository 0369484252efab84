// Makes agents with the default backends, argv[2] of them, each of which allocates memory and hears from each other.
import assert from 'node:assert/strict';
import { Agent, DescriptorList } from 'weftline/agent';

const BYTES = 65_536;
const agents: Agent[] = [];
for (let index = 0; index < Number(process.argv[2]); index++) {
  const agent = await Agent.create(`agent ${index}`);
  (await agent.allocate(BYTES)).bytes.fill(index);
  agents.push(agent);
}
for (const agent of agents) {
  for (const peer of agents.filter((other) => other !== agent)) {
    await agent.loadRemoteMetadata(peer.localMetadata());
    await agent.notify(peer.name, agent.name);
    const { message } = await peer.nextNotification({ from: agent.name });
    assert.equal(Buffer.from(message).toString(), agent.name);
  }
}
const [first, second] = agents;
if (first !== undefined && second !== undefined) {
  const into = await first.allocate(BYTES);
  const [memory] = first.remoteMemory(second.name);
  assert.ok(memory);
  const lists = { local: DescriptorList.of(into), remote: DescriptorList.of(memory) };
  const read = await first.prepare({ operation: 'read', peer: second.name, ...lists });
  read.post();
  await read.wait();
  assert.ok(into.bytes.every((byte) => byte === 1));
}
for (const agent of agents) await agent.close();
console.log(`${agents.length} agents`);
