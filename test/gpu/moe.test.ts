// weftline moe on GPUs: the example block through every way of carrying and multiplying rows.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { MoeReport } from '#lib/programs/moe/moe-job.js';
import { SafetensorsFile, writeSafetensors } from '#lib/programs/moe/safetensors-file.js';
import { findCublas } from '#lib/native/cublas.js';
import { cacheFolder, noGpu, rankCounts } from './support/gpu.js';
import { TemporaryFolder } from './support/temporary-folder.js';
import { settingsTable } from '#lib/settings/settings.js';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const example = fileURLToPath(new URL('../../../examples/data/qwen3-moe-block.safetensors', import.meta.url));
const noCublas = noGpu === false && findCublas() === undefined ? 'there is no cuBLAS' : noGpu;
const env = { ...process.env, NODE_TEST_CONTEXT: undefined, [settingsTable.cacheFolder.env]: cacheFolder };

function moe(...args: readonly string[]): { readonly report: MoeReport; readonly stdout: string } {
  return moeOf(example, ...args);
}

function moeOf(block: string, ...args: readonly string[]): { readonly report: MoeReport; readonly stdout: string } {
  using folder = new TemporaryFolder();
  const json = join(folder.path, 'report.json');
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [main, 'moe', block, '--json', json, '--repeat', '2', ...args],
    { encoding: 'utf8', timeout: 120_000, env },
  );
  assert.equal(status, 0, stdout + stderr);
  return { report: JSON.parse(readFileSync(json, 'utf8')) as MoeReport, stdout };
}

const products = [
  { product: 'cublas', skip: noCublas, name: /^cuBLAS \d+\.\d+\.\d+ \(.*libcublas/ },
  { product: 'kernel', skip: noGpu, name: /^tensor core kernel \(asked for\)$/ },
] as const;
const carriers = [
  ['buffer', 'bf16'],
  ['buffer', 'fp8'],
  ['all2all', 'bf16'],
] as const;
/** 32 experts divide among 1, 2, 4 and 8 ranks. */
const counts = rankCounts.filter((ranks) => 32 % ranks === 0);

for (const ranks of counts) {
  for (const { product, skip, name } of products) {
    for (const [layer, dtype] of carriers) {
      test(`${ranks} ranks, layer ${layer}, ${dtype} rows, experts by ${product}`, { skip }, (context) => {
        const args = ['--device', 'cuda', '--dispatcher', layer, '--dtype', dtype, '--expert-product', product];
        const { report, stdout } = moe('-n', String(ranks), ...args);
        assert.equal(report.device.kind, 'cuda');
        assert.match(report.product, name);
        assert.match(stdout, /\ndevice: cuda \(asked for.*\)\nexperts: /);
        // Far below the tolerance: what the CPU reaches, and no more.
        assert.ok((report.check?.error ?? 1) < (dtype === 'fp8' ? 4.5e-2 : 4e-3), JSON.stringify(report.check));
        assert.ok(report.phases.every((phase) => phase.ms > 0));
        context.diagnostic(stdout);
      });
    }
  }
}

for (const [dtype, precision] of [
  ['bf16', 'f32'],
  ['fp8', 'bf16'],
] as const) {
  test(`2 ranks on 2 hosts, ${dtype} rows, sums as ${precision}`, { skip: noGpu }, () => {
    const args = ['--device', 'cuda', '--hosts', '2', '--dtype', dtype, '--expert-product', 'kernel'];
    const { report } = moe('-n', '2', ...args, '--combine-precision', precision);
    assert.ok((report.check?.error ?? 1) < (dtype === 'fp8' ? 4.5e-2 : 5e-3), JSON.stringify(report.check));
  });
}

test('the GPU is chosen by itself', { skip: noGpu }, () => {
  const { report } = moe('-n', '1', '--expert-product', 'kernel');
  assert.deepEqual(report.device, { kind: 'cuda', reason: 'every rank has a GPU of its own' });
});

test('a gate chooses the experts that the file names', { skip: noGpu }, async () => {
  using folder = new TemporaryFolder();
  const path = join(folder.path, 'gate.safetensors');
  await using file = await SafetensorsFile.open(example);
  const names = [...file.tensors.keys()].filter((name) => !name.startsWith('topk_') && name !== 'output_bf16');
  const values: Record<string, ArrayBufferView> = {};
  for (const name of names) values[name] = await file.read(name, name === 'output_f32' ? 'f32' : 'bf16');
  const tensors = Object.fromEntries(names.map((name) => [name, file.entry(name)]));
  await writeSafetensors({ path, tensors, metadata: file.metadata }, values);
  const { report } = moeOf(path, '-n', '2', '--device', 'cuda', '--expert-product', 'kernel');
  assert.ok((report.check?.error ?? 1) < 4e-3);
  assert.deepEqual(
    report.phases.map((phase) => phase.name),
    ['dispatch', 'experts', 'combine'],
  );
});
