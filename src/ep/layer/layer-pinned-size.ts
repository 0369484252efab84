// What the network side of a layer on GPUs takes, from its configuration and the ranks of each host.
import { networkChoiceRowBytes, networkSumBytes } from '../../abi/network.ts';
import { dtypes } from '../../core/dtype.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import { type PinnedNetworkSize, pinnedNetworkSize } from '../across-hosts/pinned-network-size.ts';
import { sumBytes } from '../combine-precision.ts';
import type { EPConfig } from './ep-config.ts';

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
  const wireSumBytes = networkSumBytes(sumBytes(hidden, tokenDtype, combinePrecision), 0);
  return pinnedNetworkSize({ hosts, maxTokensPerRank, experts, wireRowBytes, wireSumBytes });
}

/** Sums cross the network as f32, unlike the rows. */
export function isWideSum({ tokenDtype, combinePrecision }: EPConfig): boolean {
  return combinePrecision === 'f32' && tokenDtype !== 'f32';
}
