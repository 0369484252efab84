// How registered memory is given up by several backends, of which some fail.
import assert from 'node:assert/strict';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import type { BackendRegion } from '#lib/agent/backend.js';
import type { BackendName } from '#lib/agent/backends/backend-table.js';
import { Registration, sharedHostMemory } from '#lib/agent/registration.js';
import { SharedMemory } from '#lib/windows/shared-memory.js';

function region(release: () => Promise<void>): BackendRegion {
  return { info: new Uint8Array(0), release };
}

test('memory is kept while a peer may touch it, although another backend has failed first', async () => {
  const shared = SharedMemory.create('test', 4096, false);
  const memory = sharedHostMemory(shared);
  const registration = new Registration(memory, memory.view as Uint8Array, { name: '', number: 1 });
  const bytes = memory.view as Uint8Array;
  let isLate = true;
  let isFreed = false;
  const dispose = shared[Symbol.dispose].bind(shared);
  shared[Symbol.dispose] = (): void => {
    isFreed = true;
    dispose();
  };
  const fail = (code: 'WL_CLOSED' | 'WL_TIMEOUT') => async (): Promise<void> => {
    if (code === 'WL_TIMEOUT' && !isLate) return;
    throw new WeftlineError(code, 'as the test wants it');
  };
  registration.regions.set('ucx' satisfies BackendName, region(fail('WL_CLOSED')));
  registration.regions.set('local' satisfies BackendName, region(fail('WL_TIMEOUT')));
  await assert.rejects(registration.release(100), { code: 'WL_TIMEOUT' });
  assert.equal(isFreed, false);
  bytes[0] = 1;
  isLate = false;
  await assert.rejects(registration.release(100), { code: 'WL_CLOSED' });
  assert.equal(isFreed, true);
});
