// What the network side of a CPU rank takes: regions of memory of its own, whose sizes follow from the configuration and
// the ranks of each host alone. No routing needs more: a token crosses to a host once.
import { NETWORK_ABORT_BYTES, networkCellsBytes } from '../../abi/network.ts';
import { NETWORK_CHUNKS } from '../../group/network/chunk-size.ts';
import { type Hosts, maxServed } from '../../group/network/host-routes.ts';
import { layOutRegions, type WindowRegion } from '../../windows/region-layout.ts';

/** Per token, in bytes or numbers. */
export interface NetworkShape {
  readonly hosts: Hosts;
  /** Most tokens of any rank. */
  readonly maxTokensPerRank: number;
  /**
   * Tokens whose sums fit between two ranks at a time, the default all of them: with fewer, combine waits for the other side
   * to take sums before it sends more.
   */
  readonly sumTokens?: number;
  /** Places of a token on one host: one per rank there, or one per choice. */
  readonly columns: number;
  /** Each place comes with the position of its rank on the host. */
  readonly hasRanks: boolean;
  /** Most bytes of a token's choices, weights and scales that travel with its row. */
  readonly topkBytes: number;
  readonly weightBytes: number;
  readonly scaleBytes: number;
  /** Of a row that combine brings back, and of the weights with it. */
  readonly sumBytes: number;
  readonly sumWeightBytes: number;
}

/**
 * `cells`: signals of peers are counted there. `aborts`: why a peer gave up, a slot per rank; this rank's own before it leaves
 * is its own slot. `landed`: a slot per source that this rank serves, what travels beside rows.
 * `packed`: the same of this rank, a slot per other host, before it leaves. `sums`, `sumWeights`: a slot per source served,
 * what combine brings back to it. `hostRows`, `hostWeights`: a slot per other host, what comes back from there.
 */
export type NetworkRegion =
  | 'cells'
  | 'aborts'
  | 'landed'
  | 'packed'
  | 'sums'
  | 'sumWeights'
  | 'hostRows'
  | 'hostWeights';

/** Arrays of one slot of `landed` and `packed`. */
export type SlotArray = 'tokens' | 'places' | 'ranks' | 'topkIdx' | 'topkWeights' | 'scales';

/** What the network side of a rank takes, in bytes of host memory. */
export interface NetworkSize {
  /** Memory of one rank, which no other rank of its host maps; the caller's if it passes some. */
  readonly memory: 'private';
  readonly bytes: number;
  readonly regions: Readonly<Record<NetworkRegion, WindowRegion>>;
  /** Offsets within a slot, whose length is `slotBytes`. */
  readonly slot: Readonly<Record<SlotArray, WindowRegion>>;
  readonly slotBytes: number;
  readonly sumRing: SumRing;
}

/** Places of sums between two ranks. Where not all tokens have one, they are used in turn. */
export interface SumRing {
  /** Tokens whose sums one signal stands for. */
  readonly chunk: number;
  /** How many chunks there are places for. */
  readonly chunks: number;
  /** Tokens that there is memory for. */
  readonly sumTokens: number;
}

/** Rows of that many bytes that one signal stands for, of `tokens` rows in all. */
export function chunkTokens(rowBytes: number, tokens: number): number {
  const { count, leastBytes, mostBytes } = NETWORK_CHUNKS;
  const bytes = Math.min(mostBytes, Math.max(leastBytes, (tokens * rowBytes) / count));
  return Math.max(1, Math.floor(bytes / rowBytes));
}

function ringOf({ maxTokensPerRank, sumTokens = maxTokensPerRank, sumBytes }: NetworkShape): SumRing {
  const most = chunkTokens(sumBytes, maxTokensPerRank);
  if (sumTokens >= maxTokensPerRank) return { chunk: most, chunks: Math.ceil(maxTokensPerRank / most), sumTokens };
  // Of two chunks one can be summed while the other is under way.
  const chunk = Math.min(most, Math.max(1, Math.floor(sumTokens / 2)));
  return { chunk, chunks: Math.floor(sumTokens / chunk), sumTokens };
}

/** Pure; all ranks get the same, also where hosts have different numbers of ranks. */
export function networkSize(shape: NetworkShape): NetworkSize {
  const { hosts, maxTokensPerRank, sumTokens = maxTokensPerRank } = shape;
  const others = hosts.length - 1;
  const served = maxServed(hosts);
  const places = maxTokensPerRank * shape.columns * 4;
  const { bytes: slotBytes, regions: slot } = layOutRegions<SlotArray>({
    tokens: maxTokensPerRank * 4,
    places,
    ranks: shape.hasRanks ? places : 0,
    topkIdx: maxTokensPerRank * shape.topkBytes,
    topkWeights: maxTokensPerRank * shape.weightBytes,
    scales: maxTokensPerRank * shape.scaleBytes,
  });
  const ranks = hosts.reduce((sum, { length }) => sum + length, 0);
  const { bytes, regions } = layOutRegions<NetworkRegion>({
    cells: networkCellsBytes(ranks),
    aborts: ranks * NETWORK_ABORT_BYTES,
    landed: served * slotBytes,
    packed: others * slotBytes,
    sums: served * sumTokens * shape.sumBytes,
    sumWeights: served * sumTokens * shape.sumWeightBytes,
    hostRows: others * sumTokens * shape.sumBytes,
    hostWeights: others * sumTokens * shape.sumWeightBytes,
  });
  return { memory: 'private', bytes, regions, slot, slotBytes, sumRing: ringOf(shape) };
}
