// config.json of a model's folder: its architecture, and the numbers that its MoE blocks need.
import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from '#zod';
import { WeftlineError } from '../../../core/errors.ts';
import { printable } from '../../../core/quote.ts';
import { describeIssue } from '../describe-issue.ts';
import { formatError } from '../safetensors-header.ts';

const count = z.number().int().positive();

const configSchema = z.looseObject({
  model_type: z.string(),
  hidden_act: z.string().optional(),
  num_experts_per_tok: count.nullish(),
  num_local_experts: count.nullish(),
  num_experts: count.nullish(),
  n_routed_experts: count.nullish(),
  norm_topk_prob: z.boolean().nullish(),
  scoring_func: z.string().nullish(),
  topk_method: z.string().nullish(),
  n_group: count.nullish(),
  topk_group: count.nullish(),
  routed_scaling_factor: z.number().positive().nullish(),
  quantization_config: z
    .looseObject({ quant_method: z.string().optional(), weight_block_size: z.array(count).nullish() })
    .nullish(),
});

/** The fields that are read; a model's own names. */
export type ModelConfig = z.infer<typeof configSchema>;

/** Published ones have some thousand characters. */
const MAX_CONFIG_BYTES = 1 << 20;

/** Fails with WL_FILE if it cannot be read, with WL_FILE_FORMAT if it is no configuration of a model. */
export async function readModelConfig(folder: string): Promise<ModelConfig> {
  const path = join(folder, 'config.json');
  const value = await readJson(path, MAX_CONFIG_BYTES);
  const { success, data, error } = configSchema.safeParse(value);
  if (success) return data;
  throw formatError(path, `it is no model's configuration: ${describeIssue(error, value)}`);
}

/** Fails with WL_FILE or WL_FILE_FORMAT. */
export async function readJson(path: string, maxBytes: number): Promise<unknown> {
  const text = await readText(path, maxBytes);
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw formatError(path, `it is not JSON (${printable(String(cause), 200)})`);
  }
}

async function readText(path: string, maxBytes: number): Promise<string> {
  try {
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const stat = await file.stat();
    if (!stat.isFile()) throw formatError(path, 'it is no ordinary file');
    const { size } = stat;
    if (size > maxBytes) throw formatError(path, `it has ${size} bytes, at most ${maxBytes} are read`, { size });
    return await file.readFile('utf8');
  } catch (cause) {
    if (cause instanceof WeftlineError) throw cause;
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new WeftlineError('WL_FILE', `Cannot read ${printable(path, 1024)}: ${printable(why, 1024)}`, {
      details: { path },
      cause,
    });
  }
}
