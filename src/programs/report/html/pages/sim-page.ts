// The report page of `weftline sim PATTERN`: what was reached against theory, and flows, paths, rails and queues over time.
import type { PatternResult, Sample } from '../../../sim/pattern-result.ts';
import { type SimDescription, simHeading, simVerdict } from '../../sim-report.ts';
import type { Rule } from '../chart.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';
import { scaleFor } from './parts.ts';

export function simPage(description: SimDescription, result: PatternResult): ReportPage {
  const { samples, theory, railBytes } = result;
  const flows = { name: 'flow', of: samples };
  return {
    title: `${description.pattern}, simulated`,
    about: [...simHeading(description), simVerdict(result)],
    sections: [
      idealSection(description, result),
      ...(samples.length === 0
        ? []
        : [
            overTime(
              {
                ...flows,
                title: 'Goodput over time',
                unit: 'Gbps',
                note: 'Payload of each pair of source and destination.',
              },
              ({ goodputGbps }) => goodputGbps,
              [{ value: theory.fairShareGbps, label: 'fair share' }],
            ),
            overTime(
              {
                name: 'path',
                of: samples,
                title: 'Paths over time',
                unit: 'Gbps',
                note: 'Full packets that all senders gave to each path, those sent again included.',
              },
              ({ pathGbps }) => pathGbps,
            ),
            ...(samples[0]!.railGbps.length < 2
              ? []
              : [
                  overTime(
                    {
                      name: 'rail',
                      of: samples,
                      title: 'Rails over time',
                      unit: 'Gbps',
                      note: 'What all hosts sent by each rail, headers included.',
                    },
                    ({ railGbps }) => railGbps,
                  ),
                ]),
            overTime(
              {
                ...flows,
                title: 'Windows over time',
                unit: 'KiB',
                note: 'What congestion control admits, all paths together.',
              },
              ({ windowBytes }) => windowBytes.map((bytes) => (bytes === null ? null : bytes / 1024)),
            ),
            overTime(
              {
                ...flows,
                title: 'Round trips over time',
                unit: 'µs',
                note: 'The mean of the smoothed round trips of the paths.',
              },
              ({ roundTrip }) => roundTrip,
            ),
            overTime(
              {
                name: 'queue',
                of: samples,
                title: 'Longest queue over time',
                unit: 'KiB',
                note: "Before any link but the hosts' own.",
              },
              ({ queueBytes }) => [queueBytes / 1024],
            ),
          ]),
      ...(railBytes.length < 2 ? [] : [railSection(railBytes)]),
    ],
  };
}

function idealSection(
  { load }: SimDescription,
  { theory, completion, goodputGbps, microseconds }: PatternResult,
): ReportSection {
  const alone = theory.messageMicroseconds;
  const rows = [
    ['goodput', goodputGbps, theory.goodputGbps * load, 'Gbps'],
    ...(completion === undefined
      ? []
      : ([
          ['completion, P50', completion.p50, alone, 'µs'],
          ['completion, P99', completion.p99, alone, 'µs'],
          ['slowest message', completion.max, alone, 'µs'],
        ] as const)),
    ...(load === 1 ? ([['all messages', microseconds, theory.totalMicroseconds, 'µs']] as const) : []),
  ] as const;
  const ratios = rows.map(([name, value, ideal]) => {
    const ratio = ideal === 0 ? 0 : value / ideal;
    return { name, low: ratio, middle: ratio, high: ratio };
  });
  return {
    title: 'Against theory',
    note: 'Simulated over ideal. Of a message the ideal is that it is alone in the network.',
    chart: {
      kind: 'ranges',
      value: { label: 'simulated / ideal', scale: scaleFor(ratios.map(({ middle }) => middle)) },
      ranges: ratios,
      rules: [{ value: 1, label: 'ideal' }],
    },
    table: {
      head: ['what', 'simulated', 'ideal', 'unit', 'ratio'],
      rows: rows.map(([name, value, ideal, unit]) => [name, value, ideal, unit, ideal === 0 ? 0 : value / ideal]),
    },
  };
}

interface Curve {
  readonly name: string;
  readonly title: string;
  readonly unit: string;
  readonly note: string;
  readonly of: readonly Sample[];
}

/** Most samples that a chart has; others between them are left out. */
const MAX_SAMPLES = 600;
/** Most lines that a chart has. */
const MAX_LINES = 64;
const TABLE_ROWS = 12;

function overTime(
  { name, title, unit, note, of }: Curve,
  values: (sample: Sample) => readonly (number | null)[],
  rules: readonly Rule[] = [],
): ReportSection {
  const step = Math.ceil(of.length / MAX_SAMPLES);
  const shown = of
    .filter((_, index) => index % step === 0)
    .map((sample) => ({ ms: sample.at / 1000, values: values(sample) }));
  const all = shown[0]?.values.length ?? 0;
  const count = Math.min(all, MAX_LINES);
  const nameOf = (index: number): string => (all === 1 ? name : `${name} ${index}`);
  const numbers = Array.from({ length: count }, (_, index) => index);
  const every = Math.ceil(shown.length / TABLE_ROWS);
  return {
    title,
    note: count < all ? `${note} The first ${count} of ${all}.` : note,
    chart: {
      kind: 'lines',
      x: { label: 'ms' },
      y: { label: unit },
      lines: numbers.map((index) => ({
        name: nameOf(index),
        points: shown.map(({ ms, values: at }) => [ms, at[index] ?? null] as const),
      })),
      rules,
    },
    table: {
      head: ['ms', `least, ${unit}`, 'mean', 'most'],
      rows: shown.filter((_, index) => index % every === 0).map(({ ms, values: at }) => [ms.toFixed(2), ...extent(at)]),
    },
  };
}

function extent(values: readonly (number | null)[]): (number | string)[] {
  const known = values.filter((value) => value !== null);
  if (known.length === 0) return ['', '', ''];
  const sum = known.reduce((total, value) => total + value, 0);
  return [Math.min(...known), sum / known.length, Math.max(...known)];
}

function railSection(railBytes: readonly number[]): ReportSection {
  const all = railBytes.reduce((sum, bytes) => sum + bytes, 0);
  const share = (bytes: number): number => (100 * bytes) / Math.max(1, all);
  return {
    title: 'Shares of the rails',
    note: 'Bytes that all hosts sent by each rail, headers included.',
    chart: {
      kind: 'bars',
      value: { label: '%' },
      bars: railBytes.map((bytes, rail) => ({ name: `rail ${rail}`, series: 'share', value: share(bytes) })),
      rules: [{ value: 100 / railBytes.length, label: 'even' }],
    },
    table: {
      head: ['rail', 'bytes', '%'],
      rows: railBytes.map((bytes, rail) => [`rail ${rail}`, bytes, share(bytes)]),
    },
  };
}
