// Peers over the backend ucx that are killed in the midst of large transfers: the survivor lives, is told, keeps nothing.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { whyNoUcx } from './support/ucx-side.js';

/** How many peers die for each test. */
const rounds = Number(process.env['WEFTLINE_TEST_UCX_DEATHS'] ?? 5);
const skip = whyNoUcx();

const survivor = fileURLToPath(new URL('./support/ucx-survivor.js', import.meta.url));
const peer = fileURLToPath(new URL('./support/ucx-peer.js', import.meta.url));

interface Seen {
  readonly codes: readonly string[];
  readonly leftByPeers: readonly string[];
  readonly leftAtEnd: readonly string[];
}

for (const [name, transports] of Object.entries({ 'default transports': undefined, tcp: 'tcp,self' })) {
  for (const role of ['initiator', 'target']) {
    for (const operation of ['write', 'read']) {
      const title = `ucx, ${name}: ${rounds} peers are killed in a ${operation}, this side is the ${role}`;
      test(title, { skip, timeout: 60_000 + rounds * 5000 }, async () => {
        const words = [survivor, peer, role, operation, String(rounds)];
        const { stdout, stderr } = await promisify(execFile)(process.execPath, words, {
          env: { ...process.env, UCX_TLS: transports, NODE_TEST_CONTEXT: undefined },
        });
        assert.doesNotMatch(stderr, /ssert|UCX|cma/);
        const { codes, leftByPeers, leftAtEnd } = JSON.parse(stdout) as Seen;
        assert.deepEqual(
          codes,
          Array.from({ length: rounds }, () => 'WL_PEER_LOST'),
        );
        assert.deepEqual(leftByPeers, [], 'a dead peer leaves nothing while the backend goes on');
        assert.deepEqual(leftAtEnd, [], 'a closed backend leaves nothing');
      });
    }
  }
}
