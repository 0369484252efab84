// weftline bench ep on GPUs, small: every case runs, the bare copies are checked inside, and the document is whole.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import type { CudaLowLatencyBenchReport, EpCudaBenchReport } from '#lib/programs/bench/ep/cuda-bench.js';
import { cudaDeviceCount } from 'weftline';
import { cacheFolder, noGpu, rankCounts } from './support/gpu.ts';
import { TemporaryFolder } from './support/temporary-folder.ts';
import { settingsTable } from '#lib/settings/settings.js';

const commandLine = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const env = { ...process.env, [settingsTable.cacheFolder.env]: cacheFolder };

/** Hidden sizes with whole vectors in rows and scales, in rows only, and in neither. */
for (const [ranks, hidden] of [
  ...rankCounts.map((count) => [count, 512] as const),
  [2, 144] as const,
  [2, 136] as const,
]) {
  test(`bench ep --device cuda on ${ranks} ranks with rows of ${hidden}`, { skip: noGpu }, () => {
    using folder = new TemporaryFolder();
    const json = join(folder.path, 'bench.json');
    const flags = { device: 'cuda', ranks, hidden, tokens: 50, topk: 3, experts: 8 * ranks, sms: '2,4' };
    const words = Object.entries({ ...flags, iterations: 2, warmup: 1, json });
    const args = ['bench', 'ep', ...words.flatMap(([name, value]) => [`--${name}`, String(value)])];
    const { status, stdout, stderr } = spawnSync(process.execPath, [commandLine, ...args], {
      encoding: 'utf8',
      env,
      timeout: 120_000,
    });
    assert.equal(status, 0, stderr);
    const report = JSON.parse(readFileSync(json, 'utf8')) as EpCudaBenchReport;
    assert.equal(report.gpuMachine.gpus.length, ranks);
    assert.deepEqual(
      report.runs.map(({ numSms }) => numSms),
      // Ranks that share a GPU are measured with the first one only.
      ranks > cudaDeviceCount() ? [2] : [2, 4],
    );
    for (const { cases } of report.runs) {
      for (const dtype of ['bf16', 'fp8']) {
        for (const name of [`push copy ${dtype}`, `dispatch ${dtype}`, `dispatch ${dtype} cached + combine`]) {
          assert.ok(cases.some((result) => result.name === name));
        }
      }
      for (const name of ['combine bf16', 'layer dispatch', 'layer combine', 'layer combine, local']) {
        assert.ok(cases.some((result) => result.name === name));
      }
      for (const result of cases) {
        assert.ok(stdout.includes(result.name));
        assert.ok(result.microseconds.min > 0 && result.readyMicroseconds.min >= result.returnedMicroseconds.min);
        assert.equal(result.ratioToCopy === undefined, result.name.includes('copy'));
      }
    }
  });
}

for (const variant of ['rank-sums', 'choices', 'rank-major']) {
  test(`bench ep --mode low-latency --device cuda, ${variant}`, { skip: noGpu }, () => {
    using folder = new TemporaryFolder();
    const json = join(folder.path, 'bench.json');
    const sizes = { ranks: 2, hidden: 512, tokens: 20, topk: 3, experts: 16, iterations: 2, warmup: 1, pairs: 4 };
    const flags = { mode: 'low-latency', variant, device: 'cuda', ...sizes, json };
    const args = ['bench', 'ep', ...Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)])];
    const { status, stdout, stderr } = spawnSync(process.execPath, [commandLine, ...args], {
      encoding: 'utf8',
      env,
      timeout: 120_000,
    });
    assert.equal(status, 0, stderr);
    const report = JSON.parse(readFileSync(json, 'utf8')) as CudaLowLatencyBenchReport;
    for (const name of ['dispatch fp8', 'dispatch bf16, send', 'combine bf16', 'pair fp8, chained']) {
      assert.ok(report.cases.some((result) => result.name === name && result.microseconds.p50 > 0));
      assert.ok(stdout.includes(name));
    }
  });
}
