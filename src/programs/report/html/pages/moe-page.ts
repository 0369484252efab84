// The report page of `weftline moe`: phases, and the load of experts and ranks.
import type { MoeReport } from '../../../moe/moe-job.ts';
import { type MoeLoad, spread } from '../../../moe/moe-load.ts';
import { moeHeadline, moeVerdict } from '../../moe-report.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';

export function moePage(report: MoeReport): ReportPage {
  return {
    title: `MoE block on ${report.ranks} ${report.ranks === 1 ? 'rank' : 'ranks'}`,
    about: [...moeHeadline(report), moeVerdict(report)],
    sections: [phaseSection(report), expertSection(report), rankSection(report)],
  };
}

function phaseSection({ phases, forwardMs, redundantExperts }: MoeReport): ReportSection {
  const before = redundantExperts?.without.phases ?? [];
  const after = before.length === 0 ? 'time' : 'with copies of busy experts';
  return {
    title: 'Time of each phase',
    note: `The slowest rank, median of the passes. All phases in one go take ${forwardMs.toFixed(2)} ms. GB/s: what dispatch and combine bring to all ranks, and the part that comes from other ranks.`,
    chart: {
      kind: 'bars',
      value: { label: 'ms' },
      bars: phases.flatMap(({ name, ms }) => [
        ...before
          .filter((phase) => phase.name === name)
          .map((phase) => ({ name, series: 'without copies', value: phase.ms })),
        { name, series: after, value: ms },
      ]),
    },
    table: {
      head: ['phase', 'ms', 'rows', 'GB/s', 'GB/s off-rank'],
      rows: phases.map(({ name, ms, rows, gigabytesPerSecond, wireGigabytesPerSecond }) => [
        name,
        ms,
        rows,
        gigabytesPerSecond ?? '',
        wireGigabytesPerSecond ?? '',
      ]),
    },
  };
}

function expertSection({ load, redundantExperts }: MoeReport): ReportSection {
  const before = redundantExperts?.without.load;
  const { mean, most } = spread(load.experts);
  return {
    title: 'Load of experts',
    note: `Rows that each ${before === undefined ? 'expert' : 'physical expert'} computes. The busiest, ${most.index}, has ${mean === 0 ? 0 : (most.value / mean).toFixed(2)} times the mean.`,
    chart: {
      kind: 'numbered',
      number: { label: before === undefined ? 'expert' : 'physical expert' },
      value: { label: 'rows' },
      series: [
        ...(before === undefined ? [] : [{ name: 'without copies', values: before.experts }]),
        { name: before === undefined ? 'rows' : 'with copies', values: load.experts },
      ],
      rules: [{ value: mean, label: 'mean' }],
    },
    table: {
      head: ['expert', 'rows', 'of the mean'],
      rows: load.experts.map((rows, expert) => [String(expert), rows, mean === 0 ? 0 : rows / mean]),
    },
  };
}

function rankSection({ load, redundantExperts }: MoeReport): ReportSection {
  const before = redundantExperts?.without.load;
  return {
    title: 'Load of ranks',
    note: 'Received: rows that dispatch brings to a rank. Computed: rows of its experts, one per token and expert. All wait for the rank with the most.',
    chart: {
      kind: 'bars',
      value: { label: 'rows' },
      bars:
        before === undefined
          ? series(load, '')
          : [...series(before, ', without copies'), ...series(load, ', with copies')],
    },
    table: {
      head: ['rank', 'tokens', 'received', 'off-rank', 'computed'],
      rows: load.ranks.map(({ rank, tokens, received, receivedFromOthers, expertRows }) => [
        `rank ${rank}`,
        tokens,
        received,
        receivedFromOthers,
        expertRows,
      ]),
    },
  };
}

function series({ ranks }: MoeLoad, suffix: string): { name: string; series: string; value: number }[] {
  return ranks.flatMap(({ rank, received, expertRows }) => [
    { name: `rank ${rank}`, series: `received${suffix}`, value: received },
    { name: `rank ${rank}`, series: `computed${suffix}`, value: expertRows },
  ]);
}
