// Writes a small model as Hugging Face lays out a folder, with tokens and the expected output of each layer's block.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fromBf16, fromF16, toBf16, toF16 } from 'weftline';
import { fromFp8e4m3, toFp8e4m3 } from '#lib/reference/fp8-rows.js';
import { seededRandom } from '#lib/core/seeded-random.js';
import { writeSafetensors } from '#lib/programs/moe/safetensors-file.js';
import type { Matrix } from './matrices.ts';
import { referenceBlock, type ReferenceBlock, type SmallModel } from './models.ts';

export interface WrittenModel {
  readonly folder: string;
  /** Holds `x`, and `output_f32.N` of each layer with experts. */
  readonly input: string;
  readonly x: Matrix;
  /** By layer. */
  readonly expected: ReadonlyMap<number, ReferenceBlock>;
}

interface Stored {
  readonly dtype: SmallModel['dtype'] | 'F8_E8M0';
  readonly shape: readonly number[];
  readonly bits: ArrayBufferView;
}

const storage = {
  BF16: { array: Uint16Array, to: toBf16, from: fromBf16 },
  F16: { array: Uint16Array, to: toF16, from: fromF16 },
  F32: { array: Float32Array, to: Math.fround, from: (value: number) => value },
  F8_E4M3: { array: Uint8Array, to: toFp8e4m3, from: fromFp8e4m3 },
  F8_E8M0: {
    array: Uint8Array,
    to: (value: number) => Math.round(Math.log2(value)) + 127,
    from: (exponent: number) => 2 ** (exponent - 127),
  },
} as const;

const BLOCK = 128;

/** The folder is made; `tokens` tokens are written beside it. The same for the same seed. */
export async function writeCheckpoint(
  folder: string,
  model: SmallModel,
  {
    tokens,
    seed,
    scales = 'F32',
  }: { readonly tokens: number; readonly seed: number; readonly scales?: Exclude<Stored['dtype'], 'F8_E4M3'> },
): Promise<WrittenModel> {
  mkdirSync(folder, { recursive: true });
  const random = seededRandom(seed);
  const stored = new Map<string, Stored>();
  const matrices = new Map<string, Matrix>();
  const add = (name: string, shape: readonly number[], dtype: SmallModel['dtype'], scale: number): void => {
    const { array, to, from } = storage[dtype];
    const elements = shape.reduce((product, extent) => product * extent, 1);
    const bits = new array(Array.from({ length: elements }, () => to((2 * random() - 1) * scale)));
    stored.set(name, { dtype, shape, bits });
    matrices.set(name, { shape, values: Float64Array.from(bits, from) });
  };
  for (let layer = 0; layer < model.layers; layer++) {
    for (const [part, shape] of Object.entries(model.tensors(layer))) {
      const name = `model.layers.${layer}.${part}`;
      const isFp8 = model.dtype === 'F8_E4M3' && part !== model.names.router && shape.length === 2;
      if (isFp8) addScaled(name, shape, add, { stored, matrices, random, dtype: scales });
      // DeepSeek-V3 keeps the router in bf16 and its bias in f32.
      else if (model.dtype === 'F8_E4M3') add(name, shape, shape.length === 1 ? 'F32' : 'BF16', 0.3);
      else add(name, shape, model.dtype, 0.3);
    }
  }
  writeFileSync(join(folder, 'config.json'), JSON.stringify({ ...model.config, hidden_size: model.hidden }));
  await writeShards(folder, stored, model.shards);
  add('x', [tokens, model.hidden], 'BF16', 2);
  const x = matrices.get('x')!;
  const expected = new Map(model.moeLayers.map((layer) => [layer, referenceBlock(model, matrices, layer, x)]));
  const input = `${folder}-tokens.safetensors`;
  const outputs = Object.fromEntries([...expected].map(([layer, { output }]) => [`output_f32.${layer}`, output]));
  await writeSafetensors(
    {
      path: input,
      tensors: {
        x: { dtype: 'BF16', shape: x.shape },
        ...Object.fromEntries(Object.keys(outputs).map((name) => [name, { dtype: 'F32', shape: x.shape }] as const)),
      },
    },
    {
      x: stored.get('x')!.bits,
      ...Object.fromEntries(Object.entries(outputs).map(([name, values]) => [name, Float32Array.from(values)])),
    },
  );
  return { folder, input, x, expected };
}

/** A matrix of fp8 whose blocks of 128 by 128 have scales. */
function addScaled(
  name: string,
  shape: readonly number[],
  add: (name: string, shape: readonly number[], dtype: SmallModel['dtype'], scale: number) => void,
  {
    stored,
    matrices,
    random,
    dtype,
  }: {
    readonly stored: Map<string, Stored>;
    readonly matrices: Map<string, Matrix>;
    readonly random: () => number;
    readonly dtype: Stored['dtype'];
  },
): void {
  add(name, shape, 'F8_E4M3', 400);
  const [rows = 0, columns = 0] = shape;
  const grid = [Math.ceil(rows / BLOCK), Math.ceil(columns / BLOCK)] as const;
  const { array, to, from } = storage[dtype];
  const bits = new array(Array.from({ length: grid[0] * grid[1] }, () => to((0.25 + random()) * 5e-4)));
  stored.set(`${name}_scale_inv`, { dtype, shape: grid, bits });
  const scales = Float64Array.from(bits, from);
  const values = Float64Array.from(matrices.get(name)!.values, (value, at) => {
    const block = Math.floor(Math.floor(at / columns) / BLOCK) * grid[1] + Math.floor((at % columns) / BLOCK);
    return value * scales[block]!;
  });
  matrices.set(name, { shape, values });
}

const number = (value: number): string => String(value).padStart(5, '0');

async function writeShards(folder: string, stored: ReadonlyMap<string, Stored>, shards: number): Promise<void> {
  const all = [...stored];
  const weightMap: Record<string, string> = {};
  for (let shard = 0; shard < shards; shard++) {
    const file = shards === 1 ? 'model.safetensors' : `model-${number(shard + 1)}-of-${number(shards)}.safetensors`;
    const part = all.filter((_, at) => Math.floor((at * shards) / all.length) === shard);
    for (const [name] of part) weightMap[name] = file;
    await writeSafetensors(
      {
        path: join(folder, file),
        tensors: Object.fromEntries(part.map(([name, { dtype, shape }]) => [name, { dtype, shape }])),
      },
      Object.fromEntries(part.map(([name, { bits }]) => [name, bits])),
    );
  }
  if (shards === 1) return;
  const index = { metadata: { total_size: 0 }, weight_map: weightMap };
  writeFileSync(join(folder, 'model.safetensors.index.json'), JSON.stringify(index));
}

/** A model of zeros that takes no room on disk, in one file: what is measured is the memory of those who read it. */
export async function writeEmptyCheckpoint(
  folder: string,
  { layers, experts, hidden, intermediate }: Readonly<Record<'layers' | 'experts' | 'hidden' | 'intermediate', number>>,
): Promise<Pick<WrittenModel, 'folder' | 'input'>> {
  mkdirSync(folder, { recursive: true });
  const tensors: Record<string, { readonly dtype: 'BF16'; readonly shape: readonly number[] }> = {};
  for (let layer = 0; layer < layers; layer++) {
    const add = (name: string, shape: readonly number[]): void => {
      tensors[`model.layers.${layer}.mlp.${name}.weight`] = { dtype: 'BF16', shape };
    };
    add('gate', [experts, hidden]);
    for (let expert = 0; expert < experts; expert++) {
      add(`experts.${expert}.gate_proj`, [intermediate, hidden]);
      add(`experts.${expert}.up_proj`, [intermediate, hidden]);
      add(`experts.${expert}.down_proj`, [hidden, intermediate]);
    }
  }
  await writeSafetensors({ path: join(folder, 'model.safetensors'), tensors }, {});
  const config = { model_type: 'qwen3_moe', hidden_act: 'silu', num_experts: experts, num_experts_per_tok: 2 };
  writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
  const input = `${folder}-tokens.safetensors`;
  await writeSafetensors({ path: input, tensors: { x: { dtype: 'BF16', shape: [16, hidden] } } }, {});
  return { folder, input };
}
