// A model's folder as Hugging Face lays it out: its configuration, and its tensors in one file or in shards.
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from '#zod';
import { WeftlineError } from '../../../core/errors.ts';
import { readInput } from '../../../core/guarded-file.ts';
import { printable, quote } from '../../../core/quote.ts';
import { SafetensorsFile } from '../safetensors-file.ts';
import { formatError } from '../safetensors-header.ts';

const INDEX = 'model.safetensors.index.json';
const SINGLE = 'model.safetensors';

/** Opens a shard when a tensor of it is asked for, and reads no more than is asked for. */
export class ModelFolder implements AsyncDisposable {
  readonly path: string;
  readonly config: ModelConfig;
  /** The file of each tensor. */
  readonly #files: ReadonlyMap<string, string>;
  readonly #open = new Map<string, Promise<SafetensorsFile>>();

  /** Fails with WL_FILE or WL_FILE_FORMAT, saying what of the folder is missing. */
  static async open(path: string): Promise<ModelFolder> {
    if (!(await isFolder(path))) throw missing(path, 'it is not a folder; expected one with config.json');
    const config = readModelConfig(path);
    if (await isFile(join(path, INDEX))) return new ModelFolder(path, config, readShardIndex(join(path, INDEX)));
    if (!(await isFile(join(path, SINGLE)))) {
      throw missing(
        path,
        `it has neither ${INDEX} nor ${SINGLE}; fetch the model's safetensors files, others are not read`,
      );
    }
    await using file = await SafetensorsFile.open(join(path, SINGLE));
    const names = [...file.tensors.keys(), ...file.unknown.keys()];
    return new ModelFolder(path, config, new Map(names.map((name) => [name, SINGLE])));
  }

  private constructor(path: string, config: ModelConfig, files: ReadonlyMap<string, string>) {
    this.path = path;
    this.config = config;
    this.#files = files;
  }

  /** Names of all tensors. */
  names(): Iterable<string> {
    return this.#files.keys();
  }

  has(name: string): boolean {
    return this.#files.has(name);
  }

  /** The open file that holds the tensor. Fails with WL_FILE or WL_FILE_FORMAT. */
  async fileOf(name: string): Promise<SafetensorsFile> {
    const shard = this.#files.get(name);
    if (shard === undefined) throw formatError(this.path, `it has no tensor ${quote(name)}`, { tensor: name });
    let file = this.#open.get(shard);
    if (file === undefined) {
      file = this.#openShard(shard, name);
      this.#open.set(shard, file);
    }
    return file;
  }

  /** Closes what is open; files open anew when they are asked for. */
  async closeFiles(): Promise<void> {
    const files = [...this.#open.values()];
    this.#open.clear();
    for (const result of await Promise.allSettled(files)) if (result.status === 'fulfilled') await result.value.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.closeFiles();
  }

  async #openShard(shard: string, name: string): Promise<SafetensorsFile> {
    const path = join(this.path, shard);
    if (!(await isFile(path))) throw missing(this.path, `${shard} is missing, which holds ${quote(name)}; fetch it`);
    return await SafetensorsFile.open(path);
  }
}

function missing(path: string, what: string): WeftlineError {
  return new WeftlineError('WL_FILE', `Cannot read the model ${printable(path, 1024)}: ${what}`, { details: { path } });
}

async function isFolder(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined))?.isDirectory() ?? false;
}

async function isFile(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined))?.isFile() ?? false;
}

// The files of a model's folder by the tensors that they hold: model.safetensors.index.json.

/** The largest published ones have 9 MB. */
const MAX_INDEX_BYTES: number = 64 << 20;

/** Files by tensor. Fails with WL_FILE or WL_FILE_FORMAT; a file is a name in the same folder, nothing else. */
function readShardIndex(path: string): ReadonlyMap<string, string> {
  const value = readJson(path, MAX_INDEX_BYTES);
  const map = typeof value === 'object' && value !== null && 'weight_map' in value ? value.weight_map : undefined;
  if (typeof map !== 'object' || map === null || Array.isArray(map)) {
    throw formatError(path, `it has no object weight_map, which says what file each tensor is in; fetch it again`);
  }
  const files = new Map<string, string>();
  for (const [tensor, file] of Object.entries(map)) {
    if (typeof file !== 'string' || !/^[\w.-]+\.safetensors$/.test(file)) {
      throw formatError(
        path,
        `tensor ${quote(tensor)} is in ${quote(file)}, expected the name of a .safetensors file`,
        {
          tensor,
        },
      );
    }
    files.set(tensor, file);
  }
  return files;
}

// config.json of a model's folder: its architecture, and the numbers that its MoE blocks need.

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
function readJson(path: string, maxBytes: number): unknown {
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

// JSON as Python's json module writes it: with NaN, Infinity and -Infinity, which JSON does not have.

/** A string, so that what looks like a number within it stays, or one of those words. Linear in the text: a string may lack its end. */
const STRING_OR_WORD = /"(?:[^"\\]|\\[^])*"?|-?Infinity\b|NaN\b/g;

/** Infinities are numbers; NaN, for which there is no literal, is the text "NaN". Fails as JSON.parse() does. */
export function parsePythonJson(text: string): unknown {
  return JSON.parse(text.replaceAll(STRING_OR_WORD, (found) => replacements[found] ?? found));
}

const replacements: Readonly<Record<string, string>> = { Infinity: '1e999', '-Infinity': '-1e999', NaN: '"NaN"' };

// What is wrong with a document that a file holds, on one line: where, what stands there, what was expected.

const MAX_TEXT = 200;

/** Describes the first thing that is wrong. `document`: what was checked. */
export function describeIssue({ issues: [first] }: z.ZodError, document: unknown): string {
  const { path, message } = first!;
  if (path.length === 0) return printable(message, MAX_TEXT);
  const value = path.reduce<unknown>(
    (at, key) => (at as Readonly<Record<PropertyKey, unknown>> | undefined)?.[key],
    document,
  );
  const place = printable(path.map(String).join('.'), MAX_TEXT);
  // What parsePythonJson() makes of it would read as if the file had quotes there.
  if (value === 'NaN' && first?.code === 'invalid_type' && first.expected === 'number') {
    return `${place} is NaN, which is no number, expected one: write it there, or fetch the file again`;
  }
  return `${place} is ${value === undefined ? 'missing' : quote(value)} (${printable(message, MAX_TEXT)})`;
}
