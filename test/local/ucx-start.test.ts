// An agent starts UCX only where it is asked for by name, or where RDMA is; otherwise it says why it has not.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent, DescriptorList } from 'weftline/agent';
import { localFiles } from '#lib/native/file-probe.js';
import { activeRdmaPorts } from '#lib/native/rdma-ports.js';
import { whyNoUcx } from './support/ucx-side.js';

const skip = activeRdmaPorts(localFiles()).length > 0 ? 'this host has RDMA, for which agents start UCX' : false;

test('an agent without a list of backends does not start UCX, and says so', { skip }, async () => {
  await using agent = await Agent.create('a', { token: 'secret' });
  await using peer = await Agent.create('b', { token: 'secret' });
  assert.ok(!agent.backends.includes('ucx'));
  const memory = await agent.allocate(4096);
  const theirs = await peer.allocate(4096);
  await agent.loadRemoteMetadata(peer.localMetadata());
  const verdict = agent.explain('b').find(({ backend }) => backend === 'ucx');
  assert.equal(verdict?.isUsable, false);
  assert.match(verdict?.why ?? '', /^not started: .*no RDMA device.*option backends of Agent\.create/);
  const lists = { local: DescriptorList.of(memory), remote: DescriptorList.of(theirs) };
  await assert.rejects(agent.prepare({ operation: 'write', peer: 'b', ...lists, backend: 'ucx' }), {
    code: 'WL_UNSUPPORTED',
    message: /ucx: not started/,
  });
});

test('a list of backends that names ucx starts it', { skip: whyNoUcx() }, async () => {
  await using agent = await Agent.create('a', { token: 'secret', backends: ['local', 'ucx', 'multipath'] });
  assert.deepEqual(agent.backends, ['local', 'ucx', 'multipath']);
});
