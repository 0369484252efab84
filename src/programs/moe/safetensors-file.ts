// Reads a safetensors file: the header when it is opened, tensors or runs of their rows when asked for.
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { type DType, typedArrayOver, type TypedArrayOf } from '../../core/dtype.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { printable, quote, quoteList } from '../../core/quote.ts';
import { MAX_HEADER_BYTES } from './header-limits.ts';
import {
  formatError,
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
      // Without O_NONBLOCK, opening a named pipe would wait for a writer.
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
