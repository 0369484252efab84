// Memory that the backend ucx has given up is not touched by UCX any more, whatever a peer does that was to take it.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { whyNoUcx } from './support/ucx-side.js';

const giver = fileURLToPath(new URL('./support/ucx-freed.js', import.meta.url));
const peer = fileURLToPath(new URL('./support/ucx-peer.js', import.meta.url));
const skip = whyNoUcx();

describe('a link is closed while its peer takes no data', { concurrency: 2, skip, timeout: 60_000 }, () => {
  for (const transports of ['posix,self', 'tcp,self']) {
    test(`ucx, ${transports}: memory is given up when UCX has returned it`, async () => {
      const env = { ...process.env, UCX_TLS: transports, NODE_TEST_CONTEXT: undefined };
      const { stdout } = await promisify(execFile)(process.execPath, [giver, peer], { env });
      assert.deepEqual(JSON.parse(stdout), { isUnderWay: true, isQuiet: false });
    });
  }
});
