// The specification of EpBuffer, slow and obvious: what every rank receives and gets back, computed in one process.
import { alignUp } from '../../abi/layout.ts';
import { f32Bits, f32FromBits, fromBf16, fromF16, toBf16, toF16 } from '../../core/dtype.ts';

/** What one rank passes to dispatch, as plain arrays. A row is an array of H elements (bit patterns). */
export interface ReferenceInput {
  readonly x: readonly (readonly number[])[];
  readonly scales?: readonly (readonly number[])[];
  /** [T][K], -1 for none. */
  readonly topkIdx: readonly (readonly number[])[];
  readonly topkWeights?: readonly (readonly number[])[];
}

/** What one rank receives; row i of each array belongs to the same token. */
export interface ReferenceReceived {
  readonly x: readonly (readonly number[])[];
  readonly scales: readonly (readonly number[])[];
  readonly topkIdx: readonly (readonly number[])[];
  readonly topkWeights: readonly (readonly number[])[];
  readonly sourceRank: readonly number[];
  readonly sourceToken: readonly number[];
  readonly numRecvTokensPerExpert: readonly number[];
}

export interface ReferenceOptions {
  readonly numExperts: number;
  readonly expertAlignment?: number;
}

/**
 * Every token goes once to each rank that holds one of its experts; rows stand by source rank, then token index.
 * @param inputs By rank.
 * @param options Sizes of the job.
 */
export function referenceDispatch(inputs: readonly ReferenceInput[], options: ReferenceOptions): ReferenceReceived[] {
  const expertsPerRank = options.numExperts / inputs.length;
  return inputs.map((_, rank) => {
    const localExpert = (expert: number): number =>
      expert >= 0 && Math.floor(expert / expertsPerRank) === rank ? expert - rank * expertsPerRank : -1;
    const rows = inputs.flatMap((input, sourceRank) =>
      input.topkIdx.flatMap((choices, token) => {
        const local = choices.map(localExpert);
        if (local.every((expert) => expert === -1)) return [];
        const weights = input.topkWeights?.[token] ?? [];
        return [
          {
            x: input.x[token] ?? [],
            scales: input.scales?.[token] ?? [],
            topkIdx: local,
            topkWeights: weights.map((weight, k) => (local[k] === -1 ? 0 : weight)),
            sourceRank,
            sourceToken: token,
          },
        ];
      }),
    );
    const perExpert = Array.from({ length: expertsPerRank }, (_unused, expert) =>
      alignUp(
        rows.flatMap((row) => row.topkIdx).filter((local) => local === expert).length,
        options.expertAlignment ?? 1,
      ),
    );
    return {
      x: rows.map((row) => row.x),
      scales: rows.map((row) => row.scales),
      topkIdx: rows.map((row) => row.topkIdx),
      topkWeights: rows.map((row) => row.topkWeights),
      sourceRank: rows.map((row) => row.sourceRank),
      sourceToken: rows.map((row) => row.sourceToken),
      numRecvTokensPerExpert: perExpert,
    };
  });
}

/** What one rank passes to combine, as plain arrays. */
export interface ReferenceCombineInput {
  /** What referenceDispatch returned. */
  readonly received: readonly ReferenceReceived[];
  /** outputs[rank][row]: bf16 rows that the experts of each rank made of what it received. */
  readonly outputs: readonly (readonly (readonly number[])[])[];
  /** weights[rank][row][k], or absent. */
  readonly weights?: readonly (readonly (readonly number[])[])[];
}

export interface ReferenceToken {
  readonly rank: number;
  readonly token: number;
  readonly hidden: number;
  readonly topk: number;
  /** bf16 rows added first. */
  readonly bias?: readonly (readonly number[])[];
}

/**
 * The combined bf16 row of one token: bias, then the ranks' rows in rank order, in f32, rounded once.
 * @param input By rank, what combine() takes.
 * @param of Which token of which rank.
 */
export function referenceCombine(input: ReferenceCombineInput, of: ReferenceToken): number[] {
  const rows = input.received.flatMap((received, rank) => {
    const row = rowOf(received, of);
    return row === -1 ? [] : [input.outputs[rank]?.[row] ?? []];
  });
  return sumRows([...(of.bias ?? []), ...rows], of.hidden);
}

/**
 * The combined weights of one token: the ranks' weight rows in rank order, in f32.
 * @param input By rank, what combine() takes.
 * @param of Which token of which rank.
 */
export function referenceCombineWeights(input: ReferenceCombineInput, of: ReferenceToken): number[] {
  return Array.from({ length: of.topk }, (_, k) => {
    let sum = 0;
    for (const [rank, received] of input.received.entries()) {
      const row = rowOf(received, of);
      if (row !== -1) sum = Math.fround(sum + (input.weights?.[rank]?.[row]?.[k] ?? 0));
    }
    return sum;
  });
}

/** A bit pattern as a number, and a number rounded to a bit pattern; every NaN gets the same one. */
const codecs = {
  bf16: { read: fromBf16, write: toBf16 },
  f16: { read: fromF16, write: toF16 },
  f32: { read: f32FromBits, write: (value: number) => (Number.isNaN(value) ? 0x7fc0_0000 : f32Bits(value)) },
} as const;

/** Sums rows of bit patterns in f32 from the first to the last and rounds once; one row alone is returned bit for bit. */
export function sumRows(
  rows: readonly (readonly number[])[],
  hidden: number,
  dtype: keyof typeof codecs = 'bf16',
): number[] {
  const { read, write } = codecs[dtype];
  const [first, ...others] = rows;
  if (first === undefined) return Array.from({ length: hidden }, () => 0);
  if (others.length === 0) return [...first];
  return Array.from({ length: hidden }, (_, column) => {
    let sum = read(first[column] ?? 0);
    for (const row of others) sum = Math.fround(sum + read(row[column] ?? 0));
    return write(sum);
  });
}

function rowOf(received: ReferenceReceived, { rank, token }: ReferenceToken): number {
  return received.sourceToken.findIndex((source, row) => source === token && received.sourceRank[row] === rank);
}
