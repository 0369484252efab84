// The same cases for every backend of the agent.
import assert from 'node:assert/strict';
import test from 'node:test';
import { knownBackends, loadBackend } from '#lib/agent/backends/create.js';

for (const name of knownBackends()) {
  test(`${name}: can be loaded`, async () => {
    assert.equal(typeof (await loadBackend(name)), 'function');
  });
}

test('a backend that is not there is undefined', async () => {
  if (!knownBackends().includes('ucx')) assert.equal(await loadBackend('ucx'), undefined);
});
