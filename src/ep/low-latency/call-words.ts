// What ranks must agree on in a call of low-latency mode, as one word that they compare.
import { LOW_LATENCY_WAIT_SHIFT, lowLatencyWaits } from '../../abi/low-latency.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CheckedLowLatencyDispatch, LowLatencyScales } from './low-latency-arguments.ts';
import type { LowLatencyConfig } from './low-latency-size.ts';

const formats = ['bf16', 'f32', 'rounded', 'ue8m0'] as const;
const HAS_WEIGHTS = 1 << 8;
const IS_WIDE = 1 << 9;
const FORMAT_SHIFT = 10;

/** K in bits 0-7, whether there are weights, whether ids are i64, the format of the rows. */
export function dispatchWord({ topkIdx, topkWeights, scales }: CheckedLowLatencyDispatch): number {
  const flags = (topkWeights === undefined ? 0 : HAS_WEIGHTS) | (topkIdx.dtype === 'i64' ? IS_WIDE : 0);
  return topkIdx.shape[1]! | flags | (formats.indexOf(scales ?? 'bf16') << FORMAT_SHIFT);
}

/** The word of a rank that refuses the choices that it was given: no dispatch has 0 choices. */
export const REFUSED = 0;

/** Whether that rank sends nothing in this dispatch, because it refuses the choices that it was given. */
export function isRefused(word: number): boolean {
  return word === REFUSED;
}

/** What the word of a dispatch says. */
interface DispatchWord {
  /** Kind of the scales of the rows, undefined for bf16. */
  readonly scales: LowLatencyScales | undefined;
  readonly k: number;
  readonly hasWeights: boolean;
  /** Whether ids are i64. */
  readonly isWide: boolean;
}

export function readDispatchWord(word: number): DispatchWord {
  const format = formats[word >>> FORMAT_SHIFT] ?? 'bf16';
  return {
    scales: format === 'bf16' ? undefined : format,
    k: word & 0xff,
    hasWeights: (word & HAS_WEIGHTS) !== 0,
    isWide: (word & IS_WIDE) !== 0,
  };
}

/** The word of a combine with the handle of that dispatch, as kernels compare it: the bits that a record of a wait has room for. */
export function combineWord(sequence: number): number {
  return sequence & (2 ** LOW_LATENCY_WAIT_SHIFT - 1);
}

/** What a kernel waited for, by the word in its record. */
export function describeWait(word: number): string {
  const call = combineWord(word);
  const wait = word >>> LOW_LATENCY_WAIT_SHIFT;
  if (wait === lowLatencyWaits.rows) return `${describeDispatch(call)}, for rows`;
  if (wait === lowLatencyWaits.slot) return `${describeDispatch(call)}, for free slots`;
  if (wait === lowLatencyWaits.combineRows) return `a combine of dispatch ${call}, for rows`;
  return `a combine of dispatch ${call}, until its memory is read`;
}

/** Columns of the choices of a dispatch. */
export function columnsOf(word: number): number {
  return word & 0xff;
}

function describeDispatch(word: number): string {
  const format = formats[word >>> FORMAT_SHIFT] ?? 'bf16';
  const rows = format === 'bf16' ? 'bf16 rows' : `fp8 rows with scales '${format}'`;
  const weights = (word & HAS_WEIGHTS) === 0 ? 'without' : 'with';
  return `a dispatch of ${rows}, ${columnsOf(word)} choices as ${(word & IS_WIDE) === 0 ? 'i32' : 'i64'}, ${weights} topkWeights`;
}

/** Fails with WL_CONFIG_MISMATCH unless the words are the same. */
export function compareDispatch(here: number, there: number, rank: number): void {
  if (here !== there) throw mismatch(describeDispatch(here), describeDispatch(there), rank);
}

/** The word of a combine on CPU ranks, which are so near each other that half a word tells numbers apart. */
export function combineCall(number: number, dispatch: number): number {
  return (number << 16) | (dispatch & 0xffff);
}

/** WL_CONFIG_MISMATCH of a rank that combines another dispatch. `there`: what it has called last, by result. */
export function otherCombine(dispatch: number, there: readonly number[], rank: number): WeftlineError {
  const last = there.reduce((latest, call) => (isLater(call, latest) ? call : latest));
  const other = dispatch + ((((last & 0xffff) - dispatch) << 16) >> 16);
  return mismatch(`a combine of dispatch ${dispatch}`, `a combine of dispatch ${other}`, rank);
}

function isLater(call: number, than: number): boolean {
  return ((call >>> 16) - (than >>> 16)) << 16 > 0;
}

function mismatch(here: string, there: string, rank: number): WeftlineError {
  return new WeftlineError(
    'WL_CONFIG_MISMATCH',
    `This rank is in ${here}, but rank ${rank} is in ${there}; all ranks must make the same calls in the same order`,
    { details: { rank, here, there } },
  );
}

/** The error of a rank of which an expert got more rows than it may. */
export function overflowError(
  got: { readonly expert: number; readonly rows: number; readonly dispatch: number },
  { maxTokensPerExpert }: Required<LowLatencyConfig>,
): WeftlineError {
  return new WeftlineError(
    'WL_CAPACITY',
    `Expert ${got.expert} got ${got.rows} rows in dispatch ${got.dispatch}, more than its ${maxTokensPerExpert} (maxTokensPerExpert); raise that, or drop rows with overflow: 'drop'`,
    { details: { ...got, maxTokensPerExpert } },
  );
}
