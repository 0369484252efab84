// What an EpBuffer takes: its configuration, the regions of a rank's window and their sizes, before anything is allocated.
import { FP8_GROUP } from '../../abi/element-formats.ts';
import { exchangeRegionBytes } from '../../abi/exchange-record.ts';
import { networkRowBytes, networkSumBytes } from '../../abi/network.ts';
import {
  checkRules,
  isWhole,
  multipleOf,
  oneOf,
  type OptionNames,
  optional,
  type OptionRules,
  wholeFrom,
} from '../../core/check-options.ts';
import type { WaitOptions } from '../../core/deadline.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { Hosts } from '../../group/network/host-routes.ts';
import { layOutRegions, type WindowRegion } from '../../windows/region-layout.ts';
import { windowFootprint } from '../../windows/symmetric-window.ts';
import {
  type CombinePrecision,
  combinePrecisions,
  type NetworkShape,
  networkSize,
  type NetworkSize,
  numberHosts,
  type PinnedNetworkSize,
  pinnedNetworkSize,
  requirePinnedBytes,
  bytesOfSum,
  withinRdmaBytes,
} from '../across-hosts/network-size.ts';
import type { MemorySize } from '../memory-size.ts';

export const MAX_TOPK = 32;

/** What an EpBuffer is made for. All ranks pass the same. */
export interface EpBufferConfig {
  /** Most tokens that any rank passes to one dispatch. */
  readonly maxTokensPerRank: number;
  /** Elements of a token, a multiple of 8. */
  readonly hidden: number;
  /** Experts of all ranks together, a multiple of the number of ranks; rank r holds a contiguous r-th part. */
  readonly numExperts: number;
  /** Most choices per token, 1 to 32. */
  readonly maxTopk: number;
  /**
   * Where combine() reads from. 'separate' (default): rows of their own, so that received rows survive. 'shared': the
   * memory of the received rows, half the window; the expert output overwrites them.
   */
  readonly combineRows?: 'separate' | 'shared';
  /**
   * What a host's sum of a token's rows travels to another host as: rounded to bf16 (default), or as 'f32', twice the bytes.
   * On one host it makes no difference.
   */
  readonly combinePrecision?: CombinePrecision;
  /**
   * Most bytes of a rank's network side. 0, the default: as many as all tokens need at once. With fewer, combine moves sums in
   * rounds. On one host it makes no difference.
   */
  readonly numRdmaBytes?: number;
  /** Multiprocessors for the kernels of a GPU, 16 by default; CPU ranks ignore it: they work on one thread. */
  readonly numSms?: number;
}

/** Fills in what a configuration leaves out. */
export function withDefaults(config: EpBufferConfig): Required<EpBufferConfig> {
  // What is no object has no fields either, and is refused with the rest on all ranks.
  const { combineRows = 'separate', combinePrecision = 'bf16', numRdmaBytes = 0, numSms = 16 } = config ?? {};
  return { ...config, combineRows, combinePrecision, numRdmaBytes, numSms };
}

/** A part of a rank's window. */
export type EpRegion =
  | 'exchange'
  | 'rows'
  | 'scales'
  | 'topkIdx'
  | 'topkWeights'
  | 'sourceToken'
  | 'combineRows'
  | 'combineWeights';

/** What an EpBuffer takes. */
export interface EpBufferSize extends MemorySize {
  /** Received rows in the worst case: every rank sends all its tokens here. */
  readonly maxRecvTokens: number;
  /** @internal */
  readonly regions: Readonly<Record<EpRegion, WindowRegion>>;
  /**
   * With several hosts, what a rank has besides for the network, in host memory of its own that its carrier reads and writes;
   * for GPUs it is pinned. It depends on tokens, ranks and hosts and not on the routing, since a token crosses to a host once.
   * Undefined on one host.
   */
  readonly network: NetworkSize | PinnedNetworkSize | undefined;
}

/** The ranks' devices decide which memory the network side is in. */
export interface SizesByDevice {
  readonly cpu: EpBufferSize & { readonly network: NetworkSize | undefined };
  readonly cuda: EpBufferSize & { readonly network: PinnedNetworkSize | undefined };
}

/**
 * Sizes of an EpBuffer over `numRanks` ranks. Pure; fails with WL_INVALID_ARGUMENT, or with WL_UNSUPPORTED where the network side
 * of a GPU would be larger than 4 GiB.
 * @param config As EpBuffer.create() takes it.
 * @param numRanks 1 or more; divides numExperts.
 * @param ranksOfHosts Ranks of each host, whose sum is `numRanks`; all on one by default.
 * @param device Of the ranks; 'cpu' by default.
 */
export function bufferSize<Kind extends keyof SizesByDevice = 'cpu'>(
  config: EpBufferConfig,
  numRanks: number,
  ranksOfHosts: readonly number[] = [numRanks],
  device?: Kind,
): SizesByDevice[Kind] {
  checkConfig(config, numRanks);
  const numbered = numberHosts(ranksOfHosts, numRanks);
  const hosts = ranksOfHosts.length === 1 ? 0 : ranksOfHosts.length;
  const rows = numRanks * config.maxTokensPerRank;
  const rowBytes = config.hidden * 2;
  const { bytes, regions } = layOutRegions<EpRegion>({
    exchange: exchangeRegionBytes({ ranks: numRanks, experts: config.numExperts, hosts }),
    rows: rows * rowBytes,
    scales: rows * Math.ceil(config.hidden / FP8_GROUP) * 4,
    topkIdx: rows * config.maxTopk * 8,
    topkWeights: rows * config.maxTopk * 4,
    sourceToken: rows * 4,
    combineRows: config.combineRows === 'shared' ? 'rows' : rows * rowBytes,
    combineWeights: rows * config.maxTopk * 4,
  });
  const isCuda = device === 'cuda';
  const network =
    hosts === 0 ? undefined : isCuda ? pinnedSize(config, numbered) : networkSize(bufferNetworkShape(config, numbered));
  const local = Math.max(...ranksOfHosts);
  const windows = windowFootprint(bytes, local);
  const addressSpaceBytes = windows + (network?.bytes ?? 0);
  const sharedMemoryBytes = numRanks === 1 || isCuda ? 0 : windows;
  const size: EpBufferSize = { bytes, maxRecvTokens: rows, addressSpaceBytes, sharedMemoryBytes, regions, network };
  return size as SizesByDevice[Kind];
}

function pinnedSize({ numRdmaBytes = 0, ...config }: EpBufferConfig, hosts: Hosts): PinnedNetworkSize {
  const shape = bufferNetworkShape(config, hosts);
  const size = pinnedBufferNetwork(config, shape);
  requirePinnedBytes(size.bytes, numRdmaBytes);
  return size;
}

/** Rules of what all modes are made for, but numExperts, which depends on the ranks. */
export const epRules = {
  maxTokensPerRank: wholeFrom(1),
  hidden: multipleOf(8),
  numExperts: true,
  maxTopk: wholeFrom(1, MAX_TOPK),
} as const;

const configRules: OptionRules<EpBufferConfig> = {
  ...epRules,
  combineRows: optional(oneOf('separate', 'shared')),
  combinePrecision: optional(oneOf(...combinePrecisions)),
  numRdmaBytes: optional(wholeFrom(0)),
  numSms: optional(wholeFrom(1)),
};

function checkConfig(config: EpBufferConfig, numRanks: number): void {
  checkRules(config, configRules, 'configuration of EpBuffer');
  requireExperts(config.numExperts, numRanks);
}

/** Fails with WL_INVALID_ARGUMENT unless the ranks share the experts evenly. */
export function requireExperts(numExperts: number, numRanks: number): void {
  if (!isWhole(numRanks, 1)) throw invalidArgument('numRanks', numRanks, 'a whole number of at least 1');
  if (isWhole(numExperts, 1) && numExperts % numRanks === 0) return;
  throw invalidArgument('numExperts', numExperts, `a positive multiple of the ${numRanks} ranks`);
}

// The shape of an EpBuffer's network side, from its configuration and the ranks of each host.

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
    sumBytes: bytesOfSum(hidden, 'bf16', combinePrecision),
    sumWeightBytes: maxTopk * 4,
  };
  return withinRdmaBytes(shape, numRdmaBytes);
}

/** On GPUs everything that goes with a row travels behind it. Rows of bf16 are the longest. */
function pinnedBufferNetwork(
  { hidden, numExperts: experts }: BufferNetworkConfig & { readonly numExperts: number },
  shape: NetworkShape,
): PinnedNetworkSize {
  const { hosts, maxTokensPerRank } = shape;
  const wireRowBytes = networkRowBytes({ ...shape, rowBytes: hidden * 2, places: shape.columns });
  const sums = networkSumBytes(shape.sumBytes, shape.sumWeightBytes);
  return pinnedNetworkSize({ hosts, maxTokensPerRank, experts, wireRowBytes, wireSumBytes: sums });
}

// What EpBuffer.create() takes besides the configuration that all ranks share.

/** Options of EpBuffer.create(). */
export interface EpBufferOptions extends WaitOptions {
  /**
   * Memory of this rank's device for the network side, `bufferSize(…).network.bytes` at least: [bytes]. Peers write to it
   * until the buffer is closed; it stays the caller's, who closes it after that. Made by the buffer if it is absent, and not
   * used on one host. On a GPU that no RDMA device reaches create() fails with WL_UNSUPPORTED, and says why.
   */
  readonly rdmaBuffer?: Tensor<'u8'>;
}

export const epBufferOptionNames: OptionNames<EpBufferOptions> = { rdmaBuffer: true, timeoutMs: true, signal: true };
