// f16 in vectors: a register of eight f16 is four pairs, whose halves become two f32x4 and back. f32 becomes f16 by
// rounding to nearest, ties to even; every NaN becomes 0x7e00.

const NAN_BITS: i32 = 0x7e00;
const INFINITY_BITS: i32 = 0x7c00;
/** The exponents of f32 and f16 differ by 112. */
const EXPONENT_SHIFT: i32 = 112 << 23;
/** 2^112 */
const TO_F32_SCALE: f32 = 5.192296858534828e33;
/** 65520, half-way between the largest f16 and the next power of two. */
const FIRST_INFINITE: i32 = 0x477f_f000;
/** 2^-14, the smallest normal f16. */
const FIRST_NORMAL: i32 = 0x3880_0000;

/** Elements 0, 2, 4, 6 as f32; exact. */
@inline
export function evenHalves(pairs: v128): v128 {
  return toF32(v128.and(pairs, i32x4.splat(0xffff)));
}

/** Elements 1, 3, 5, 7 as f32; exact. */
@inline
export function oddHalves(pairs: v128): v128 {
  return toF32(i32x4.shr_u(pairs, 16));
}

/** The reverse of evenHalves and oddHalves, rounding. */
@inline
export function interleaveToF16(even: v128, odd: v128): v128 {
  return v128.or(fromF32(even), i32x4.shl(fromF32(odd), 16));
}

/** Moved into place, the bits of an f16 are those of an f32 that is 2^112 times too small, also where it is subnormal. */
@inline
function toF32(halves: v128): v128 {
  const magnitude = v128.and(halves, i32x4.splat(0x7fff));
  const sign = i32x4.shl(v128.xor(halves, magnitude), 16);
  const number = f32x4.mul(i32x4.shl(magnitude, 13), f32x4.splat(TO_F32_SCALE));
  const noNumber = i32x4.ge_s(magnitude, i32x4.splat(INFINITY_BITS));
  return v128.or(v128.or(number, v128.and(noNumber, i32x4.splat(0x7f80_0000))), sign);
}

/** Halves in the lower half of each lane. */
@inline
function fromF32(values: v128): v128 {
  const magnitude = v128.and(values, i32x4.splat(0x7fff_ffff));
  const sign = i32x4.shr_u(v128.xor(values, magnitude), 16);
  // Normal numbers: round the 23-bit mantissa to 10 bits as an integer.
  const lowest = v128.and(i32x4.shr_u(magnitude, 13), i32x4.splat(1));
  const based = i32x4.sub(magnitude, i32x4.splat(EXPONENT_SHIFT - 0xfff));
  const normal = i32x4.shr_u(i32x4.add(based, lowest), 13);
  // Below 2^-14: next to 0.5 an f32 counts in steps of 2^-24, the smallest f16, so the addition itself rounds.
  const subnormal = i32x4.sub(f32x4.add(magnitude, f32x4.splat(0.5)), f32x4.splat(0.5));
  const finite = v128.bitselect(subnormal, normal, i32x4.lt_s(magnitude, i32x4.splat(FIRST_NORMAL)));
  const isFinite = i32x4.lt_s(magnitude, i32x4.splat(FIRST_INFINITE));
  const number = v128.or(sign, v128.bitselect(finite, i32x4.splat(INFINITY_BITS), isFinite));
  return v128.bitselect(number, i32x4.splat(NAN_BITS), f32x4.eq(values, values));
}
