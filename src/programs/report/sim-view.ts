// What people read of `weftline sim`: what was reached against what the network could do, what was lost, and how it went.
import { formatBytes } from '../../core/byte-size.ts';
import type { PatternResult } from '../sim/pattern-run.ts';
import type { ReportSection } from './html/report-page.ts';
import { bars, curves, plainBars, ranges, table, type View } from './view.ts';
import { counted, fixed } from './wording.ts';

/** What was simulated, for the first lines. */
export interface SimDescription {
  readonly pattern: string;
  readonly network: string;
  readonly gigabitsPerSecond: number;
  readonly rails: number;
  readonly paths: number;
  readonly congestion: string;
  readonly seed: number;
  readonly engines: number;
  readonly load: number;
  readonly loss: number;
  /** The only rail that loses packets; all of them if missing. */
  readonly lossRail?: number;
  readonly flows: number;
  readonly messages: number;
  readonly messageBytes: number;
}

export function simView(description: SimDescription, result: PatternResult): View {
  const { rails, engines, load, lossRail, flows, messages } = description;
  const { samples, theory, railBytes, end } = result;
  return {
    title: `${description.pattern}, simulated`,
    heading: [
      `${description.pattern} on ${description.network}, ${description.gigabitsPerSecond} Gbps per host${several(rails, 'rails')}${several(engines, 'engines')}; ${counted(description.paths, 'path')}, congestion control ${description.congestion}`,
      `${counted(flows, 'flow')} per sender, ${counted(messages, 'message')} of ${formatBytes(description.messageBytes)} each, load ${load}, loss ${description.loss} per link${lossRail === undefined ? '' : ` of rail ${lossRail}`}, seed ${description.seed}`,
    ],
    parts: [
      theoryParts(load, result),
      countLines(result),
      outageLines(result),
      overTimeSections(samples, theory.fairShareGbps),
      railBytes.length > 1 &&
        bars(
          {
            title: 'Shares of the rails',
            note: 'Bytes that all hosts sent by each rail, headers included.',
            unit: '%',
            rules: [{ value: 100 / railBytes.length, label: 'even' }],
          },
          plainBars(
            'share',
            shares(railBytes).map((share, rail) => [`rail ${rail}`, share]),
          ),
        ),
    ],
    footing: [
      end === 'done'
        ? `All ${result.messages} messages arrived.`
        : `NOT DONE: ${result.completed} of ${result.messages} messages arrived when ${whyNot(end)}.`,
    ],
  };
}

function several(count: number, what: string): string {
  return count === 1 ? '' : `, ${count} ${what}`;
}

function whyNot(end: string): string {
  return end === 'deadline' ? 'the time was over' : 'nothing more would have happened';
}

/** Simulated over ideal. Of a message the ideal is that it is alone in the network. */
function theoryParts(load: number, result: PatternResult): View['parts'][number] {
  const { theory, completion, goodputGbps, microseconds } = result;
  const alone = theory.messageMicroseconds;
  const share = goodputGbps / Math.round(theory.goodputGbps / theory.fairShareGbps);
  const compared = [
    { name: 'goodput, Gbps', value: goodputGbps, ideal: theory.goodputGbps * load, digits: 2 },
    ...(completion === undefined
      ? []
      : [
          { name: 'completion of a message, P50, µs', value: completion.p50, ideal: alone, digits: 1 },
          { name: 'completion of a message, P99, µs', value: completion.p99, ideal: alone, digits: 1 },
          { name: 'slowest message, µs', value: completion.max, ideal: alone, digits: 1 },
        ]),
    ...(load === 1
      ? [{ name: 'all messages, µs', value: microseconds, ideal: theory.totalMicroseconds, digits: 1 }]
      : []),
  ].map((row) => ({ ...row, ratio: row.ideal === 0 ? 0 : row.value / row.ideal }));
  const rows = [
    ...compared,
    { name: 'per sender, Gbps', value: share, ideal: theory.fairShareGbps * load, digits: 2, ratio: undefined },
    { name: 'fairness between flows (Jain)', value: result.fairness, ideal: 1, digits: 4, ratio: undefined },
  ];
  return [
    ...table(rows, [
      { head: '', of: ({ name }) => name },
      { head: 'simulated', of: ({ value, digits }) => value.toFixed(digits) },
      { head: 'ideal', of: ({ ideal, digits }) => ideal.toFixed(digits) },
      { head: 'ratio', of: ({ ratio }) => ratio, show: fixed(3) },
    ]),
    ranges(
      {
        title: 'Against theory',
        note: 'Simulated over ideal. Of a message the ideal is that it is alone in the network.',
        unit: 'simulated / ideal',
        rules: [{ value: 1, label: 'ideal' }],
      },
      compared.map(({ name, ratio }) => ({ name, low: ratio, middle: ratio, high: ratio })),
      {
        head: ['what', 'simulated', 'ideal', 'ratio'],
        rows: compared.map(({ name, value, ideal, ratio }) => [name, value, ideal, ratio]),
      },
    ),
  ];
}

function countLines({ network, transport, events, mostPackets, longestQueueBytes }: PatternResult): string[] {
  const share = transport.segments === 0 ? 0 : (100 * transport.retransmitted) / transport.segments;
  return [
    `packets: ${network.sent} sent; dropped ${network.droppedFull} by full queues, ${network.droppedLoss} at random, ${network.droppedDown} on dead links; ${network.marked} marked; longest queue ${formatBytes(Math.round(longestQueueBytes))}`,
    `segments: ${transport.segments} sent, ${transport.retransmitted} of them again (${share.toFixed(2)} %), ${transport.duplicates} arrived twice; ${transport.acks} acks, ${transport.timeouts} timeouts`,
    `simulation: ${events} events, at most ${mostPackets} packets under way`,
  ];
}

function outageLines({ outage, railBytes }: PatternResult): string[] {
  const lines =
    railBytes.length === 1
      ? []
      : [
          `share of each rail: ${shares(railBytes)
            .map((share) => `${share.toFixed(1)} %`)
            .join(', ')}`,
        ];
  if (outage === undefined) return lines;
  const { rail, from, to, before, worst, during, after } = outage;
  const returns = Number.isFinite(to);
  return [
    ...lines,
    `rail ${rail} dead from ${inMs(from)} ${returns ? `to ${inMs(to)}` : 'on'}: goodput ${gbps(before)} before, ${gbps(worst)} in the worst millisecond, ${gbps(during)} from 100 ms after its death on${returns ? `, ${gbps(after)} from 100 ms after its return on` : ''}`,
  ];
}

function shares(bytes: readonly number[]): number[] {
  const all = bytes.reduce((sum, one) => sum + one, 0);
  return bytes.map((one) => (100 * one) / Math.max(1, all));
}

/** Most samples that a chart has; others between them are left out. */
const MAX_SAMPLES = 600;
/** Most lines that a chart has. */
const MAX_LINES = 64;
const TABLE_ROWS = 12;

type Sample = PatternResult['samples'][number];

const overTime: readonly {
  readonly title: string;
  readonly note: string;
  readonly unit: string;
  readonly line: string;
  readonly of: (sample: Sample) => readonly (number | null)[];
}[] = [
  {
    title: 'Goodput over time',
    note: 'Payload of each pair of source and destination.',
    unit: 'Gbps',
    line: 'flow',
    of: ({ goodputGbps }) => goodputGbps,
  },
  {
    title: 'Paths over time',
    note: 'Full packets that all senders gave to each path, those sent again included.',
    unit: 'Gbps',
    line: 'path',
    of: ({ pathGbps }) => pathGbps,
  },
  {
    title: 'Rails over time',
    note: 'What all hosts sent by each rail, headers included.',
    unit: 'Gbps',
    line: 'rail',
    of: ({ railGbps }) => railGbps,
  },
  {
    title: 'Windows over time',
    note: 'What congestion control admits, all paths together.',
    unit: 'KiB',
    line: 'flow',
    of: ({ windowBytes }) => windowBytes.map((bytes) => (bytes === null ? null : bytes / 1024)),
  },
  {
    title: 'Round trips over time',
    note: 'The mean of the smoothed round trips of the paths.',
    unit: 'µs',
    line: 'flow',
    of: ({ roundTrip }) => roundTrip,
  },
  {
    title: 'Longest queue over time',
    note: "Before any link but the hosts' own.",
    unit: 'KiB',
    line: 'queue',
    of: ({ queueBytes }) => [queueBytes / 1024],
  },
];

function overTimeSections(samples: readonly Sample[], fairShare: number): ReportSection[] {
  if (samples.length === 0) return [];
  const step = Math.ceil(samples.length / MAX_SAMPLES);
  const shown = samples.filter((_, index) => index % step === 0);
  const every = Math.ceil(shown.length / TABLE_ROWS);
  return overTime.flatMap(({ title, note, unit, line, of }) => {
    const points = shown.map((sample) => ({ ms: sample.at / 1000, values: of(sample) }));
    const all = points[0]!.values.length;
    if (line === 'rail' && all === 1) return [];
    const count = Math.min(all, MAX_LINES);
    return curves(
      {
        title,
        note: count < all ? `${note} The first ${count} of ${all}.` : note,
        x: { label: 'ms' },
        y: { label: unit },
        rules: title.startsWith('Goodput') ? [{ value: fairShare, label: 'fair share' }] : [],
      },
      Array.from({ length: count }, (_, index) => ({
        name: all === 1 ? line : `${line} ${index}`,
        points: points.map(({ ms, values }) => [ms, values[index] ?? null] as const),
      })),
      {
        head: ['ms', `least, ${unit}`, 'mean', 'most'],
        rows: points
          .filter((_, index) => index % every === 0)
          .map(({ ms, values }) => [ms.toFixed(2), ...extent(values)]),
      },
    );
  });
}

function extent(values: readonly (number | null)[]): (number | string)[] {
  const known = values.filter((value) => value !== null);
  if (known.length === 0) return ['', '', ''];
  return [Math.min(...known), known.reduce((total, value) => total + value, 0) / known.length, Math.max(...known)];
}

function inMs(microseconds: number): string {
  return `${(microseconds / 1000).toFixed(1)} ms`;
}

function gbps(value: number | undefined): string {
  return value === undefined ? 'unknown' : `${value.toFixed(1)} Gbps`;
}
