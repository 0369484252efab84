// A byte layout declared once as a value: offsets, size, accessors and the text for CUDA derive from it.
import { WeftlineError } from '../core/errors.ts';

// Whole numbers below 2^53 as two little-endian words of 32 bits, for layouts that hold addresses and lengths.

const TWO_32 = 2 ** 32;

export function putWide(words: Uint32Array, word: number, value: number): void {
  words[word] = value;
  words[word + 1] = value / TWO_32;
}

export function wideAt(words: Uint32Array, word: number): number {
  return words[word]! + words[word + 1]! * TWO_32;
}

/** The same at a byte offset. */
export function setWide(view: DataView, at: number, value: number): void {
  view.setUint32(at, value % TWO_32, true);
  view.setUint32(at + 4, Math.floor(value / TWO_32), true);
}

export function getWide(view: DataView, at: number): number {
  return view.getUint32(at, true) + view.getUint32(at + 4, true) * TWO_32;
}

/** Little-endian scalars; `ptr` is a 64-bit cell that holds an address of the device's own memory. */
export type Scalar = 'u8' | 'u16' | 'u32' | 'i32' | 'u64' | 'ptr' | 'f32';

/** A scalar, or a fixed run of one scalar. */
export type FieldType = Scalar | { readonly of: Scalar; readonly count: number };

export interface Layout<Name extends string = string> {
  readonly name: string;
  /** Bytes, a multiple of `alignment`. */
  readonly size: number;
  readonly alignment: number;
  readonly offset: Readonly<Record<Name, number>>;
  readonly fields: Readonly<Record<Name, FieldType>>;
}

const scalarBytes: Readonly<Record<Scalar, number>> = { u8: 1, u16: 2, u32: 4, i32: 4, u64: 8, ptr: 8, f32: 4 };

/** Lays fields out in order with C's alignment rules; `alignment` may widen the whole (a cache line, a page). */
export function defineLayout<const Fields extends Readonly<Record<string, FieldType>>>(
  name: string,
  fields: Fields,
  alignment = 8,
): Layout<Extract<keyof Fields, string>> {
  let end = 0;
  const offset: Record<string, number> = {};
  for (const [field, type] of Object.entries(fields)) {
    const scalar = typeof type === 'string' ? type : type.of;
    const bytes = scalarBytes[scalar];
    const start = alignUp(end, bytes);
    offset[field] = start;
    end = start + bytes * (typeof type === 'string' ? 1 : type.count);
  }
  return {
    name,
    size: alignUp(end, alignment),
    alignment,
    offset: offset as Layout<Extract<keyof Fields, string>>['offset'],
    fields,
  };
}

/** Start of each field of a layout, in 32-bit words, for those who read it through an Int32Array or Uint32Array. */
export function wordOffsets<Name extends string>({ offset }: Layout<Name>): Readonly<Record<Name, number>> {
  const entries = Object.entries<number>(offset).map(([name, bytes]) => [name, bytes / 4]);
  return Object.fromEntries(entries) as Readonly<Record<Name, number>>;
}

export function alignUp(value: number, alignment: number): number {
  return Math.ceil(value / alignment) * alignment;
}

/** Reads and writes one block of a layout in place. Fields are plain (not atomic) accesses. */
export class Block<Name extends string> {
  readonly layout: Layout<Name>;
  readonly #view: DataView;

  constructor(layout: Layout<Name>, buffer: ArrayBufferLike, byteOffset: number) {
    this.layout = layout;
    this.#view = new DataView(buffer, byteOffset, layout.size);
  }

  /** A block over the first bytes of what a caller gave, wherever it begins in its buffer. */
  static over<Name extends string>(layout: Layout<Name>, bytes: Uint8Array): Block<Name> {
    return new Block(layout, bytes.buffer, bytes.byteOffset);
  }

  set(field: Name, value: number, index = 0): void {
    const scalar = this.#scalar(field, index);
    const at = this.layout.offset[field] + index * scalarBytes[scalar];
    if (scalar === 'u32') this.#view.setUint32(at, value, true);
    else if (scalar === 'i32') this.#view.setInt32(at, value, true);
    else if (scalar === 'f32') this.#view.setFloat32(at, value, true);
    else if (scalar === 'u16') this.#view.setUint16(at, value, true);
    else if (scalar === 'u8') this.#view.setUint8(at, value);
    else {
      this.#view.setUint32(at, value % 0x1_0000_0000, true);
      this.#view.setUint32(at + 4, Math.floor(value / 0x1_0000_0000), true);
    }
  }

  get(field: Name, index = 0): number {
    const scalar = this.#scalar(field, index);
    const at = this.layout.offset[field] + index * scalarBytes[scalar];
    if (scalar === 'u32') return this.#view.getUint32(at, true);
    if (scalar === 'i32') return this.#view.getInt32(at, true);
    if (scalar === 'f32') return this.#view.getFloat32(at, true);
    if (scalar === 'u16') return this.#view.getUint16(at, true);
    if (scalar === 'u8') return this.#view.getUint8(at);
    return this.#view.getUint32(at, true) + this.#view.getUint32(at + 4, true) * 0x1_0000_0000;
  }

  #scalar(field: Name, index: number): Scalar {
    const type: FieldType = this.layout.fields[field];
    const count = typeof type === 'string' ? 1 : type.count;
    if (index < 0 || index >= count) {
      throw new WeftlineError(
        'WL_INTERNAL',
        `Field ${this.layout.name}.${field} has ${count} elements, index ${index} asked`,
      );
    }
    return typeof type === 'string' ? type : type.of;
  }
}
