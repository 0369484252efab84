// What an agent says of a peer whose process has ended before the link was made.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent } from 'weftline/agent';

test('the error about a peer that is gone before multipath links to it names the peer', async () => {
  await using agent = await Agent.create('a', { backends: ['multipath'] });
  const peer = await Agent.create('the lost one', { backends: ['multipath'] });
  await agent.loadRemoteMetadata(peer.localMetadata());
  await peer.close();
  await assert.rejects(agent.connect('the lost one'), { code: 'WL_PEER_LOST', message: /agent the lost one/ });
});
