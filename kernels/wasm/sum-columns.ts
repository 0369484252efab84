// Sums of rows of f16 and f32, in the order they are listed: f32 sums, rounded once to the dtype of the rows.
import { plainNan } from './bf16';
import { evenHalves, interleaveToF16, oddHalves } from './f16';

/** out = the sum of the f16 rows at the addresses from `sources` to `end`, of which there are two or more. */
export function sumF16Columns(out: usize, sources: usize, end: usize, bytes: usize): void {
  const first = <usize>load<u32>(sources);
  for (let column: usize = 0; column < bytes; column += 16) {
    const start = v128.load(first + column);
    let even = evenHalves(start), odd = oddHalves(start);
    for (let s = sources + 4; s < end; s += 4) {
      const next = v128.load(<usize>load<u32>(s) + column);
      even = f32x4.add(even, evenHalves(next));
      odd = f32x4.add(odd, oddHalves(next));
    }
    v128.store(out + column, interleaveToF16(even, odd));
  }
}

/** The same for f32 rows; every NaN becomes 0x7fc00000. `bytes` is a multiple of 32. */
export function sumF32Columns(out: usize, sources: usize, end: usize, bytes: usize): void {
  const first = <usize>load<u32>(sources);
  for (let column: usize = 0; column < bytes; column += 32) {
    let low = v128.load(first + column), high = v128.load(first + column, 16);
    for (let s = sources + 4; s < end; s += 4) {
      const next = <usize>load<u32>(s) + column;
      low = f32x4.add(low, v128.load(next));
      high = f32x4.add(high, v128.load(next, 16));
    }
    v128.store(out + column, plainNan(low));
    v128.store(out + column, plainNan(high), 16);
  }
}
