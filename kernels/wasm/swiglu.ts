// The activation between the two linear layers of an expert.
import { packToBf16 } from './bf16';
import { expLanes } from './exp';

/** out[i,j] = bf16(silu(x[i,j]) * x[i,width+j]): x f32 [rows, 2*width], the gate's half first; width is a multiple of 8. */
export function swiglu(out: usize, x: usize, rows: i32, width: i32): void {
  for (let row = 0; row < rows; row++) {
    swigluRow(out, x, width);
    out += (<usize>width) << 1;
    x += (<usize>width) << 3;
  }
}

// Exported only to stay a function of its own: see fp8.ts.
export function swigluRow(out: usize, gate: usize, width: i32): void {
  const bytes = (<usize>width) << 2;
  const end = gate + bytes;
  for (let up = gate + bytes; gate < end; gate += 32, up += 32, out += 16) {
    const first = f32x4.mul(silu(v128.load(gate)), v128.load(up));
    const last = f32x4.mul(silu(v128.load(gate, 16)), v128.load(up, 16));
    v128.store(out, packToBf16(first, last));
  }
}

@inline
function silu(x: v128): v128 {
  return f32x4.div(x, f32x4.add(f32x4.splat(1), expLanes(f32x4.neg(x))));
}
