import assert from 'node:assert/strict';
import { cpSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { CheckpointSource } from '#lib/programs/moe/checkpoint/checkpoint-source.js';
import { ModelFolder } from '#lib/programs/moe/checkpoint/model-folder.js';
import type { TensorEntry } from '#lib/programs/moe/safetensors-header.js';
import { smallModels } from '../../../../support/checkpoints/models.ts';
import { writeCheckpoint } from '../../../../support/checkpoints/write-checkpoint.ts';
import { folderUntilExit } from '../../../../support/folder-until-exit.ts';

const work = folderUntilExit('weftline-bad-folders-');
const qwen2 = await writeCheckpoint(join(work, 'qwen2'), smallModels.qwen2, { tokens: 3, seed: 1 });
const deepseekV3 = await writeCheckpoint(join(work, 'deepseekV3'), smallModels.deepseekV3, { tokens: 3, seed: 2 });
const index = 'model.safetensors.index.json';
const shard = 'model-00002-of-00003.safetensors';

let copies = 0;

const nothing = (): void => undefined;

/** A copy of a folder that `spoil` changes; opened and asked for a layer's block. */
async function tryCopy(
  { folder, input }: typeof qwen2,
  spoil: (path: string) => void | Promise<void>,
  { layer = 1, tokens = input }: { readonly layer?: number; readonly tokens?: string } = {},
): Promise<void> {
  const path = join(work, `copy-${copies++}`);
  cpSync(folder, path, { recursive: true });
  await spoil(path);
  await using opened = await ModelFolder.open(path);
  await (await CheckpointSource.open(opened, { layer, input: tokens }))[Symbol.asyncDispose]();
}

function changeConfig(path: string, change: Readonly<Record<string, unknown>>): void {
  const file = join(path, 'config.json');
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), ...change }));
}

/** Text that JSON.stringify() does not write. */
function addToConfig(path: string, text: string): void {
  const file = join(path, 'config.json');
  writeFileSync(file, readFileSync(file, 'utf8').replace(/\}$/, `,${text}}`));
}

function changeIndex(path: string, change: (map: Record<string, unknown>) => void): void {
  const file = join(path, index);
  const { weight_map: map } = JSON.parse(readFileSync(file, 'utf8')) as { weight_map: Record<string, unknown> };
  change(map);
  writeFileSync(file, JSON.stringify({ weight_map: map }));
}

/** Changes the file that holds the tensor. */
async function changeShardOf(
  path: string,
  name: string,
  change: (bytes: Buffer, entry: TensorEntry) => void,
): Promise<void> {
  await using opened = await ModelFolder.open(path);
  const file = await opened.fileOf(name);
  const bytes = readFileSync(file.path);
  change(bytes, file.entry(name));
  writeFileSync(file.path, bytes);
}

for (const [what, code, message, spoil] of [
  ['no config.json', 'WL_FILE', /config\.json: ENOENT/, (path) => rmSync(join(path, 'config.json'))],
  [
    'a config that is a device',
    'WL_FILE_FORMAT',
    /config\.json.*it is a device/,
    (path) => {
      rmSync(join(path, 'config.json'));
      symlinkSync('/dev/zero', join(path, 'config.json'));
    },
  ],
  [
    'a config that is no JSON',
    'WL_FILE_FORMAT',
    /config\.json: it is not JSON/,
    (path) => writeFileSync(join(path, 'config.json'), '{'),
  ],
  [
    'a config of something else',
    'WL_FILE_FORMAT',
    /no model's configuration: model_type is missing \(/,
    (path) => writeFileSync(join(path, 'config.json'), '{}'),
  ],
  [
    'a config with a wrong number',
    'WL_FILE_FORMAT',
    /no model's configuration: num_experts is -1 \([^\n]*\)$/,
    (path) => writeFileSync(join(path, 'config.json'), '{"model_type":"qwen2_moe","num_experts":-1}'),
  ],
  [
    'no safetensors files',
    'WL_FILE',
    /neither model\.safetensors\.index\.json nor model\.safetensors; fetch the model's safetensors files/,
    (path) => rmSync(join(path, index)),
  ],
  [
    'a missing shard',
    'WL_FILE',
    /model-00002-of-00003\.safetensors is missing, which holds ".*"; fetch it/,
    (path) => rmSync(join(path, shard)),
  ],
  [
    'a shard of Git LFS',
    'WL_FILE_FORMAT',
    /pointer of Git LFS.*git lfs pull/,
    (path) => writeFileSync(join(path, shard), 'version https://git-lfs.github.com/spec/v1\n'),
  ],
  [
    'an index without a map',
    'WL_FILE_FORMAT',
    /no object weight_map/,
    (path) => writeFileSync(join(path, index), '{"weight_map": []}'),
  ],
  [
    'a shard outside the folder',
    'WL_FILE_FORMAT',
    /is in "\.\.\/model\.safetensors", expected the name of a \.safetensors file/,
    (path) =>
      changeIndex(path, (map) => {
        map['lm_head.weight'] = '../model.safetensors';
      }),
  ],
  [
    'a tensor that the index does not have',
    'WL_FILE_FORMAT',
    /no tensor "model\.layers\.1\.mlp\.experts\.3\.up_proj\.weight"/,
    (path) =>
      changeIndex(path, (map) => {
        delete map['model.layers.1.mlp.experts.3.up_proj.weight'];
      }),
  ],
  [
    'a tensor that its shard does not have',
    'WL_FILE_FORMAT',
    /it has no tensor "model\.layers\.1\.mlp\.gate\.weight"/,
    (path) =>
      changeIndex(path, (map) => {
        map['model.layers.1.mlp.gate.weight'] = 'model-00001-of-00003.safetensors';
      }),
  ],
  [
    'another number of experts',
    'WL_FILE_FORMAT',
    /mlp\.gate\.weight is BF16 \[12, 40\], wanted is BF16 or F16 or F32 \[16, 40\]/,
    (path) => changeConfig(path, { num_experts: 16 }),
  ],
  [
    'no number of experts',
    'WL_FILE_FORMAT',
    /it has no num_experts$/,
    (path) => changeConfig(path, { num_experts: undefined }),
  ],
  [
    'more choices than experts',
    'WL_FILE_FORMAT',
    /num_experts_per_tok is 13, expected 1 to 12/,
    (path) => changeConfig(path, { num_experts_per_tok: 13 }),
  ],
  [
    'another activation',
    'WL_FILE_FORMAT',
    /hidden_act is "gelu", expected "silu"/,
    (path) => changeConfig(path, { hidden_act: 'gelu' }),
  ],
  [
    'gpt-oss',
    'WL_FILE_FORMAT',
    /model_type gpt_oss cannot be run: its experts add biases and clamp/,
    (path) => changeConfig(path, { model_type: 'gpt_oss' }),
  ],
  [
    'an unknown architecture',
    'WL_FILE_FORMAT',
    /model_type "llama" is not known; known are mixtral, qwen2_moe/,
    (path) => changeConfig(path, { model_type: 'llama' }),
  ],
  [
    'names of another architecture',
    'WL_FILE_FORMAT',
    /no layer has experts: expected tensors "model\.layers\.N\.block_sparse_moe/,
    (path) => changeConfig(path, { model_type: 'mixtral' }),
  ],
  [
    'weights that are quantised in another way',
    'WL_FILE_FORMAT',
    /quant_method "gptq"\).*take the model in bf16/,
    (path) => changeConfig(path, { quantization_config: { quant_method: 'gptq' } }),
  ],
  [
    'weights that are quantised by blocks of a hundred thousand dimensions',
    'WL_FILE_FORMAT',
    /quant_method "fp8", blocks of 1 x .{1,120}\), of which only fp8/,
    (path) => {
      const extents = Array.from({ length: 100_000 }, () => 1);
      changeConfig(path, { quantization_config: { quant_method: 'fp8', weight_block_size: extents } });
    },
  ],
] as readonly (readonly [string, string, RegExp, (path: string) => void])[]) {
  test(`a folder with ${what} is refused with ${code}`, async () => {
    await assert.rejects(tryCopy(qwen2, spoil), { code, message });
  });
}

test('rules of DeepSeek that cannot be computed are refused by their names', async () => {
  for (const [change, message] of [
    [{ scoring_func: 'relu' }, /scoring_func is "relu", expected "softmax" or "sigmoid"/],
    [{ topk_method: 'random' }, /topk_method is "random", expected "greedy", "group_limited_greedy", "noaux_tc"/],
    [{ n_group: 3 }, /n_group 3 does not divide the 16 experts/],
    [{ n_group: 8, topk_group: 1 }, /topk_group 1 of n_group 8 leaves too few of 16 experts for num_experts_per_tok 4/],
    [{ n_group: 2, topk_group: 3 }, /topk_group 3 of n_group 2 leaves too few/],
    [{ n_group: 16, topk_group: 8 }, /n_group 16 of 16 experts leaves one expert in a group/],
  ] as const) {
    await assert.rejects(
      tryCopy(deepseekV3, (path) => changeConfig(path, change)),
      { code: 'WL_FILE_FORMAT', message },
    );
  }
});

test('a bias that is no finite number is refused by its tensor and expert', async () => {
  const name = 'model.layers.1.mlp.gate.e_score_correction_bias';
  for (const [value, message] of [
    [Number.NaN, /e_score_correction_bias\[3\] is NaN, expected a finite number$/],
    [Number.NEGATIVE_INFINITY, /e_score_correction_bias\[3\] is -Infinity, expected a finite number$/],
  ] as const) {
    const spoil = (path: string): Promise<void> =>
      changeShardOf(path, name, (bytes, { start }) => bytes.writeFloatLE(value, start + 12));
    await assert.rejects(tryCopy(deepseekV3, spoil), { code: 'WL_FILE_FORMAT', message });
  }
});

test('fp8 weights without scales, or with others than their blocks have, are refused before any weight is read', async () => {
  const weight = 'model.layers.1.mlp.experts.2.up_proj.weight';
  const scales = `${weight}_scale_inv`;
  await assert.rejects(
    tryCopy(deepseekV3, (path) => changeIndex(path, (map) => void delete map[scales])),
    { code: 'WL_FILE_FORMAT', message: /experts\.2\.up_proj\.weight is F8_E4M3, but there is no \S+_scale_inv with/ },
  );
  const reshape = (path: string): Promise<void> =>
    changeShardOf(path, scales, (bytes) => {
      const entry = bytes.indexOf(`"${scales}"`);
      bytes.write('[4,1]', bytes.indexOf('[2,2]', entry), 'latin1');
    });
  await assert.rejects(tryCopy(deepseekV3, reshape), {
    code: 'WL_FILE_FORMAT',
    message: /up_proj\.weight_scale_inv is F32 \[4, 1\], wanted is F32 or BF16 or F16 or F8_E8M0 \[2, 2\]/,
  });
});

test('a config as Python writes it may hold numbers that are none, where nobody reads them', async () => {
  const odd = '"a": [0.0, Infinity, -Infinity], "b": NaN, "c": "NaN, \\"Infinity\\""';
  await tryCopy(deepseekV3, (path) => addToConfig(path, odd));
  await assert.rejects(
    tryCopy(deepseekV3, (path) => addToConfig(path, '"routed_scaling_factor": Infinity')),
    { code: 'WL_FILE_FORMAT', message: /no model's configuration: routed_scaling_factor/ },
  );
  await assert.rejects(
    tryCopy(deepseekV3, (path) => addToConfig(path, '"n_group": NaN')),
    {
      code: 'WL_FILE_FORMAT',
      message: /no model's configuration: n_group is NaN, which is no number, expected one: write it/,
    },
  );
});

test("a layer behind num_hidden_layers is not the model's", async () => {
  await assert.rejects(
    tryCopy(deepseekV3, (path) => changeConfig(path, { num_hidden_layers: 2 }), { layer: 2 }),
    {
      code: 'WL_INVALID_ARGUMENT',
      message:
        /a layer of .* that has experts: 1 \(num_hidden_layers of its config\.json is 2, .* are not run\), got 2/,
    },
  );
  await assert.rejects(
    tryCopy(deepseekV3, (path) => changeConfig(path, { num_hidden_layers: 1 })),
    {
      code: 'WL_FILE_FORMAT',
      message:
        /config\.json: num_hidden_layers is 1, and the layers with experts in the files are 1 to 2, expected .*: fetch/,
    },
  );
});

test('a dense layer, tokens of another size and a folder that is a file are refused', async () => {
  await assert.rejects(tryCopy(deepseekV3, nothing, { layer: 0 }), {
    code: 'WL_INVALID_ARGUMENT',
    message: /that has experts: 1 to 2, got 0/,
  });
  await assert.rejects(tryCopy(deepseekV3, nothing, { tokens: qwen2.input }), {
    code: 'WL_FILE_FORMAT',
    message: /mlp\.gate\.weight is BF16 \[16, 136\], wanted is .*\[16, 40\]/,
  });
  await assert.rejects(ModelFolder.open(qwen2.input), {
    code: 'WL_FILE',
    message: /it is not a folder; expected one with config\.json/,
  });
  const empty = join(work, 'none');
  mkdirSync(empty);
  await assert.rejects(ModelFolder.open(empty), { code: 'WL_FILE', message: /config\.json/ });
});
