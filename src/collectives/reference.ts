// What reductions mean, slow and obvious: element by element, in rank order. The engines are tested against it, byte by byte.
import { type DType, fromBf16, toBf16, type TypedArrayOf } from '../core/dtype.ts';
import type { ReducedDType, Reduction } from './collective-call.ts';

const PLAIN_NAN = 0x7fc0_0000;

const combine: Readonly<Record<Reduction, (a: number, b: number) => number>> = {
  sum: (a, b) => a + b,
  // Math.max and Math.min pass a NaN on and know that -0 is less than 0.
  max: (a, b) => Math.max(a, b),
  min: (a, b) => Math.min(a, b),
};

/** To and from numbers: how each dtype is computed, and how a result is rounded. */
const arithmetic: Readonly<
  Record<ReducedDType, Readonly<Record<'load' | 'step' | 'store', (value: number) => number>>>
> = {
  f32: { load: (value) => value, step: Math.fround, store: (value) => value },
  bf16: { load: fromBf16, step: Math.fround, store: toBf16 },
  i32: { load: (value) => value, step: (value) => value | 0, store: (value) => value },
};

/**
 * The reduction of equally long runs, in their order: what allReduce() gives for the inputs of ranks 0, 1, …. One run is
 * copied.
 * @param dtype Of the elements.
 * @param op What is made of the elements at one place.
 * @param runs One for each rank; bf16 as bit patterns.
 */
export function referenceReduction<D extends ReducedDType & DType>(
  dtype: D,
  op: Reduction,
  runs: readonly TypedArrayOf[D][],
): TypedArrayOf[D] {
  const out = runs[0]!.slice() as TypedArrayOf[D];
  if (runs.length === 1) return out;
  const { load, step, store } = arithmetic[dtype];
  for (let at = 0; at < out.length; at++) {
    let value = load(runs[0]![at]!);
    for (const run of runs.slice(1)) value = step(combine[op](value, load(run[at]!)));
    out[at] = store(value);
  }
  // Which NaN an array is given is up to the processor.
  if (out instanceof Float32Array) {
    const bits = new Uint32Array(out.buffer);
    for (let at = 0; at < out.length; at++) if (Number.isNaN(out[at])) bits[at] = PLAIN_NAN;
  }
  return out;
}
