// weftline bench collectives: every operation gives right results, the columns are those of nccl-tests, the peer may be missing.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join as joinPath } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { readTableFile } from '#lib/collectives/algorithm-table.js';
import type { CollectivesBenchReport } from '#lib/programs/bench/collectives/collectives-bench.js';
import { busFactor } from '#lib/programs/bench/collectives/collectives-workload.js';

const commandLine = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const quick = ['--ranks', '2', '--rounds', '1', '--iterations', '3', '--min', '64', '--max', '64K', '--factor', '1024'];

function bench(args: readonly string[], env: NodeJS.ProcessEnv = process.env): ReturnType<typeof spawnSync> {
  const all = [commandLine, 'bench', 'collectives', ...args];
  return spawnSync(process.execPath, all, { encoding: 'utf8', timeout: 600_000, env });
}

test('every operation gives right results, out of place and in place', () => {
  const { status, stdout, stderr } = bench([...quick, '--dtype', 'bf16', '--op', 'max', '--json', '-']);
  assert.equal(status, 0, String(stderr));
  const report = JSON.parse(String(stdout)) as CollectivesBenchReport;
  assert.equal(report.schema, 'weftline.bench.collectives/1');
  assert.equal(report.rows.length, 12);
  for (const { kind, bytes, outOfPlace, inPlace } of report.rows) {
    for (const { microseconds, algbw, busbw, wrong, peerMicroseconds } of [outOfPlace, inPlace]) {
      assert.equal(wrong, 0, kind);
      assert.equal(peerMicroseconds, undefined);
      assert.ok(Math.abs(algbw / (bytes / microseconds / 1000) - 1) < 1e-3);
      assert.ok(Math.abs(busbw / (algbw * busFactor(kind, 2)) - 1) < 1e-3);
    }
  }
});

test('the table has a line for each size, in the columns of nccl-tests', () => {
  const { status, stdout, stderr } = bench([...quick, '--operations', 'allreduce']);
  assert.equal(status, 0, String(stderr));
  assert.match(String(stdout), /size +count +type +redop +time +algbw +busbw +#wrong +time +algbw +busbw +#wrong/);
  assert.match(String(stdout), /^ +65536 +16384 +f32 +sum +[\d.]+ +[\d.]+ +[\d.]+ +0 /m);
});

test('--compare mpi says what is missing, before any rank starts', () => {
  const env = { ...process.env, PATH: '/nowhere' };
  const { status, stderr } = bench([...quick, '--compare', 'mpi'], env);
  assert.equal(status, 1);
  assert.match(
    String(stderr),
    /WL_UNSUPPORTED: Cannot compare with MPI: mpirun is not installed .*leave --compare out/,
  );
});

test('--tune writes a table that --collective-table takes', () => {
  const folder = mkdtempSync(joinPath(tmpdir(), 'weftline-tune-'));
  const file = joinPath(folder, 'table.json');
  try {
    const tuned = bench([...quick, '--tune', file]);
    assert.equal(tuned.status, 0, String(tuned.stderr));
    assert.match(String(tuned.stdout), /^allReduce: (oneStep|shares)/m);
    const [shape] = readTableFile(file).shapes;
    assert.deepEqual([shape?.ranks, shape?.hosts], [2, 1]);
    const used = bench([...quick, '--operations', 'allReduce', '--collective-table', file]);
    assert.equal(used.status, 0, String(used.stderr));
  } finally {
    rmSync(folder, { recursive: true });
  }
});
