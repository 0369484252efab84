// What reductions mean, slow and obvious: element by element, in rank order; a sparse one block by block, over the workers
// whose block is not zero. The engines are tested against it, byte by byte.
import type { ReducedDType, Reduction } from '../collectives/collective-call.ts';
import { type SparseAllReduceOptions, sparseOptionNames } from '../collectives/sparse/sparse-options.ts';
import { checkOptions, type OptionNames } from '../core/check-options.ts';
import { type DType, dtypes, fromBf16, toBf16, type TypedArrayOf } from '../core/dtype.ts';
import { invalidArgument } from '../core/errors.ts';

const PLAIN_NAN = 0x7fc0_0000;

const combine: Readonly<Record<Reduction, (a: number, b: number) => number>> = {
  sum: (a, b) => a + b,
  // Math.max and Math.min pass a NaN on and know that -0 is less than 0.
  max: (a, b) => Math.max(a, b),
  min: (a, b) => Math.min(a, b),
};

/** Conversions of elements to numbers and back, and the rounding of each step, by dtype. */
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
 * @param dtype Dtype of the elements.
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
  // The processor chooses the NaN that an array gets.
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

/** Takes the options of SparseAllReduce.create() as well, so that one object serves both; those not listed here change no sum. */
interface ReferenceSparseOptions extends SparseAllReduceOptions {
  readonly blockSize: number;
  readonly threshold?: number;
  readonly fanIn?: number;
  readonly dense?: boolean;
}

const optionNames: OptionNames<ReferenceSparseOptions> = { ...sparseOptionNames, threshold: true, dense: true };

/**
 * The sum that `SparseAllReduce.allReduce` gives. A block of a worker counts if the magnitude of any element is above the
 * threshold, or if it has a NaN; the sum of a block is that of the blocks that count, in the order of the workers, and +0
 * where none does. Fails with WL_INVALID_ARGUMENT for runs of different lengths or none.
 * @param dtype Dtype of the elements.
 * @param runs One for each worker; bf16 as bit patterns.
 * @param options Elements of a block; the threshold, 0 by default, which f32 and bf16 compare as f32; `fanIn` as create() has it:
 *   each so many neighbours are summed, and then their sums likewise, until one is left. Without it all are summed at once. `dense`: every block counts.
 */
export function referenceSparseSum<D extends ReducedDType & DType>(
  dtype: D,
  runs: readonly TypedArrayOf[D][],
  options: ReferenceSparseOptions,
): TypedArrayOf[D] {
  checkOptions(options, optionNames, 'options of referenceSparseSum');
  const { blockSize, threshold = 0, fanIn = Math.max(2, runs?.length ?? 0), dense = false } = options;
  if (typeof threshold !== 'number') throw invalidArgument('threshold', threshold, 'a number');
  if (!Number.isInteger(blockSize) || blockSize < 1)
    throw invalidArgument('blockSize', blockSize, 'elements of a block');
  if (!Number.isInteger(fanIn) || fanIn < 2) throw invalidArgument('fanIn', fanIn, 'an integer from 2 on');
  // Checks the runs.
  const out = referenceReduction(dtype, 'sum', runs);
  const limit = dtype === 'i32' ? threshold : Math.fround(threshold);
  const valueOf = dtype === 'bf16' ? fromBf16 : (value: number): number => value;
  const counts = (value: number): boolean => !(Math.abs(valueOf(value)) <= limit);
  for (let from = 0; from < out.length; from += blockSize) {
    const blocks = runs.map((run) => run.slice(from, from + blockSize) as TypedArrayOf[D]);
    const zeros = new dtypes[dtype].array(blocks[0]!.length) as unknown as TypedArrayOf[D];
    let row = blocks.map((block) => (dense || block.some((value: number) => counts(value)) ? block : undefined));
    while (row.length > 1) row = neighbours(row, fanIn).map((some) => sumOf(dtype, some));
    out.set(row[0] ?? zeros, from);
  }
  return out;
}

/** The sum of the blocks that are there; undefined if there are none. */
function sumOf<D extends ReducedDType & DType>(
  dtype: D,
  blocks: readonly (TypedArrayOf[D] | undefined)[],
): TypedArrayOf[D] | undefined {
  const counting = blocks.filter((block) => block !== undefined);
  return counting.length === 0 ? undefined : referenceReduction(dtype, 'sum', counting);
}

function neighbours<T>(row: readonly T[], count: number): (readonly T[])[] {
  return Array.from({ length: Math.ceil(row.length / count) }, (_, at) => row.slice(at * count, (at + 1) * count));
}
