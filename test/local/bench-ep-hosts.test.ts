// weftline bench ep across hosts, small: every call runs, the carrier is checked inside, and the document is whole.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { EpHostBenchReport } from '#lib/programs/bench/ep/ep-hosts.js';
import type { LowLatencyHostBenchReport } from '#lib/programs/bench/ep/low-latency-hosts.js';
import { isWhole } from '../support/extent.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const env = { ...process.env, WEFTLINE_TOKEN: undefined, NODE_TEST_CONTEXT: undefined };
const small = '--device cpu --tokens 24 --hidden 64 --topk 3 --experts 12 --iterations 2 --warmup 1 --pairs 3';

function bench(...args: string[]): {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
} {
  const words = [main, 'bench', 'ep', ...small.split(' '), ...args];
  return spawnSync(process.execPath, words, { encoding: 'utf8', timeout: 600_000, env });
}

test('two hosts: calls, carrier and pairs stand in the document, and no row crosses twice', () => {
  const { status, stdout, stderr } = bench('--ranks', '4', '--hosts', '2', '--json', '-');
  assert.equal(status, 0, stderr);
  const report = JSON.parse(stdout) as EpHostBenchReport;
  assert.equal(report.schema, 'weftline.bench.ep.hosts/1');
  assert.deepEqual(report.hosts, [
    [0, 1],
    [2, 3],
  ]);
  const names = report.cases.map(({ name }) => name);
  const calls = ['dispatch', 'dispatch cached', 'combine', 'layer dispatch', 'layer combine'];
  assert.deepEqual(names, ['carrier', 'carrier back', ...calls]);
  for (const { name, networkBytes, sentBytes, microseconds, ratioToCarrier, networkPhase, phases } of report.cases) {
    const isCarrier = name.startsWith('carrier');
    assert.equal(microseconds.count, 2);
    // What travels beside small rows counts; rows alone are the least there is.
    const beside = ['dispatch', 'layer dispatch'].includes(name);
    if (beside) assert.ok(sentBytes > networkBytes && sentBytes < 2 * networkBytes, `${name}: ${sentBytes}`);
    else assert.ok(sentBytes >= networkBytes && sentBytes < networkBytes + 4096, `${name}: ${sentBytes}`);
    assert.equal(ratioToCarrier === undefined, isCarrier);
    assert.equal(networkPhase === undefined, isCarrier);
    assert.equal(phases.network === undefined, isCarrier);
  }
  assert.deepEqual(
    report.pairs.map(({ name, pairs }) => [name, pairs]),
    [
      ['EpBuffer', 3],
      ['EPAll2AllLayer', 3],
    ],
  );
});

for (const variant of ['rank-sums', 'choices', 'rank-major']) {
  test(`low latency beside the carrier, ${variant}`, () => {
    const args = ['--mode', 'low-latency', '--variant', variant, '--ranks', '4', '--hosts', '2', '--json', '-'];
    const { status, stdout, stderr } = bench(...args);
    assert.equal(status, 0, stderr);
    const report = JSON.parse(stdout) as LowLatencyHostBenchReport;
    assert.equal(report.schema, 'weftline.bench.ep.low-latency.hosts/1');
    const carriers = report.cases.filter(({ name }) => name.startsWith('carrier'));
    assert.deepEqual(
      carriers.map(({ name }) => name),
      ['carrier fp8', 'carrier bf16', 'carrier back'],
    );
    for (const { name, microseconds, beyondCarrier } of report.cases) {
      assert.ok(microseconds.p50 > 0, name);
      assert.equal(beyondCarrier === undefined, name.startsWith('carrier'), name);
    }
  });
}

if (isWhole) {
  test('hosts of unlike size, fp8, without the layer: as tables', () => {
    const { status, stdout, stderr } = bench('--ranks', '3', '--hosts', '2+1', '--dtype', 'fp8', '--no-layer');
    assert.equal(status, 0, stderr);
    assert.match(stdout, /2 hosts of 2, 1 ranks; \w+/);
    assert.match(stdout, /EpBuffer: dispatch and combine in turn, every [^\n]*3 pairs/);
    assert.match(stdout, /dispatch cached/);
    assert.doesNotMatch(stdout, /layer/);
  });
}
