// fp8 e4m3fn: 4 exponent bits with bias 7, 3 mantissa bits, no infinity, NaN is 0x7f and 0xff, largest number 448.
import { f32Bits, f32FromBits } from './dtype.ts';

const fp8Max = 448;

/** f32 to e4m3fn, round to nearest even; what rounds above 448, infinities and NaN become NaN with the sign kept, as in PyTorch. */
export function toFp8e4m3(value: number): number {
  const bits = f32Bits(value);
  const sign = (bits >>> 24) & 0x80;
  const magnitude = bits & 0x7fff_ffff;
  // 464 is half way between 448 and the code above it, and 448 has the even code.
  if (!(f32FromBits(magnitude) <= 464)) return sign | 0x7f;
  return sign | roundMagnitude(magnitude);
}

/** As toFp8e4m3, but numbers beyond 448 and infinities become 448 with their sign; NaN stays NaN. */
export function toFp8e4m3Saturating(value: number): number {
  return toFp8e4m3(Math.max(-fp8Max, Math.min(fp8Max, value)));
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
