import assert from 'node:assert/strict';
import test from 'node:test';
import { checkP2pWorkload, doubling, memoryOf, slotsOf, sweepIterations } from '#lib/programs/bench/p2p/p2p-phases.js';
import { p2pSizeLine, p2pWorkloadLines } from '#lib/programs/cli/bench-p2p.js';

const workload = {
  mode: 'write',
  sizes: [256, 1 << 20],
  iterations: 1000,
  inflight: 4,
  blocks: undefined,
  compare: 0,
  pings: 0,
  descriptors: 0,
} as const;

function line(bytes: number, gbps: number): string {
  return p2pSizeLine('Server', { bytes, iterations: 1, inflight: 1, seconds: 1, gbps, gigabytesPerSecond: gbps / 8 });
}

test('p2pSizeLine() and p2pWorkloadLines() print sizes in steps of 1024 and rates in units of 1e9', () => {
  assert.equal(line(256, 0.25), '[Server]    256 B :   0.25 Gbps |   0.03 GB/s');
  assert.equal(line(1024, 0.98), '[Server]   1.0 KB :   0.98 Gbps |   0.12 GB/s');
  assert.equal(line(104_857_600, 96.71), '[Server] 100.0 MB :  96.71 Gbps |  12.09 GB/s');
  assert.deepEqual(p2pWorkloadLines({ ...workload, sizes: [256, 10_485_760], iterations: 5 }, 'cpu', 0), [
    'Message sizes: 256 B, 10.0 MB',
    'Device: cpu | Local GPU idx: 0 | Iterations: 5 | Mode: write',
  ]);
});

test('the workload: iterations, messages under way and memory by size', () => {
  assert.equal(sweepIterations(1000, 1 << 20), 1000);
  assert.equal(sweepIterations(1000, (1 << 20) + 1), 62);
  assert.equal(sweepIterations(10, 1 << 24), 10);
  assert.equal(slotsOf(8, 256), 8);
  assert.equal(slotsOf(8, 1 << 29), 2);
  assert.equal(memoryOf(workload), 4 << 20);
  assert.deepEqual(doubling(4, 20), [4, 8, 16]);
  checkP2pWorkload(workload);
  assert.throws(() => checkP2pWorkload({ ...workload, sizes: [0] }), /size/);
  assert.throws(() => checkP2pWorkload({ ...workload, inflight: 0 }), /inflight/);
  assert.throws(() => checkP2pWorkload({ ...workload, descriptors: -1 }), /descriptors/);
  assert.throws(() => checkP2pWorkload({ ...workload, compare: 3, sizes: [256, 65_536] }), /--compare.*1 MiB/);
  checkP2pWorkload({ ...workload, compare: 3, sizes: [256], pings: 10 });
  // Beside the transport's bench, as many messages are under way as in it.
  assert.equal(memoryOf({ ...workload, inflight: 1, compare: 1 }), 8 << 20);
  assert.equal(memoryOf({ ...workload, descriptors: 1_000_000 }), 128_000_000);
  const blocks = { startBlockBytes: 1, maxBlockBytes: 1 << 20, startBatch: 1, maxBatch: 2048 };
  assert.throws(() => checkP2pWorkload({ ...workload, blocks }), /batch/);
});
