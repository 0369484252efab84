// The specification of EpBuffer, slow and obvious: what every rank receives and gets back, computed in one process.
import { alignUp } from '../abi/layout.ts';
import type { ReferenceInput } from './reference-input.ts';
import { type ReferenceHosts, rowsByHost, sumAcrossHosts } from './host-sums.ts';

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

interface ReferenceOptions {
  readonly numExperts: number;
  readonly expertAlignment?: number;
}

/**
 * Every token goes once to each rank that holds one of its experts; rows stand by source rank, then token index.
 * @param inputs What each rank passes.
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
export interface ReferenceCombineInput extends ReferenceHosts {
  /** What referenceDispatch returned. */
  readonly received: readonly ReferenceReceived[];
  /** outputs[rank][row]: bf16 rows that the experts of each rank made of what it received. */
  readonly outputs: readonly (readonly (readonly number[])[])[];
  /** weights[rank][row][k], or absent. */
  readonly weights?: readonly (readonly (readonly number[])[])[];
}

interface ReferenceToken {
  readonly rank: number;
  readonly token: number;
  readonly hidden: number;
  readonly topk: number;
  /** bf16 rows added first. */
  readonly bias?: readonly (readonly number[])[];
}

/**
 * The combined bf16 row of one token: bias, then the ranks' rows in rank order within a host and hosts in order, in f32;
 * what another host has is one row, the sum of its rows; rounded once.
 * @param input What each rank passes to combine().
 * @param of A token and its rank.
 */
export function referenceCombine(input: ReferenceCombineInput, of: ReferenceToken): number[] {
  const rows = rowsOf(input, of).map(({ rank, row }) => ({ rank, bits: input.outputs[rank]?.[row] ?? [] }));
  const { hosts, combinePrecision } = input;
  return sumAcrossHosts(of.bias ?? [], rows, { rank: of.rank, hidden: of.hidden, hosts, combinePrecision });
}

/**
 * The combined weights of one token: the ranks' weight rows in the same order, in f32, also between hosts.
 * @param input What each rank passes to combine().
 * @param of A token and its rank.
 */
export function referenceCombineWeights(input: ReferenceCombineInput, of: ReferenceToken): number[] {
  const ofHosts = rowsByHost(rowsOf(input, of), { rank: of.rank, hosts: input.hosts });
  return Array.from({ length: of.topk }, (_, k) => {
    const weight = ({ rank, row }: PlacedRow): number => input.weights?.[rank]?.[row]?.[k] ?? 0;
    const addends = ofHosts.flatMap(({ isOwn, rows }) => (isOwn ? rows.map(weight) : [sum(rows.map(weight))]));
    return sum(addends);
  });
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => Math.fround(total + value), 0);
}

interface PlacedRow {
  readonly rank: number;
  readonly row: number;
}

/** The rows of a token, each with the rank that received it. */
function rowsOf({ received }: ReferenceCombineInput, of: ReferenceToken): PlacedRow[] {
  return received.map((one, rank) => ({ rank, row: rowOf(one, of) })).filter(({ row }) => row !== -1);
}

function rowOf(received: ReferenceReceived, { rank, token }: ReferenceToken): number {
  return received.sourceToken.findIndex((source, row) => source === token && received.sourceRank[row] === rank);
}
