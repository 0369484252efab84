// What an EpBuffer takes: its configuration, the regions of a rank's window and their sizes, before anything is allocated.
import { FP8_GROUP } from '../../abi/element-formats.ts';
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { exchangeRegionBytes } from '../../abi/exchange-record.ts';
import { invalidArgument } from '../../core/errors.ts';
import { type CombinePrecision, combinePrecisions } from '../combine-precision.ts';
import { networkSize, type NetworkSize } from '../across-hosts/network-size.ts';
import { bufferNetworkShape } from './buffer-network-shape.ts';
import { layOutRegions, type WindowRegion } from '../../windows/region-layout.ts';
import { windowFootprint } from '../../windows/symmetric-window.ts';

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
  /** Multiprocessors for the kernels of a GPU, 16 by default; CPU ranks ignore it: they work on one thread. */
  readonly numSms?: number;
}

/** Fills in what a configuration leaves out. */
export function withDefaults(config: EpBufferConfig): Required<EpBufferConfig> {
  return { combineRows: 'separate', combinePrecision: 'bf16', numSms: 16, ...config };
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

/** What an EpBuffer takes, in bytes of each rank's window. */
export interface EpBufferSize {
  /** Bytes of one rank's window. */
  readonly bytes: number;
  /** Received rows in the worst case: every rank sends all its tokens here. */
  readonly maxRecvTokens: number;
  /** Address space that each rank of the host with most ranks maps: all windows of its host and their headers. */
  readonly addressSpaceBytes: number;
  readonly regions: Readonly<Record<EpRegion, WindowRegion>>;
  /**
   * With several hosts, what a rank has besides for the network, in a window of host memory that its carrier reads and writes.
   * It depends on tokens, ranks and hosts and not on the routing, since a token crosses to a host once. Undefined on one host.
   */
  readonly network: NetworkSize | undefined;
}

/**
 * Sizes of an EpBuffer over `numRanks` ranks. Pure; fails with WL_INVALID_ARGUMENT.
 * @param config As EpBuffer.create() takes it.
 * @param numRanks 1 or more; divides numExperts.
 * @param ranksOfHosts Ranks of each host, whose sum is `numRanks`; all on one by default.
 */
export function bufferSize(
  config: EpBufferConfig,
  numRanks: number,
  ranksOfHosts: readonly number[] = [numRanks],
): EpBufferSize {
  checkConfig(config, numRanks);
  const sum = ranksOfHosts.reduce((total, count) => total + count, 0);
  if (sum !== numRanks || !ranksOfHosts.every((count) => isWhole(count, 1))) {
    throw invalidArgument('ranksOfHosts', ranksOfHosts, `whole numbers of at least 1 whose sum is ${numRanks}`);
  }
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
  const network = hosts === 0 ? undefined : networkSize(bufferNetworkShape(config, numberRanks(ranksOfHosts)));
  const local = Math.max(...ranksOfHosts);
  const addressSpaceBytes = windowFootprint(bytes, local) + (network ? windowFootprint(network.bytes, local) : 0);
  return { bytes, maxRecvTokens: rows, addressSpaceBytes, regions, network };
}

/** The ranks of each host, numbered host by host: sizes depend on how many there are alone. */
function numberRanks(ranksOfHosts: readonly number[]): number[][] {
  let next = 0;
  return ranksOfHosts.map((count) => Array.from({ length: count }, () => next++));
}

const configNames: OptionNames<EpBufferConfig> = {
  maxTokensPerRank: true,
  hidden: true,
  numExperts: true,
  maxTopk: true,
  combineRows: true,
  combinePrecision: true,
  numSms: true,
};

function checkConfig(config: EpBufferConfig, numRanks: number): void {
  checkOptions(config, configNames, 'configuration of EpBuffer');
  const { maxTokensPerRank, hidden, numExperts, maxTopk, combineRows = 'separate' } = config;
  if (!isWhole(numRanks, 1)) throw invalidArgument('numRanks', numRanks, 'a whole number of at least 1');
  if (!isWhole(maxTokensPerRank, 1)) {
    throw invalidArgument('maxTokensPerRank', maxTokensPerRank, 'a whole number of at least 1');
  }
  if (!isWhole(hidden, 8) || hidden % 8 !== 0) throw invalidArgument('hidden', hidden, 'a positive multiple of 8');
  if (!isWhole(numExperts, 1) || numExperts % numRanks !== 0) {
    throw invalidArgument('numExperts', numExperts, `a positive multiple of the ${numRanks} ranks`);
  }
  if (!isWhole(maxTopk, 1) || maxTopk > MAX_TOPK) throw invalidArgument('maxTopk', maxTopk, `1 to ${MAX_TOPK}`);
  if (!isWhole(config.numSms ?? 1, 1)) throw invalidArgument('numSms', config.numSms, 'a whole number of at least 1');
  if (combineRows !== 'separate' && combineRows !== 'shared') {
    throw invalidArgument('combineRows', combineRows, '"separate" or "shared"');
  }
  const { combinePrecision = 'bf16' } = config;
  if (!combinePrecisions.includes(combinePrecision)) {
    throw invalidArgument('combinePrecision', combinePrecision, '"bf16" or "f32"');
  }
}

export function isWhole(value: unknown, least: number): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= least;
}
