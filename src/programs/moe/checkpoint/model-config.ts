// config.json of a model's folder: its architecture, and the numbers that its MoE blocks need.
import { join } from 'node:path';
import { z } from '#zod';
import { WeftlineError } from '../../../core/errors.ts';
import { readInput } from '../../../core/guarded-file.ts';
import { printable } from '../../../core/quote.ts';
import { describeIssue } from '../describe-issue.ts';
import { parsePythonJson } from '../python-json.ts';
import { formatError } from '../safetensors-header.ts';

const count = z.number().int().positive();

const configSchema = z.looseObject({
  model_type: z.string(),
  hidden_act: z.string().optional(),
  num_hidden_layers: count.nullish(),
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
export function readModelConfig(folder: string): ModelConfig {
  const path = join(folder, 'config.json');
  const value = readJson(path, MAX_CONFIG_BYTES);
  const { success, data, error } = configSchema.safeParse(value);
  if (success) return data;
  throw formatError(path, `it is no model's configuration: ${describeIssue(error, value)}`);
}

/** Fails with WL_FILE or WL_FILE_FORMAT. */
export function readJson(path: string, maxBytes: number): unknown {
  const text = readText(path, maxBytes);
  try {
    return parsePythonJson(text);
  } catch (cause) {
    throw formatError(path, `it is not JSON (${printable(String(cause), 200)})`);
  }
}

function readText(path: string, maxBytes: number): string {
  try {
    return readInput(path, maxBytes).toString('utf8');
  } catch (cause) {
    if (cause instanceof WeftlineError) throw formatError(path, `it ${String(cause.details['why'])}`, cause.details);
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new WeftlineError('WL_FILE', `Cannot read ${printable(path, 1024)}: ${printable(why, 1024)}`, {
      details: { path },
      cause,
    });
  }
}
