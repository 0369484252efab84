// scripts/ep-network.mjs, small: the bench runs between two hosts made of namespaces, and nothing is left of them.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { whyNotTwoMachines } from '../support/two-machines.ts';
import { skipWithout } from './support/requirements.ts';

const script = fileURLToPath(new URL('../../../scripts/ep-network.mjs', import.meta.url));
const skip = skipWithout('namespaces', whyNotTwoMachines());

function run(folder: string, ...words: string[]): { status: number | null; stdout: string; stderr: string } {
  const small = '--no-mpi --rounds 1 --hidden 64 --topk 3 --experts 12 --iterations 2 --warmup 1 --pairs 2';
  const env = { ...process.env, TMPDIR: folder, NODE_TEST_CONTEXT: undefined };
  const command = [script, ...small.split(' '), ...words];
  return spawnSync(process.execPath, command, { encoding: 'utf8', timeout: 600_000, env });
}

test('two hosts of two ranks: rows each way, ratios to the carrier, and a document', { skip }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-test-'));
  const { status, stdout, stderr } = run(folder, '--tokens', '24', '--json', join(folder, 'report.json'));
  assert.equal(status, 0, stdout + stderr);
  assert.match(stdout, /^no comparison with MPI: --no-mpi$/m);
  assert.match(stdout, /^dispatch: .* rows each way, .* in the network's phase [\d.]+/m);
  assert.match(stdout, /^EpBuffer, dispatch and combine in turn: /m);
  const report = JSON.parse(readFileSync(join(folder, 'report.json'), 'utf8')) as { reports: { hosts: unknown }[] };
  assert.deepEqual(report.reports[0]?.hosts, [
    [0, 1],
    [2, 3],
  ]);
  rmSync(join(folder, 'report.json'));
  assert.deepEqual(readdirSync(folder), []);
  rmSync(folder, { recursive: true });
});

test('a bench that fails ends the script with its message, and leaves nothing', { skip }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-test-'));
  const { status, stderr } = run(folder, '--tokens', '0');
  assert.equal(status, 1, stderr);
  assert.match(stderr, /'--tokens <n>' argument '0' is invalid/);
  assert.deepEqual(readdirSync(folder), []);
  rmSync(folder, { recursive: true });
});
