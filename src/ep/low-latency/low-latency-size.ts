// What an EpLowLatency takes: its configuration, the regions of a rank's window and their sizes, before anything is allocated.
import { EP_MAX_GROUP_RANKS, EP_MAX_WAYS } from '../../abi/ep.ts';
import { FP8_GROUP } from '../../abi/element-formats.ts';
import { alignUp } from '../../abi/layout.ts';
import {
  LOW_LATENCY_CALLS,
  LOW_LATENCY_RESULTS,
  lowLatencyChoice,
  lowLatencyFlags,
  lowLatencyHostMessage,
  lowLatencyMember,
} from '../../abi/low-latency.ts';
import { networkCellsBytes } from '../../abi/network.ts';
import { checkRules, flag, oneOf, optional, type OptionRules, wholeFrom } from '../../core/check-options.ts';
import { invalidArgument, show, WeftlineError } from '../../core/errors.ts';
import type { Device } from '../../device/device.ts';
import { type Hosts, maxServed, maxServedDirectly } from '../../group/network/host-routes.ts';
import { networkAbortsBytes } from '../../group/network/peer-words.ts';
import { layOutRegions, type WindowRegion } from '../../windows/region-layout.ts';
import { windowFootprint } from '../../windows/symmetric-window.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import {
  bytesOfSum,
  type LowLatencyCombinePrecision,
  lowLatencyCombinePrecisions,
  numberHosts,
  type PinnedNetworkSize,
} from '../across-hosts/network-size.ts';
import { epRules, requireExperts } from '../buffer/buffer-size.ts';
import { lowLatencyBell, lowLatencyCell, memberBoardLayout, toldMembersBytes } from './members/low-latency-cells.ts';
import type { MemorySize } from '../memory-size.ts';

/** What an EpLowLatency is made for. All ranks pass the same. */
export interface LowLatencyConfig {
  /** M: most tokens that any rank passes to one dispatch. */
  readonly maxTokensPerRank: number;
  /** H: elements of a token, a multiple of 8. */
  readonly hidden: number;
  /** Experts of all ranks together, a multiple of the number of ranks; rank r holds a contiguous r-th part. */
  readonly numExperts: number;
  /** Most choices per token, 1 to 32. */
  readonly maxTopk: number;
  /**
   * How received rows stand. 'expert-major' (default): [experts of the rank, C, H], a row for each choice, C being
   * maxTokensPerExpert. 'rank-major': [ranks, M, H], a row for each token of a source rank, with its choices beside it.
   */
  readonly layout?: 'expert-major' | 'rank-major';
  /** C: rows of an expert in 'expert-major'. 0 (default): as many as can come, M times the ranks. */
  readonly maxTokensPerExpert?: number;
  /**
   * When more than C rows come for an expert: with 'fail' (default) the dispatch of its rank fails with WL_CAPACITY, and the use
   * of the object ends on all ranks: others get WL_PEER_FAILED with the reason in their next wait for a peer, which may be that of
   * the combine, because a dispatch tells nobody what other ranks receive. 'drop' leaves out the last rows in the order of source
   * rank and token, and counts them.
   */
  readonly overflow?: 'drop' | 'fail';
  /**
   * What combine sends of the experts' rows in 'expert-major'. 'rank-sums' (default): each rank adds up its weighted rows of
   * a token, and one bf16 row per (token, rank) travels; the weights go with dispatch. 'choices': every row is read by the
   * token's rank, which weights, adds and rounds once; the weights are given to combine. That takes C rows per expert in the
   * window. From another host one sum of weighted rows per token comes in its place, see combinePrecision.
   */
  readonly combineTravels?: 'rank-sums' | 'choices';
  /**
   * True: a rank that ends, or misses the deadline of a call, is masked; its rows count as dropped, and the call completes for
   * the others. See EpLowLatency.connectRanks(). False (default): such a call fails on all ranks. On GPUs its calls cannot be
   * recorded in a graph.
   */
  readonly elastic?: boolean;
  /**
   * What a host's sum of a token's rows travels to another host as: rounded to bf16 (default); as 'f32', twice the bytes; or, a
   * little more than half of them, as 'fp8-lossy', the f32 sum as e4m3 with an f32 scale for each 128 columns: each number is then
   * off by up to a 16th of itself, or 2^-18 of the largest of the 128. What stays on a host is never rounded so, and on one host the
   * choice makes no difference.
   */
  readonly combinePrecision?: LowLatencyCombinePrecision;
  /**
   * On GPUs: multiprocessors that a call takes, a block on each. 0 (default): all but 16, which other kernels may hold
   * meanwhile, or half of them where that is more.
   */
  readonly numSms?: number;
}

/** Fills in what a configuration leaves out. */
export function withLowLatencyDefaults(config: LowLatencyConfig, numRanks: number): Required<LowLatencyConfig> {
  const {
    layout = 'expert-major',
    overflow = 'fail',
    combineTravels = 'rank-sums',
    maxTokensPerRank,
    elastic = false,
    combinePrecision = 'bf16',
    numSms = 0,
  } = config;
  // Nothing was checked yet: what is no number is refused later, by all ranks alike.
  const most = typeof maxTokensPerRank === 'number' ? numRanks * maxTokensPerRank : 0;
  const maxTokensPerExpert = config.maxTokensPerExpert || most;
  return { ...config, layout, maxTokensPerExpert, overflow, combineTravels, elastic, combinePrecision, numSms };
}

function wordOf(value: unknown): string | number {
  return typeof value === 'number' || typeof value === 'string' ? value : show(value);
}

/** A configuration as ranks compare it, whatever a caller without types has put into it. */
export function comparableConfig(
  config: Required<LowLatencyConfig>,
  device: 'cpu' | 'cuda',
): Readonly<Record<string, string | number | boolean>> {
  const words = Object.entries<unknown>(config).map(([name, value]) => [name, wordOf(value)]);
  return Object.fromEntries([...words, ['device', device]]) as Record<string, string | number>;
}

/** A part of a rank's window. */
export type LowLatencyRegion =
  | 'cells'
  | 'bell'
  | 'member'
  | 'expertCounts'
  | 'firstRows'
  | 'rows'
  | 'fp8Rows'
  | 'scales'
  | 'sourceToken'
  | 'choices'
  | 'topkIdx'
  | 'topkWeights'
  | 'combineRows'
  | 'standIns'
  | LowLatencyNetworkRegion;

/**
 * Regions of CPU ranks of a group on several hosts. For each way to another host: `sent` is what dispatches send there,
 * `returned` what combines bring back. For each source that the rank serves here: `landed` is what its dispatches send, `sums` what goes back to it. With
 * combineTravels 'choices' weights go there in combine (`sentWeights`, `landedWeights`), and ranks here tell in
 * `servedFirstRows` what they tell ranks of this host in `firstRows`.
 */
type LowLatencyNetworkRegion =
  | 'networkCells'
  | 'aborts'
  | 'sent'
  | 'landed'
  | 'sums'
  | 'returned'
  | 'sentWeights'
  | 'landedWeights'
  | 'servedFirstRows'
  | LowLatencyMemberRegion;

/**
 * Regions of elastic ranks on several hosts: what the rank tells of who takes part (`toldMembers`), what each source that it serves tells
 * (`heardMembers`), and, in the part of the host's first rank, the words of ranks of other hosts (`farMembers`).
 */
type LowLatencyMemberRegion = 'toldMembers' | 'heardMembers' | 'farMembers';

/** A region of several slots, which calls use in turn. */
interface LowLatencySlots extends WindowRegion {
  /** Bytes from one slot to the next. */
  readonly stride: number;
}

/** What an EpLowLatency takes. */
export interface LowLatencySize extends MemorySize {
  /**
   * Bytes of each rank's own memory for one result, scales included, of which there are two: made when a dispatch without `out`
   * first needs it. 0 where results lie in the window ('rank-major').
   */
  readonly resultBytes: { readonly bf16: number; readonly fp8: number };
  /** What a GPU of a group on several hosts takes of its host's memory besides. */
  readonly network?: PinnedNetworkSize | undefined;
  /** @internal Dispatches whose rows a rank can hold before it has taken them. */
  readonly receiveSlots: number;
  /** @internal Rows of one slot of `combineRows`. */
  readonly combineRowCount: number;
  /** @internal */
  readonly regions: Readonly<Record<LowLatencyRegion, LowLatencySlots>>;
}

/**
 * Sizes of an EpLowLatency over `numRanks` ranks. Pure; fails with WL_INVALID_ARGUMENT.
 * @param config As EpLowLatency.create() takes it.
 * @param numRanks 1 or more; divides numExperts.
 * @param device What the ranks run on.
 * @param ranksOfHosts Ranks of each host, whose sum is `numRanks`; all on one by default.
 */
// oxlint-disable-next-line max-params -- the first three are those of one host
export function lowLatencySize(
  config: LowLatencyConfig,
  numRanks: number,
  device: 'cpu' | 'cuda' = 'cpu',
  ranksOfHosts: readonly number[] = [numRanks],
): LowLatencySize {
  checkConfig(config, numRanks);
  const hosts = numberHosts(ranksOfHosts, numRanks);
  if (config.numSms && device === 'cpu') throw invalidArgument('numSms', config.numSms, '0 for ranks on CPUs');
  const full = withLowLatencyDefaults(config, numRanks);
  const { hidden, layout } = full;
  const isExpertMajor = layout === 'expert-major';
  const isCpu = device === 'cpu';
  const experts = full.numExperts / numRanks;
  const groups = Math.ceil(hidden / FP8_GROUP);
  // Rows by rank stay where they came until the second dispatch after their own begins here. With a third slot a rank that
  // is a call behind holds up nobody. Rows by expert are copied out, and their slot is free as soon as they came.
  const receiveSlots = isExpertMajor ? LOW_LATENCY_RESULTS : LOW_LATENCY_RESULTS + 1;
  const own = isCpu ? onCpus(hosts) : onGpus(hosts);
  const cells = numRanks * own.cell;
  const { combineRowCount, combineRows, standIns } = combiningRows(full, own.gpuHosts, numRanks, cells);
  const slots: Record<LowLatencyRegion, RegionSlots> = {
    // First of all: kernels count from the start of a window, and these are what a stand-in has of it.
    cells: [1, cells],
    combineRows,
    standIns,
    bell: [1, own.bell],
    member: [1, own.member],
    firstRows: [LOW_LATENCY_RESULTS, travelsByChoice(full) ? full.numExperts * 4 : 0],
    ...arrivingRows(full, numRanks, { receiveSlots, isByExpertOnGpu: !isCpu && isExpertMajor }),
    ...networkRegions(full, own.cpuHosts, receiveSlots),
  };
  const entries = Object.entries(slots) as [LowLatencyRegion, RegionSlots][];
  const { bytes, regions } = layOutRegions(
    Object.fromEntries(entries.map(([name, of]) => [name, of[0] * strideOf(of)])) as Record<LowLatencyRegion, number>,
  );
  const windows = windowFootprint(bytes, Math.max(...ranksOfHosts));
  const membersBytes = full.elastic ? windowFootprint(memberBoardLayout.bytes, numRanks) : 0;
  const resultRows = isExpertMajor ? experts * full.maxTokensPerExpert : 0;
  return {
    bytes,
    addressSpaceBytes: windows,
    sharedMemoryBytes: numRanks === 1 ? 0 : isCpu ? windows : membersBytes,
    resultBytes: { bf16: resultRows * hidden * 2, fp8: resultRows * (hidden + groups * 4) },
    network: pinnedSize(full, own.gpuHosts, receiveSlots),
    receiveSlots,
    combineRowCount,
    regions: Object.fromEntries(
      entries.map(([name, of]) => [name, { ...regions[name], stride: strideOf(of) }]),
    ) as Record<LowLatencyRegion, LowLatencySlots>,
  };
}

/** Whether the token's rank weights the rows of its choices. */
export function travelsByChoice({ layout, combineTravels }: Required<LowLatencyConfig>): boolean {
  return layout === 'expert-major' && combineTravels === 'choices';
}

type RegionSlots = readonly [count: number, bytes: number];

/** What a rank has in its window for each peer or for itself, and the hosts between which it is carried. */
function onCpus(cpuHosts: Hosts) {
  const { size: cell } = lowLatencyCell;
  return { cell, bell: lowLatencyBell.size, member: lowLatencyMember.size, cpuHosts, gpuHosts: [] };
}

function onGpus(gpuHosts: Hosts) {
  return { cell: lowLatencyFlags.size, bell: 0, member: 0, cpuHosts: [], gpuHosts };
}

/**
 * Where experts' rows or their sums are read by peers, or put by them. `hosts`: of ranks on GPUs, empty for others. Across them
 * only ranks of the same host put sums to each other. Sums for a rank elsewhere go to its stand-in, which is the begin of a window.
 */
// oxlint-disable-next-line max-params -- what all sizes follow from
function combiningRows(config: Required<LowLatencyConfig>, hosts: Hosts, numRanks: number, cells: number) {
  const { layout, maxTokensPerExpert, maxTokensPerRank, numExperts, hidden } = config;
  const isPushed = layout === 'expert-major' && !travelsByChoice(config);
  const isAcross = hosts.length > 1;
  const blocks = isAcross && isPushed ? Math.max(...hosts.map(({ length }) => length)) : numRanks;
  const combineRowCount = travelsByChoice(config)
    ? (numExperts / numRanks) * maxTokensPerExpert
    : blocks * maxTokensPerRank;
  const combineRows: RegionSlots = [LOW_LATENCY_RESULTS, combineRowCount * hidden * 2];
  const standIn = strideOf([1, cells]) + (isPushed ? LOW_LATENCY_RESULTS * strideOf(combineRows) : 0);
  const standIns: RegionSlots = [isAcross ? maxServed(hosts) : 0, standIn];
  return { combineRowCount, combineRows, standIns };
}

/** Regions for the rows of a dispatch, and for what comes with them. On GPUs rows by expert stand where their tokens do. */
function arrivingRows(
  { hidden, maxTopk, maxTokensPerRank, numExperts, elastic }: Required<LowLatencyConfig>,
  numRanks: number,
  { receiveSlots, isByExpertOnGpu }: { readonly receiveSlots: number; readonly isByExpertOnGpu: boolean },
) {
  const rows = numRanks * maxTokensPerRank;
  const groups = Math.ceil(hidden / FP8_GROUP);
  const slotsOf = (bytes: number): RegionSlots => [receiveSlots, bytes];
  return {
    // A source tells how many rows it sends for each expert, with the number of the call.
    expertCounts: [1, isByExpertOnGpu ? LOW_LATENCY_CALLS * numExperts * 8 : 0] as RegionSlots,
    rows: slotsOf(rows * hidden * 2),
    // Fp8 rows of fixed ranks, whose words show that they have come; nothing else may lie there. 0 bytes where rows have flags.
    fp8Rows: slotsOf(isByExpertOnGpu && !elastic ? rows * hidden : 0),
    scales: slotsOf(rows * groups * 4),
    sourceToken: slotsOf(isByExpertOnGpu ? 0 : rows * 4),
    // A record of 16 bytes for each choice, or else its expert and its weight in regions of their own.
    choices: slotsOf(isByExpertOnGpu ? rows * maxTopk * lowLatencyChoice.size : 0),
    topkIdx: slotsOf(isByExpertOnGpu ? 0 : rows * maxTopk * 8),
    topkWeights: slotsOf(isByExpertOnGpu ? 0 : rows * maxTopk * 4),
  };
}

function networkRegions(
  config: Required<LowLatencyConfig>,
  hosts: Hosts,
  receiveSlots: number,
): Record<LowLatencyNetworkRegion, RegionSlots> {
  const isAcross = hosts.length > 1;
  const ranks = isAcross ? hosts.flat().length : 0;
  const isElastic = isAcross && config.elastic;
  const served = isElastic ? maxServedDirectly(hosts) : maxServed(hosts);
  const ways = isElastic ? served : Math.max(hosts.length - 1, 0);
  const membersBytes = isElastic ? toldMembersBytes(ranks) : 0;
  const message = lowLatencyMessage(config, config.maxTokensPerRank, MOST_BESIDE).bytes;
  const sums = lowLatencySumsBytes(config, config.maxTokensPerRank);
  const isByChoice = travelsByChoice(config);
  const weights = isByChoice ? config.maxTokensPerRank * config.maxTopk * 4 : 0;
  return {
    networkCells: [1, networkCellsBytes(ranks)],
    aborts: [1, networkAbortsBytes(ranks)],
    sent: [ways * receiveSlots, message],
    landed: [served * receiveSlots, message],
    sums: [served * LOW_LATENCY_RESULTS, sums],
    returned: [ways * LOW_LATENCY_RESULTS, sums],
    sentWeights: [ways * LOW_LATENCY_RESULTS, weights],
    landedWeights: [served * LOW_LATENCY_RESULTS, weights],
    servedFirstRows: [served * LOW_LATENCY_RESULTS, isByChoice ? config.numExperts * 4 : 0],
    toldMembers: [1, membersBytes],
    heardMembers: [served, membersBytes],
    farMembers: [1, isElastic ? ranks * 4 : 0],
  };
}

/** The memory of a GPU of a group on several hosts that messages cross through; see lowLatencyHostMessage. */
function pinnedSize(
  config: Required<LowLatencyConfig>,
  hosts: Hosts,
  receiveSlots: number,
): PinnedNetworkSize | undefined {
  if (hosts.length <= 1) return undefined;
  const { layout, hidden, maxTopk, maxTokensPerRank: most } = config;
  const ranks = hosts.flat().length;
  const ways = hosts.length - 1;
  const served = maxServed(hosts);
  const header = lowLatencyHostMessage.size;
  const places = layout === 'rank-major' ? 1 + Math.max(...hosts.map(({ length }) => length)) : 1;
  const beside = alignUp(most * places * 4, ARRAY_ALIGNMENT) + most * maxTopk * lowLatencyChoice.size;
  // Rows of bf16 take at least as many bytes as those of fp8 with their scales, except for the shortest ones.
  const row = Math.max(hidden * 2, alignUp(hidden + Math.ceil(hidden / FP8_GROUP) * 4, ARRAY_ALIGNMENT));
  const slotBytes = alignUp(header + beside + most * row, SLOT_ALIGNMENT);
  const sumsBytes = alignUp(lowLatencySumsBytes(config, most), SLOT_ALIGNMENT);
  const { bytes, regions } = layOutRegions({
    cells: networkCellsBytes(ranks),
    aborts: networkAbortsBytes(ranks),
    recordOut: 0,
    recordIn: 0,
    out: ways * receiveSlots * slotBytes,
    in: served * receiveSlots * slotBytes,
    sums: served * LOW_LATENCY_RESULTS * sumsBytes,
    returned: ways * LOW_LATENCY_RESULTS * sumsBytes,
  });
  return { memory: 'pinned', bytes, regions, slotBytes, recordBytes: 0, sumsBytes, maxServed: served, maxChunks: 1 };
}

// What ranks of different hosts send each other: one run of bytes for each dispatch and combine.

/** What goes beside the rows of a message. */
interface LowLatencyBeside {
  readonly k: number;
  readonly indexBytes: number;
  readonly hasWeights: boolean;
  /** Bytes of a row without its scales. */
  readonly rowBytes: number;
  /** 32-bit words of the scales of a row. */
  readonly words: number;
}

/** Offsets of the arrays of a message. */
export interface LowLatencyMessage {
  /** i32 [count]: tokens of the source. */
  readonly sourceToken: number;
  /** [count, K], as the source was given them. */
  readonly topkIdx: number;
  /** f32 [count, K]. */
  readonly topkWeights: number;
  /** 'expert-major': [count, words]; 'rank-major': [words, M]. */
  readonly scales: number;
  readonly rows: number;
  readonly bytes: number;
}

/** A message begins with the number of its tokens, or the status of a refusal, and the word of the call; sums with their number and the word of the combine. */
export const LOW_LATENCY_MESSAGE_HEADER = 64;
const ARRAY_ALIGNMENT = 16;

/** The message of a dispatch that sends so many tokens to a host. */
export function lowLatencyMessage(
  { layout, hidden, maxTopk, maxTokensPerRank }: Required<LowLatencyConfig>,
  count: number,
  beside: LowLatencyBeside | typeof MOST_BESIDE,
): LowLatencyMessage {
  const most = {
    k: maxTopk,
    indexBytes: 8,
    hasWeights: true,
    rowBytes: hidden * 2,
    words: Math.ceil(hidden / FP8_GROUP),
  };
  const { k, indexBytes, hasWeights, rowBytes, words } = beside === MOST_BESIDE ? most : beside;
  const sourceToken = LOW_LATENCY_MESSAGE_HEADER;
  const topkIdx = sourceToken + alignUp(count * 4, ARRAY_ALIGNMENT);
  const topkWeights = topkIdx + alignUp(count * k * indexBytes, ARRAY_ALIGNMENT);
  const scales = topkWeights + alignUp(hasWeights ? count * k * 4 : 0, ARRAY_ALIGNMENT);
  const scaled = layout === 'rank-major' ? maxTokensPerRank : count;
  const rows = scales + alignUp(scaled * words * 4, ARRAY_ALIGNMENT);
  return { sourceToken, topkIdx, topkWeights, scales, rows, bytes: rows + count * rowBytes };
}

/** Stands for the most that any dispatch sends. */
const MOST_BESIDE = 'most';

/** Bytes of the sums of so many tokens. */
export function lowLatencySumsBytes({ hidden, combinePrecision }: Required<LowLatencyConfig>, count: number): number {
  return LOW_LATENCY_MESSAGE_HEADER + count * bytesOfSum(hidden, 'bf16', combinePrecision);
}

/** Slots begin on pairs of cache lines, as regions do. */
const SLOT_ALIGNMENT = 128;

function strideOf([, bytes]: RegionSlots): number {
  return alignUp(bytes, SLOT_ALIGNMENT);
}

const configRules: OptionRules<LowLatencyConfig> = {
  ...epRules,
  layout: optional(oneOf('expert-major', 'rank-major')),
  maxTokensPerExpert: optional(wholeFrom(0)),
  overflow: optional(oneOf('drop', 'fail')),
  combineTravels: optional(oneOf('rank-sums', 'choices')),
  elastic: optional(flag),
  combinePrecision: optional(oneOf(...lowLatencyCombinePrecisions)),
  numSms: optional(wholeFrom(0)),
};

function checkConfig(config: LowLatencyConfig, numRanks: number): void {
  checkRules(config, configRules, 'configuration of EpLowLatency');
  requireExperts(config.numExperts, numRanks);
  if (config.layout !== 'rank-major') return;
  // These would be ignored without a word.
  for (const name of ['maxTokensPerExpert', 'overflow', 'combineTravels'] as const) {
    if (config[name]) throw invalidArgument(name, config[name], "nothing with layout 'rank-major'");
  }
}

// What belongs together for all parts of one EpLowLatency; handles name it as their owner.

export interface LowLatencyScope<D extends Device = Device> {
  readonly group: RankGroup;
  readonly device: D;
  readonly config: Readonly<Required<LowLatencyConfig>>;
  readonly size: LowLatencySize;
}

/** Fails with WL_UNSUPPORTED for ranks on several hosts. `what`: cannot be there. */
export function requireOneHost({ topology }: RankGroup, what: string): void {
  const { length } = topology.hosts;
  if (length === 1) return;
  const message = `${what} works within one host for now, and the group's ranks are on ${length}: use EpBuffer there`;
  throw new WeftlineError('WL_UNSUPPORTED', message, { details: { hosts: length } });
}

/** Fails with WL_UNSUPPORTED for more hosts or ranks than kernels serve. */
export function requireFewHosts({ size, topology }: RankGroup): void {
  const { length } = topology.hosts;
  if (length === 1 || (size <= EP_MAX_GROUP_RANKS && length - 1 <= EP_MAX_WAYS)) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    `An EpLowLatency on GPUs across hosts has at most ${EP_MAX_GROUP_RANKS} ranks on ${EP_MAX_WAYS + 1} hosts, got ${size} on ${length}: make groups of fewer ranks`,
    { details: { ranks: size, hosts: length, most: EP_MAX_GROUP_RANKS } },
  );
}
