// A model's folder as Hugging Face lays it out: its configuration, and its tensors in one file or in shards.
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { WeftlineError } from '../../../core/errors.ts';
import { printable, quote } from '../../../core/quote.ts';
import { SafetensorsFile } from '../safetensors-file.ts';
import { formatError } from '../safetensors-header.ts';
import { type ModelConfig, readJson, readModelConfig } from './model-config.ts';

// Which file of a model's folder holds which tensor: model.safetensors.index.json.

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
