// The specification of EpLowLatency, slow and obvious: what every rank receives and gets back, computed in one process.
//
// Combine, per token. 'choices': round(w0 * y0 + w1 * y1 + …) over its choices in order. 'rank-sums': of each rank that the
// token was sent to, round(w0 * y0 + …) over its choices there; then these rows in rank order, round(row + row + …), a row
// alone as it is. 'rank-major': the same sum of the ranks' rows. Products and sums are rounded to f32 one by one (no fused
// operations), from left to right; round() is to bf16. A dropped row counts as absent, and no row at all as zeros. With
// 'choices' across hosts, w0 * y0 + … of each host that the token was sent to, if a rank there takes part; rounded on its way
// from another one unless combinePrecision is 'f32', or as fp8 of it; then round(host + host + …), hosts in order.
import { fromBf16, toBf16 } from '../core/dtype.ts';
import type { LowLatencyScales } from '../ep/low-latency/low-latency-arguments.ts';
import { referenceQuantizeRow } from './fp8-rows.ts';
import type { ReferenceInput } from './reference-input.ts';
import { addHostSums, type RankedRow, type ReferenceHosts, rowsByHost, sumAcrossHosts } from './host-sums.ts';

/** Sizes and options of the dispatch. */
interface ReferenceLowLatencyOptions {
  readonly numExperts: number;
  /** Form of the scales of fp8 rows; undefined for bf16. */
  readonly scales?: LowLatencyScales | undefined;
  /** C of the layout 'expert-major'; undefined for as many as come. */
  readonly maxTokensPerExpert?: number | undefined;
  /** Whether each rank takes part, as the receivers see it. Rows of the others are left out. All take part if it is absent. */
  readonly active?: readonly boolean[] | undefined;
}

/** A row that came, in the order in which rows stand. */
export interface ReferenceLowLatencyRow {
  readonly sourceRank: number;
  readonly sourceToken: number;
  /** Bit patterns of bf16 or e4m3. */
  readonly data: readonly number[];
  /** Bit patterns of the scales' words; none of bf16. */
  readonly scales: readonly number[];
  /** Local expert ids of the token's choices, -1 for those of other ranks, and their weights, 0 for those. */
  readonly topkIdx: readonly number[];
  readonly topkWeights: readonly number[];
}

/** What one rank receives. */
export interface ReferenceLowLatencyReceived {
  /** 'rank-major': [source rank][row]. */
  readonly byRank: readonly (readonly ReferenceLowLatencyRow[])[];
  /** 'expert-major': [local expert][row]. */
  readonly byExpert: readonly (readonly ReferenceLowLatencyRow[])[];
  /** Number of rows of each local expert that found no place. */
  readonly dropped: readonly number[];
}

/**
 * What every rank receives.
 * @param inputs What each rank passes.
 * @param options Sizes of the job.
 */
export function referenceLowLatencyDispatch(
  inputs: readonly ReferenceInput[],
  options: ReferenceLowLatencyOptions,
): ReferenceLowLatencyReceived[] {
  const perRank = options.numExperts / inputs.length;
  return inputs.map((_, rank) => {
    const byRank = inputs.map((input, sourceRank) =>
      (options.active?.[sourceRank] === false ? [] : input.topkIdx).flatMap((choices, sourceToken) => {
        const local = choices.map((expert) => (Math.floor(expert / perRank) === rank ? expert - rank * perRank : -1));
        if (local.every((expert) => expert === -1)) return [];
        const weights = input.topkWeights?.[sourceToken] ?? [];
        const topkWeights = weights.map((weight, k) => (local[k] === -1 ? 0 : weight));
        const row = sentRow(input.x[sourceToken] ?? [], options.scales);
        return [{ sourceRank, sourceToken, ...row, topkIdx: local, topkWeights }];
      }),
    );
    const offered = Array.from({ length: perRank }, (_unused, expert) =>
      byRank.flat().filter((row) => row.topkIdx.includes(expert)),
    );
    const most = options.maxTokensPerExpert ?? Infinity;
    return {
      byRank,
      byExpert: offered.map((rows) => rows.slice(0, most)),
      dropped: offered.map((rows) => Math.max(0, rows.length - most)),
    };
  });
}

function sentRow(
  x: readonly number[],
  scales: LowLatencyScales | undefined,
): { data: readonly number[]; scales: readonly number[] } {
  return scales === undefined ? { data: x, scales: [] } : referenceQuantizeRow(x, scales);
}

/** What the ranks pass to combine. */
interface ReferenceLowLatencyCombineInput extends ReferenceHosts {
  /** What the ranks passed to dispatch; weights are needed but in 'rank-major'. */
  readonly inputs: readonly ReferenceInput[];
  readonly received: readonly ReferenceLowLatencyReceived[];
  /** [rank][local expert or source rank][row]: bf16 bit patterns. */
  readonly outputs: readonly (readonly (readonly (readonly number[])[])[])[];
  /** How rows stand, and what of them travels. */
  readonly mode: 'rank-major' | 'rank-sums' | 'choices';
  /** Whether each rank takes part, as the token's rank sees it. Rows of the experts of the others count as dropped. */
  readonly active?: readonly boolean[] | undefined;
}

/**
 * The combined bf16 row of one token, as the comment at the top of this file says.
 * @param input What each rank passes to combine().
 * @param of A token, its rank and the elements of a row.
 */
export function referenceLowLatencyCombine(
  { inputs, received, outputs, mode, active, hosts, combinePrecision }: ReferenceLowLatencyCombineInput,
  of: { readonly rank: number; readonly token: number; readonly hidden: number },
): number[] {
  const choices = inputs[of.rank]?.topkIdx[of.token] ?? [];
  const weights = inputs[of.rank]?.topkWeights?.[of.token] ?? [];
  const isThere = (rank: number): boolean => active?.[rank] !== false;
  const isOwn = (row: ReferenceLowLatencyRow): boolean => row.sourceRank === of.rank && row.sourceToken === of.token;
  if (mode === 'rank-major') {
    const rows = received.flatMap(({ byRank }, rank): RankedRow[] => {
      const at = (byRank[of.rank] ?? []).findIndex(isOwn);
      return at === -1 || !isThere(rank) ? [] : [{ rank, bits: outputs[rank]?.[of.rank]?.[at] ?? [] }];
    });
    return sumAcrossHosts([], rows, { rank: of.rank, hidden: of.hidden, hosts, combinePrecision });
  }
  const perRank = received[0]?.byExpert.length ?? 1;
  const weighted = choices.flatMap((expert, k): WeightedRow[] => {
    if (expert < 0) return [];
    const rank = Math.floor(expert / perRank);
    const at = (received[rank]?.byExpert[expert % perRank] ?? []).findIndex(isOwn);
    return at === -1 || !isThere(rank)
      ? []
      : [{ rank, weight: weights[k] ?? 0, bits: outputs[rank]?.[expert % perRank]?.[at] ?? [] }];
  });
  const chosen = choices
    .filter((expert) => expert >= 0)
    .map((expert) => Math.floor(expert / perRank))
    .filter(isThere);
  if (mode === 'choices') {
    const chosenByHost = rowsByHost(
      chosen.map((rank) => ({ rank })),
      { rank: of.rank, hosts },
    );
    const sums = rowsByHost(weighted, { rank: of.rank, hosts }).flatMap((host, at) =>
      chosenByHost[at]!.rows.length === 0 ? [] : [{ isOwn: host.isOwn, values: weightedNumbers(host.rows, of.hidden) }],
    );
    return addHostSums(sums, { hidden: of.hidden, combinePrecision });
  }
  const sums = [...new Set(chosen)]
    .toSorted((a, b) => a - b)
    .map((rank): RankedRow => {
      const here = weighted.filter((row) => row.rank === rank);
      return { rank, bits: weightedSum(here, of.hidden) };
    });
  return sumAcrossHosts([], sums, { rank: of.rank, hidden: of.hidden, hosts, combinePrecision });
}

interface WeightedRow {
  readonly rank: number;
  readonly weight: number;
  readonly bits: readonly number[];
}

function weightedSum(rows: readonly WeightedRow[], hidden: number): number[] {
  return weightedNumbers(rows, hidden).map(toBf16);
}

function weightedNumbers(rows: readonly WeightedRow[], hidden: number): number[] {
  return Array.from({ length: hidden }, (_, column) => {
    const [first = 0, ...others] = rows.map(({ weight, bits }) => Math.fround(weight * fromBf16(bits[column] ?? 0)));
    return others.reduce((sum, product) => Math.fround(sum + product), first);
  });
}
