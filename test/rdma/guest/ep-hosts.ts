// In the guest: EP across two pretended hosts of two ranks, whose rows go over RDMA, agrees with the reference.
import assert from 'node:assert/strict';
import test from 'node:test';
import { runRanks } from '../../local/support/run-ranks.ts';

const property = new URL('../../local/ranks/ep-property.js', import.meta.url);
/** Four processes start on an emulated processor: two minutes on an idle machine, many more beside other programs. */
const TIMEOUT_MS = 900_000;

for (const what of ['buffer', 'layer']) {
  test(`EP ${what} on 2 hosts of 2 ranks goes by verbs and agrees with the reference`, async () => {
    const env = {
      WEFTLINE_HOSTS: '2',
      WEFTLINE_TEST_GROUP: 'all',
      WEFTLINE_LOG: 'agent:info',
      WEFTLINE_TIMEOUT_MS: String(TIMEOUT_MS),
      // Each engine is a thread that takes the guest many seconds to start, and none of them carries rows here.
      WEFTLINE_TRANSPORT_ENGINES: '1',
    };
    const { exitCode, transcript } = await runRanks(4, property, {
      args: [what, '1', '7'],
      env,
      timeoutMs: TIMEOUT_MS,
    });
    assert.equal(exitCode, 0, transcript);
    assert.match(transcript, /linked to rank-\d+-\d+ by verbs/);
    assert.doesNotMatch(transcript, /linked to rank-\d+-\d+ by (?:multipath|ucx)/);
  });
}
