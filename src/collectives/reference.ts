// What reductions mean, slow and obvious: element by element, in rank order. The engines are tested against it, byte by byte.
import { type DType, dtypes, fromBf16, toBf16, type TypedArrayOf } from '../core/dtype.ts';
import { invalidArgument } from '../core/errors.ts';
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
 * copied. Fails with WL_INVALID_ARGUMENT for runs of different lengths or none, and for what cannot be reduced.
 * @param dtype Of the elements.
 * @param op What is made of the elements at one place.
 * @param runs One for each rank; bf16 as bit patterns.
 */
export function referenceReduction<D extends ReducedDType & DType>(
  dtype: D,
  op: Reduction,
  runs: readonly TypedArrayOf[D][],
): TypedArrayOf[D] {
  checkRuns(dtype, op, runs);
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

function checkRuns(dtype: ReducedDType, op: unknown, runs: unknown): void {
  if (!Object.hasOwn(arithmetic, dtype)) {
    throw invalidArgument('dtype', dtype, `one of ${Object.keys(arithmetic).join(', ')}`);
  }
  if (typeof op !== 'string' || !Object.hasOwn(combine, op)) {
    throw invalidArgument('op', op, `one of ${Object.keys(combine).join(', ')}`);
  }
  if (!Array.isArray(runs) || runs.length === 0) throw invalidArgument('runs', runs, 'an array of one run or more');
  const { array } = dtypes[dtype];
  for (const [index, run] of runs.entries()) {
    if (!(run instanceof array)) throw invalidArgument(`runs[${index}]`, run, `a ${array.name}, which holds ${dtype}`);
    const { length } = runs[0] as { readonly length: number };
    if (run.length === length) continue;
    throw invalidArgument(`runs[${index}].length`, run.length, `${length}, as of the first run`);
  }
}
