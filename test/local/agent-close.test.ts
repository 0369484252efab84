// An agent closes, or forgets a peer, while it connects to one that does not answer.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Agent } from 'weftline/agent';
import { backendNames } from '#lib/agent/backends/backend-table.js';
import { openPair } from './support/agent-pair.ts';
import { whyMissing } from './support/missing-backend.ts';

// What fails sooner fails because of the close.
const settings = { timeoutMs: 900_000 };

for (const backend of backendNames) {
  const skip = (await whyMissing(backend)) ?? (backend === 'local' ? 'it asks nobody' : false);

  test(`${backend}: close() ends a connect that nobody answers`, { skip, timeout: 600_000 }, async () => {
    await using pair = await openPair(backend, 64, { settings });
    const { agent, peer } = pair;
    peer.child.kill('SIGSTOP');
    const connecting = agent.connect('there');
    const outcome = assert.rejects(connecting, { code: 'WL_CLOSED' });
    // Whenever it is closed; after a while it has asked the peer.
    await new Promise((resolve) => setTimeout(resolve, 50));
    await agent.close();
    await outcome;
  });

  test(`${backend}: invalidate() and a signal end it as well`, { skip, timeout: 600_000 }, async () => {
    await using pair = await openPair(backend, 64, { settings });
    const { agent, peer } = pair;
    const metadata = await peer.metadata();
    peer.child.kill('SIGSTOP');
    const aborted = agent.connect('there', { signal: AbortSignal.timeout(50) });
    await assert.rejects(aborted, { name: 'TimeoutError' });
    const connecting = assert.rejects(agent.connect('there'), { code: 'WL_STALE', message: /load its metadata, then/ });
    // Whenever it is forgotten; after a while the hello waits for the stopped peer.
    await new Promise((resolve) => setTimeout(resolve, 50));
    assert.equal(await agent.forget('there'), true);
    await connecting;
    peer.child.kill('SIGCONT');
    await agent.loadRemoteMetadata(metadata);
    assert.equal(await agent.connect('there'), backend);
  });
}

test(
  'who waits for a connect that another began has an own deadline and an own signal',
  { timeout: 600_000 },
  async () => {
    await using pair = await openPair('multipath', 64, { settings });
    const { agent, peer } = pair;
    peer.child.kill('SIGSTOP');
    const first = assert.rejects(agent.connect('there'), { code: 'WL_CLOSED' });
    await assert.rejects(agent.connect('there', { timeoutMs: 50 }), { code: 'WL_TIMEOUT', message: /there.*50 ms/ });
    await assert.rejects(agent.connect('there', { signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
    await agent.close();
    await first;
  },
);

test('cancelling a connect does not cancel other connects to the same peer', async () => {
  await using a = await Agent.create('a', { backends: ['multipath'] });
  await using b = await Agent.create('b', { backends: ['multipath'] });
  await a.loadRemoteMetadata(b.localMetadata());
  const impatient = new AbortController();
  const first = a.connect('b', { signal: impatient.signal });
  const second = a.connect('b');
  impatient.abort();
  await assert.rejects(first, (error) => error === impatient.signal.reason);
  assert.equal(await second, 'multipath');
});
