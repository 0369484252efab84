// The specification of fp8 rows, slow and obvious: one row of bf16 as e4m3 with a scale per group of columns.
import { FP8_GROUP } from '../../abi/element-formats.ts';
import { f32Bits, f32FromBits, fromBf16 } from '../../core/dtype.ts';
import { toFp8e4m3Saturating } from '../../core/fp8.ts';
import type { LowLatencyScales } from './low-latency-arguments.ts';

const FP8_MAX = 448;
const MIN_AMAX = Math.fround(1e-4);
const MAX_BF16 = fromBf16(0x7f7f);

export interface ReferenceQuantizedRow {
  /** Bit patterns of e4m3, [H]. */
  readonly data: readonly number[];
  /** Bit patterns: one f32 per group, or one word of exponents per four groups. */
  readonly scales: readonly number[];
}

/** A row of bf16 bit patterns, quantised as EpLowLatency.dispatch does on the way. */
export function referenceQuantizeRow(row: readonly number[], scales: LowLatencyScales): ReferenceQuantizedRow {
  const groups = Array.from({ length: Math.ceil(row.length / FP8_GROUP) }, (_, group) =>
    quantizeGroup(row.slice(group * FP8_GROUP, (group + 1) * FP8_GROUP), scales !== 'f32'),
  );
  const words = groups.map(({ scale }) => f32Bits(scale));
  return { data: groups.flatMap(({ data }) => data), scales: scales === 'ue8m0' ? packExponents(words) : words };
}

function quantizeGroup(bits: readonly number[], isRounded: boolean): { data: number[]; scale: number } {
  const values = bits.map(fromBf16);
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
