// bf16 in vectors: a register of eight bf16 is four pairs, whose halves become two f32x4 by a shift and a mask, so that
// nothing is ever shuffled. f32 becomes bf16 by rounding to nearest, ties to even; every NaN becomes 0x7fc0.

const NAN_BITS: i32 = 0x7fc0_0000;

/** Elements 0, 2, 4, 6 as f32. */
@inline
export function evenLanes(pairs: v128): v128 {
  return i32x4.shl(pairs, 16);
}

/** Elements 1, 3, 5, 7 as f32. */
@inline
export function oddLanes(pairs: v128): v128 {
  return v128.and(pairs, i32x4.splat(0xffff_0000));
}

/** NaN lanes become the one NaN that roundNumbers leaves alone. */
@inline
export function plainNan(values: v128): v128 {
  return v128.bitselect(values, i32x4.splat(NAN_BITS), f32x4.eq(values, values));
}

/** f32 rounded to bf16 in the upper half of each lane; the lower half is rest. Wrong for a NaN but that of plainNan. */
@inline
function roundNumbers(values: v128): v128 {
  const lowest = v128.and(i32x4.shr_u(values, 16), i32x4.splat(1));
  return i32x4.add(values, i32x4.add(lowest, i32x4.splat(0x7fff)));
}

/**
 * The reverse of evenLanes and oddLanes, rounding. A NaN whose lower half is zero, as sums of bf16 give, stays some NaN;
 * others must have gone through plainNan.
 *
 * Rounds all eight at once in 16 bits: upper + ((lower + 0x7fff + lowest bit of upper) >> 16), where the sum takes 17 bits,
 * which avgr_u has: it adds one, and gives the upper 16 of them.
 */
@inline
export function interleaveNumbers(even: v128, odd: v128): v128 {
  const upper = v128.shuffle<i16>(i32x4.shr_u(even, 16), odd, 0, 9, 2, 11, 4, 13, 6, 15);
  const lower = v128.shuffle<i16>(even, i32x4.shl(odd, 16), 0, 9, 2, 11, 4, 13, 6, 15);
  const lowest = v128.and(upper, i16x8.splat(1));
  const carry = i16x8.avgr_u(lower, i16x8.add(lowest, i16x8.splat(0x7ffe)));
  return i16x8.add(upper, i16x8.shr_u(carry, 15));
}

/** Eight bf16; every NaN becomes 0x7fc0. */
@inline
export function plainNanBf16(values: v128): v128 {
  const isNan = i16x8.gt_s(v128.and(values, i16x8.splat(0x7fff)), i16x8.splat(0x7f80));
  return v128.bitselect(i16x8.splat(<i16>(NAN_BITS >>> 16)), values, isNan);
}

/** The same for any lanes. */
@inline
export function interleaveToBf16(even: v128, odd: v128): v128 {
  return interleaveNumbers(plainNan(even), plainNan(odd));
}

/** Eight f32 in order, first four and last four, as bf16. */
@inline
export function packToBf16(first: v128, last: v128): v128 {
  const low = i32x4.shr_u(roundNumbers(plainNan(first)), 16);
  return i16x8.narrow_i32x4_u(low, i32x4.shr_u(roundNumbers(plainNan(last)), 16));
}
