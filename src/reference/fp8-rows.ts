// The specification of fp8, slow and obvious: e4m3 codes, and rows of bf16 as e4m3 with a scale per group of columns.
import { FP8_GROUP } from '../abi/element-formats.ts';
import { f32Bits, f32FromBits, fromBf16 } from '../core/dtype.ts';
import type { LowLatencyScales } from '../ep/low-latency/low-latency-arguments.ts';

// fp8 e4m3fn: 4 exponent bits with bias 7, 3 mantissa bits, no infinity, NaN is 0x7f and 0xff, largest number 448.

const FP8_MAX = 448;
const MIN_AMAX = Math.fround(1e-4);
const MAX_BF16 = fromBf16(0x7f7f);

/** f32 to e4m3fn, round to nearest even; what rounds above 448, infinities and NaN become NaN with the sign kept, as in PyTorch. */
export function toFp8e4m3(value: number): number {
  const bits = f32Bits(value);
  const sign = (bits >>> 24) & 0x80;
  const magnitude = bits & 0x7fff_ffff;
  // 464 is half way between 448 and the code above it, and 448 has the even code.
  if (!(f32FromBits(magnitude) <= 464)) return sign | 0x7f;
  return sign | roundMagnitude(magnitude);
}

/** Rounds as toFp8e4m3() does, but numbers beyond 448 and infinities become 448 with their sign; NaN stays NaN. */
export function toFp8e4m3Saturating(value: number): number {
  return toFp8e4m3(Math.max(-FP8_MAX, Math.min(FP8_MAX, value)));
}

/** e4m3fn bit pattern to number; exact. */
export function fromFp8e4m3(bits: number): number {
  const sign = bits & 0x80 ? -1 : 1;
  const exponent = (bits >>> 3) & 0xf;
  const mantissa = bits & 7;
  if (exponent === 15 && mantissa === 7) return Number.NaN;
  return sign * (exponent === 0 ? mantissa * 2 ** -9 : (8 + mantissa) * 2 ** (exponent - 10));
}

function roundMagnitude(bits: number): number {
  const value = f32FromBits(bits);
  if (value < 2 ** -6) {
    // Subnormal: a multiple of 2^-9. The product is exact, so only this rounding counts.
    const steps = value * 512;
    const floor = Math.floor(steps);
    const rest = steps - floor;
    return rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
  }
  return ((bits + 0x7_ffff + ((bits >>> 20) & 1)) >>> 20) - (120 << 3);
}

interface ReferenceQuantizedRow {
  /** Bit patterns of e4m3, [H]. */
  readonly data: readonly number[];
  /** Bit patterns: one f32 per group, or one word of exponents per four groups. */
  readonly scales: readonly number[];
}

/** A row of bf16 bit patterns, quantised as EpLowLatency.dispatch does on the way. */
export function referenceQuantizeRow(row: readonly number[], scales: LowLatencyScales): ReferenceQuantizedRow {
  const groups = quantizeGroups(row.map(fromBf16), scales !== 'f32');
  const words = groups.map(({ scale }) => f32Bits(scale));
  return { data: groups.flatMap(({ data }) => data), scales: scales === 'ue8m0' ? packExponents(words) : words };
}

/** What is left of f32 numbers that cross the network as fp8, quantised in the same way with f32 scales. */
export function referenceLossyRow(row: readonly number[]): number[] {
  const groups = quantizeGroups(row, false);
  return groups.flatMap(({ data, scale }) => data.map((code) => Math.fround(fromFp8e4m3(code) * scale)));
}

function quantizeGroups(values: readonly number[], isRounded: boolean): { data: number[]; scale: number }[] {
  return Array.from({ length: Math.ceil(values.length / FP8_GROUP) }, (_, group) =>
    quantizeGroup(values.slice(group * FP8_GROUP, (group + 1) * FP8_GROUP), isRounded),
  );
}

function quantizeGroup(values: readonly number[], isRounded: boolean): { data: number[]; scale: number } {
  const sizes = values.filter((value) => !Number.isNaN(value)).map((value) => Math.min(Math.abs(value), MAX_BF16));
  const amax = Math.max(MIN_AMAX, ...sizes);
  let scale = Math.fround(amax / FP8_MAX);
  let factor = Math.fround(FP8_MAX / amax);
  if (isRounded) {
    // The next power of two.
    const exponent = (f32Bits(scale) + 0x7f_ffff) >>> 23;
    scale = f32FromBits(exponent << 23);
    factor = 1 / scale;
  }
  return { data: values.map((value) => quantizeValue(value, factor)), scale };
}

/** A NaN loses its sign. */
function quantizeValue(value: number, factor: number): number {
  return Number.isNaN(value) ? 0x7f : toFp8e4m3Saturating(Math.fround(value * factor));
}

/** Exponents of powers of two, four to a word, the first one lowest. */
function packExponents(words: readonly number[]): number[] {
  return Array.from({ length: Math.ceil(words.length / 4) }, (_, at) =>
    words.slice(at * 4, at * 4 + 4).reduce((packed, word, byte) => packed + (word >>> 23) * 2 ** (8 * byte), 0),
  );
}
