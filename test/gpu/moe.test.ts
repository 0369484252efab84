// weftline moe on GPUs: the example block through every way of carrying and multiplying rows.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { settingsTable } from 'weftline';
import type { MoeReport } from '#lib/moe/moe-job.js';
import { findCublas } from '#lib/native/cublas.js';
import { cacheFolder, noGpu, rankCounts } from './support/gpu.js';
import { TemporaryFolder } from './support/temporary-folder.js';

const main = fileURLToPath(new URL('../../../dist/cli/main.js', import.meta.url));
const example = fileURLToPath(new URL('../../../examples/data/qwen3-moe-block.safetensors', import.meta.url));
const noCublas = noGpu === false && findCublas() === undefined ? 'there is no cuBLAS' : noGpu;
const env = { ...process.env, NODE_TEST_CONTEXT: undefined, [settingsTable.cacheFolder.env]: cacheFolder };

function moe(...args: readonly string[]): { readonly report: MoeReport; readonly stdout: string } {
  using folder = new TemporaryFolder();
  const json = join(folder.path, 'report.json');
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [main, 'moe', example, '--json', json, '--repeat', '2', ...args],
    { encoding: 'utf8', timeout: 120_000, env },
  );
  assert.equal(status, 0, stdout + stderr);
  return { report: JSON.parse(readFileSync(json, 'utf8')) as MoeReport, stdout };
}

const products = [
  { product: 'cublas', skip: noCublas, name: /^cuBLAS \d+\.\d+\.\d+ \(.*libcublas/ },
  { product: 'kernel', skip: noGpu, name: /^tensor core kernel \(asked for\)$/ },
] as const;
/** 32 experts divide among 1, 2, 4 and 8 ranks. */
const counts = rankCounts.filter((ranks) => 32 % ranks === 0);

for (const ranks of counts) {
  for (const { product, skip, name } of products) {
    for (const dtype of ['bf16', 'fp8'] as const) {
      test(`${ranks} ranks, ${dtype} rows, experts by ${product}`, { skip }, (context) => {
        const args = ['-n', String(ranks), '--device', 'cuda', '--expert-product', product, '--dtype', dtype];
        const { report, stdout } = moe(...args);
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

test('the GPU is chosen by itself', { skip: noGpu }, () => {
  const { report } = moe('-n', '1', '--expert-product', 'kernel');
  assert.deepEqual(report.device, { kind: 'cuda', reason: 'every rank has a GPU of its own' });
});
