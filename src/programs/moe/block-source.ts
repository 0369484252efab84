// The sources of a MoE block's tokens and weights: a file of one block, or a model's folder and a file of tokens.
import { FP8_GROUP } from '../../abi/element-formats.ts';
import { fromBf16, fromF16, toBf16, typedArrayOver } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { ScaledRows, Tensor } from '../../device/tensor.ts';
import { blockTensors, describeMoeBlock, type MoeBlock, type MoeBlockOptions } from './moe-block.ts';
import { emptyExperts, type ExpertWeights, type GateWeights, type MoeDevice, type MoeEngine } from './moe-engine.ts';
import { SafetensorsFile } from './safetensors-file.ts';
import { formatError, type SafetensorsDtype } from './safetensors-header.ts';

/** Expert ids and weights, [tokens, K]. */
export interface GivenChoices {
  readonly ids: BigInt64Array;
  readonly weights: Float32Array;
}

/** Reads no more than each call asks for. All fail with WL_FILE or WL_FILE_FORMAT. */
export interface BlockSource extends AsyncDisposable {
  readonly block: MoeBlock;
  /** bf16 [end - start, H] */
  tokens(start: number, end: number): Promise<Uint16Array>;
  /** The choices of a block whose `routing` is 'file'; not checked. */
  choices(start: number, end: number): Promise<GivenChoices>;
  /** The gate of a block whose `routing` is 'gate'. */
  gate(): Promise<GateWeights>;
  /** f32 [end - start, H], of a block that has a reference. */
  reference(start: number, end: number): Promise<Float32Array>;
  /** The experts with these numbers, in this order. */
  experts(device: MoeDevice, reader: WeightReader, ids: readonly number[]): Promise<ExpertWeights>;
  /** The expert that all tokens go through, as weights of one expert; of a block that has one. */
  sharedExpert(device: MoeDevice, reader: WeightReader): Promise<ExpertWeights>;
}

/** One file that holds tokens, weights and, in some files, choices and the expected output. */
export class FileBlockSource implements BlockSource {
  readonly block: MoeBlock;
  readonly #file: SafetensorsFile;

  /** Fails with WL_FILE, WL_FILE_FORMAT, or WL_INVALID_ARGUMENT for options that the file does not go with. */
  static async open(path: string, options: MoeBlockOptions = {}): Promise<FileBlockSource> {
    const file = await SafetensorsFile.open(path);
    try {
      return new FileBlockSource(file, describeMoeBlock(file, options));
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  private constructor(file: SafetensorsFile, block: MoeBlock) {
    this.#file = file;
    this.block = block;
  }

  tokens(start: number, end: number): Promise<Uint16Array> {
    return this.#file.read(blockTensors.x, 'bf16', start, end);
  }

  async choices(start: number, end: number): Promise<GivenChoices> {
    const name = blockTensors.topkIdx;
    const isShort = this.#file.entry(name).dtype === 'I32';
    const ids = isShort
      ? BigInt64Array.from(await this.#file.read(name, 'i32', start, end), BigInt)
      : await this.#file.read(name, 'i64', start, end);
    return { ids, weights: await this.#file.read(blockTensors.topkWeights, 'f32', start, end) };
  }

  async gate(): Promise<GateWeights> {
    return { gate: await this.#file.read(blockTensors.gate, 'bf16') };
  }

  reference(start: number, end: number): Promise<Float32Array> {
    return this.#file.read(blockTensors.reference, 'f32', start, end);
  }

  async experts(device: MoeDevice, reader: WeightReader, ids: readonly number[]): Promise<ExpertWeights> {
    const { hidden, intermediate } = this.block;
    const { gateUp, down } = emptyExperts(device, { count: ids.length, hidden, intermediate });
    for (const [at, id] of ids.entries()) {
      for (const [name, tensor] of [
        [blockTensors.gateUp, gateUp],
        [blockTensors.down, down],
      ] as const) {
        const expert = tensor.slice(at, at + 1);
        await reader.read({ file: this.#file, name, skip: id * expert.elements }, expert);
      }
    }
    return { gateUp, down };
  }

  sharedExpert(): Promise<ExpertWeights> {
    throw new WeftlineError('WL_INTERNAL', `${this.#file.path} has no shared expert`);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#file.close();
  }
}

// Brings weights from files into a device's memory as bf16, piece by piece: a rank needs no more memory than its weights.

/** Powers of two, a byte each. */
const [E8M0_BIAS, E8M0_NAN] = [127, 255];

/** Bytes of a file that are read at once. */
const PIECE_BYTES: number = 4 << 20;

/** Types that the scales of the blocks of an fp8 matrix may have. */
export const scaleTypes: readonly SafetensorsDtype[] = ['F32', 'BF16', 'F16', 'F8_E8M0'];

/** Element types that can be read as bf16; values are rounded to nearest even. */
const elementBytes = { BF16: 2, F16: 2, F32: 4, F8_E4M3: 1 } as const satisfies Partial<
  Record<SafetensorsDtype, number>
>;

export const weightTypes: readonly SafetensorsDtype[] = Object.keys(elementBytes) as (keyof typeof elementBytes)[];

/** A matrix in a file, from one of its first dimension's rows on. */
export interface WeightPlace {
  readonly file: SafetensorsFile;
  readonly name: string;
  /** Elements of the tensor before the matrix; 0 by default. */
  readonly skip?: number;
  /** The scales of an fp8 matrix: [ceil(rows / 128), ceil(columns / 128)] of one of scaleTypes, by which its blocks are multiplied. */
  readonly scales?: { readonly file: SafetensorsFile; readonly name: string };
}

export class WeightReader {
  readonly #device: MoeDevice;
  readonly #engine: MoeEngine;
  readonly #bytes = new Uint8Array(PIECE_BYTES);
  #converted: Uint16Array | undefined;

  constructor(device: MoeDevice, engine: MoeEngine) {
    this.#device = device;
    this.#engine = engine;
  }

  /** Fills `out` [rows, columns]. Fails with WL_FILE, or WL_FILE_FORMAT for a type that has no bf16. */
  async read(place: WeightPlace, out: Tensor<'bf16'>): Promise<void> {
    const { file, name, skip = 0 } = place;
    const { dtype } = file.entry(name);
    if (dtype === 'F8_E4M3') return await this.#readFp8(place, out);
    if (!Object.hasOwn(elementBytes, dtype)) throw unreadable(file, name, dtype);
    const size = elementBytes[dtype as keyof typeof elementBytes];
    const flat = out.reshape([out.elements]);
    const step = PIECE_BYTES / size;
    for (let first = 0; first < out.elements; first += step) {
      const count = Math.min(step, out.elements - first);
      const bytes = this.#bytes.subarray(0, count * size);
      await file.readBytes(name, bytes, (skip + first) * size);
      await flat.slice(first, first + count).fromHost(this.#asBf16(dtype as keyof typeof elementBytes, count));
    }
  }

  /** The piece that was read last. */
  #asBf16(dtype: keyof typeof elementBytes, count: number): Uint16Array {
    const { buffer } = this.#bytes;
    const words = typedArrayOver('bf16', buffer, 0, count * (dtype === 'F32' ? 2 : 1));
    if (dtype === 'BF16') return words;
    this.#converted ??= new Uint16Array(PIECE_BYTES / 2);
    const out = this.#converted;
    if (dtype === 'F16') for (let at = 0; at < count; at++) out[at] = toBf16(fromF16(words[at]!));
    else {
      const values = typedArrayOver('f32', buffer, 0, count);
      for (let at = 0; at < count; at++) out[at] = toBf16(values[at]!);
    }
    return out.subarray(0, count);
  }

  async #readFp8({ file, name, skip = 0, scales }: WeightPlace, out: Tensor<'bf16'>): Promise<void> {
    if (scales === undefined) throw unreadable(file, name, 'F8_E4M3 without a tensor of scales');
    const [rows = 0, columns = 0] = out.shape;
    const groups = Math.ceil(columns / FP8_GROUP);
    const blocks = await readScales(scales.file, scales.name);
    const step = Math.max(1, Math.floor(PIECE_BYTES / columns));
    using data = this.#device.empty('fp8e4m3', [Math.min(step, rows), columns]);
    using factors = this.#device.empty('f32', [Math.min(step, rows), groups]);
    for (let first = 0; first < rows; first += step) {
      const count = Math.min(step, rows - first);
      const bytes = this.#bytes.subarray(0, count * columns);
      await file.readBytes(name, bytes, skip + first * columns);
      const piece: ScaledRows = { data: data.slice(0, count), scales: factors.slice(0, count) };
      await piece.data.fromHost(bytes);
      await piece.scales.fromHost(scalesOfRows(blocks, { first, count, groups }));
      this.#engine.dequantizeRows(piece, out.slice(first, first + count));
      // The next piece goes where this one is.
      await this.#engine.finish();
    }
  }
}

async function readScales(file: SafetensorsFile, name: string): Promise<Float32Array> {
  const { dtype, bytes } = file.entry(name);
  if (dtype !== 'F8_E8M0') return await readF32Rows(file, name);
  const exponents = new Uint8Array(bytes);
  await file.readBytes(name, exponents, 0);
  return Float32Array.from(exponents, (exponent) => (exponent === E8M0_NAN ? Number.NaN : 2 ** (exponent - E8M0_BIAS)));
}

/** A row of scales for each row of weights, from those of blocks of 128 rows. */
function scalesOfRows(
  blocks: Float32Array,
  { first, count, groups }: { readonly first: number; readonly count: number; readonly groups: number },
): Float32Array {
  const rows = new Float32Array(count * groups);
  for (let row = 0; row < count; row++) {
    const block = Math.floor((first + row) / FP8_GROUP) * groups;
    rows.set(blocks.subarray(block, block + groups), row * groups);
  }
  return rows;
}

function unreadable(file: SafetensorsFile, name: string, what: string): Error {
  const known = Object.keys(elementBytes).join(', ');
  return formatError(file.path, `tensor ${name} is ${what}, wanted is one of ${known}`, { tensor: name });
}

/** Rows of a matrix in host memory as f32, whatever type it has in the file; for what is small. */
export async function readF32Rows(
  file: SafetensorsFile,
  name: string,
  start?: number,
  end?: number,
): Promise<Float32Array> {
  const { dtype } = file.entry(name);
  if (dtype === 'F32') return await file.read(name, 'f32', start, end);
  if (dtype === 'BF16') return Float32Array.from(await file.read(name, 'bf16', start, end), fromBf16);
  if (dtype === 'F16') return Float32Array.from(await file.read(name, 'f16', start, end), fromF16);
  throw unreadable(file, name, dtype);
}

/** The same as bf16, rounded to nearest even. */
export async function readBf16Rows(
  file: SafetensorsFile,
  name: string,
  start?: number,
  end?: number,
): Promise<Uint16Array> {
  if (file.entry(name).dtype === 'BF16') return await file.read(name, 'bf16', start, end);
  return Uint16Array.from(await readF32Rows(file, name, start, end), toBf16);
}
