// The shape of a layer's network side, from its configuration and the ranks of each host.
import type { Hosts } from '../../group/network/host-routes.ts';
import { dtypes } from '../../core/dtype.ts';
import type { NetworkShape } from '../across-hosts/network-size.ts';
import { withinRdmaBytes } from '../across-hosts/rdma-bytes.ts';
import { sumBytes } from '../combine-precision.ts';
import type { EPConfig } from './ep-config.ts';

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
    sumBytes: sumBytes(config.hidden, config.tokenDtype, config.combinePrecision),
    sumWeightBytes: 0,
  };
  return withinRdmaBytes(shape, config.numRdmaBytes);
}
