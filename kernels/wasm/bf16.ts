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

/** The reverse of evenLanes and oddLanes, rounding, for lanes that went through plainNan or hold no NaN. */
@inline
export function interleaveNumbers(even: v128, odd: v128): v128 {
  return v128.or(i32x4.shr_u(roundNumbers(even), 16), oddLanes(roundNumbers(odd)));
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
