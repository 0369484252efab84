// weftline moe --model: folders as Hugging Face lays them out, over ranks of this machine.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { MoeReport } from '#lib/programs/moe/moe-job.js';
import { smallModels } from '../support/checkpoints/models.ts';
import { writeCheckpoint, writeEmptyCheckpoint } from '../support/checkpoints/write-checkpoint.ts';
import { isWhole, sampled } from '../support/extent.ts';

const main = fileURLToPath(new URL('../../../dist/programs/cli/main.js', import.meta.url));
const work = mkdtempSync(join(tmpdir(), 'weftline-models-'));
after(() => rmSync(work, { recursive: true }));

function moe(...args: readonly string[]) {
  const env = { ...process.env, WEFTLINE_DEVICE: 'cpu', CUDA_VISIBLE_DEVICES: '-1' };
  return spawnSync(process.execPath, [main, 'moe', ...args], { encoding: 'utf8', timeout: 600_000, env });
}

test('--all-layers runs the blocks of DeepSeek-V3, of fp8 weights, and shows the load of each rank by layer', async () => {
  const model = smallModels.deepseekV3;
  const { folder, input } = await writeCheckpoint(join(work, 'v3'), model, { tokens: 37, seed: 3 });
  const json = join(work, 'v3.json');
  const args = ['--model', folder, '--all-layers', '--input', input, '-n', '2', '--iterations', '1', '--json', json];
  const { status, stdout, stderr } = moe(...args);
  assert.equal(status, 0, stdout + stderr);
  assert.match(stdout, /│ layer │ +ms │ rank 0 │ rank 1 │/);
  assert.match(stdout, /^PASSED: 2 of 2 layers/m);
  const { layers } = JSON.parse(readFileSync(json, 'utf8')) as { readonly layers: readonly MoeReport[] };
  assert.deepEqual(
    layers.map(({ block }) => block.model?.layer),
    [1, 2],
  );
  for (const { load, check, phases } of layers) {
    assert.ok((check?.error ?? 1) < 6e-3);
    const rows = load.ranks.reduce((sum, { expertRows }) => sum + expertRows, 0);
    assert.equal(rows, 37 * 4);
    assert.deepEqual(
      phases.map(({ name }) => name),
      ['route', 'dispatch', 'experts', 'shared', 'combine'],
    );
  }
});

test('--layer runs one block, whose shards are three files, with rows as fp8 and copies of busy experts', async () => {
  const { folder, input } = await writeCheckpoint(join(work, 'qwen2'), smallModels.qwen2, { tokens: 20, seed: 4 });
  const args = ['--model', folder, '--layer', '1', '--input', input, '-n', '2', '--iterations', '1'];
  const { status, stdout, stderr } = moe(...args, '--dtype', 'fp8', '--redundant-experts', '2');
  assert.equal(status, 0, stdout + stderr);
  assert.match(stdout, /^.*qwen2, layer 1 \(qwen2_moe\)$/m);
  assert.match(stdout, /^PASSED: error/m);
  const refused = moe(...args, '--dispatcher', 'all2all');
  assert.equal(refused.status, 2, refused.stderr);
  assert.match(refused.stderr, /Invalid --dispatcher: expected "buffer" for a block with a shared expert/);
});

test(
  'a rank grows by its experts of one layer and a tenth at most',
  { skip: process.platform !== 'linux' },
  async () => {
    const shape = { layers: 2, experts: 4, hidden: 2048, intermediate: isWhole ? 12_288 : 6144 };
    const { folder, input } = await writeEmptyCheckpoint(join(work, 'empty'), shape);
    const json = join(work, 'memory.json');
    const args = ['--model', folder, '--all-layers', '--input', input, '-n', '2', '--iterations', '1', '--json', json];
    const { status, stdout, stderr } = moe(...args);
    assert.equal(status, 0, stdout + stderr);
    const { layers } = JSON.parse(readFileSync(json, 'utf8')) as { readonly layers: readonly MoeReport[] };
    for (const { expertBytes, peakBytes } of layers.at(-1)!.memory) {
      assert.equal(expertBytes, 2 * 3 * 2 * shape.hidden * shape.intermediate);
      assert.ok(peakBytes > 0.9 * expertBytes, `${peakBytes} of ${expertBytes}: the experts are not in memory`);
      assert.ok(peakBytes < 1.1 * expertBytes, `${peakBytes} of ${expertBytes}`);
    }
  },
);

test('flags that do not go together end with exit code 2 before any rank is started', async () => {
  const { folder, input } = await writeCheckpoint(join(work, 'olmoe'), smallModels.olmoe, { tokens: 4, seed: 5 });
  const wrong = [
    [['--layer', '1'], /--layer needs --model FOLDER/],
    [['--model', folder, '--layer', '0'], /--model needs --input FILE/],
    [['--model', folder, '--input', input], /either --layer N or --all-layers/],
    [['--model', folder, '--input', input, '--layer', '9'], /Invalid --layer: .* that has experts: 0 to 1, got 9/],
    [['--model', folder, '--input', input, '--layer', '0', '--topk', '2'], /Invalid --topk: .*config\.json says it/],
    [['--model', folder, '--input', input, '--all-layers', '--out', join(work, 'out')], /--out needs --layer N/],
    [['--model', folder, '--input', input, '--layer', '0', '-n', '3'], /Invalid --ranks: expected a divisor of the 16/],
  ] as const;
  for (const [args, words] of sampled<(typeof wrong)[number]>(wrong, 3)) {
    const { status, stdout, stderr } = moe(...args);
    assert.equal(status, 2, stderr);
    assert.equal(stdout, '');
    assert.match(stderr, words);
  }
});
