import assert from 'node:assert/strict';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { describeMoeBlock, type MoeBlock, type MoeBlockOptions } from '#lib/programs/moe/moe-block.js';
import { SafetensorsFile, type SafetensorsPlan, writeSafetensors } from '#lib/programs/moe/safetensors-file.js';
import { folderUntilExit } from '../../../support/folder-until-exit.ts';

const folder = folderUntilExit('weftline-moe-block-');

type Tensors = SafetensorsPlan['tensors'];

const weights: Tensors = {
  x: { dtype: 'BF16', shape: [6, 16] },
  'experts.gate_up_proj': { dtype: 'BF16', shape: [4, 48, 16] },
  'experts.down_proj': { dtype: 'BF16', shape: [4, 16, 24] },
};
const choices: Tensors = {
  topk_idx: { dtype: 'I64', shape: [6, 2] },
  topk_weights: { dtype: 'F32', shape: [6, 2] },
};
const gate: Tensors = { 'gate.weight': { dtype: 'BF16', shape: [4, 16] } };

async function describe(
  tensors: Tensors,
  options: MoeBlockOptions & { readonly config?: unknown } = {},
): Promise<MoeBlock> {
  const path = join(folder, 'block.safetensors');
  const { config, ...block } = options;
  const metadata = config === undefined ? {} : { config: typeof config === 'string' ? config : JSON.stringify(config) };
  await writeSafetensors({ path, tensors, metadata }, {});
  await using file = await SafetensorsFile.open(path);
  return describeMoeBlock(file, block);
}

test('describeMoeBlock() understands the example', async () => {
  const path = fileURLToPath(new URL('../../../../../examples/data/qwen3-moe-block.safetensors', import.meta.url));
  await using file = await SafetensorsFile.open(path);
  assert.deepEqual(describeMoeBlock(file), {
    path,
    tokens: 1536,
    hidden: 256,
    experts: 32,
    intermediate: 128,
    topk: 4,
    routing: 'file',
    normalize: false,
    hasReference: true,
  });
});

test('describeMoeBlock() takes ids and weights from the file when it has them', async () => {
  const block = await describe({ ...weights, ...choices, ...gate });
  assert.equal(block.routing, 'file');
  assert.equal(block.topk, 2);
  assert.equal(block.hasReference, false);
});

test('describeMoeBlock() takes top-k from the options or the metadata when it must route', async () => {
  const config = { num_experts_per_tok: 3, norm_topk_prob: true, other: [1] };
  const fromFile = await describe({ ...weights, ...gate }, { config });
  assert.deepEqual([fromFile.routing, fromFile.topk, fromFile.normalize], ['gate', 3, true]);
  const given = await describe({ ...weights, ...gate }, { config, topk: 1, normalize: false });
  assert.deepEqual([given.topk, given.normalize], [1, false]);
  await assert.rejects(describe({ ...weights, ...gate }), { code: 'WL_INVALID_ARGUMENT', message: /topk/ });
  await assert.rejects(describe({ ...weights, ...gate }, { topk: 5 }), { message: /topk: expected 1 to 4, got 5/ });
});

test('describeMoeBlock() refuses options that contradict the file', async () => {
  await assert.rejects(describe({ ...weights, ...choices }, { topk: 3 }), { code: 'WL_INVALID_ARGUMENT' });
  await assert.rejects(describe({ ...weights, ...choices }, { normalize: true }), { code: 'WL_INVALID_ARGUMENT' });
});

test('describeMoeBlock() names the tensor that is missing or does not fit', async () => {
  const all: Tensors = { ...weights, ...choices };
  const wrong: readonly (readonly [name: string, replacement: Tensors[string] | undefined, words: RegExp])[] = [
    ['x', undefined, /no tensor "x"/],
    ['x', { dtype: 'F32', shape: [6, 16] }, /x is F32 \[6, 16\], wanted is BF16 \[T, H\]/],
    ['x', { dtype: 'BF16', shape: [96] }, /x is BF16 \[96\]/],
    ['experts.gate_up_proj', undefined, /no tensor "experts\.gate_up_proj"/],
    ['experts.gate_up_proj', { dtype: 'BF16', shape: [4, 48, 8] }, /gate_up_proj .*wanted is BF16 \[E, 2I, 16\]/],
    ['experts.gate_up_proj', { dtype: 'BF16', shape: [4, 40, 16] }, /gate_up_proj .*2I = 40/],
    ['experts.gate_up_proj', { dtype: 'BF16', shape: [0, 48, 16] }, /no experts/],
    ['experts.down_proj', { dtype: 'BF16', shape: [4, 16, 32] }, /down_proj .*wanted is BF16 \[4, 16, 24\]/],
    ['topk_idx', undefined, /no tensor "topk_idx"/],
    ['topk_idx', { dtype: 'F32', shape: [6, 2] }, /topk_idx is F32/],
    ['topk_idx', { dtype: 'I64', shape: [5, 2] }, /topk_idx is I64 \[5, 2\]/],
    ['topk_weights', undefined, /no tensor "topk_weights"/],
    ['topk_weights', { dtype: 'F32', shape: [6, 3] }, /topk_weights is F32 \[6, 3\]/],
    ['output_f32', { dtype: 'F32', shape: [6, 8] }, /output_f32/],
  ];
  for (const [name, replacement, message] of wrong) {
    const tensors: Record<string, Tensors[string]> = { ...all };
    if (replacement === undefined) delete tensors[name];
    else tensors[name] = replacement;
    await assert.rejects(describe(tensors), { code: 'WL_FILE_FORMAT', message });
  }
  const wide: Tensors = {
    topk_idx: { dtype: 'I64', shape: [6, 5] },
    topk_weights: { dtype: 'F32', shape: [6, 5] },
  };
  await assert.rejects(describe({ ...weights, ...wide }), { code: 'WL_FILE_FORMAT', message: /K = 5/ });
  await assert.rejects(describe({ ...weights }), { code: 'WL_FILE_FORMAT', message: /gate\.weight/ });
});

test('describeMoeBlock() refuses a hidden size that is no multiple of 8, another activation, a broken config', async () => {
  const odd: Tensors = {
    x: { dtype: 'BF16', shape: [6, 12] },
    'experts.gate_up_proj': { dtype: 'BF16', shape: [4, 48, 12] },
    'experts.down_proj': { dtype: 'BF16', shape: [4, 12, 24] },
  };
  await assert.rejects(describe({ ...odd, ...choices }), { code: 'WL_FILE_FORMAT', message: /H = 12/ });
  const all = { ...weights, ...choices };
  await assert.rejects(describe(all, { config: { hidden_act: 'gelu' } }), { message: /hidden_act "gelu"/ });
  await assert.rejects(describe(all, { config: '{' }), { code: 'WL_FILE_FORMAT', message: /config/ });
  await assert.rejects(describe(all, { config: { num_experts_per_tok: 'two' } }), { message: /num_experts_per_tok/ });
});
