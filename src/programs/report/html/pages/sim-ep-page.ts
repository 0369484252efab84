// The report page of `weftline sim ep`: phases against what links and memory allow, the load of ranks, and links over time.
import { epPhases } from '../../../sim/ep/ep-plan.ts';
import type { EpIncast, EpResult, EpSample } from '../../../sim/ep/ep-result.ts';
import { type SimEpDescription, simEpHeading, simEpVerdict } from '../../sim-ep-report.ts';
import type { Rule } from '../chart.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';

export function simEpPage(description: SimEpDescription, result: EpResult): ReportPage {
  const { hosts, ranksPerHost } = description.shape;
  const { samples } = result;
  return {
    title: `Dispatch and combine across ${hosts} hosts of ${ranksPerHost} ranks, simulated`,
    about: [...simEpHeading(description), simEpVerdict(result)],
    sections: [
      phaseSection(result),
      ...epPhases.map((phase) => incastSection(phase, result[phase].incast, result[phase].meanLinkBytes)),
      ...(samples.length === 0
        ? []
        : [
            overTime(samples, {
              title: 'Into the first rank of each host',
              unit: 'Gbps',
              values: ({ intoGbps }) => intoGbps,
              rules: [{ value: description.gigabitsPerSecond, label: 'rate of its links' }],
            }),
            overTime(samples, {
              title: 'Queue before it',
              unit: 'KiB',
              values: ({ queueBytes }) => queueBytes.map((bytes) => bytes / 1024),
              rules: [],
            }),
          ]),
    ],
  };
}

function phaseSection(result: EpResult): ReportSection {
  const rows = epPhases.flatMap((phase) => {
    const { meeting, rows: moving, tail, total, bounds } = result[phase];
    return [
      { name: `${phase}: meeting`, time: meeting, least: bounds.meeting },
      { name: `${phase}: rows`, time: moving, least: bounds.rows },
      { name: `${phase}: rest, barrier`, time: tail, least: undefined },
      { name: `${phase}: all`, time: total, least: bounds.total },
    ];
  });
  return {
    title: 'Phases against the least possible',
    note: 'Of the slowest rank. Least: the busiest links of a rank never idle, and the busiest memory.',
    chart: {
      kind: 'bars',
      value: { label: 'µs' },
      bars: rows.flatMap(({ name, time, least }) => [
        { name, series: 'simulated', value: time },
        ...(least === undefined ? [] : [{ name, series: 'least', value: least }]),
      ]),
    },
    table: {
      head: ['phase', 'simulated, µs', 'least, µs', 'ratio'],
      rows: rows.map(({ name, time, least }) => [
        name,
        time,
        least ?? '',
        least === undefined || least === 0 ? '' : time / least,
      ]),
    },
  };
}

const SHOWN_LINKS = 24;

function incastSection(phase: string, incast: readonly EpIncast[], mean: number): ReportSection {
  const shown = incast.slice(0, SHOWN_LINKS);
  return {
    title: `Load of ranks, ${phase}`,
    note: `Bytes that passed the links to a rank, with headers; the busiest ${shown.length} of ${incast.length}.`,
    chart: {
      kind: 'bars',
      value: { label: 'MB' },
      bars: shown.map((one) => ({ name: nameOf(one), series: 'bytes', value: one.bytes / 1e6 })),
      rules: [{ value: mean / 1e6, label: 'mean' }],
    },
    table: {
      head: ['rank', 'bytes', 'of the mean', 'longest queue, bytes'],
      rows: incast.map((one) => [nameOf(one), one.bytes, mean === 0 ? 0 : one.bytes / mean, one.queueBytes]),
    },
  };
}

function nameOf({ host, rank }: EpIncast): string {
  return `host ${host} rank ${rank}`;
}

interface Curve {
  readonly title: string;
  readonly unit: string;
  readonly values: (sample: EpSample) => readonly number[];
  readonly rules: readonly Rule[];
}

const MAX_SAMPLES = 600;
const TABLE_ROWS = 12;

function overTime(samples: readonly EpSample[], { title, unit, values, rules }: Curve): ReportSection {
  const step = Math.ceil(samples.length / MAX_SAMPLES);
  const shown = samples.filter((_, index) => index % step === 0);
  const hosts = values(shown[0]!).map((_, host) => host);
  const every = Math.ceil(shown.length / TABLE_ROWS);
  return {
    title,
    note: 'One line per host.',
    chart: {
      kind: 'lines',
      x: { label: 'ms' },
      y: { label: unit },
      lines: hosts.map((host) => ({
        name: `host ${host}`,
        points: shown.map((sample) => [sample.at / 1000, values(sample)[host] ?? null] as const),
      })),
      rules,
    },
    table: {
      head: ['ms', ...hosts.map((host) => `host ${host}`)],
      rows: shown
        .filter((_, index) => index % every === 0)
        .map((sample) => [(sample.at / 1000).toFixed(2), ...values(sample)]),
    },
  };
}
