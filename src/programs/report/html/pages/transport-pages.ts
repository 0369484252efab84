// The report pages of `weftline bench transport`: goodput against bare UDP and TCP, latencies, paths over time, ranks, engines.
import type { PairsBenchReport } from '../../../bench/transport/transport-pairs.ts';
import { latencyQuantiles } from '../../../bench/transport/transport-phases.ts';
import type { RankBenchReport } from '../../../bench/transport/transport-ranks.ts';
import type { PathsAt, TransportBenchReport } from '../../../bench/transport/transport-results.ts';
import { machineLines } from '../../bench-heading.ts';
import type { ReportPage, ReportSection } from '../report-page.ts';
import { quantileSection, roundsOf, summarySection } from './parts.ts';

export function transportPage(report: TransportBenchReport): ReportPage {
  const { workload, throughput, comparison, latency, pathsOverTime, paths } = report;
  const { perftype, nflow, nmsg, nreq, msize } = workload;
  const ratios = comparison === undefined ? [] : ratiosOf(comparison);
  return {
    title: `Transport between two processes, ${perftype}`,
    about: [
      `${nflow} flows of ${nreq} requests of ${nmsg} messages of ${msize} bytes; ${paths} paths, packets of ${report.segmentBytes} bytes`,
      ...(report.intact === undefined
        ? []
        : [`${report.intact.messages} messages of ${report.intact.bytes} bytes arrived intact`]),
      ...machineLines(report),
    ],
    sections: [
      ...(throughput === undefined ? [] : [goodputSection(report)]),
      ...(ratios.length === 0
        ? []
        : [
            summarySection(ratios, {
              title: 'Ratio to bare UDP and TCP',
              note: 'Goodput over that of the other, in turn; p25 to p75 of the rounds.',
              unit: 'ratio',
              rules: [{ value: 1, label: 'as fast' }],
            }),
          ]),
      ...(throughput === undefined
        ? []
        : [
            quantileSection('Latency of a request', {
              note: 'From posting the messages of a request to the end of the last of them, at the sender.',
              names: latencyQuantiles,
              of: [{ name: 'request', values: throughput.requestMicroseconds }],
              unit: 'µs',
            }),
          ]),
      ...(latency === undefined
        ? []
        : [
            quantileSection('Latency of a message', {
              note: 'One message under way, from the offer of memory to its arrival: comparable to a round trip.',
              names: latencyQuantiles,
              of: [
                { name: 'transport', values: latency.transport },
                ...(latency.bareRoundTrip === undefined ? [] : [{ name: 'bare UDP', values: latency.bareRoundTrip }]),
              ],
              unit: 'µs',
            }),
          ]),
      ...(pathsOverTime.length < 2 ? [] : pathSections(pathsOverTime)),
    ],
  };
}

function goodputSection({ throughput, comparison }: TransportBenchReport): ReportSection {
  const { gbps, receivedGbps } = throughput!;
  const sides = [
    ['transport', gbps],
    ['transport, back', receivedGbps ?? []],
    ['bare UDP', comparison?.bareGbps ?? []],
    ['TCP, iperf3', comparison?.tcpGbps ?? []],
  ] as const;
  return summarySection(
    sides.flatMap(([name, values]) => (values.length === 0 ? [] : [{ name, summary: roundsOf(values) }])),
    {
      title: 'Goodput against the ceiling',
      note: 'Bytes of messages that arrived. Bare UDP makes the same system calls without a protocol.',
      unit: 'Gbps',
    },
  );
}

function ratiosOf({ ratioToBare, ratioToTcp }: NonNullable<TransportBenchReport['comparison']>) {
  const bare = { name: 'to bare UDP', summary: ratioToBare };
  return ratioToTcp === undefined ? [bare] : [bare, { name: 'to TCP, iperf3', summary: ratioToTcp }];
}

/** `samples` count from the beginning of the connection. */
function pathSections(samples: readonly PathsAt[]): ReportSection[] {
  const paths = samples[0]!.paths.map((_, path) => path);
  const rates = paths.map((path) =>
    samples.slice(1).map((sample, before) => {
      const sent = sample.paths[path]!.sentSegments - samples[before]!.paths[path]!.sentSegments;
      return [sample.seconds, sent / (sample.seconds - samples[before]!.seconds)] as const;
    }),
  );
  const last = samples.at(-1)!;
  return [
    {
      title: 'Paths over time',
      note: 'Packets that each path took, of the sending side.',
      chart: {
        kind: 'lines',
        x: { label: 'seconds' },
        y: { label: 'packets per second' },
        lines: paths.map((path) => ({ name: `path ${path}`, points: rates[path]! })),
      },
      table: {
        head: ['path', 'packets', 'lost', 'round trip, µs'],
        rows: last.paths.map(({ sentSegments, lostSegments, smoothedRtt }, path) => [
          `path ${path}`,
          sentSegments,
          lostSegments,
          smoothedRtt,
        ]),
      },
    },
    {
      title: 'Round trips of paths over time',
      note: 'The smoothed round trip of each path.',
      chart: {
        kind: 'lines',
        x: { label: 'seconds' },
        y: { label: 'µs' },
        lines: paths.map((path) => ({
          name: `path ${path}`,
          points: samples.map(({ seconds, paths: of }) => [seconds, of[path]!.smoothedRtt] as const),
        })),
      },
      table: {
        head: ['seconds', ...paths.map((path) => `path ${path}, µs`)],
        rows: samples.map(({ seconds, paths: of }) => [
          seconds.toFixed(1),
          ...of.map(({ smoothedRtt }) => smoothedRtt),
        ]),
      },
    },
  ];
}

export function rankTransportPage({ workload, ranks, totalGbps, seed }: RankBenchReport): ReportPage {
  return {
    title: `Transport between ${ranks.length} ranks, ${workload.perftype}`,
    about: [`messages of ${workload.msize} bytes, seed ${seed}; all ranks: ${totalGbps.toFixed(2)} Gbps arrived`],
    sections: [
      {
        title: 'Load of ranks',
        note: 'What each rank sent and received.',
        chart: {
          kind: 'bars',
          value: { label: 'Gbps' },
          bars: ranks.flatMap(({ rank, txGbps, rxGbps }) => [
            { name: `rank ${rank}`, series: 'sent', value: txGbps },
            { name: `rank ${rank}`, series: 'received', value: rxGbps },
          ]),
        },
        table: {
          head: ['rank', 'sends to', 'sent, Gbps', 'received, Gbps', 'messages'],
          rows: ranks.map((one) => [`rank ${one.rank}`, one.sendsTo.join(', '), one.txGbps, one.rxGbps, one.messages]),
        },
      },
      quantileSection('Latency of a request', {
        note: 'From posting the messages of a request to the end of the last of them.',
        names: latencyQuantiles,
        of: ranks.flatMap(({ rank, times, sendsTo }) =>
          sendsTo.length === 0 ? [] : [{ name: `rank ${rank}`, values: times }],
        ),
        unit: 'µs',
      }),
    ],
  };
}

export function pairsTransportPage(report: PairsBenchReport): ReportPage {
  const { engines, workload, laneBytes } = report;
  const total = laneBytes.reduce((sum, bytes) => sum + bytes, 0);
  return {
    title: `${engines} engines in one pair of processes, and ${engines} pairs with one`,
    about: [`messages of ${workload.msize} bytes, rounds in turn`],
    sections: [
      summarySection(
        [
          { name: `${engines} engines`, summary: roundsOf(report.enginesGbps) },
          { name: `${engines} pairs`, summary: roundsOf(report.processesGbps) },
          { name: 'slowest pair', summary: roundsOf(report.slowestProcessGbps) },
        ],
        { title: 'Goodput', note: 'Of the rounds: median, p25 to p75.', unit: 'Gbps' },
      ),
      {
        title: 'Shares of the lanes',
        note: 'Bytes that each lane of the one pair has sent.',
        chart: {
          kind: 'bars',
          value: { label: '%' },
          bars: laneBytes.map((bytes, lane) => ({
            name: `lane ${lane}`,
            series: 'share',
            value: (100 * bytes) / total,
          })),
          rules: [{ value: 100 / laneBytes.length, label: 'even' }],
        },
        table: {
          head: ['lane', 'bytes', '%'],
          rows: laneBytes.map((bytes, lane) => [`lane ${lane}`, bytes, (100 * bytes) / total]),
        },
      },
    ],
  };
}
