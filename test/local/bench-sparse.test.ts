// weftline bench sparse: results agree with dense sums, the lines are those of the program that it follows, bytes are those of theory.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { SparseBenchReport } from '#lib/programs/bench/sparse/sparse-bench.js';

const commandLine = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const quick = ['--workers', '2', '--elements', '300001', '--rounds', '2', '--warmups', '0', '--slots', '2'];

function bench(...args: string[]): ReturnType<typeof spawnSync> {
  const all = [commandLine, 'bench', 'sparse', ...quick, ...args];
  return spawnSync(process.execPath, all, { encoding: 'utf8', timeout: 600_000 });
}

test('each round has its lines, and the result is checked', () => {
  const { status, stdout, stderr } = bench(
    '--density',
    '0.1',
    '--dtype',
    'bf16',
    '--workers',
    '3',
    '--aggregators',
    '2',
    '--fan-in',
    '2',
  );
  assert.equal(status, 0, String(stderr));
  assert.match(String(stdout), /^round: 1$/m);
  const line = /^tensor size: 600002 Bytes; time: \d+ us; alg bw: [\d.]+ GB\/s \([\d.]+ GiB\/s\)$/m;
  assert.match(String(stdout), line);
  assert.match(String(stdout), /result check: ok\n$/);
});

test('a sweep of densities tells bytes and theory, also where workers aggregate', () => {
  const { status, stdout, stderr } = bench('--aggregators', '0', '--density', '0,0.25,1', '--json', '-');
  assert.equal(status, 0, String(stderr));
  const report = JSON.parse(String(stdout)) as SparseBenchReport;
  assert.equal(report.schema, 'weftline.bench.sparse/1');
  assert.deepEqual(
    report.rows.map(({ density, wrong }) => [density, wrong]),
    [0, 0.25, 1].map((density) => [density, 0]),
  );
  for (const { density, blocks, ownBlocks, sumBlocks, sentBytes, receivedBytes } of report.rows) {
    assert.equal(ownBlocks, Math.round(density * blocks));
    const [sent, received] = [ownBlocks * 1024, sumBlocks * 1024];
    assert.ok(sentBytes >= sent && sentBytes <= sent * 1.02 + 4096, `${sentBytes} for ${sent}`);
    assert.ok(receivedBytes >= received && receivedBytes <= received * 1.02 + 4096, `${receivedBytes} for ${received}`);
  }
});

test('no elements are refused, and densities are read in every usual way', () => {
  assert.match(String(bench('--elements', '0').stderr), /--elements .*Expected an integer from 1/);
  const { status, stderr } = bench('--density', '1e-2,.5', '--rounds', '1');
  assert.equal(status, 0, String(stderr));
});
