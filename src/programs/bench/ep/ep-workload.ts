// The tokens and routing that the expert-parallel bench moves; the same seed gives the same bytes on every machine.
import { toBf16 } from '../../../core/dtype.ts';
import { invalidArgument } from '../../../core/errors.ts';
import { FP8_GROUP } from '../../../abi/element-formats.ts';
import { MAX_TOPK } from '../../../ep/buffer/buffer-size.ts';
import { seededRandom } from '../../../core/seeded-random.ts';

export interface EpWorkload {
  readonly ranks: number;
  /** Tokens of each rank. */
  readonly tokens: number;
  readonly hidden: number;
  readonly topk: number;
  readonly experts: number;
  /** What dispatch carries; combine is always bf16. */
  readonly dtype: 'bf16' | 'fp8';
  readonly seed: number;
  /** 0: every expert is equally likely; s: the i-th most popular one has weight 1 / i^s (Zipf). */
  readonly skew: number;
}

/** The configuration that the field publishes numbers for. */
export const defaultEpWorkload: EpWorkload = {
  ranks: 4,
  tokens: 4096,
  hidden: 7168,
  topk: 8,
  experts: 256,
  dtype: 'bf16',
  seed: 1,
  skew: 0,
};

/** Of the rows of a rank: what an array holds. */
const MAX_ELEMENTS = 2 ** 32;

/** Fails with WL_INVALID_ARGUMENT naming the first value that does not work. */
export function checkEpWorkload(workload: EpWorkload): void {
  const { ranks, tokens, hidden, topk, experts, seed, skew } = workload;
  whole('ranks', ranks, 1);
  whole('tokens', tokens, 1);
  whole('hidden', hidden, 8);
  if (hidden % 8 !== 0) throw invalidArgument('hidden', hidden, 'a multiple of 8');
  const mostTokens = Math.floor(MAX_ELEMENTS / hidden);
  if (tokens > mostTokens) throw invalidArgument('tokens', tokens, `at most ${mostTokens} of ${hidden} elements`);
  whole('experts', experts, 1);
  if (experts % ranks !== 0) throw invalidArgument('experts', experts, `a multiple of ranks, ${ranks}`);
  whole('topk', topk, 1);
  const most = Math.min(experts, MAX_TOPK);
  if (topk > most) throw invalidArgument('topk', topk, `1 to ${most}`);
  whole('seed', seed, 0);
  if (!(skew >= 0 && skew <= 10)) throw invalidArgument('skew', skew, '0 to 10');
}

function whole(name: string, value: number, least: number): void {
  if (!Number.isSafeInteger(value) || value < least) throw invalidArgument(name, value, `a whole number from ${least}`);
}

/** Bytes of one row that dispatch carries, fp8 with its scales. */
export function dispatchRowBytes({ dtype, hidden }: EpWorkload): number {
  return dtype === 'bf16' ? hidden * 2 : hidden + scalesPerRow(hidden) * 4;
}

export function combineRowBytes({ hidden }: EpWorkload): number {
  return hidden * 2;
}

function scalesPerRow(hidden: number): number {
  return Math.ceil(hidden / FP8_GROUP);
}

export interface EpRouting {
  /** [tokens, topk], no expert twice in a row. */
  readonly topkIdx: Int32Array;
  /** [tokens, topk] */
  readonly topkWeights: Float32Array;
}

/** Top-k of random scores per token. */
export function generateRouting(workload: EpWorkload, rank: number): EpRouting {
  const { tokens, topk, experts } = workload;
  const random = seededRandom(workload.seed * 65_537 + rank);
  const logWeight = popularity(workload);
  const topkIdx = new Int32Array(tokens * topk);
  const topkWeights = new Float32Array(tokens * topk);
  const scores = new Float64Array(experts);
  for (let token = 0; token < tokens; token += 1) {
    // Gumbel noise: the k largest sums are a draw of k experts without replacement, by weight.
    for (let expert = 0; expert < experts; expert += 1) {
      scores[expert] = (logWeight[expert] as number) - Math.log(-Math.log(random() + 2 ** -33));
    }
    for (let k = 0; k < topk; k += 1) {
      const expert = largest(scores);
      scores[expert] = -Infinity;
      topkIdx[token * topk + k] = expert;
      topkWeights[token * topk + k] = random();
    }
  }
  return { topkIdx, topkWeights };
}

/** Logarithm of each expert's weight; all ranks agree on who is popular, and popular experts are spread over the ranks. */
function popularity({ experts, seed, skew }: EpWorkload): Float64Array {
  const random = seededRandom(seed * 65_537 - 1);
  const order = Array.from({ length: experts }, (_, expert) => ({ expert, key: random() })).toSorted(
    (a, b) => a.key - b.key,
  );
  const result = new Float64Array(experts);
  for (const [place, { expert }] of order.entries()) result[expert] = -skew * Math.log(place + 1);
  return result;
}

function largest(values: Float64Array): number {
  let best = 0;
  for (let index = 1; index < values.length; index += 1) {
    if ((values[index] as number) > (values[best] as number)) best = index;
  }
  return best;
}

/** bf16 values in [-1, 1), as bit patterns, [rows, hidden]. */
export function generateBf16Rows(workload: EpWorkload, rows: number, rank: number): Uint16Array {
  const random = seededRandom(workload.seed * 65_539 + rank);
  return fillFromTable(new Uint16Array(rows * workload.hidden), () => toBf16(random() * 2 - 1), random);
}

/** fp8 e4m3 bit patterns without NaN [rows, hidden], and f32 scales [rows, ceil(hidden / 128)]. */
export function generateFp8Rows(
  workload: EpWorkload,
  rows: number,
  rank: number,
): { data: Uint8Array; scales: Float32Array } {
  const random = seededRandom(workload.seed * 65_539 + rank);
  const data = fillFromTable(
    new Uint8Array(rows * workload.hidden),
    () => (random() < 0.5 ? 0x80 : 0) | Math.floor(random() * 0x7f),
    random,
  );
  const scales = new Float32Array(rows * scalesPerRow(workload.hidden)).map(() => random() + 0.5);
  return { data, scales };
}

const TABLE = 4099;

/** Rows from windows of one random table: a hundred million independent draws would take longer than the bench. */
function fillFromTable<A extends Uint16Array | Uint8Array>(target: A, draw: () => number, random: () => number): A {
  const table = Array.from({ length: 2 * TABLE }, draw);
  for (let start = 0; start < target.length; start += TABLE) {
    const from = Math.floor(random() * TABLE);
    target.set(table.slice(from, from + Math.min(TABLE, target.length - start)), start);
  }
  return target;
}
