// Element types of tensors: size, the typed array that holds them, and conversions to and from f32.
import { invalidArgument, type WeftlineError } from './errors.ts';

/** Element types of tensors: bytes per element, and the typed array that views them. */
export const dtypes = {
  bf16: { bytes: 2, array: Uint16Array },
  f16: { bytes: 2, array: Uint16Array },
  fp8e4m3: { bytes: 1, array: Uint8Array },
  f32: { bytes: 4, array: Float32Array },
  i32: { bytes: 4, array: Int32Array },
  i64: { bytes: 8, array: BigInt64Array },
  u8: { bytes: 1, array: Uint8Array },
} as const;

/** Name of an element type of tensors. */
export type DType = keyof typeof dtypes;

/** Fails with WL_INVALID_ARGUMENT for what is no name of an element type. */
export function requireDType(dtype: unknown): void {
  if (typeof dtype === 'string' && Object.hasOwn(dtypes, dtype)) return;
  throw invalidArgument('dtype', dtype, `one of ${Object.keys(dtypes).join(', ')}`);
}

/** What `tensor.view()` returns: bf16, f16 and fp8e4m3 as their bit patterns. */
export type TypedArrayOf = { [D in DType]: (typeof dtypes)[D]['array']['prototype'] };

/** A view of `elements` elements (by default all that fit) over the buffer, from `byteOffset` on. */
export function typedArrayOver<D extends DType>(
  dtype: D,
  buffer: ArrayBufferLike,
  byteOffset: number = 0,
  elements?: number,
): TypedArrayOf[D] {
  const view: new (buffer: ArrayBufferLike, byteOffset: number, elements?: number) => ArrayBufferView =
    dtypes[dtype].array;
  return new view(buffer, byteOffset, elements) as TypedArrayOf[D];
}

function noNumber(name: string, value: unknown): WeftlineError {
  return invalidArgument(name, value, 'a number');
}

const f32Cell = new Float32Array(1);
const bitsCell = new Uint32Array(f32Cell.buffer);

/** The bit pattern of a number rounded to f32. */
export function f32Bits(value: number): number {
  f32Cell[0] = value;
  return bitsCell[0]!;
}

/** The number that a 32-bit pattern stands for. */
export function f32FromBits(bits: number): number {
  bitsCell[0] = bits;
  return f32Cell[0]!;
}

/**
 * f32 to bf16, round to nearest even; every NaN becomes 0x7fc0, as in PyTorch.
 * @param value Any number.
 */
export function toBf16(value: number): number {
  if (typeof value !== 'number') throw noNumber('value', value);
  const bits = f32Bits(value);
  if ((bits & 0x7fff_ffff) > 0x7f80_0000) return 0x7fc0;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

/**
 * bf16 bit pattern to number; exact.
 * @param bits The lower 16 bits count.
 */
export function fromBf16(bits: number): number {
  if (typeof bits !== 'number') throw noNumber('bits', bits);
  return f32FromBits((bits << 16) >>> 0);
}

/** Subnormal f16 are multiples of 2^-24. */
const F16_STEP = 2 ** -24;
const F16_NAN = 0x7e00;
const F16_INFINITY = 0x7c00;

/**
 * f32 to f16, round to nearest even; every NaN becomes 0x7e00. The value is rounded to f32 first.
 * @param value Any number.
 */
export function toF16(value: number): number {
  if (typeof value !== 'number') throw noNumber('value', value);
  const bits = f32Bits(value);
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fff_ffff;
  if (magnitude > 0x7f80_0000) return F16_NAN;
  // 65520 lies half-way between the largest f16 and the next power of two.
  if (magnitude >= 0x477f_f000) return sign | F16_INFINITY;
  // Below 2^-14 the spacing no longer shrinks. Adding a constant whose last bit is worth 2^-24 rounds to that spacing.
  if (magnitude < 0x3880_0000) return sign | (f32Bits(f32FromBits(magnitude) + 0.5) - f32Bits(0.5));
  return sign | ((magnitude - 0x3800_0000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13);
}

/**
 * f16 bit pattern to number; exact.
 * @param bits The lower 16 bits count.
 */
export function fromF16(bits: number): number {
  if (typeof bits !== 'number') throw noNumber('bits', bits);
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >>> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0x1f) return fraction === 0 ? sign * Infinity : NaN;
  if (exponent === 0) return sign * fraction * F16_STEP;
  return sign * (1024 + fraction) * 2 ** (exponent - 25);
}
