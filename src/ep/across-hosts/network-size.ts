// What the network side of a CPU rank takes: regions of memory of its own, whose sizes follow from the configuration and
// the ranks of each host alone. No routing needs more: a token crosses to a host once.
import { elementFormats, FP8_SUM_FORMAT, fp8SumBytes } from '../../abi/element-formats.ts';
import { exchangeRecordBytes, REGION_ALIGNMENT } from '../../abi/exchange-record.ts';
import { networkCellsBytes, networkChunkRows } from '../../abi/network.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { dtypes } from '../../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { Device } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';
import { type Hosts, maxServed } from '../../group/network/host-routes.ts';
import { networkAbortsBytes } from '../../group/network/peer-words.ts';
import { checkTensor } from '../../group/tensor-check.ts';
import { layOutRegions, type WindowRegion } from '../../windows/region-layout.ts';
import type { RankGroup } from '../../world/rank-group.ts';

// What a host's sum of a token's rows travels to the token's host as.

/** What rows may consist of. */
type RowDType = keyof typeof elementFormats;

/**
 * Dtype of the sums that hosts send to each other in combine: 'bf16' rounds each to the dtype of the rows, whichever that
 * is; 'f32' does not round it, for twice the bytes of 16-bit rows.
 */
export type CombinePrecision = 'bf16' | 'f32';

export const combinePrecisions: readonly CombinePrecision[] = ['bf16', 'f32'];

/**
 * The same of EpLowLatency, which has one more: 'fp8-lossy' sends each sum as e4m3 with an f32 scale for each 128 columns, a little
 * more than half the bytes of bf16. That loses much more than a rounding to bf16 does, so nothing chooses it by itself.
 */
export type LowLatencyCombinePrecision = CombinePrecision | 'fp8-lossy';

export const lowLatencyCombinePrecisions: readonly LowLatencyCombinePrecision[] = [...combinePrecisions, 'fp8-lossy'];

/** Dtype of a sum on the network that is not quantised. */
function sumDType(rows: RowDType, precision: CombinePrecision): RowDType {
  return precision === 'f32' ? 'f32' : rows;
}

/** How CPU kernels are told what a sum is on the network. */
export function sumFormat(rows: RowDType, precision: LowLatencyCombinePrecision): number {
  return precision === 'fp8-lossy' ? FP8_SUM_FORMAT : elementFormats[sumDType(rows, precision)];
}

/** Bytes of a sum on the network. */
export function bytesOfSum(hidden: number, rows: RowDType, precision: LowLatencyCombinePrecision): number {
  return precision === 'fp8-lossy' ? fp8SumBytes(hidden) : hidden * dtypes[sumDType(rows, precision)].bytes;
}

/** What a token takes, in bytes or numbers. */
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
  /** Bytes of a row that combine brings back, and of the weights with it. */
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
  /** @internal */
  readonly regions: Readonly<Record<NetworkRegion, WindowRegion>>;
  /** @internal Offsets within a slot, whose length is `slotBytes`. */
  readonly slot: Readonly<Record<SlotArray, WindowRegion>>;
  /** @internal */
  readonly slotBytes: number;
  /** @internal */
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

/**
 * Chunks to which CPU ranks share out what a call sends to a peer, between these bounds: each one wakes threads on
 * both sides, and the first and the last overlap with nothing.
 */
const NETWORK_CHUNKS = { count: 16, leastBytes: 1 << 20, mostBytes: 1 << 22 } as const;

/**
 * The same of GPUs, which share what a call sends out to four chunks per channel between these bounds: few rows then use
 * every channel too, and of many the commands cost little.
 */
export const PINNED_CHUNK_BYTES: { readonly least: number; readonly most: number } = { least: 1 << 18, most: 1 << 21 };

/** Rows of that many bytes that one signal stands for, of `tokens` rows in all. */
export function chunkTokens(rowBytes: number, tokens: number): number {
  const { count, leastBytes, mostBytes } = NETWORK_CHUNKS;
  const bytes = Math.min(mostBytes, Math.max(leastBytes, (tokens * rowBytes) / count));
  return Math.max(1, Math.floor(bytes / rowBytes));
}

function ringOf({ maxTokensPerRank, sumTokens = maxTokensPerRank, sumBytes }: NetworkShape): SumRing {
  const most = chunkTokens(sumBytes, maxTokensPerRank);
  if (sumTokens >= maxTokensPerRank) return { chunk: most, chunks: Math.ceil(maxTokensPerRank / most), sumTokens };
  // One of two chunks can be summed while the other is under way.
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
    aborts: networkAbortsBytes(ranks),
    landed: served * slotBytes,
    packed: others * slotBytes,
    sums: served * sumTokens * shape.sumBytes,
    sumWeights: served * sumTokens * shape.sumWeightBytes,
    hostRows: others * sumTokens * shape.sumBytes,
    hostWeights: others * sumTokens * shape.sumWeightBytes,
  });
  return { memory: 'private', bytes, regions, slot, slotBytes, sumRing: ringOf(shape) };
}

// What the network side of a GPU rank takes: pinned host memory that its kernels and its carrier read and write, whose size
// follows from the configuration and the ranks of each host alone. No routing needs more: a token crosses to a host once.

/**
 * `cells`: signals of peers are counted there. `aborts`: what ranks say when they give up, for the hosts alone. `recordOut`, `recordIn`: records of a call, by its parity; of this rank, and
 * a slot per source that it serves. `out`: a slot per other host: rows on their way there; in combine, what comes back.
 * `in`: a slot per source served: rows that came; in combine, the sums that go back. Low-latency calls have no records, slots for
 * each receive slot, and for each result sums that go back in `sums` and come back in `returned`.
 */
type PinnedRegion = 'cells' | 'aborts' | 'recordOut' | 'recordIn' | 'out' | 'in' | 'sums' | 'returned';

/** What the network side of a GPU rank takes, in bytes. */
export interface PinnedNetworkSize {
  /** Page-locked memory of the host, mapped into the GPU; where an RDMA device reaches memory of the GPU, as much of that. */
  readonly memory: 'pinned';
  readonly bytes: number;
  /** @internal */
  readonly regions: Readonly<Record<PinnedRegion, WindowRegion>>;
  /** @internal Bytes of a slot of `out` and `in`: all tokens of a rank with the most that can go with each. */
  readonly slotBytes: number;
  /** @internal */
  readonly recordBytes: number;
  /** @internal Bytes of a slot of `sums` and `returned`. */
  readonly sumsBytes: number;
  /** @internal Sources that a rank serves at most. */
  readonly maxServed: number;
  /** @internal Most chunks that the rows of one slot make. */
  readonly maxChunks: number;
}

interface PinnedNetworkShape {
  readonly hosts: Hosts;
  /** Most tokens of any rank. */
  readonly maxTokensPerRank: number;
  readonly experts: number;
  /** Most bytes of a token's row as it travels, with what goes with it; of what combine brings back for it. */
  readonly wireRowBytes: number;
  readonly wireSumBytes: number;
}

/** Pure; all ranks get the same, also where hosts have different numbers of ranks. */
export function pinnedNetworkSize(shape: PinnedNetworkShape): PinnedNetworkSize {
  const { hosts, maxTokensPerRank, experts, wireRowBytes, wireSumBytes } = shape;
  const ranks = hosts.reduce((sum, { length }) => sum + length, 0);
  const served = maxServed(hosts);
  const most = Math.max(wireRowBytes, wireSumBytes);
  const slotBytes = layOutRegions<'slot'>({ slot: maxTokensPerRank * most }).bytes;
  const recordBytes = exchangeRecordBytes({ ranks, experts, hosts: hosts.length });
  const { bytes, regions } = layOutRegions<PinnedRegion>({
    cells: networkCellsBytes(ranks),
    aborts: networkAbortsBytes(ranks),
    recordOut: 2 * recordBytes,
    recordIn: 2 * served * recordBytes,
    out: (hosts.length - 1) * slotBytes,
    in: served * slotBytes,
    sums: 0,
    returned: 0,
  });
  const maxChunks = Math.ceil(maxTokensPerRank / networkChunkRows(PINNED_CHUNK_BYTES.least, most));
  return { memory: 'pinned', bytes, regions, slotBytes, recordBytes, sumsBytes: 0, maxServed: served, maxChunks };
}

// A network side within the bytes that the caller gives it, or in memory that the caller made.

/**
 * The shape with room for as many sums as fit. All tokens for 0 bytes. Fails with WL_INVALID_ARGUMENT if what every token
 * needs does not fit.
 */
export function withinRdmaBytes(shape: NetworkShape, numRdmaBytes: number): NetworkShape {
  if (numRdmaBytes === 0) return shape;
  const { maxTokensPerRank } = shape;
  let [fits, tooMany] = [0, maxTokensPerRank + 1];
  while (tooMany - fits > 1) {
    const sumTokens = Math.floor((fits + tooMany) / 2);
    if (networkSize({ ...shape, sumTokens }).bytes <= numRdmaBytes) fits = sumTokens;
    else tooMany = sumTokens;
  }
  if (fits > 0) return { ...shape, sumTokens: fits };
  const least = networkSize({ ...shape, sumTokens: 1 }).bytes;
  const allowed = `0, or at least ${least} (${formatBytes(least)}) for ${maxTokensPerRank} tokens per rank over ${shape.hosts.length} hosts`;
  throw invalidArgument('numRdmaBytes', numRdmaBytes, allowed);
}

/** The network side of a GPU is one region of its carrier, which is one view of memory. */
const MAX_PINNED_BYTES = 2 ** 32 - 65_536;

/**
 * The same of GPUs, whose network side holds every row of a call, so it cannot be smaller. Fails with WL_INVALID_ARGUMENT, or
 * with WL_UNSUPPORTED if it is larger than memory for a carrier can be.
 */
export function requirePinnedBytes(bytes: number, numRdmaBytes: number): void {
  if (bytes > MAX_PINNED_BYTES) {
    throw new WeftlineError(
      'WL_UNSUPPORTED',
      `The network side of each GPU would take ${bytes} bytes (${formatBytes(bytes)}) of pinned memory, at most ${MAX_PINNED_BYTES} (${formatBytes(MAX_PINNED_BYTES)}) are supported: use fewer tokens per rank, a group of fewer hosts, or combinePrecision "bf16"`,
      { details: { bytes, most: MAX_PINNED_BYTES } },
    );
  }
  if (numRdmaBytes === 0 || bytes <= numRdmaBytes) return;
  const allowed = `0, or at least the ${bytes} (${formatBytes(bytes)}) of pinned memory that GPUs take with this configuration`;
  throw invalidArgument('numRdmaBytes', numRdmaBytes, allowed);
}

/** Fails with WL_INVALID_ARGUMENT for anything but memory of the device that holds so many bytes. */
export function checkRdmaBuffer(value: unknown, { device, bytes }: { device: Device; bytes: number }): Tensor<'u8'> {
  const tensor = checkTensor('rdmaBuffer', value, { device, dtype: ['u8'], shape: ['bytes'] });
  const aligned = tensor.address % REGION_ALIGNMENT === 0;
  if (tensor.bytes >= bytes && aligned) return tensor;
  const allowed = `at least ${bytes} bytes (${formatBytes(bytes)}) from a multiple of ${REGION_ALIGNMENT} on, or numRdmaBytes that it can hold`;
  throw invalidArgument('rdmaBuffer', `${tensor.bytes} bytes from ${tensor.address} on`, allowed);
}

// The hosts of a group, as counts and sizes see them.

/** How many hosts an exchange of counts tells apart; 0 where all ranks are on one: nothing is counted per host then. */
export function countedHosts({ topology: { hosts } }: RankGroup): number {
  return hosts.length === 1 ? 0 : hosts.length;
}

/** Ranks of each host of a group. */
export function ranksOfHosts({ topology: { hosts } }: RankGroup): number[] {
  return hosts.map(({ length }) => length);
}

/**
 * Hosts with that many ranks each, numbered host by host: sizes depend on how many there are alone. Fails with
 * WL_INVALID_ARGUMENT if they are not `numRanks` together.
 */
export function numberHosts(counts: readonly number[], numRanks: number): Hosts {
  if (!Array.isArray(counts)) throw invalidArgument('ranksOfHosts', counts, 'a list of how many ranks each host has');
  const sum = counts.reduce((total: number, count: unknown) => total + (typeof count === 'number' ? count : NaN), 0);
  if (sum !== numRanks || !counts.every((count) => Number.isSafeInteger(count) && count >= 1)) {
    throw invalidArgument('ranksOfHosts', counts, `whole numbers of at least 1 whose sum is ${numRanks}`);
  }
  let next = 0;
  return counts.map((count) => Array.from({ length: count }, () => next++));
}
