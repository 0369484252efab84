// How many agents of a host may be linked to one: as many as its setting allows, and the others by another backend.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent, DescriptorList } from 'weftline/agent';
import { createBackend } from '#lib/agent/backends/local/local-backend.js';
import { openBackend, pollUntil } from './support/backend-context.ts';
import { until } from '../support/until.ts';

test('a hundred agents link to one, and each is heard', async () => {
  const owner = await openBackend(createBackend, 'owner');
  const others = await Promise.all(
    Array.from({ length: 100 }, (_, index) => openBackend(createBackend, `agent ${index}`)),
  );
  for (const { backend, name } of others) {
    const link = await backend.connect(owner.peer, { timeoutMs: 120_000 });
    link.notify(Buffer.from(`from ${name}`));
  }
  await pollUntil([owner], () => owner.received.length === others.length);
  for (const { peer, text } of owner.received) assert.equal(text, `from ${peer}`);
  assert.equal(new Set(owner.received.map(({ peer }) => peer)).size, others.length);
  for (const { backend } of others) await backend.close();
  await owner.backend.close();
});

test('where there is no place left another backend is taken, and explain() tells why', async () => {
  const settings = { localSenders: 1 };
  const backends = ['local', 'multipath'] as const;
  const token = 'secret';
  await using owner = await Agent.create('owner', { backends, token, settings });
  const memory = await owner.allocate(64);
  const first = await Agent.create('first', { backends, token });
  await using second = await Agent.create('second', { backends, token });
  for (const agent of [first, second]) await agent.loadRemoteMetadata(owner.localMetadata());
  assert.equal(await first.connect('owner'), 'local');
  await assert.rejects(second.connect('owner', { backend: 'local' }), {
    code: 'WL_CAPACITY',
    message: /owner has links from 1 agents .* localSenders/,
  });
  const out = await second.allocate(64);
  out.bytes.fill(3);
  const [remote] = second.remoteMemory('owner');
  assert.ok(remote);
  const lists = { local: DescriptorList.of(out), remote: DescriptorList.of(remote) };
  await using transfer = await second.prepare({ operation: 'write', peer: 'owner', ...lists });
  assert.equal(transfer.backend, 'multipath');
  transfer.post(Buffer.from('there'));
  await transfer.wait();
  assert.equal((await owner.nextNotification()).peer, 'second');
  assert.deepEqual(memory.bytes, out.bytes);
  const [local] = second.explain('owner', lists);
  assert.ok(local?.backend === 'local' && !local.isUsable);
  assert.match(local.why ?? '', /has links from 1 agents/);

  await first.close();
  await until(async () => {
    await second.loadRemoteMetadata(owner.localMetadata());
    return (await second.connect('owner')) === 'local';
  }, 'the place of the first sender');
  assert.equal(second.explain('owner')[0]?.isUsable, true);
});

test('without another backend the error says that there is no place', async () => {
  const settings = { localSenders: 1 };
  await using owner = await Agent.create('owner', { backends: ['local'], settings });
  await using first = await Agent.create('first', { backends: ['local'] });
  await using second = await Agent.create('second', { backends: ['local'] });
  for (const agent of [first, second]) await agent.loadRemoteMetadata(owner.localMetadata());
  await first.connect('owner');
  await assert.rejects(second.notify('owner', Buffer.from('x')), { code: 'WL_CAPACITY' });
});
