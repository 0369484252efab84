// The exponential of four f32 at once, within 2 units in the last place, over the whole range.

// ln 2 in two parts: the first has few enough bits that n times it is exact.
const LN2_HIGH: f32 = 0.693359375;
const LN2_LOW: f32 = -2.12194440e-4;

/** e^x. Above 88.72 infinity, below -103.97 zero, subnormal results rounded once, NaN stays NaN. */
@inline
export function expLanes(x: v128): v128 {
  // pmin and pmax give their first argument when they are not ordered, so NaN passes.
  const bounded = f32x4.pmax(f32x4.pmin(x, f32x4.splat(89)), f32x4.splat(-105));
  const n = f32x4.nearest(f32x4.mul(bounded, f32x4.splat(1.4426950408889634)));
  const r = f32x4.sub(f32x4.sub(bounded, f32x4.mul(n, f32x4.splat(LN2_HIGH))), f32x4.mul(n, f32x4.splat(LN2_LOW)));
  // |r| <= ln(2)/2, where the Taylor series to r^7 is off by less than 6e-9.
  let series = f32x4.splat(1.0 / 5040);
  series = f32x4.add(f32x4.mul(series, r), f32x4.splat(1.0 / 720));
  series = f32x4.add(f32x4.mul(series, r), f32x4.splat(1.0 / 120));
  series = f32x4.add(f32x4.mul(series, r), f32x4.splat(1.0 / 24));
  series = f32x4.add(f32x4.mul(series, r), f32x4.splat(1.0 / 6));
  series = f32x4.add(f32x4.mul(series, r), f32x4.splat(0.5));
  const power = f32x4.add(f32x4.add(f32x4.mul(f32x4.mul(r, r), series), r), f32x4.splat(1));
  // 2^n in two factors, since n reaches from -152 to 128 and an exponent only from -126 to 127.
  const exponent = i32x4.trunc_sat_f32x4_s(n);
  const half = i32x4.shr_s(exponent, 1);
  const first = i32x4.shl(i32x4.add(half, i32x4.splat(127)), 23);
  const second = i32x4.shl(i32x4.add(i32x4.sub(exponent, half), i32x4.splat(127)), 23);
  return f32x4.mul(f32x4.mul(power, first), second);
}
