// The backend over the transport, without agents: what a connection that comes to nothing leaves behind.
import assert from 'node:assert/strict';
import test from 'node:test';
import { createBackend } from '#lib/agent/backends/multipath/multipath-backend.js';
import { MultipathRegion } from '#lib/agent/backends/multipath/multipath-link.js';
import { withCode } from '../support/with-code.ts';
import { hostMemory, openBackend, pollUntil } from './support/backend-context.ts';

const REGION_SLOTS = 2 ** 16;

test('connections to an earlier life of the peer leave no region behind', async () => {
  const a = await openBackend(createBackend, 'a');
  const b = await openBackend(createBackend, 'b');
  const nextSlot = async (): Promise<number> => {
    const region = await a.backend.register(hostMemory(new Uint8Array(new SharedArrayBuffer(64))));
    assert.ok(region instanceof MultipathRegion);
    await region.release();
    return region.region.remote.remoteRegion % REGION_SLOTS;
  };
  // Without threads of their own, both move while they are polled.
  const timer = setInterval(() => [a, b].forEach(({ backend }) => backend.poll()), 1);
  try {
    const before = await nextSlot();
    for (let attempt = 0; attempt < 3; attempt += 1) {
      const earlier = { ...b.peer, incarnation: '0000000000000001' };
      await assert.rejects(a.backend.connect(earlier, { timeoutMs: 120_000 }), { code: 'WL_STALE' });
    }
    assert.equal(await nextSlot(), before);
  } finally {
    await a.backend.close();
    clearInterval(timer);
    await b.backend.close();
  }
});

test('a peer whose messages were taken while too many requests were under way is heard again', async () => {
  const a = await openBackend(createBackend, 'a');
  const b = await openBackend(createBackend, 'b');
  const timer = setInterval(() => [a, b].forEach(({ backend }) => backend.poll()), 1);
  try {
    const [toB, toA] = await Promise.all([
      a.backend.connect(b.peer, { timeoutMs: 120_000 }),
      b.backend.connect(a.peer, { timeoutMs: 120_000 }),
    ]);
    clearInterval(timer);
    await pollUntil([a, b], () => !a.backend.poll() && !b.backend.poll());
    toB.notify(Buffer.from('one'));
    for (let round = 0; round < 100; round++) a.backend.poll();
    // Nothing of it goes while b is not polled, and nothing of it ends while a is not.
    assert.throws(
      () => {
        for (;;) toA.notify(Buffer.from('x'));
      },
      { code: 'WL_BUSY', message: /requests/ },
    );
    await pollUntil([b], () => b.received.length === 1);
    b.backend.poll();
    await pollUntil([a, b], () => a.received.length > 0);
    // Every byte of the ring is given back in the end: more than it holds goes through it.
    for (let sent = 0; sent < 20; sent++) {
      const message = Buffer.alloc(30_000, sent);
      await pollUntil([a, b], () => {
        try {
          toB.notify(message);
          return true;
        } catch (error) {
          return !withCode('WL_BUSY')(error);
        }
      });
    }
    await pollUntil([a, b], () => b.received.length === 21);
    assert.equal(toB.state, 'open');
  } finally {
    clearInterval(timer);
    const ends = setInterval(() => [a, b].forEach(({ backend }) => backend.poll()), 1);
    await a.backend.close();
    await b.backend.close();
    clearInterval(ends);
  }
});
