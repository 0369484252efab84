// The backend over the transport, without agents: what a connection that comes to nothing leaves behind.
import assert from 'node:assert/strict';
import test from 'node:test';
import { createBackend } from '#lib/agent/backends/multipath/multipath-backend.js';
import { MultipathRegion } from '#lib/agent/backends/multipath/multipath-link.js';
import { hostMemory, openBackend } from './support/backend-context.ts';

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
