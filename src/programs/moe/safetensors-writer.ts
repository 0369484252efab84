// Writes a safetensors file that appears under its name only when it is complete; several processes may fill it.
import { constants } from 'node:fs';
import { type FileHandle, open, rename, unlink } from 'node:fs/promises';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { checkOpened } from '../../core/guarded-file.ts';
import { printable, quoteList } from '../../core/quote.ts';
import { layOutHeader, type SafetensorsDtype, type TensorEntry } from './safetensors-header.ts';

export interface SafetensorsPlan {
  readonly path: string;
  readonly tensors: Readonly<Record<string, { readonly dtype: SafetensorsDtype; readonly shape: readonly number[] }>>;
  readonly metadata?: Readonly<Record<string, string>>;
  /** Tells apart writers that work on the same path at the same time; the process number by default. */
  readonly unique?: string;
}

/**
 * One process creates the file, any process that has the same plan may attach and write its part; after all have
 * written, the creator commits. A creator that is disposed before that removes what was written.
 */
export class SafetensorsWriter implements AsyncDisposable {
  readonly #path: string;
  readonly #partial: string;
  readonly #entries: ReadonlyMap<string, TensorEntry>;
  readonly #file: FileHandle;
  readonly #owner: boolean;
  #open = true;

  /** Makes the file under a temporary name next to its own, with its header and full size. Fails with WL_FILE. */
  static async create(plan: SafetensorsPlan): Promise<SafetensorsWriter> {
    const { bytes, fileBytes } = layOutHeader(plan.tensors, plan.metadata);
    const writer = new SafetensorsWriter(plan, await attempt(plan.path, () => makePartial(plan)), true);
    try {
      await writer.#writeAt(bytes, 0);
      await attempt(plan.path, () => writer.#file.truncate(fileBytes));
      return writer;
    } catch (error) {
      await writer[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Opens a file that another process created with the same plan and did not commit yet. */
  static async attach(plan: SafetensorsPlan): Promise<SafetensorsWriter> {
    return new SafetensorsWriter(plan, await attempt(plan.path, () => openPartial(plan)), false);
  }

  private constructor(plan: SafetensorsPlan, file: FileHandle, owner: boolean) {
    this.#path = plan.path;
    this.#partial = partialPath(plan);
    this.#entries = layOutHeader(plan.tensors, plan.metadata).entries;
    this.#file = file;
    this.#owner = owner;
  }

  /** Writes rows of the first dimension from `row` on; values of the tensor's element type, in little-endian order. */
  async write(name: string, values: ArrayBufferView, row = 0): Promise<void> {
    const entry = this.#entries.get(name);
    if (entry === undefined) throw invalidArgument('name', name, quoteList([...this.#entries.keys()]));
    const rows = entry.shape[0] ?? 1;
    const start = rows === 0 ? 0 : (entry.bytes / rows) * row;
    if (row < 0 || start + values.byteLength > entry.bytes) {
      throw invalidArgument(
        'values.byteLength',
        values.byteLength,
        `at most ${entry.bytes - start} from row ${row} on`,
      );
    }
    const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    await this.#writeAt(bytes, entry.start + start);
  }

  /** Gives the file its name; an older file of that name is replaced. Only by the creator, when all have written. */
  async commit(): Promise<void> {
    await this.#close();
    try {
      await attempt(this.#path, () => rename(this.#partial, this.#path));
    } catch (error) {
      await unlink(this.#partial).catch(() => undefined);
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#open) return;
    await this.#close();
    if (this.#owner) await unlink(this.#partial).catch(() => undefined);
  }

  async #close(): Promise<void> {
    this.#open = false;
    await attempt(this.#path, () => this.#file.close());
  }

  async #writeAt(bytes: Uint8Array, position: number): Promise<void> {
    let done = 0;
    while (done < bytes.length) {
      const length = Math.min(bytes.length - done, 1 << 30);
      const { bytesWritten } = await attempt(this.#path, () => this.#file.write(bytes, done, length, position + done));
      done += bytesWritten;
    }
  }
}

/** Writes a whole file at once. */
export async function writeSafetensors(
  plan: SafetensorsPlan,
  values: Readonly<Record<string, ArrayBufferView>>,
): Promise<void> {
  await using writer = await SafetensorsWriter.create(plan);
  for (const [name, array] of Object.entries(values)) await writer.write(name, array);
  await writer.commit();
}

function partialPath(plan: SafetensorsPlan): string {
  return `${plan.path}.${plan.unique ?? process.pid}.partial`;
}

/** Its name can be guessed: what lies there, as of a process that was killed, is removed and never written to. */
async function makePartial(plan: SafetensorsPlan): Promise<FileHandle> {
  const path = partialPath(plan);
  await unlink(path).catch(() => undefined);
  return await open(path, constants.O_RDWR | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW, 0o666);
}

async function openPartial(plan: SafetensorsPlan): Promise<FileHandle> {
  const path = partialPath(plan);
  const file = await open(path, constants.O_RDWR | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    checkOpened(path, await file.stat(), 'folder');
    return file;
  } catch (error) {
    await file.close();
    throw error;
  }
}

async function attempt<T>(path: string, action: () => Promise<T>): Promise<T> {
  try {
    return await action();
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new WeftlineError('WL_FILE', `Cannot write ${printable(path, 1024)}: ${printable(why, 1024)}`, {
      details: { path },
      cause,
    });
  }
}
