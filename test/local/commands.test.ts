import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { EpBenchReport } from '#lib/programs/bench/ep/ep-bench.js';
import type { Examination, RdmaExamination } from '#lib/programs/doctor/doctor.js';
import { sampled } from '../support/extent.ts';

const commandLine = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'weftline-commands-'));
after(() => rmSync(folder, { recursive: true }));

const small = [
  '--tokens',
  '24',
  '--hidden',
  '136',
  '--topk',
  '3',
  '--experts',
  '12',
  '--iterations',
  '3',
  '--warmup',
  '1',
];

function weftline(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  return spawnSync(process.execPath, [commandLine, ...args], { encoding: 'utf8', timeout: 600_000 });
}

test('weftline doctor --rdma ends with 0 where a port can be used, and says why else', () => {
  const { status, stdout, stderr } = weftline('doctor', '--rdma', '--json');
  const examination = JSON.parse(stdout) as RdmaExamination;
  assert.equal(examination.schema, 'weftline.doctor.rdma/1');
  assert.equal(status, examination.rdmaReady ? 0 : 1);
  assert.equal(examination.problem === undefined, examination.rdmaReady);
  assert.equal(
    stderr,
    examination.rdmaReady ? '' : `weftline: WL_UNSUPPORTED: RDMA cannot be used: ${examination.problem}\n`,
  );
  const refused = weftline('doctor', '--rdma', '--rdma-devices', 'no-such-device');
  // Where libibverbs is missing nobody reads which devices are wanted.
  if (refused.status === 1) assert.match(refused.stderr, /WL_UNSUPPORTED: RDMA cannot be used: .*libibverbs/);
  else assert.match(refused.stderr, /WL_CONFIG: Invalid --rdma-devices: expected devices of this host/);
});

test('weftline doctor ends with 0 where CPU ranks run, and prints JSON on request', () => {
  const text = weftline('doctor');
  assert.equal(text.status, 0, text.stderr);
  assert.match(text.stdout, /Node\.js +│ ok/);
  const json = weftline('doctor', '--json');
  assert.equal(json.status, 0, json.stderr);
  assert.equal((JSON.parse(json.stdout) as Examination).cpuReady, true);
});

test('weftline bench ep measures every case on 3 ranks and writes its document', () => {
  const file = join(folder, 'bf16.json');
  const { status, stdout, stderr } = weftline('bench', 'ep', '--ranks', '3', ...small, '--json', file);
  assert.equal(status, 0, stderr);
  const report = JSON.parse(readFileSync(file, 'utf8')) as EpBenchReport;
  assert.equal(report.schema, 'weftline.bench.ep/1');
  assert.deepEqual([report.workload.ranks, report.workload.tokens, report.iterations], [3, 24, 3]);
  assert.deepEqual(
    report.cases.map((result) => result.name),
    [
      'copy ceiling',
      'dispatch',
      'dispatch cached',
      'copy back',
      'combine',
      'combine staged',
      'layer dispatch',
      'layer copy back',
      'layer combine',
    ],
  );
  for (const result of report.cases) {
    assert.ok(stdout.includes(result.name));
    assert.equal(result.microseconds.count, 3);
    assert.ok(result.microseconds.min > 0 && result.ratioToCeiling.median > 0);
    assert.equal(result.rowBytes, 272);
    assert.ok(result.wireRows < result.logicalRows);
  }
  assert.deepEqual(
    report.cases.filter((result) => result.ratioToCopyBack !== undefined).map((result) => result.name),
    ['combine', 'combine staged', 'layer combine'],
  );
  assert.equal(report.cases.at(-1)?.logicalRows, 3 * 24 * 3);
  assert.ok(report.memory.bufferWindowsBytes > 0 && report.memory.deviceBytes > report.memory.bufferWindowsBytes);
});

test('weftline bench ep moves fp8 rows with their scales, and leaves the layer out on request', () => {
  const file = join(folder, 'fp8.json');
  const args = ['--ranks', '2', ...small, '--dtype', 'fp8', '--skew', '1.5', '--no-layer', '--json', file];
  const { status, stderr } = weftline('bench', 'ep', ...args);
  assert.equal(status, 0, stderr);
  const report = JSON.parse(readFileSync(file, 'utf8')) as EpBenchReport;
  assert.deepEqual(
    report.cases.map((result) => result.rowBytes),
    [136 + 8, 136 + 8, 136 + 8, 272, 272, 272],
  );
  assert.equal(report.memory.layerWindowsBytes, undefined);
});

test('weftline bench ep on one rank needs no launcher', () => {
  const { status, stdout, stderr } = weftline('bench', 'ep', '--ranks', '1', ...small);
  assert.equal(status, 0, stderr);
  assert.match(stdout, /1 rank, 24 tokens of 136/);
});

test('weftline bench ep refuses what cannot work before any rank starts', () => {
  const wrong: readonly (readonly [readonly string[], RegExp])[] = [
    [['--ranks', '5'], /experts: expected a multiple of ranks, 5, got 256/],
    [['--hidden', '100'], /hidden: expected a multiple of 8, got 100/],
    [['--topk', '40'], /topk: expected .*, got 40/],
    [['--tokens', 'many'], /tokens.*integer from 1/],
    [['--dtype', 'fp4'], /dtype.*bf16, fp8/],
    [['--skew', '-1'], /skew/],
    [['--ranks', '2', '--tokens', '200000'], /WL_MEMORY.*at least .* GiB of each rank's address space/],
    [['--device', 'cpu', '--sms', '8,16'], /--sms is for GPUs: leave it out; .*on the CPU \(asked for\)/],
    [['--device', 'cpu', '--dtype', 'both'], /both is for GPUs: use bf16 or fp8/],
    [['--sms', '8,,16'], /sms.*integer from 1/],
    [['--sms', '8,8'], /Each SM count may be named once/],
    [['--device', 'tpu'], /device.*auto, cpu, cuda/],
    [['--json', '/no/such/folder/x.json'], /WL_FILE.*\/no\/such\/folder/],
  ];
  for (const [args, message] of sampled(wrong, 4)) {
    const { status, stderr } = weftline('bench', 'ep', ...args);
    assert.notEqual(status, 0);
    assert.match(stderr, message);
  }
});
