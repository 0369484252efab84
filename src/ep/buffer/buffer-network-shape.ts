// The shape of an EpBuffer's network side, from its configuration and the ranks of each host.
import { FP8_GROUP } from '../../abi/element-formats.ts';
import type { Hosts } from '../../collective/network/host-routes.ts';
import type { NetworkShape } from '../across-hosts/network-size.ts';
import { type CombinePrecision, sumBytes } from '../combine-precision.ts';

/** What of an EpBuffer's configuration its network side depends on. */
export interface BufferNetworkConfig {
  readonly hidden: number;
  readonly maxTopk: number;
  readonly maxTokensPerRank: number;
  readonly combinePrecision?: CombinePrecision;
}

/** Pure. A token has a place per rank of a host; choices of 8 bytes, weights and scales are the most that travels with it. */
export function bufferNetworkShape(config: BufferNetworkConfig, hosts: Hosts): NetworkShape {
  const { hidden, maxTopk, maxTokensPerRank: maxTokens, combinePrecision = 'bf16' } = config;
  return {
    hosts,
    maxTokens,
    columns: Math.max(...hosts.map(({ length }) => length)),
    hasRanks: false,
    topkBytes: maxTopk * 8,
    weightBytes: maxTopk * 4,
    scaleBytes: Math.ceil(hidden / FP8_GROUP) * 4,
    sumBytes: sumBytes(hidden, 'bf16', combinePrecision),
    sumWeightBytes: maxTopk * 4,
  };
}
