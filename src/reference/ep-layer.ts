// The specification of EPAll2AllLayer, slow and obvious: one row per (token, expert), grouped by expert; and of what its
// descriptor tells by node.
import type { TokenDType } from '../ep/layer/ep-config.ts';
import type { ReferenceInput } from './reference-input.ts';
import { type ReferenceHosts, sumAcrossHosts, sumRows } from './host-sums.ts';

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
 * @param inputs What each rank passes.
 * @param numExperts Experts of all ranks together.
 */
export function referenceLayerDispatch(
  inputs: readonly ReferenceInput[],
  numExperts: number,
): ReferenceLayerReceived[] {
  const perRank = numExperts / inputs.length;
  return inputs.map((_, rank) => {
    const experts = Array.from({ length: perRank }, (_unused, local) => rank * perRank + local);
    const blocks = experts.map((expert) => rowsOfExpert(inputs, expert));
    return { rows: blocks.flat(), numRecvTokensPerExpert: blocks.map((block) => block.length) };
  });
}

function rowsOfExpert(inputs: readonly ReferenceInput[], expert: number): ReferenceLayerRow[] {
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
  /** Dtype of the rows; 'bf16' by default. */
  readonly dtype?: TokenDType;
}

/** Rows of a rank's output that hold the same token. */
interface ReferenceSkippedRows {
  /** [recv]: for each row, the row of its token's first choice here. */
  readonly firstRows: readonly number[];
  /** [recv][K]: for a row that is its token's first here, the row of each choice or -1; for the others -1. */
  readonly duplicates: readonly (readonly number[])[];
}

/**
 * Finds which rows a dispatch that skips repeated tokens leaves out, and where they are copied from.
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
 * @param outputs Output rows of each rank, one for each received row.
 * @param of A token, its rank and the hosts of the ranks.
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

/** Tables by node, of the rank of each node that has the same place there as the rank that asks; -1 where there is nothing. */
interface ReferenceNodeLayout {
  /** [nodes][2][maxTokensPerRank]: begins and ends of ranges of consecutive tokens with an expert on this node, within tiles of 256. */
  readonly sendReqs: readonly (readonly (readonly number[])[])[];
  /** [nodes][maxTokensPerRank][K] */
  readonly topkIndices: readonly (readonly (readonly number[])[])[];
  /** [nodes][maxTokensPerRank][K]: rows at the ranks of this node. */
  readonly dstScatterIdx: readonly (readonly (readonly number[])[])[];
}

/** The rank whose descriptor is asked for, the nodes of all ranks, and sizes of the layer. */
interface ReferenceNodeOptions {
  readonly rank: number;
  /** Ranks of each node. */
  readonly hosts: readonly (readonly number[])[];
  readonly maxTokensPerRank: number;
  readonly maxTopk: number;
}

const TILE_TOKENS = 256;

/**
 * What the descriptor of a rank holds on several hosts.
 * @param inputs What each rank passes, as for referenceLayerDispatch().
 * @param received What that returned.
 * @param of The rank whose descriptor is asked for.
 */
export function referenceNodeLayout(
  inputs: readonly ReferenceInput[],
  received: readonly ReferenceLayerReceived[],
  { rank, hosts, maxTokensPerRank, maxTopk }: ReferenceNodeOptions,
): ReferenceNodeLayout {
  const mine = hosts.find((ranks) => ranks.includes(rank)) ?? [];
  const peers = hosts.map((ranks) => ranks[mine.indexOf(rank)]);
  const rowOf = (source: number, token: number, choice: number): number => {
    for (const owner of mine) {
      const rows = received[owner]?.rows ?? [];
      const row = rows.findIndex((one) => one.sourceRank === source && one.token === token && one.choice === choice);
      if (row !== -1) return row;
    }
    return -1;
  };
  const table = (cell: (peer: number, token: number, choice: number) => number): number[][][] =>
    peers.map((peer) =>
      Array.from({ length: maxTokensPerRank }, (_, token) =>
        Array.from({ length: maxTopk }, (_unused, choice) => (peer === undefined ? -1 : cell(peer, token, choice))),
      ),
    );
  const dstScatterIdx = table(rowOf);
  const requests = (peer: number | undefined, node: number): number[][] => {
    const come = (token: number): boolean => dstScatterIdx[node]?.[token]?.some((row) => row !== -1) ?? false;
    const all = Array.from({ length: maxTokensPerRank }, (_, token) => token);
    const tokens = peer === undefined || peer === rank ? [] : all.filter(come);
    const begins = tokens.filter((token) => !tokens.includes(token - 1) || token % TILE_TOKENS === 0);
    const ends = tokens.filter((token) => !tokens.includes(token + 1) || (token + 1) % TILE_TOKENS === 0);
    const filled = (values: readonly number[]): number[] => all.map((at) => values[at] ?? -1);
    return [filled(begins), filled(ends.map((token) => token + 1))];
  };
  return {
    sendReqs: peers.map(requests),
    topkIndices: table((peer, token, choice) => inputs[peer]?.topkIdx[token]?.[choice] ?? -1),
    dstScatterIdx,
  };
}
