// The specification of EPAll2AllLayer, slow and obvious: one row per (token, expert), grouped by expert.
import { type ReferenceHosts, sumAcrossHosts, sumRows } from '../buffer/reference-sum.ts';
import type { TokenDType } from './ep-config.ts';

/** What one rank passes to dispatch, as plain arrays. */
export interface ReferenceLayerInput {
  /** Rows [T][H] of bit patterns. */
  readonly x: readonly (readonly number[])[];
  /** [T][K]; -1 or numExperts for dropped choices. */
  readonly topkIdx: readonly (readonly number[])[];
  readonly topkWeights?: readonly (readonly number[])[];
}

/** One row of a rank's output, with where it came from. */
interface ReferenceLayerRow {
  readonly x: readonly number[];
  readonly weight: number;
  readonly sourceRank: number;
  readonly token: number;
  readonly choice: number;
  readonly expert: number;
}

/** What one rank gets from a layer's dispatch, as plain arrays. */
export interface ReferenceLayerReceived {
  readonly rows: readonly ReferenceLayerRow[];
  readonly numRecvTokensPerExpert: readonly number[];
}

/**
 * Rows of each rank's experts: by expert, then source rank, then token.
 * @param inputs By rank.
 * @param numExperts Of all ranks.
 */
export function referenceLayerDispatch(
  inputs: readonly ReferenceLayerInput[],
  numExperts: number,
): ReferenceLayerReceived[] {
  const perRank = numExperts / inputs.length;
  return inputs.map((_, rank) => {
    const experts = Array.from({ length: perRank }, (_unused, local) => rank * perRank + local);
    const blocks = experts.map((expert) => rowsOfExpert(inputs, expert));
    return { rows: blocks.flat(), numRecvTokensPerExpert: blocks.map((block) => block.length) };
  });
}

function rowsOfExpert(inputs: readonly ReferenceLayerInput[], expert: number): ReferenceLayerRow[] {
  return inputs.flatMap((input, sourceRank) =>
    input.topkIdx.flatMap((choices, token) =>
      choices.flatMap((chosen, choice) =>
        chosen === expert
          ? [
              {
                x: input.x[token] ?? [],
                weight: input.topkWeights?.[token]?.[choice] ?? 0,
                sourceRank,
                token,
                choice,
                expert,
              },
            ]
          : [],
      ),
    ),
  );
}

interface ReferenceLayerToken extends ReferenceHosts {
  readonly rank: number;
  readonly token: number;
  readonly hidden: number;
  readonly localCombine: boolean;
  /** Of the rows; 'bf16' by default. */
  readonly dtype?: TokenDType;
}

/** Which rows of a rank's output hold the same token. */
export interface ReferenceSkippedRows {
  /** Of each row, the row of its token's first choice here. */
  readonly firstRows: readonly number[];
  /** Of each row that is its token's first here, the row of each choice or -1; of the others -1. [recv][K]. */
  readonly duplicates: readonly (readonly number[])[];
}

/**
 * Which rows a dispatch that skips repeated tokens leaves out, and where they are copied from.
 * @param received What one rank gets.
 * @param topk Choices of a token.
 */
export function referenceSkippedRows({ rows }: ReferenceLayerReceived, topk: number): ReferenceSkippedRows {
  const rowsOf = rows.map((row) => {
    const byChoice = Array.from({ length: topk }, () => -1);
    for (const [index, other] of rows.entries()) {
      if (other.sourceRank === row.sourceRank && other.token === row.token) byChoice[other.choice] = index;
    }
    return byChoice;
  });
  const firstRows = rowsOf.map((byChoice) => byChoice.find((row) => row !== -1) ?? -1);
  const duplicates = rowsOf.map((byChoice, index) => (firstRows[index] === index ? byChoice : byChoice.map(() => -1)));
  return { firstRows, duplicates };
}

/**
 * The combined row of one token. `outputs[rank][row]` is what the experts made of each received row. The order of the
 * sum is, without local combine: hosts in order, within a host the choices in order. With it: a rank's rows first, as a
 * row of that rank rounded to the dtype; then hosts in order, within a host the ranks in the order of the token's first
 * choice. Either way the own host's rows count one by one, and another host's as their sum.
 * @param received From referenceLayerDispatch().
 * @param outputs By rank, then by received row.
 * @param of Which token of which rank, and where the ranks are.
 */
export function referenceLayerCombine(
  received: readonly ReferenceLayerReceived[],
  outputs: readonly (readonly (readonly number[])[])[],
  of: ReferenceLayerToken,
): number[] {
  const mine = received
    .flatMap(({ rows }, rank) => rows.map((row, index) => ({ ...row, rank, bits: outputs[rank]?.[index] ?? [] })))
    .filter((row) => row.sourceRank === of.rank && row.token === of.token)
    .toSorted((a, b) => a.choice - b.choice);
  if (!of.localCombine) return sumAcrossHosts([], mine, of);
  const ranks = [...new Set(mine.map(({ rank }) => rank))];
  const ofRanks = ranks.map((rank) => {
    const rows = mine.filter((row) => row.rank === rank).map(({ bits }) => bits);
    return { rank, bits: sumRows(rows, of.hidden, of.dtype) };
  });
  return sumAcrossHosts([], ofRanks, of);
}
