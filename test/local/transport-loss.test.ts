// The transport through a network of its own that loses or corrupts single packets, and through one whose path dies.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { HostStatistics } from '#lib/transport/host/connection.js';
import type { Harm } from './support/lossy-transport.ts';
import { skipWithout } from './support/requirements.js';
import { sampled } from '../support/extent.ts';

const script = fileURLToPath(new URL('./support/lossy-transport.js', import.meta.url));
const namespace = 'ip link set lo up gso_max_segs 1 && nft add table ip weftline';

const canIsolate = spawnSync('unshare', ['-n', 'sh', '-c', namespace]).status === 0;
const options = { skip: skipWithout('namespaces', canIsolate ? undefined : 'needs root, unshare, ip and nft') };

/** Ends with its process; the network and what harms packets in it end too. */
function runWith(harm: Harm): HostStatistics {
  const { status, stdout, stderr } = spawnSync('unshare', ['-n', process.execPath, script, JSON.stringify(harm)], {
    encoding: 'utf8',
    timeout: 600_000,
    env: { ...process.env, NODE_TEST_CONTEXT: undefined },
  });
  assert.equal(status, 0, stderr);
  return JSON.parse(stdout) as HostStatistics;
}

for (const lost of sampled([5, 1], 1)) {
  for (const transportSegmentBytes of [0, 1472]) {
    const size = transportSegmentBytes === 0 ? 'the largest packets' : `packets of ${transportSegmentBytes} bytes`;
    test(`${lost} % of ${size} are lost, every message arrives intact`, options, () => {
      const { connection } = runWith({ lost, settings: { transportSegmentBytes } });
      // Some 180 of the largest packets carry 12 MB: one of a hundred may be none.
      if (transportSegmentBytes !== 0) assert.ok(connection.retransmittedSegments > 0);
    });
  }
}

test('one of eight paths dies, every message arrives intact', options, () => {
  const { connection } = runWith({ deadPath: 2, settings: { transportPaths: 8 } });
  assert.equal(connection.paths.length, 8);
  assert.equal(connection.paths.filter(({ alive }) => !alive).length, 1);
});

const rails = ['127.0.0.1', '127.0.0.2', '127.0.0.3'] as const;
for (const [transportEngines, transportSpread, count] of sampled(
  [
    [2, 'split', 3],
    [1, 'turn', 2],
    [4, 'turn', 2],
  ] as const,
  1,
)) {
  const settings = { transportEngines, transportSpread, transportRails: rails.slice(0, count).join() };
  const how = `${transportEngines} engines, ${count} rails, ${transportSpread}`;

  test(`a rail is cut in mid-flight and comes back, every message arrives intact: ${how}`, options, () => {
    const { connection, lanes } = runWith({ deadRail: rails[1], settings });
    assert.equal(lanes.length, transportEngines);
    assert.ok(connection.timeouts > 0);
    assert.ok(connection.paths.every(({ alive }) => alive));
  });

  test(`one rail loses 5 % of its packets, every message arrives intact: ${how}`, options, () => {
    const { connection, lanes } = runWith({
      lost: 5,
      lossyRail: rails[1],
      settings: { ...settings, transportSegmentBytes: 1472, transportPaths: count },
    });
    // A sender whose peer gets no processor takes segments of the good rail for lost as well: how many is no matter of rails.
    assert.ok(lanes.some((lane) => lane.connection.paths[1]!.lostSegments > 0));
    assert.ok(connection.paths.every(({ alive }) => alive));
  });
}

test(
  '3 % of the packets are written over on the way: the checksum finds them, every message arrives intact',
  options,
  () => {
    const settings = { transportSegmentBytes: 1472, transportChecksum: 'full' } as const;
    const { connection, drops } = runWith({ corrupted: 3, settings });
    assert.ok(drops.checksum > 0);
    assert.ok(connection.retransmittedSegments > 0);
  },
);

test(
  '3 % of authenticated packets are written over on the way: their tags show it, every message arrives intact',
  options,
  () => {
    const settings = { transportSegmentBytes: 1472, transportAuthentication: true } as const;
    const { connection, drops } = runWith({ corrupted: 3, settings });
    assert.ok(drops.tag > 0);
    assert.equal(drops.replay, 0);
    assert.ok(connection.retransmittedSegments > 0);
  },
);
