// What a layer's memory takes: its output, one row per received (token, expert), sized by capacity, and what does not grow.
import { exchangeRegionBytes } from '../../abi/exchange-record.ts';
import { alignUp } from '../../abi/layout.ts';
import { networkChoiceRowBytes, networkSumBytes } from '../../abi/network.ts';
import { isWhole } from '../../core/check-options.ts';
import { dtypes } from '../../core/dtype.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { Hosts } from '../../group/network/host-routes.ts';
import { layOutRegions, type WindowRegion } from '../../windows/region-layout.ts';
import { windowFootprint } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import {
  type NetworkShape,
  networkSize,
  type NetworkSize,
  numberHosts,
  type PinnedNetworkSize,
  pinnedNetworkSize,
  bytesOfSum,
  withinRdmaBytes,
} from '../across-hosts/network-size.ts';
import { EPConfig } from './ep-config.ts';
import type { MemorySize } from '../memory-size.ts';

/** Reallocation rounds rows up to this, so that growth comes in few steps. */
const ROW_STEP = 1024;
/** How much more than needed a reallocation takes. */
const GROWTH = 1.25;

/** `expertRows` is where combine reads: the memory of `rows`, unless dispatch's rows must stay as they are. */
export type OutputRegion = 'rows' | 'expertRows' | 'weights' | 'sourceToken' | 'firstRow' | 'duplicates' | 'repeated';

/** What a layer takes for so many received rows. `bytes` are those of the window with the output. */
export interface OutputSize extends MemorySize {
  /** Rows that fit. */
  readonly capacityRows: number;
  /** Bytes of one rank's window with what ranks tell each other. */
  readonly controlBytes: number;
  /** @internal */
  readonly regions: Readonly<Record<OutputRegion, WindowRegion>>;
  /**
   * With several hosts, what a rank has besides for the network, in memory of its own. It depends on tokens, ranks and hosts
   * and not on the routing, since a token crosses to a host once. Undefined on one host.
   */
  readonly network: NetworkSize | undefined;
}

/** Rows for a new context: `capacity` times a balanced load, never more than can arrive. */
export function initialRows(config: EPConfig, capacity: number): number {
  return Math.min(Math.ceil(config.maxTokensPerRank * config.maxTopk * capacity), config.maxRecvRows);
}

/** Rows after growing for `needed`, never more than can arrive. */
export function grownRows(config: EPConfig, needed: number): number {
  return Math.min(alignUp(Math.ceil(needed * GROWTH), ROW_STEP), config.maxRecvRows);
}

/**
 * Pure: bytes and offsets for `capacityRows` rows. Fails with WL_INVALID_ARGUMENT.
 * @param config The layer's.
 * @param capacityRows Received rows that fit.
 * @param ranksOfHosts Ranks of each host; by default localWorldSize on each but the last, which has the rest.
 */
export function outputSize(config: EPConfig, capacityRows: number, ranksOfHosts?: readonly number[]): OutputSize {
  if (!(config instanceof EPConfig)) throw invalidArgument('config', config, 'an EPConfig');
  if (!isWhole(capacityRows, 0)) throw invalidArgument('capacityRows', capacityRows, 'a whole number of at least 0');
  return sizeOn(config, capacityRows, ranksOfHosts ?? evenHosts(config));
}

function sizeOn(config: EPConfig, capacityRows: number, ranksOfHosts: readonly number[]): OutputSize {
  const numbered = numberHosts(ranksOfHosts, config.worldSize);
  const hosts = numbered.length === 1 ? 0 : numbered.length;
  const { bytes, regions } = layOutRegions<OutputRegion>({
    rows: capacityRows * config.rowBytes,
    expertRows: config.keepDispatchOutput ? capacityRows * config.rowBytes : 'rows',
    weights: capacityRows * dtypes[config.weightDtype].bytes,
    sourceToken: capacityRows * 4,
    firstRow: capacityRows * 4,
    duplicates: capacityRows * config.maxTopk * 4,
    // A token that is repeated has two rows at least.
    repeated: Math.floor(capacityRows / 2) * 4,
  });
  const controlBytes = exchangeRegionBytes({ ranks: config.worldSize, experts: config.numExperts, hosts });
  const network = hosts === 0 ? undefined : networkSize(layerNetworkShape(config, numbered));
  const local = Math.max(...ranksOfHosts);
  const windows = windowFootprint(bytes, local) + windowFootprint(controlBytes, local);
  const addressSpaceBytes = windows + (network?.bytes ?? 0);
  const sharedMemoryBytes = config.worldSize === 1 ? 0 : windows;
  return { capacityRows, bytes, controlBytes, addressSpaceBytes, sharedMemoryBytes, regions, network };
}

function evenHosts({ worldSize, localWorldSize }: EPConfig): number[] {
  const hosts = Math.ceil(worldSize / localWorldSize);
  return Array.from({ length: hosts }, (_, host) => Math.min(localWorldSize, worldSize - host * localWorldSize));
}

/** Pure. A token has a place per choice. Fails with WL_INVALID_ARGUMENT if numRdmaBytes are too few. */
export function layerNetworkShape(config: EPConfig, hosts: Hosts): NetworkShape {
  const shape = {
    hosts,
    maxTokensPerRank: config.maxTokensPerRank,
    columns: config.maxTopk,
    hasRanks: true,
    // Expert ids of all tokens, for the layout descriptor.
    topkBytes: config.maxTopk * 4,
    weightBytes: config.maxTopk * dtypes[config.weightDtype].bytes,
    scaleBytes: 0,
    sumBytes: bytesOfSum(config.hidden, config.tokenDtype, config.combinePrecision),
    sumWeightBytes: 0,
  };
  return withinRdmaBytes(shape, config.numRdmaBytes);
}

// What the network side of a layer on GPUs takes, from its configuration and the ranks of each host.

/** Undefined in a group on one host. A row of a token travels once to a host, with the places of all its choices there. */
export function layerPinnedSize(
  {
    maxTokensPerRank,
    maxTopk: topk,
    hidden,
    numExperts: experts,
    rowBytes,
    tokenDtype,
    weightDtype,
    combinePrecision,
  }: EPConfig,
  { topology: { hosts } }: Pick<RankGroup, 'topology'>,
): PinnedNetworkSize | undefined {
  if (hosts.length === 1) return undefined;
  const ranks = Math.max(...hosts.map(({ length }) => length));
  const weightBytes = dtypes[weightDtype].bytes;
  const wireRowBytes = networkChoiceRowBytes({ rowBytes, topk, ranks, weightBytes });
  const sums = networkSumBytes(bytesOfSum(hidden, tokenDtype, combinePrecision), 0);
  return pinnedNetworkSize({ hosts, maxTokensPerRank, experts, wireRowBytes, wireSumBytes: sums });
}

/** Sums cross the network as f32, unlike the rows. */
export function isWideSum({ tokenDtype, combinePrecision }: EPConfig): boolean {
  return combinePrecision === 'f32' && tokenDtype !== 'f32';
}
