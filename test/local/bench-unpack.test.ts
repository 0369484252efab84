// weftline bench unpack on the CPU device: every stage runs and is checked inside, and the document is whole.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { UnpackBenchReport } from '#lib/programs/bench/unpack/unpack-results.js';
import { verdictOf } from '#lib/programs/bench/unpack/document-figures.js';

const commandLine = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));

function bench(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  const all = [commandLine, 'bench', 'unpack', '--device', 'cpu', ...args];
  return spawnSync(process.execPath, all, { encoding: 'utf8', timeout: 60_000 });
}

test('bench unpack measures every stage for every length of fragments', () => {
  const sizes = ['--chunk', '64K', '--total', '256K', '--fragments', '64,4K'];
  const { status, stdout, stderr } = bench(...sizes, '--iterations', '2', '--warmup', '1', '--json', '-');
  assert.equal(status, 0, stderr);
  const report = JSON.parse(stdout) as UnpackBenchReport;
  assert.equal(report.schema, 'weftline.bench.unpack/1');
  assert.deepEqual(report.workload, { chunkBytes: 65_536, totalBytes: 262_144, fragments: [64, 4096] });
  const names = ['launcher per chunk', 'preallocated', 'batched', 'copies one by one'];
  assert.deepEqual(
    report.stages.map(({ name, fragmentBytes }) => [name, fragmentBytes]),
    [64, 4096].flatMap((bytes) => names.map((name) => [name, bytes])),
  );
  for (const { microseconds, verdict } of report.stages) {
    assert.equal(microseconds.count, 2);
    // The document speaks of GPUs.
    assert.equal(verdict, '');
  }
  assert.deepEqual([report.components, report.kernels], [[], []]);
});

test('bench unpack refuses lengths that do not divide the chunk', () => {
  for (const sizes of [
    ['--fragments', '3K'],
    ['--chunk', '1M', '--fragments', '256'],
    ['--total', '100K'],
  ]) {
    const { status, stderr } = bench(...sizes);
    assert.equal(status, 1);
    assert.match(stderr, /WL_INVALID_ARGUMENT: Invalid (?:fragments|total): expected .*multiple/);
  }
});

test('a measurement confirms a figure within a factor of three', () => {
  assert.deepEqual(
    [verdictOf(100, 299), verdictOf(100, 34), verdictOf(100, 301), verdictOf(100, 33), verdictOf(100, undefined)],
    ['confirms', 'confirms', 'refutes', 'refutes', ''],
  );
});
