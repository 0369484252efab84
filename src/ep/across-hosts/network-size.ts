// What the network side of a CPU rank takes: regions of a window of its own, whose sizes follow from the configuration and
// the ranks of each host alone. No routing needs more: a token crosses to a host once.
import { networkCellsBytes } from '../../abi/network-cells.ts';
import { type Hosts, maxServed } from '../../collective/network/host-routes.ts';
import { layOutRegions, type WindowRegion } from '../../windows/region-layout.ts';

/** Per token, in bytes or numbers. */
export interface NetworkShape {
  readonly hosts: Hosts;
  /** Most tokens of any rank. */
  readonly maxTokens: number;
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
 * `cells`: signals of peers are counted there. `landed`: a slot per source that this rank serves, what travels beside rows.
 * `packed`: the same of this rank, a slot per other host, before it leaves. `sums`, `sumWeights`: a slot per source served,
 * what combine brings back to it. `hostRows`, `hostWeights`: a slot per other host, what comes back from there.
 */
export type NetworkRegion = 'cells' | 'landed' | 'packed' | 'sums' | 'sumWeights' | 'hostRows' | 'hostWeights';

/** Arrays of one slot of `landed` and `packed`. */
export type SlotArray = 'tokens' | 'places' | 'ranks' | 'topkIdx' | 'topkWeights' | 'scales';

/** What the network side of a rank takes, in bytes of host memory. */
export interface NetworkSize {
  /** Bytes of one rank's window. */
  readonly bytes: number;
  readonly regions: Readonly<Record<NetworkRegion, WindowRegion>>;
  /** Offsets within a slot, whose length is `slotBytes`. */
  readonly slot: Readonly<Record<SlotArray, WindowRegion>>;
  readonly slotBytes: number;
}

/** Pure; all ranks get the same, also where hosts have different numbers of ranks. */
export function networkSize(shape: NetworkShape): NetworkSize {
  const { hosts, maxTokens } = shape;
  const others = hosts.length - 1;
  const served = maxServed(hosts);
  const places = maxTokens * shape.columns * 4;
  const { bytes: slotBytes, regions: slot } = layOutRegions<SlotArray>({
    tokens: maxTokens * 4,
    places,
    ranks: shape.hasRanks ? places : 0,
    topkIdx: maxTokens * shape.topkBytes,
    topkWeights: maxTokens * shape.weightBytes,
    scales: maxTokens * shape.scaleBytes,
  });
  const { bytes, regions } = layOutRegions<NetworkRegion>({
    cells: networkCellsBytes(hosts.reduce((sum, ranks) => sum + ranks.length, 0)),
    landed: served * slotBytes,
    packed: others * slotBytes,
    sums: served * maxTokens * shape.sumBytes,
    sumWeights: served * maxTokens * shape.sumWeightBytes,
    hostRows: others * maxTokens * shape.sumBytes,
    hostWeights: others * maxTokens * shape.sumWeightBytes,
  });
  return { bytes, regions, slot, slotBytes };
}
