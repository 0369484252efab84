// Reads a safetensors file, the header when it is opened, tensors or runs of their rows when asked for; and writes one.
import { constants } from 'node:fs';
import { type FileHandle, open, rename, unlink } from 'node:fs/promises';
import { formatBytes } from '../../core/byte-size.ts';
import { type DType, type TypedArrayOf, typedArrayOver } from '../../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { checkOpened } from '../../core/guarded-file.ts';
import { printable, quote, quoteList } from '../../core/quote.ts';
import {
  formatError,
  layOutHeader,
  MAX_HEADER_BYTES,
  parseHeader,
  type SafetensorsDtype,
  type SafetensorsHeader,
  type TensorEntry,
} from './safetensors-header.ts';

/** Tensors of these types can be read as tensors of weftline. */
const dtypeOf: Readonly<Partial<Record<SafetensorsDtype, DType>>> = {
  BF16: 'bf16',
  F16: 'f16',
  F8_E4M3: 'fp8e4m3',
  F32: 'f32',
  I32: 'i32',
  I64: 'i64',
  U8: 'u8',
};

/** What a clone without Git LFS has in place of large files begins with this, as a version. */
const LFS_POINTER = 'version ';

export class SafetensorsFile implements AsyncDisposable {
  readonly path: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly tensors: ReadonlyMap<string, TensorEntry>;
  /** Types that are not known, of tensors that cannot be read; by name. */
  readonly unknown: ReadonlyMap<string, string>;
  readonly #file: FileHandle;
  #closed = false;

  /** Reads and checks the header. Fails with WL_FILE (cannot be read) or WL_FILE_FORMAT (not what it claims). */
  static async open(path: string): Promise<SafetensorsFile> {
    let file: FileHandle;
    try {
      // Opening a named pipe would wait for a writer without O_NONBLOCK.
      file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
    } catch (cause) {
      throw readError(path, cause);
    }
    try {
      return new SafetensorsFile(path, file, await readHeader(path, file));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  private constructor(path: string, file: FileHandle, header: SafetensorsHeader) {
    this.path = path;
    this.#file = file;
    this.metadata = header.metadata;
    this.tensors = header.tensors;
    this.unknown = header.unknown;
  }

  /** What the header says of a tensor. Fails with WL_FILE_FORMAT if the file does not have it. */
  entry(name: string): TensorEntry {
    const entry = this.tensors.get(name);
    if (entry === undefined) {
      const dtype = this.unknown.get(name);
      if (dtype !== undefined) {
        const read = Object.keys(dtypeOf).join(', ');
        throw formatError(
          this.path,
          `tensor ${quote(name)} is of type ${dtype}, expected one that weftline reads: ${read}; fetch the model's files in one of these, or convert the tensor`,
          { tensor: name, dtype },
        );
      }
      const present = quoteList([...this.tensors.keys()]);
      throw formatError(this.path, `it has no tensor ${quote(name)}; it has ${present}`, {
        tensor: name,
      });
    }
    return entry;
  }

  /** Rows `start` to `end` (exclusive) of the first dimension, by default all; bf16 and fp8e4m3 as bit patterns. */
  async read<D extends DType>(name: string, dtype: D, start = 0, end?: number): Promise<TypedArrayOf[D]> {
    const entry = this.entry(name);
    if (dtypeOf[entry.dtype] !== dtype) {
      throw formatError(this.path, `tensor ${quote(name)} is ${entry.dtype}, wanted is ${dtype}`, {
        tensor: name,
        dtype: entry.dtype,
      });
    }
    const rows = entry.shape[0] ?? 1;
    const stop = end ?? rows;
    if (!(Number.isInteger(start) && Number.isInteger(stop) && 0 <= start && start <= stop && stop <= rows)) {
      throw invalidArgument('rows', [start, stop], `0 <= start <= end <= ${rows}, the rows of ${quote(name)}`);
    }
    const rowBytes = rows === 0 ? 0 : entry.bytes / rows;
    const bytes = makeBytes((stop - start) * rowBytes, name);
    await this.#readAt(bytes, entry.start + start * rowBytes, name);
    return typedArrayOver(dtype, bytes.buffer);
  }

  /**
   * Bytes of a tensor from byte `from` of it on, as many as `bytes` has room for, which may be fewer than the tensor's; as
   * they stand in the file, in little-endian order. For large tensors in a buffer that is used again.
   */
  async readBytes(name: string, bytes: Uint8Array, from: number): Promise<void> {
    const entry = this.entry(name);
    if (!(Number.isSafeInteger(from) && from >= 0 && from + bytes.length <= entry.bytes)) {
      throw invalidArgument(
        'from',
        from,
        `0 to ${entry.bytes - bytes.length} for ${bytes.length} of ${entry.bytes} bytes`,
      );
    }
    await this.#readAt(bytes, entry.start + from, name);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#file.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #readAt(bytes: Uint8Array, position: number, name: string): Promise<void> {
    if (this.#closed)
      throw new WeftlineError('WL_CLOSED', `Cannot read ${quote(name)}: ${printable(this.path)} was closed`);
    const got = await readFully(this.path, this.#file, bytes, position);
    if (got < bytes.length) {
      throw formatError(this.path, `it ended inside tensor ${quote(name)}: it became shorter since it was opened`, {
        tensor: name,
      });
    }
  }
}

async function readHeader(path: string, file: FileHandle): Promise<SafetensorsHeader> {
  const status = await file.stat();
  if (!status.isFile()) throw readError(path, new Error('it is not a regular file'));
  const start = new Uint8Array(8);
  if ((await readFully(path, file, start, 0)) < 8) {
    throw formatError(
      path,
      `it has ${status.size} bytes; a safetensors file starts with 8 bytes that say how long its header is`,
    );
  }
  if (new TextDecoder().decode(start) === LFS_POINTER) {
    throw formatError(path, 'it is a pointer of Git LFS, not the file; fetch the file: git lfs pull');
  }
  const length = new DataView(start.buffer).getBigUint64(0, true);
  if (length > MAX_HEADER_BYTES && length <= status.size - 8) {
    throw formatError(path, `its header of ${length} bytes is longer than the ${MAX_HEADER_BYTES} that are read`, {
      headerBytes: Number(length),
    });
  }
  const most = Math.min(MAX_HEADER_BYTES, status.size - 8);
  if (length > most) {
    throw formatError(
      path,
      `its first 8 bytes announce a header of ${length} bytes, at most ${most} are possible in a file of ${status.size} bytes; it was cut off or is no safetensors file`,
      { headerBytes: Number(length), fileBytes: status.size },
    );
  }
  const json = new Uint8Array(Number(length));
  if ((await readFully(path, file, json, 8)) < json.length)
    throw formatError(path, 'it became shorter while it was read');
  return parseHeader(json, status.size - 8 - json.length, path);
}

/** The file's header may claim more than this machine can hold, and a sparse file has it. */
function makeBytes(bytes: number, name: string): Uint8Array<ArrayBuffer> {
  try {
    return new Uint8Array(bytes);
  } catch (cause) {
    throw new WeftlineError(
      'WL_MEMORY',
      `Cannot take ${formatBytes(bytes)} to read tensor ${quote(name)}; read fewer rows`,
      {
        details: { bytes, tensor: name },
        cause,
      },
    );
  }
}

/** Reads until `bytes` is full or the file ends; returns how many bytes came. */
async function readFully(path: string, file: FileHandle, bytes: Uint8Array, position: number): Promise<number> {
  let done = 0;
  while (done < bytes.length) {
    let bytesRead: number;
    try {
      // A single read may not exceed 2 GiB.
      const length = Math.min(bytes.length - done, 1 << 30);
      ({ bytesRead } = await file.read(bytes, done, length, position + done));
    } catch (cause) {
      throw readError(path, cause);
    }
    if (bytesRead === 0) break;
    done += bytesRead;
  }
  return done;
}

function readError(path: string, cause: unknown): WeftlineError {
  const why = cause instanceof Error ? cause.message : String(cause);
  return new WeftlineError('WL_FILE', `Cannot read ${printable(path, 1024)}: ${printable(why, 1024)}`, {
    details: { path },
    cause,
  });
}

// Writes a safetensors file that appears under its name only when it is complete; several processes may fill it.

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

/** Makes the file anew. Its name can be guessed: what lies there, as of a process that was killed, is removed and never written to. */
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
