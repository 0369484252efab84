// The transport through a network of its own that loses single packets, and through one whose path dies.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Settings } from 'weftline';

const script = fileURLToPath(new URL('./support/lossy-transport.js', import.meta.url));
const namespace = 'ip link set lo up gso_max_segs 1 && nft add table ip weftline';

interface Statistics {
  readonly retransmittedSegments: number;
  readonly paths: readonly { readonly alive: boolean }[];
}

const canIsolate = spawnSync('unshare', ['-n', 'sh', '-c', namespace]).status === 0;
const options = canIsolate ? {} : { skip: 'needs root, unshare, ip and nft' };

/** Ends with its process; the network and what drops packets in it end too. */
function runWithLoss(percent: number, deadPath: number, settings: Partial<Settings>): Statistics {
  const words = ['-n', process.execPath, script, String(percent), String(deadPath), JSON.stringify(settings)];
  const { status, stdout, stderr } = spawnSync('unshare', words, {
    encoding: 'utf8',
    timeout: 60_000,
    env: { ...process.env, NODE_TEST_CONTEXT: undefined },
  });
  assert.equal(status, 0, stderr);
  return JSON.parse(stdout) as Statistics;
}

for (const percent of [1, 5]) {
  for (const transportSegmentBytes of [0, 1472]) {
    const size = transportSegmentBytes === 0 ? 'the largest packets' : `packets of ${transportSegmentBytes} bytes`;
    test(`${percent} % of ${size} are lost, every message arrives intact`, options, () => {
      const { retransmittedSegments } = runWithLoss(percent, -1, { transportSegmentBytes });
      // Of 12 MB in the largest packets some 180 are sent: one of a hundred may be none.
      if (transportSegmentBytes !== 0) assert.ok(retransmittedSegments > 0);
    });
  }
}

test('one of eight paths dies, every message arrives intact', options, () => {
  const { retransmittedSegments, paths } = runWithLoss(0, 2, { transportPaths: 8 });
  assert.equal(paths.length, 8);
  assert.ok(retransmittedSegments > 0);
  assert.equal(paths.filter(({ alive }) => !alive).length, 1);
});
