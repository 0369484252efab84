// The specification of what a layer's descriptor tells by node, slow and obvious.
import type { ReferenceLayerInput, ReferenceLayerReceived } from './reference-layer.ts';

/** Tables by node, of the rank of each node that has the same place there as the rank that asks; -1 where there is nothing. */
export interface ReferenceNodeLayout {
  /** [nodes][2][maxTokensPerRank]: begins and ends of ranges of consecutive tokens with an expert on this node, within tiles of 256. */
  readonly sendReqs: readonly (readonly (readonly number[])[])[];
  /** [nodes][maxTokensPerRank][K] */
  readonly topkIndices: readonly (readonly (readonly number[])[])[];
  /** [nodes][maxTokensPerRank][K]: rows at the ranks of this node. */
  readonly dstScatterIdx: readonly (readonly (readonly number[])[])[];
}

/** Whose descriptor, and where the ranks are. */
export interface ReferenceNodeOptions {
  readonly rank: number;
  /** Ranks of each node. */
  readonly hosts: readonly (readonly number[])[];
  readonly maxTokensPerRank: number;
  readonly maxTopk: number;
}

const TILE_TOKENS = 256;

/**
 * What the descriptor of a rank holds on several hosts.
 * @param inputs By rank, as for referenceLayerDispatch().
 * @param received What that returned.
 * @param of Whose descriptor.
 */
export function referenceNodeLayout(
  inputs: readonly ReferenceLayerInput[],
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
