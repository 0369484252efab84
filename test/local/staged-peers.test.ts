// Staged memory and its peers: one that is killed fails what goes to it alone, and memory that is given up ends no link.
import assert from 'node:assert/strict';
import test from 'node:test';
import { type Agent, DescriptorList } from 'weftline/agent';
import { type AgentConfiguration, stagedConfigurations } from './support/agent-configurations.ts';
import { AgentPeer, openPair } from './support/agent-pair.ts';
import { whyMissing } from './support/missing-backend.ts';
import { sampled } from '../support/extent.ts';

const BYTES = 16 << 20;
const TRANSFERS = 4;

function allOf(agent: Agent, peer: string): DescriptorList {
  const memory = agent.remoteMemory(peer).find(({ name }) => name === 'allocated');
  assert.ok(memory);
  return DescriptorList.of(memory);
}

async function testKilled(configuration: AgentConfiguration): Promise<void> {
  await using pair = await openPair(configuration, BYTES);
  const { agent, peer } = pair;
  const memory = await agent.allocate(BYTES);
  memory.bytes.fill(5);
  const prepareTo = (name: string, operation: 'write' | 'read') =>
    agent.prepare({ operation, peer: name, local: DescriptorList.of(memory), remote: allOf(agent, name) });
  const transfers = await Promise.all(
    Array.from({ length: TRANSFERS }, (_, index) => prepareTo('there', index % 2 === 0 ? 'write' : 'read')),
  );
  // Without the peer none of them ends before it is killed.
  peer.child.kill('SIGSTOP');
  for (const transfer of transfers) transfer.post();
  peer.child.kill('SIGKILL');
  const ends = await Promise.allSettled(transfers.map((transfer) => transfer.wait({ timeoutMs: 120_000 })));
  for (const end of ends) assert.equal(end.status === 'rejected' && end.reason.code, 'WL_PEER_LOST');
  await Promise.all(transfers.map((transfer) => transfer.close()));
  await using other = await AgentPeer.start('other', {
    token: 'secret',
    backends: [configuration.backend],
    ...configuration.there,
    ownThread: true,
  });
  await other.do({ do: 'allocate', name: 'allocated', bytes: BYTES });
  await agent.loadRemoteMetadata(await other.metadata());
  memory.bytes.fill(6);
  const write = await prepareTo('other', 'write');
  write.post();
  await write.wait();
  assert.deepEqual(await other.bytes('allocated', BYTES - 4, 4), Uint8Array.of(6, 6, 6, 6));
  await write.close();
  await memory.close();
}

for (const configuration of sampled(stagedConfigurations, 1)) {
  const { name, backend } = configuration;
  const skip = (await whyMissing(backend)) ?? false;
  test(`${name}: a killed peer fails what goes to it, and another is reached`, { skip }, () =>
    testKilled(configuration),
  );
}

const toStaged = stagedConfigurations.filter(({ name }) => name.endsWith('staged there'));

for (const configuration of toStaged) {
  test(`${configuration.name}: host memory that is given up while it is sent ends its transfer, not the link`, async () => {
    await using pair = await openPair(configuration, BYTES);
    const { agent, peer } = pair;
    const lasting = await agent.allocate(BYTES);
    const link = await agent.linkTo('there');
    for (let round = 0; round < 5; round++) {
      const memory = await agent.allocate(BYTES);
      memory.bytes.fill(1);
      const remote = allOf(agent, 'there');
      const transfer = await agent.prepare({
        operation: 'write',
        peer: 'there',
        local: DescriptorList.of(memory),
        remote,
      });
      transfer.post();
      for (let turn = 0; turn < round * 20; turn++) await new Promise((next) => setImmediate(next));
      await memory.close();
      const end = await transfer.wait().then(
        () => 'done',
        ({ code }) => String(code),
      );
      assert.ok(end === 'done' || end === 'WL_CLOSED', end);
      await transfer.close();
      lasting.bytes.fill(10 + round);
      await using next = await agent.prepare({
        operation: 'write',
        peer: 'there',
        local: DescriptorList.of(lasting),
        remote,
      });
      next.post();
      await next.wait();
      assert.equal(link.state, 'open');
      const came = await peer.bytes('allocated', 0, BYTES);
      assert.equal(Buffer.compare(came, lasting.bytes), 0);
    }
  });
}
