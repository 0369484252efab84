// What people read of `weftline bench transport`: two processes, ranks, and engines beside pairs of processes.
import { median } from '../../core/quantile.ts';
import { summarize } from '../bench/harness.ts';
import type { PairsBenchReport } from '../bench/transport/transport-pairs.ts';
import { latencyQuantiles } from '../bench/transport/transport-phases.ts';
import type { RankBenchReport } from '../bench/transport/transport-ranks.ts';
import type { PathsAt, TransportBenchReport } from '../bench/transport/transport-bench.ts';
import type { ReportSection } from './html/report-page.ts';
import { bars, curves, distribution, plainBars, ratioColumn, table, type View } from './view.ts';
import { changeLines, fixed, machineLines } from './wording.ts';

export function transportView(report: TransportBenchReport): View {
  const { workload, intact, throughput, comparison, latency, idle, pathsOverTime, paths, segmentBytes, method } =
    report;
  const { perftype, nflow, nmsg, nreq, msize } = workload;
  return {
    title: `Transport between two processes, ${perftype}`,
    about: [
      `${nflow} flows of ${nreq} requests of ${nmsg} messages of ${msize} bytes; ${paths} paths, packets of ${segmentBytes} bytes`,
      ...machineLines(report),
    ],
    parts: [
      intact !== undefined && `${intact.messages} messages of ${intact.bytes} bytes arrived intact`,
      throughput === undefined ? [] : throughputParts(report, throughput),
      latency === undefined
        ? []
        : [
            `latency: ${showQuantiles(latency.transport)}`,
            latency.bareRoundTrip !== undefined && `bare UDP round trip: ${showQuantiles(latency.bareRoundTrip)}`,
            latency.ratioOfMedians !== undefined && `ratio of medians: ${latency.ratioOfMedians.toFixed(2)}`,
            distribution({ title: 'Latency of a message', note: method.latency }, latencyQuantiles, [
              { name: 'transport', values: latency.transport },
              ...(latency.bareRoundTrip === undefined ? [] : [{ name: 'bare UDP', values: latency.bareRoundTrip }]),
            ]),
          ],
      comparison !== undefined &&
        comparison.ratioToTcp === undefined &&
        'TCP was not measured: iperf3 is not installed on both sides',
      idle !== undefined && `idle: client ${percent(idle.client)}, server ${percent(idle.server)} of one core`,
      throughput === undefined && latency === undefined ? [] : changeLines(report.placement),
      pathsOverTime.length < 2 ? [] : pathSections(pathsOverTime),
    ],
  };
}

function throughputParts(
  { workload, comparison, method }: TransportBenchReport,
  { gbps, receivedGbps, ...result }: NonNullable<TransportBenchReport['throughput']>,
): View['parts'][number] {
  const { ratioToBare, ratioToTcp, bareGbps = [], tcpGbps = [] } = comparison ?? {};
  const sides = [
    { name: 'transport', gbps },
    { name: 'transport, back', gbps: receivedGbps ?? [] },
    { name: 'bare UDP', gbps: bareGbps, ratio: ratioToBare },
    { name: 'TCP, iperf3 -l 1M', gbps: tcpGbps, ratio: ratioToTcp },
  ].filter((side) => side.gbps.length > 0);
  const back = receivedGbps === undefined ? '' : `, back ${median(receivedGbps).toFixed(2)} Gbps`;
  const [tableText, ...charts] = table(
    sides,
    [
      { head: 'in turn', of: ({ name }) => name },
      {
        head: 'Gbps',
        of: (side) => summarize(side.gbps),
        show: fixed(2),
        chart: 'Goodput against the ceiling',
        unit: 'Gbps',
      },
      { ...ratioColumn('bare UDP and TCP'), head: 'ratio to it', of: ({ ratio }) => ratio },
    ],
    ({ name }) => name,
  );
  return [
    `goodput: ${median(gbps).toFixed(2)} Gbps${back} (${result.messages} messages of ${workload.msize} bytes)`,
    `request: ${showQuantiles(result.requestMicroseconds)}`,
    `CPU: sender ${result.senderCpuSecondsPerGB.toFixed(3)} s/GB, receiver ${result.receiverCpuSecondsPerGB.toFixed(3)} s/GB`,
    comparison !== undefined && tableText!,
    ...charts,
    distribution({ title: 'Latency of a request', note: method.request }, latencyQuantiles, [
      { name: 'request', values: result.requestMicroseconds },
    ]),
  ];
}

/** `samples` count from the beginning of the connection. */
function pathSections(samples: readonly PathsAt[]): ReportSection[] {
  const x = { label: 'seconds' };
  const last = samples.at(-1)!.paths;
  const packets = last.map((_, path) => ({
    name: `path ${path}`,
    points: samples.slice(1).map(({ seconds, paths }, before) => {
      const from = samples[before]!;
      const sent = paths[path]!.sentSegments - from.paths[path]!.sentSegments;
      return [seconds, sent / (seconds - from.seconds)] as const;
    }),
  }));
  const roundTrips = last.map((_, path) => ({
    name: `path ${path}`,
    points: samples.map(({ seconds, paths }) => [seconds, paths[path]!.smoothedRtt] as const),
  }));
  return [
    curves(
      {
        title: 'Paths over time',
        note: 'Packets that each path took, of the sending side.',
        x,
        y: { label: 'packets per second' },
      },
      packets,
      {
        head: ['path', 'packets', 'lost', 'round trip, µs'],
        rows: last.map((of, path) => [`path ${path}`, of.sentSegments, of.lostSegments, of.smoothedRtt]),
      },
    ),
    curves(
      { title: 'Round trips of paths over time', note: 'The smoothed round trip of each path.', x, y: { label: 'µs' } },
      roundTrips,
    ),
  ];
}

export function ranksTransportView({ workload, ranks, totalGbps, seed }: RankBenchReport): View {
  const name = workload.perftype === 'incast' ? 'Incast' : 'Permutation';
  return {
    title: `Transport between ${ranks.length} ranks, ${workload.perftype}`,
    about: [`messages of ${workload.msize} bytes, seed ${seed}`],
    parts: [
      ranks.map(
        ({ rank, txGbps, rxGbps, messages, sendsTo, times }) =>
          `Rank ${rank} (${name}): TX Tput: ${txGbps.toFixed(4)} Gbps, RX Tput: ${rxGbps.toFixed(4)} Gbps, messages: ${messages}` +
          (sendsTo.length === 0 ? '' : `, to rank ${sendsTo.join(', ')}; ${showQuantiles(times)}`),
      ),
      bars(
        { title: 'Load of ranks', note: 'What each rank sent and received.', unit: 'Gbps' },
        ranks.flatMap(({ rank, txGbps, rxGbps }) => [
          { name: `rank ${rank}`, series: 'sent', value: txGbps },
          { name: `rank ${rank}`, series: 'received', value: rxGbps },
        ]),
      ),
      distribution(
        {
          title: 'Latency of a request',
          note: 'From posting the messages of a request to the end of the last of them.',
        },
        latencyQuantiles,
        ranks.flatMap(({ rank, times, sendsTo }) =>
          sendsTo.length === 0 ? [] : [{ name: `rank ${rank}`, values: times }],
        ),
      ),
    ],
    footing: [`all ranks: ${totalGbps.toFixed(2)} Gbps arrived`],
  };
}

export function enginesTransportView(report: PairsBenchReport): View {
  const { engines, workload, laneBytes, ratioToProcesses } = report;
  const total = laneBytes.reduce((sum, bytes) => sum + bytes, 0);
  const sides = [
    {
      name: `${engines} engines in one pair of processes`,
      gbps: report.enginesGbps,
      cpu: report.enginesCpuSecondsPerGB,
      ratio: ratioToProcesses,
    },
    {
      name: `${engines} pairs of processes with one engine each`,
      gbps: report.processesGbps,
      cpu: report.processesCpuSecondsPerGB,
    },
    { name: 'slowest of these pairs', gbps: report.slowestProcessGbps },
  ];
  return {
    title: `${engines} engines in one pair of processes, and ${engines} pairs with one`,
    about: [`messages of ${workload.msize} bytes, rounds in turn`],
    parts: [
      table(
        sides,
        [
          { head: '', of: ({ name }) => name },
          { head: 'Gbps', of: ({ gbps }) => summarize(gbps), show: fixed(2), chart: 'Goodput', unit: 'Gbps' },
          { head: 'CPU, s/GB', of: ({ cpu }) => cpu, show: fixed(3) },
          { ...ratioColumn('pairs of processes'), of: ({ ratio }) => ratio },
        ],
        ({ name }) => name,
      ),
      `shares of the lanes: ${laneBytes.map((bytes) => percent(bytes / total)).join(', ')}`,
      bars(
        {
          title: 'Shares of the lanes',
          note: 'Bytes that each lane of the one pair has sent.',
          unit: '%',
          rules: [{ value: 100 / laneBytes.length, label: 'even' }],
        },
        plainBars(
          'share',
          laneBytes.map((bytes, lane) => [`lane ${lane}`, (100 * bytes) / total]),
        ),
      ),
    ],
  };
}

function showQuantiles(values: readonly number[]): string {
  return `${latencyQuantiles.map((name, index) => `${name} ${(values[index] ?? 0).toFixed(1)}`).join(', ')} µs`;
}

function percent(share: number): string {
  return `${(share * 100).toFixed(2)} %`;
}
