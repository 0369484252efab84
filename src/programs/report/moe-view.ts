// What people read of `weftline moe`: time and traffic of each phase, the load of ranks and experts, layer by layer, a verdict.
import { formatBytes } from '../../core/byte-size.ts';
import type { MoeReport } from '../moe/moe-job.ts';
import { type MoeLoad, spread } from '../moe/measure-forward.ts';
import { bars, plainBars, table, type View } from './view.ts';
import { counted, fixed } from './wording.ts';

/** More ranks than this are shown by their spread alone. */
const MAX_RANK_ROWS = 16;
const MAX_RANK_COLUMNS = 8;

export function moeView(report: MoeReport): View {
  const { block, load, ranks, redundantExperts, memory, repeat } = report;
  const before = redundantExperts?.without;
  const shared = block.sharedIntermediate === undefined ? '' : `, a shared expert (width ${block.sharedIntermediate})`;
  // Of the rank whose process has grown most.
  const [most] = memory.toSorted((one, other) => other.peakBytes - one.peakBytes);
  return {
    title: `MoE block on ${counted(ranks, 'rank')}`,
    heading: [
      block.model === undefined ? block.path : `${block.path}, layer ${block.model.layer} (${block.model.type})`,
      `${block.tokens} tokens of ${block.hidden}, top ${block.topk} of ${block.experts} experts (width ${block.intermediate})${shared}; ${counted(ranks, 'rank')}`,
      `device: ${report.device.kind} (${report.device.reason})`,
      `experts: ${report.product}`,
      `dispatcher ${report.dispatcher}, ${report.dtype} rows, window ${formatBytes(report.windowBytes)} per rank`,
      ...(most === undefined
        ? []
        : [
            `memory: experts ${formatBytes(most.expertBytes)} per rank; largest growth of a process ${formatBytes(most.peakBytes)}`,
          ]),
      `Times: slowest rank, median of ${repeat}. Rows, bytes, GB/s: all ranks; off-rank: from other ranks.`,
    ],
    parts: [
      redundantLines(report),
      phaseParts(report),
      loadTable(report),
      load.ranks.length <= MAX_RANK_ROWS
        ? table(load.ranks, [
            { head: 'rank', of: ({ rank }) => rank },
            { head: 'tokens', of: ({ tokens }) => tokens },
            { head: 'rows received', of: ({ received }) => received },
            { head: 'off-rank', of: ({ receivedFromOthers }) => receivedFromOthers },
            { head: 'rows computed', of: ({ expertRows }) => expertRows },
            { head: 'computed before', of: ({ rank }) => before?.load.ranks[rank]?.expertRows },
          ])
        : [],
      report.out !== undefined && `Output written to ${report.out}`,
      expertSection(report),
      bars(
        {
          title: 'Load of ranks',
          note: 'Received: rows that dispatch brings to a rank. Computed: rows of its experts, one per token and expert. All wait for the rank with the most.',
          unit: 'rows',
        },
        before === undefined
          ? ofRanks(load, '')
          : [...ofRanks(before.load, ', without copies'), ...ofRanks(load, ', with copies')],
      ),
    ],
    footing: [moeVerdict(report)],
  };
}

function redundantLines({ redundantExperts, block, forwardMs }: MoeReport): string[] {
  if (redundantExperts === undefined) return [];
  const { count, copiedExperts, without, check } = redundantExperts;
  const difference =
    check.error === 0 ? 'the same bit for bit' : `differs by ${check.error.toExponential(2)} of its norm`;
  return [
    `redundant experts: ${count} copies of ${copiedExperts} busy experts, ${block.experts + count} physical experts in all`,
    `before, without them: ${without.forwardMs.toFixed(1)} ms; after: ${forwardMs.toFixed(1)} ms; output ${difference}`,
  ];
}

function phaseParts({ phases, forwardMs, redundantExperts }: MoeReport): View['parts'][number] {
  const before = redundantExperts?.without.phases ?? [];
  const after = before.length === 0 ? 'time' : 'with copies of busy experts';
  const all: Partial<Omit<(typeof phases)[number], 'name'>> & { name: string; ms: number } = {
    name: 'all in one go',
    ms: forwardMs,
  };
  return [
    ...table(
      [...phases, all],
      [
        { head: 'phase', of: ({ name }) => name },
        { head: 'ms', of: ({ ms }) => ms, show: fixed(2) },
        { head: 'rows', of: ({ rows }) => rows },
        { head: 'moved', of: ({ bytes }) => bytes, show: formatBytes },
        { head: 'GB/s', of: ({ gigabytesPerSecond }) => gigabytesPerSecond, show: fixed(2) },
        { head: 'off-rank', of: ({ wireBytes }) => wireBytes, show: formatBytes },
        { head: 'GB/s', of: ({ wireGigabytesPerSecond }) => wireGigabytesPerSecond, show: fixed(2) },
      ],
    ),
    bars(
      {
        title: 'Time of each phase',
        note: `The slowest rank, median of the passes. All phases in one go take ${forwardMs.toFixed(2)} ms.`,
        unit: 'ms',
      },
      [
        ...before.map(({ name, ms }) => ({ name, series: 'without copies', value: ms })),
        ...phases.map(({ name, ms }) => ({ name, series: after, value: ms })),
      ],
    ),
  ];
}

function loadTable({ load, redundantExperts }: MoeReport): View['parts'][number] {
  const before = redundantExperts?.without.load;
  const rows =
    before === undefined
      ? rowsOf(load, 'expert', '')
      : [...rowsOf(before, 'expert', ' before'), ...rowsOf(load, 'physical expert', ' after')];
  return table(
    rows.map(([name, place, values]) => ({ name, place, ...spread(values) })),
    [
      { head: 'rows', of: ({ name }) => name },
      { head: 'mean', of: ({ mean }) => mean, show: fixed(1) },
      { head: 'least', of: ({ least, place }) => `${least.value} (${place} ${least.index})` },
      { head: 'most', of: ({ most, place }) => `${most.value} (${place} ${most.index})` },
      { head: 'most / mean', of: ({ most, mean }) => (mean === 0 ? undefined : most.value / mean), show: fixed(2) },
    ],
  );
}

function expertSection({ load, redundantExperts }: MoeReport): View['parts'][number] {
  const before = redundantExperts?.without.load;
  const { mean, most } = spread(load.experts);
  const expert = before === undefined ? 'expert' : 'physical expert';
  const now = { name: before === undefined ? 'rows' : 'with copies', values: load.experts };
  return {
    title: 'Load of experts',
    note: `Rows that each ${expert} computes. The busiest, ${most.index}, has ${mean === 0 ? 0 : (most.value / mean).toFixed(2)} times the mean.`,
    chart: {
      kind: 'numbered',
      number: { label: expert },
      value: { label: 'rows' },
      series: before === undefined ? [now] : [{ name: 'without copies', values: before.experts }, now],
      rules: [{ value: mean, label: 'mean' }],
    },
    table: {
      head: ['expert', 'rows', 'of the mean'],
      rows: load.experts.map((rows, at) => [String(at), rows, mean === 0 ? 0 : rows / mean]),
    },
  };
}

function ofRanks({ ranks }: MoeLoad, suffix: string): { name: string; series: string; value: number }[] {
  return ranks.flatMap(({ rank, received, expertRows }) => [
    { name: `rank ${rank}`, series: `received${suffix}`, value: received },
    { name: `rank ${rank}`, series: `computed${suffix}`, value: expertRows },
  ]);
}

function moeVerdict({ check, forwardMs, block }: MoeReport): string {
  const speed = `${forwardMs.toFixed(1)} ms, ${Math.round((block.tokens / forwardMs) * 1000)} tokens/s`;
  if (check === undefined) return `NOT CHECKED: there is no output_f32; ${speed}`;
  const error = `error ${check.error.toExponential(2)} against output_f32, tolerance ${check.tolerance}`;
  return check.passed ? `PASSED: ${error}; ${speed}` : `FAILED: ${error}`;
}

/** Of --all-layers: at least one report, all of the same model on the same ranks. */
export function layersView(reports: readonly MoeReport[]): View {
  const { block, ranks, device, dispatcher, dtype, repeat } = reports[0]!;
  const all = reports.flatMap(({ memory }) => memory);
  const most = (of: (rank: (typeof all)[number]) => number): string => formatBytes(Math.max(...all.map(of)));
  const layers = reports.map(({ block: of, load, ...report }, index) => {
    const { mean, most: busiest } = spread(load.ranks.map(({ expertRows }) => expertRows));
    const name = `layer ${of.model?.layer ?? index}`;
    return { ...report, load, name, layer: of.model?.layer, ratio: mean === 0 ? 0 : busiest.value / mean };
  });
  const shown = ranks > MAX_RANK_COLUMNS ? [] : Array.from({ length: ranks }, (_, rank) => rank);
  return {
    title: `MoE blocks of a model on ${counted(ranks, 'rank')}`,
    heading: [
      `${block.path} (${block.model?.type ?? 'unknown'}): ${reports.length} layers with experts`,
      `${block.tokens} tokens of ${block.hidden}, top ${block.topk} of ${block.experts} experts; ${counted(ranks, 'rank')}`,
      `device: ${device.kind} (${device.reason})`,
      `dispatcher ${dispatcher}, ${dtype} rows; rows that the experts of a rank compute; ms: slowest rank, median of ${repeat}`,
    ],
    parts: [
      table(layers, [
        { head: 'layer', of: ({ layer }) => layer },
        { head: 'ms', of: ({ forwardMs }) => forwardMs, show: fixed(2) },
        ...shown.map((rank) => ({
          head: `rank ${rank}`,
          of: ({ load }: (typeof layers)[number]) => load.ranks[rank]?.expertRows,
        })),
        { head: 'most / mean', of: ({ ratio }) => (ratio === 0 ? undefined : ratio), show: fixed(2) },
        {
          head: 'busiest expert',
          of: ({ load }) => {
            const { value, index } = spread(load.experts).most;
            return `${value} (${index})`;
          },
        },
        {
          head: 'error',
          of: ({ check }) => check && `${check.error.toExponential(2)}${check.passed ? '' : ' FAILED'}`,
        },
      ]),
      `memory: experts of one layer at most ${most((rank) => rank.expertBytes)} per rank; largest growth of a process ${most((rank) => rank.peakBytes)}`,
      bars(
        {
          title: 'Time of each layer',
          note: 'All phases in one go: the slowest rank, median of the passes.',
          unit: 'ms',
        },
        plainBars(
          'time',
          layers.map(({ name, forwardMs }) => [name, forwardMs]),
        ),
      ),
      bars(
        {
          title: 'Load of ranks in each layer',
          note: 'The rank whose experts compute most rows, over the mean of the ranks: all wait for it.',
          unit: 'most / mean',
        },
        plainBars(
          'load',
          layers.map(({ name, ratio }) => [name, ratio]),
        ),
      ),
    ],
    footing: [layersVerdict(reports)],
  };
}

function layersVerdict(reports: readonly MoeReport[]): string {
  const checked = reports.filter(({ check }) => check !== undefined);
  const failed = checked.filter(({ check }) => check?.passed === false);
  if (checked.length === 0) return 'NOT CHECKED: there is no output_f32';
  if (failed.length > 0) return `FAILED: layers ${failed.map(({ block }) => block.model?.layer).join(', ')}`;
  return `PASSED: ${checked.length} of ${reports.length} layers against output_f32, tolerance ${checked[0]?.check?.tolerance}`;
}

function rowsOf({ experts, ranks }: MoeLoad, expert: string, suffix: string) {
  return [
    [`per ${expert}${suffix}`, 'expert', experts],
    [`computed per rank${suffix}`, 'rank', ranks.map(({ expertRows }) => expertRows)],
    [`received per rank${suffix}`, 'rank', ranks.map(({ received }) => received)],
  ] as const;
}
