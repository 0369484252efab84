// Quantises rows of bf16, and f32 sums, to fp8 e4m3fn with one f32 scale for each 128 columns of a row, and back.
import { FP8_GROUP, FP8_SUM_ALIGNMENT } from 'abi';
import { evenLanes, interleaveToBf16, oddLanes } from './bf16';

const GROUP: usize = FP8_GROUP;
const FP8_MAX: f32 = 448;
const SMALLEST_AMAX: f32 = 1e-4;
/** The largest finite bf16: what an infinity counts as, and every larger f32. */
const BF16_MAX_BITS: i16 = 0x7f7f;

/**
 * data[t,h] = e4m3(x[t,h] / scale), scales[t,g] = max(|x| of the group, 1e-4) / 448, rounded up to a power of two with
 * `roundScale`. A NaN stays one and does not touch its neighbours; an infinity counts as the largest finite bf16.
 */
export function quantizeFp8(data: usize, scales: usize, x: usize, rows: i32, columns: i32, roundScale: i32): void {
  const groups = ((<usize>columns + GROUP - 1) / GROUP) << 2;
  for (let row = 0; row < rows; row++) {
    quantizeFp8Row(data, scales, x, columns, roundScale);
    data += <usize>columns;
    scales += groups;
    x += (<usize>columns) << 1;
  }
}

/** x[t,h] = bf16(data[t,h] * scales[t, h / 128]). */
export function dequantizeFp8(x: usize, data: usize, scales: usize, rows: i32, columns: i32): void {
  const groups = ((<usize>columns + GROUP - 1) / GROUP) << 2;
  for (let row = 0; row < rows; row++) {
    dequantizeFp8Row(x, data, scales, columns);
    data += <usize>columns;
    scales += groups;
    x += (<usize>columns) << 1;
  }
}

// Exported only to stay functions of their own: a loop that runs in baseline code never changes to optimised code, the next call does.
export function quantizeFp8Row(data: usize, scales: usize, x: usize, columns: i32, roundScale: i32): void {
  const end = data + <usize>columns;
  while (data < end) {
    const groupEnd = min(data + GROUP, end);
    const amax = max(groupAmax(x, groupEnd - data), SMALLEST_AMAX);
    let inverse: f32 = amax / FP8_MAX;
    let scale: f32 = FP8_MAX / amax;
    if (roundScale) {
      // The exponent of the next power of two: one more than that of `inverse`, unless its mantissa is zero.
      const exponent = (reinterpret<i32>(inverse) + 0x7f_ffff) >> 23;
      inverse = reinterpret<f32>(exponent << 23);
      scale = reinterpret<f32>((254 - exponent) << 23);
    }
    store<f32>(scales, inverse);
    const scaleLanes = f32x4.splat(scale);
    for (; data + 16 <= groupEnd; data += 16, x += 32) {
      const low = quantizePairs(v128.load(x), scaleLanes);
      const high = quantizePairs(v128.load(x, 16), scaleLanes);
      v128.store(data, i16x8.narrow_i32x4_u(low, high));
    }
    if (data < groupEnd) {
      const low = quantizePairs(v128.load(x), scaleLanes);
      v128.store64_lane(data, i16x8.narrow_i32x4_u(low, low), 0);
      data += 8;
      x += 16;
    }
    scales += 4;
  }
}

export function dequantizeFp8Row(x: usize, data: usize, scales: usize, columns: i32): void {
  const end = data + <usize>columns;
  while (data < end) {
    const groupEnd = min(data + GROUP, end);
    const scale = f32x4.splat(load<f32>(scales));
    for (; data < groupEnd; data += 8, x += 16) {
      const bytes = v128.load8x8_u(data);
      const even = f32x4.mul(fromE4m3(v128.and(bytes, i32x4.splat(0xff))), scale);
      const odd = f32x4.mul(fromE4m3(i32x4.shr_u(bytes, 16)), scale);
      v128.store(x, interleaveToBf16(even, odd));
    }
    scales += 4;
  }
}

/** Bytes from one sum to the next: codes, then scales, up to a multiple of FP8_SUM_ALIGNMENT. */
export function sumBytesOf(columns: i32): usize {
  const bytes = <usize>columns + ((<usize>columns + GROUP - 1) / GROUP << 2);
  return (bytes + FP8_SUM_ALIGNMENT - 1) & ~(FP8_SUM_ALIGNMENT - 1);
}

/** An f32 row as quantizeFp8 would make it of bf16, the codes at `out` and the scales behind them. */
export function quantizeSum(out: usize, x: usize, columns: i32): void {
  const end = out + <usize>columns;
  for (let scales = end; out < end; scales += 4) {
    const groupEnd = min(out + GROUP, end);
    const amax = max(numbersAmax(x, groupEnd - out), SMALLEST_AMAX);
    store<f32>(scales, amax / FP8_MAX);
    const factor = f32x4.splat(FP8_MAX / amax);
    for (; out < groupEnd; out += 8, x += 32) {
      const low = toE4m3(f32x4.mul(v128.load(x), factor));
      const high = toE4m3(f32x4.mul(v128.load(x, 16), factor));
      const words = i16x8.narrow_i32x4_u(low, high);
      v128.store64_lane(out, i8x16.narrow_i16x8_u(words, words), 0);
    }
  }
}

/** The reverse, f32 = code * scale. */
export function dequantizeSum(x: usize, sum: usize, columns: i32): void {
  const end = sum + <usize>columns;
  for (let scales = end; sum < end; scales += 4) {
    const groupEnd = min(sum + GROUP, end);
    const scale = v128.load32_splat(scales);
    for (; sum < groupEnd; sum += 8, x += 32) {
      const codes = v128.load8x8_u(sum);
      v128.store(x, f32x4.mul(fromE4m3(i32x4.extend_low_i16x8_u(codes)), scale));
      v128.store(x, f32x4.mul(fromE4m3(i32x4.extend_high_i16x8_u(codes)), scale), 16);
    }
  }
}

/** Largest magnitude of `columns` f32, NaN left out. */
@inline
function numbersAmax(x: usize, columns: usize): f32 {
  let most = f32x4.splat(0), others = f32x4.splat(0);
  for (const end = x + (columns << 2); x < end; x += 32) {
    // A NaN is never the larger one.
    most = f32x4.pmax(most, f32x4.abs(v128.load(x)));
    others = f32x4.pmax(others, f32x4.abs(v128.load(x, 16)));
  }
  most = f32x4.pmax(most, others);
  most = f32x4.pmax(most, v128.shuffle<i32>(most, most, 2, 3, 0, 1));
  const amax = max(f32x4.extract_lane(most, 0), f32x4.extract_lane(most, 1));
  return min(amax, reinterpret<f32>((<i32>BF16_MAX_BITS) << 16));
}

/** Largest magnitude of `columns` bf16, NaN left out. As integers, magnitudes order like the numbers they stand for. */
@inline
function groupAmax(x: usize, columns: usize): f32 {
  let most = i16x8.splat(0);
  const end = x + (columns << 1);
  for (; x < end; x += 16) {
    const magnitude = v128.and(v128.load(x), i16x8.splat(0x7fff));
    const isNumber = i16x8.le_s(magnitude, i16x8.splat(0x7f80));
    most = i16x8.max_s(most, v128.and(magnitude, isNumber));
  }
  most = i16x8.min_s(most, i16x8.splat(BF16_MAX_BITS));
  most = i16x8.max_s(most, v128.shuffle<i16>(most, most, 4, 5, 6, 7, 0, 1, 2, 3));
  most = i16x8.max_s(most, v128.shuffle<i16>(most, most, 2, 3, 0, 1, 6, 7, 4, 5));
  const bits = max(i16x8.extract_lane_s(most, 0), i16x8.extract_lane_s(most, 1));
  return reinterpret<f32>((<i32>bits) << 16);
}

/** Eight bf16 as four pairs to four pairs of e4m3 in the low 16 bits of each lane. */
@inline
function quantizePairs(pairs: v128, scale: v128): v128 {
  const even = toE4m3(f32x4.mul(evenLanes(pairs), scale));
  const odd = toE4m3(f32x4.mul(oddLanes(pairs), scale));
  return v128.or(even, i32x4.shl(odd, 8));
}

/** f32 to e4m3, round to nearest even, saturating at 448; NaN to 0x7f. */
@inline
function toE4m3(values: v128): v128 {
  const sign = v128.and(i32x4.shr_u(values, 24), i32x4.splat(0x80));
  const isNumber = f32x4.eq(values, values);
  const magnitude = f32x4.pmin(f32x4.abs(values), f32x4.splat(FP8_MAX));
  // Normal numbers: round the 23-bit mantissa to 3 bits as an integer, then move the exponent's bias from 127 to 7.
  const lowest = v128.and(i32x4.shr_u(magnitude, 20), i32x4.splat(1));
  const rounded = i32x4.shr_u(i32x4.add(i32x4.add(magnitude, i32x4.splat(0x7_ffff)), lowest), 20);
  const normal = i32x4.sub(rounded, i32x4.splat(120 << 3));
  // Below 2^-6: next to 2^14 an f32 counts in steps of 2^-9, the smallest e4m3, so the addition itself rounds.
  const steps = f32x4.add(magnitude, f32x4.splat(16384));
  const subnormal = i32x4.sub(steps, f32x4.splat(16384));
  const isSmall = f32x4.lt(magnitude, f32x4.splat(0.015625));
  const finite = v128.bitselect(subnormal, normal, isSmall);
  return v128.bitselect(v128.or(sign, finite), i32x4.splat(0x7f), isNumber);
}

/** e4m3 in the low byte of each lane to f32, exactly: its bits are those of an f32 that is 2^120 times too small. */
@inline
function fromE4m3(bytes: v128): v128 {
  const magnitude = v128.and(bytes, i32x4.splat(0x7f));
  const sign = i32x4.shl(v128.and(bytes, i32x4.splat(0x80)), 24);
  const value = f32x4.mul(i32x4.shl(magnitude, 20), f32x4.splat(1.329227995784916e36));
  const isNan = i32x4.eq(magnitude, i32x4.splat(0x7f));
  return v128.or(v128.bitselect(i32x4.splat(0x7fc0_0000), value, isNan), sign);
}
