// What the expert-parallel bench moves: tokens and routing, the same bytes for the same seed on every machine, which rows travel
// where, and the memory that it takes.
import { toBf16 } from '../../../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../../../core/errors.ts';
import { FP8_GROUP } from '../../../abi/element-formats.ts';
import { MAX_TOPK } from '../../../ep/buffer/buffer-size.ts';
import { seededRandom } from '../../../core/seeded-random.ts';
import { formatBytes } from '../../../core/byte-size.ts';
import { bufferSize, EPConfig, type EpBufferConfig, outputSize } from '../../../ep/index.ts';
import type { Hosts } from '../../../group/network/host-routes.ts';
import type { BenchGroup } from '../harness.ts';
import type { OutputSize } from '../../../ep/layer/output-size.ts';

export interface EpWorkload {
  readonly ranks: number;
  /** Tokens of each rank. */
  readonly tokens: number;
  readonly hidden: number;
  readonly topk: number;
  readonly experts: number;
  /** What dispatch carries; combine is always bf16. */
  readonly dtype: 'bf16' | 'fp8';
  readonly seed: number;
  /** 0: every expert is equally likely; s: the i-th most popular one has weight 1 / i^s (Zipf). */
  readonly skew: number;
}

/** The configuration that the field publishes numbers for. */
export const defaultEpWorkload: EpWorkload = {
  ranks: 4,
  tokens: 4096,
  hidden: 7168,
  topk: 8,
  experts: 256,
  dtype: 'bf16',
  seed: 1,
  skew: 0,
};

/** Elements that an array holds: those of the rows of a rank. */
const MAX_ELEMENTS = 2 ** 32;

/** Fails with WL_INVALID_ARGUMENT naming the first value that does not work. */
export function checkEpWorkload(workload: EpWorkload): void {
  const { ranks, tokens, hidden, topk, experts, seed, skew } = workload;
  whole('ranks', ranks, 1);
  whole('tokens', tokens, 1);
  whole('hidden', hidden, 8);
  if (hidden % 8 !== 0) throw invalidArgument('hidden', hidden, 'a multiple of 8');
  const mostTokens = Math.floor(MAX_ELEMENTS / hidden);
  if (tokens > mostTokens) throw invalidArgument('tokens', tokens, `at most ${mostTokens} of ${hidden} elements`);
  whole('experts', experts, 1);
  if (experts % ranks !== 0) throw invalidArgument('experts', experts, `a multiple of ranks, ${ranks}`);
  whole('topk', topk, 1);
  const most = Math.min(experts, MAX_TOPK);
  if (topk > most) throw invalidArgument('topk', topk, `1 to ${most}`);
  whole('seed', seed, 0);
  if (!(skew >= 0 && skew <= 10)) throw invalidArgument('skew', skew, '0 to 10');
}

function whole(name: string, value: number, least: number): void {
  if (!Number.isSafeInteger(value) || value < least) throw invalidArgument(name, value, `a whole number from ${least}`);
}

/** Bytes of one row that dispatch carries, fp8 with its scales. */
export function dispatchRowBytes({ dtype, hidden }: EpWorkload): number {
  return dtype === 'bf16' ? hidden * 2 : hidden + scalesPerRow(hidden) * 4;
}

export function combineRowBytes({ hidden }: EpWorkload): number {
  return hidden * 2;
}

function scalesPerRow(hidden: number): number {
  return Math.ceil(hidden / FP8_GROUP);
}

/** Top-k of random scores per token: [tokens, topk] of both, no expert twice in a row. */
export function generateRouting(workload: EpWorkload, rank: number) {
  const { tokens, topk, experts } = workload;
  const random = seededRandom(workload.seed * 65_537 + rank);
  const logWeight = popularity(workload);
  const topkIdx = new Int32Array(tokens * topk);
  const topkWeights = new Float32Array(tokens * topk);
  const scores = new Float64Array(experts);
  for (let token = 0; token < tokens; token += 1) {
    // Gumbel noise: the k largest sums are a draw of k experts without replacement, by weight.
    for (let expert = 0; expert < experts; expert += 1) {
      scores[expert] = (logWeight[expert] as number) - Math.log(-Math.log(random() + 2 ** -33));
    }
    for (let k = 0; k < topk; k += 1) {
      const expert = largest(scores);
      scores[expert] = -Infinity;
      topkIdx[token * topk + k] = expert;
      topkWeights[token * topk + k] = random();
    }
  }
  return { topkIdx, topkWeights };
}

/** Logarithm of each expert's weight; all ranks agree on who is popular, and popular experts are spread over the ranks. */
function popularity({ experts, seed, skew }: EpWorkload): Float64Array {
  const random = seededRandom(seed * 65_537 - 1);
  const order = Array.from({ length: experts }, (_, expert) => ({ expert, key: random() })).toSorted(
    (a, b) => a.key - b.key,
  );
  const result = new Float64Array(experts);
  for (const [place, { expert }] of order.entries()) result[expert] = -skew * Math.log(place + 1);
  return result;
}

function largest(values: Float64Array): number {
  let best = 0;
  for (let index = 1; index < values.length; index += 1) {
    if ((values[index] as number) > (values[best] as number)) best = index;
  }
  return best;
}

/** bf16 values in [-1, 1), as bit patterns, [rows, hidden]. */
export function generateBf16Rows(workload: EpWorkload, rows: number, rank: number): Uint16Array {
  const random = seededRandom(workload.seed * 65_539 + rank);
  return fillFromTable(new Uint16Array(rows * workload.hidden), () => toBf16(random() * 2 - 1), random);
}

/** fp8 e4m3 bit patterns without NaN [rows, hidden], and f32 scales [rows, ceil(hidden / 128)]. */
export function generateFp8Rows(
  workload: EpWorkload,
  rows: number,
  rank: number,
): { data: Uint8Array; scales: Float32Array } {
  const random = seededRandom(workload.seed * 65_539 + rank);
  const data = fillFromTable(
    new Uint8Array(rows * workload.hidden),
    () => (random() < 0.5 ? 0x80 : 0) | Math.floor(random() * 0x7f),
    random,
  );
  const scales = new Float32Array(rows * scalesPerRow(workload.hidden)).map(() => random() + 0.5);
  return { data, scales };
}

const TABLE = 4099;

/** Rows from windows of one random table: a hundred million independent draws would take longer than the bench. */
function fillFromTable<A extends Uint16Array | Uint8Array>(target: A, draw: () => number, random: () => number): A {
  const table = Array.from({ length: 2 * TABLE }, draw);
  for (let start = 0; start < target.length; start += TABLE) {
    const from = Math.floor(random() * TABLE);
    target.set(table.slice(from, from + Math.min(TABLE, target.length - start)), start);
  }
  return target;
}

// What the bench takes of each rank's address space, known before anything is made.

/** One region for received and combined rows: half the memory, and zero-copy combine reads what dispatch wrote. */
export function benchBufferConfig({ tokens, hidden, topk, experts }: Omit<EpWorkload, 'dtype'>): EpBufferConfig {
  return { maxTokensPerRank: tokens, hidden, numExperts: experts, maxTopk: topk, combineRows: 'shared' };
}

/**
 * Fails with WL_MEMORY when the windows, tensors and, across hosts, the network side of this workload cannot fit
 * `addressSpaceBytes`. They may need more than what is counted here, which is the case of evenly loaded ranks.
 */
export function requireAddressSpace(
  workload: EpWorkload,
  withLayer: boolean,
  addressSpaceBytes: number,
  ranksOfHosts: readonly number[] = [workload.ranks],
): void {
  const needs = countBytes(workload, withLayer, ranksOfHosts);
  if (needs.total <= addressSpaceBytes) return;
  const layer = withLayer ? `, windows of EPAll2AllLayer ${formatBytes(needs.layer)}` : '';
  const network = needs.network === 0 ? '' : `, their network side ${formatBytes(needs.network)}`;
  const without =
    withLayer && countBytes(workload, false, ranksOfHosts).total <= addressSpaceBytes ? ', or --no-layer' : '';
  throw new WeftlineError(
    'WL_MEMORY',
    `This bench needs at least ${formatBytes(needs.total)} of each rank's address space, which is ${formatBytes(addressSpaceBytes)}: windows of EpBuffer ${formatBytes(needs.buffer)}${layer}${network}, tensors ${formatBytes(needs.tensors)}. Use fewer tokens or ranks${without}`,
    { details: { ...needs, addressSpaceBytes } },
  );
}

function countBytes(
  workload: EpWorkload,
  withLayer: boolean,
  ranksOfHosts: readonly number[],
): Record<'total' | 'buffer' | 'layer' | 'network' | 'tensors', number> {
  const ofBuffer = bufferSize(benchBufferConfig(workload), workload.ranks, ranksOfHosts);
  const ofLayer = withLayer ? layerSize(workload, ranksOfHosts) : undefined;
  const network = (ofBuffer.network?.bytes ?? 0) + (ofLayer?.network?.bytes ?? 0);
  const buffer = ofBuffer.addressSpaceBytes - (ofBuffer.network?.bytes ?? 0);
  const layer = ofLayer === undefined ? 0 : ofLayer.addressSpaceBytes - (ofLayer.network?.bytes ?? 0);
  const tensors = tensorBytes(workload, withLayer);
  return { total: buffer + layer + network + tensors, buffer, layer, network, tensors };
}

function layerSize({ ranks, tokens, hidden, topk, experts }: EpWorkload, ranksOfHosts: readonly number[]): OutputSize {
  const shape = { maxTokensPerRank: tokens, hidden, maxTopk: topk, numExperts: experts };
  const config = new EPConfig({ ...shape, rank: 0, worldSize: ranks, localWorldSize: ranksOfHosts[0]! });
  return outputSize(config, tokens * topk, ranksOfHosts);
}

function tensorBytes(workload: EpWorkload, withLayer: boolean): number {
  const { ranks, tokens, topk, experts, dtype } = workload;
  const choices = tokens * topk * 8;
  const fp8Input = dtype === 'fp8' ? tokens * dispatchRowBytes(workload) : 0;
  // Some rank receives at least as many rows as one rank sends: each token goes to the ranks that its experts need.
  const received = tokens * Math.ceil(topk / (experts / ranks));
  // The bf16 input, what combine returns (of the layer too), and the experts' output.
  const rows = tokens * (withLayer ? 3 : 2) + received;
  return choices + fp8Input + rows * combineRowBytes(workload);
}

// The rows that travel for one routing, within hosts and between: the plan of the copy ceiling, and what bandwidths count.

/** One copy per (token, destination rank), token-major: `tokens[i]` goes to row `rows[i]` of rank `destinations[i]`. */
export interface TrafficCopyPlan {
  readonly tokens: Int32Array;
  readonly destinations: Int32Array;
  readonly rows: Int32Array;
}

/** [tokens, ranks]: 1 where a token has at least one expert at that rank. Expert ids of -1 count nowhere. */
export function tokensInRanks(topkIdx: Int32Array, topk: number, expertsPerRank: number, ranks: number): Uint8Array {
  const result = new Uint8Array((topkIdx.length / topk) * ranks);
  for (const [index, expert] of topkIdx.entries()) {
    if (expert >= 0) result[Math.floor(index / topk) * ranks + Math.floor(expert / expertsPerRank)] = 1;
  }
  return result;
}

/** Tokens that one rank sends to each rank. */
export function countTokens(inRanks: Uint8Array, ranks: number): number[] {
  const counts = Array.from({ length: ranks }, () => 0);
  for (const [index, flag] of inRanks.entries()) counts[index % ranks]! += flag;
  return counts;
}

/** The place where dispatch puts each row: ordered by source rank, then token. `counts[source][destination]` of all ranks. */
export function planCopies(inRanks: Uint8Array, counts: readonly (readonly number[])[], rank: number): TrafficCopyPlan {
  const ranks = counts.length;
  const next = Array.from({ length: ranks }, (_, destination) =>
    counts.slice(0, rank).reduce((sum, row) => sum + row[destination]!, 0),
  );
  const copies = counts[rank]!.reduce((sum, count) => sum + count, 0);
  const plan = { tokens: new Int32Array(copies), destinations: new Int32Array(copies), rows: new Int32Array(copies) };
  let at = 0;
  for (const [index, flag] of inRanks.entries()) {
    if (flag === 0) continue;
    const destination = index % ranks;
    plan.tokens[at] = Math.floor(index / ranks);
    plan.destinations[at] = destination;
    plan.rows[at] = next[destination]!;
    next[destination]! += 1;
    at += 1;
  }
  return plan;
}

/** Rows of all ranks together. */
export interface RowCounts {
  /** Every received row, a rank's own included: what the field calls bandwidth. */
  readonly logical: number;
  /** Rows that came from another rank. */
  readonly wire: number;
}

export function countRows(counts: readonly (readonly number[])[]): RowCounts {
  let logical = 0;
  let own = 0;
  for (const [source, row] of counts.entries()) {
    for (const count of row) logical += count;
    own += row[source]!;
  }
  return { logical, wire: logical - own };
}

/** (token, expert) pairs that each rank receives from this one: the rows of a layout with one row per local expert. */
export function countPairs(topkIdx: Int32Array, expertsPerRank: number, ranks: number): number[] {
  const counts = Array.from({ length: ranks }, () => 0);
  for (const expert of topkIdx) {
    if (expert < 0) continue;
    const rank = Math.floor(expert / expertsPerRank);
    counts[rank]! += 1;
  }
  return counts;
}

/** Collective. [tokens, ranks] of this rank's routing, and how many tokens each rank sends to each: [source][destination]. */
export async function shareTokens(
  group: BenchGroup,
  topkIdx: Int32Array,
  { topk, experts }: EpWorkload,
): Promise<{ readonly inRanks: Uint8Array; readonly counts: readonly (readonly number[])[] }> {
  const inRanks = tokensInRanks(topkIdx, topk, experts / group.size, group.size);
  return { inRanks, counts: await group.allGather('bench-counts', countTokens(inRanks, group.size)) };
}

/** Rows of all ranks together, in one call. */
export interface HostRows {
  /** One per token and other host that has an expert of it: nothing less brings every token to every host. */
  readonly network: number;
  /** Rows to ranks of the token's own host, its own rank included. */
  readonly ownHost: number;
  /** Places of tokens of other hosts behind the first one of each: the row is copied there from another place of the host. */
  readonly forwarded: number;
}

/** [host]: tokens of one rank that go there. `inRanks` u8 [tokens, ranks] as tokensInRanks() makes it. */
export function countTokensOfHosts(inRanks: Uint8Array, hosts: Hosts): number[] {
  const ranks = hosts.reduce((sum, of) => sum + of.length, 0);
  const counts = hosts.map(() => 0);
  for (let first = 0; first < inRanks.length; first += ranks) {
    for (const [host, of] of hosts.entries()) {
      if (of.some((rank) => inRanks[first + rank] === 1)) counts[host]! += 1;
    }
  }
  return counts;
}

/**
 * Pure.
 * @param hosts Ranks of each host.
 * @param rows [source][rank]: rows that each rank sends to each other.
 * @param tokens [source][host]: tokens that each rank sends to each host.
 */
export function countHostRows(
  hosts: Hosts,
  rows: readonly (readonly number[])[],
  tokens: readonly (readonly number[])[],
): HostRows {
  const total = { network: 0, ownHost: 0, forwarded: 0 };
  for (const [source, bySource] of rows.entries()) {
    for (const [host, of] of hosts.entries()) {
      const there = of.reduce((sum, rank) => sum + bySource[rank]!, 0);
      if (of.includes(source)) {
        total.ownHost += there;
        continue;
      }
      const crossing = tokens[source]![host]!;
      total.network += crossing;
      total.forwarded += there - crossing;
    }
  }
  return total;
}
