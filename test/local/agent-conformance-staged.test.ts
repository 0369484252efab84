// The same cases where a thread stages the memory, as it does with that of GPUs.
import assert from 'node:assert/strict';
import test from 'node:test';
import { stagedConfigurations } from './support/agent-configurations.ts';
import { testConformance } from './support/agent-conformance.ts';
import { isWhole } from '../support/extent.ts';
import { openPair } from './support/agent-pair.ts';

for (const configuration of isWhole ? stagedConfigurations : stagedConfigurations.slice(0, 1)) {
  await testConformance(configuration, !isWhole);
}

test('explain says that memory is staged', async () => {
  const [configuration] = stagedConfigurations;
  assert.ok(configuration);
  await using pair = await openPair(configuration, 64);
  assert.deepEqual(pair.agent.explain('there'), [
    { backend: 'multipath', isUsable: true, why: undefined, how: 'staged through pinned memory' },
  ]);
  await using plain = await openPair('multipath', 64);
  assert.deepEqual(plain.agent.explain('there'), [{ backend: 'multipath', isUsable: true, why: undefined }]);
});
