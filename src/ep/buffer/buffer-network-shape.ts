// The shape of an EpBuffer's network side, from its configuration and the ranks of each host.
import { FP8_GROUP } from '../../abi/element-formats.ts';
import type { Hosts } from '../../group/network/host-routes.ts';
import { networkRowBytes, networkSumBytes } from '../../abi/network.ts';
import type { NetworkShape } from '../across-hosts/network-size.ts';
import { type PinnedNetworkSize, pinnedNetworkSize } from '../across-hosts/pinned-network-size.ts';
import { withinRdmaBytes } from '../across-hosts/rdma-bytes.ts';
import { type CombinePrecision, sumBytes } from '../combine-precision.ts';

/** What of an EpBuffer's configuration its network side depends on. */
interface BufferNetworkConfig {
  readonly hidden: number;
  readonly maxTopk: number;
  readonly maxTokensPerRank: number;
  readonly combinePrecision?: CombinePrecision;
  readonly numRdmaBytes?: number;
}

/**
 * Pure. A token has a place per rank of a host; choices of 8 bytes, weights and scales are the most that travels with it.
 * Fails with WL_INVALID_ARGUMENT if numRdmaBytes are too few.
 */
export function bufferNetworkShape(config: BufferNetworkConfig, hosts: Hosts): NetworkShape {
  const { hidden, maxTopk, maxTokensPerRank } = config;
  const { combinePrecision = 'bf16', numRdmaBytes = 0 } = config;
  const shape = {
    hosts,
    maxTokensPerRank,
    columns: Math.max(...hosts.map(({ length }) => length)),
    hasRanks: false,
    topkBytes: maxTopk * 8,
    weightBytes: maxTopk * 4,
    scaleBytes: Math.ceil(hidden / FP8_GROUP) * 4,
    sumBytes: sumBytes(hidden, 'bf16', combinePrecision),
    sumWeightBytes: maxTopk * 4,
  };
  return withinRdmaBytes(shape, numRdmaBytes);
}

/** Of GPUs: everything that goes with a row travels behind it. Rows of bf16 are the longest. */
export function pinnedBufferNetwork(
  { hidden, numExperts: experts }: BufferNetworkConfig & { readonly numExperts: number },
  shape: NetworkShape,
): PinnedNetworkSize {
  const { hosts, maxTokensPerRank } = shape;
  const wireRowBytes = networkRowBytes({ ...shape, rowBytes: hidden * 2, places: shape.columns });
  const wireSumBytes = networkSumBytes(shape.sumBytes, shape.sumWeightBytes);
  return pinnedNetworkSize({ hosts, maxTokensPerRank, experts, wireRowBytes, wireSumBytes });
}
