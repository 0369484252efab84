// What a sparse all-reduce means, slow and obvious: block by block, the sum over the workers whose block is not zero.
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { type DType, dtypes, fromBf16, type TypedArrayOf } from '../../core/dtype.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { ReducedDType } from '../collective-call.ts';
import { referenceReduction } from '../reference.ts';
import { type SparseAllReduceOptions, sparseOptionNames } from './sparse-options.ts';

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
 * @param dtype Of the elements.
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

/** Of those that there are. */
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
