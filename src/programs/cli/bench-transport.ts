// weftline bench transport: messages between two processes, or between ranks.
import type { Command } from 'commander';
import {
  giveUpTransportBench,
  runTransportBench,
  serveTransportBench,
  type PathsAt,
  type TransportBenchReport,
} from '../bench/transport/transport-bench.ts';
import {
  runPairsBench,
  runRankBench,
  type PairsBenchReport,
  type RankBenchReport,
} from '../bench/transport/transport-ranks.ts';
import {
  checkTransportWorkload,
  defaultTransportWorkload,
  transportPatterns,
  type TransportWorkload,
} from '../bench/transport/transport-session.ts';
import {
  addOptions,
  byteArgument,
  decimalArgument,
  type FlagsOf,
  integerArgument,
  option,
  switchArgument,
} from './argument-values.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';
import {
  addBenchRoleOptions,
  benchRole,
  checkPeerAddress,
  listenAddress,
  listeningLine,
  peerAddress,
  type PeerFlags,
} from './peer-options.ts';
import { invalidArgument } from '../../core/errors.ts';
import { protocolSettingsTable, rdmaSettingsTable, readSettings, type SettingName } from '../../settings/settings.ts';
import { addSettingOptions } from './setting-options.ts';
import { checkUsage } from './exit-codes.ts';
import { withRanks } from './with-ranks.ts';
import { median } from '../../core/quantile.ts';
import { summarize } from '../bench/harness.ts';
import { latencyQuantiles } from '../bench/harness.ts';
import type { ReportSection } from '../report/html/page-html.ts';
import {
  bars,
  curves,
  distribution,
  plainBars,
  ratioColumn,
  table,
  type View,
  changeLines,
  fixed,
  machineLines,
} from '../report/view.ts';

const MAX_COUNT = 2 ** 31;
const MAX_MESSAGE_BYTES = 2 ** 30;
const DAY_SECONDS = 86_400;
const LATENCY_BYTES = 64;
/** Engines of the pattern engines. */
const DEFAULT_ENGINES = 4;
const DEFAULT_PORT = 19_999;

const usual = defaultTransportWorkload;
/** Switches are also written --name=true or --name=false, as transport_test has it. */
const transportOptions = [
  option('--perftype <type>', 'what is measured', transportPatterns, 'tpt'),
  option('--nflow <n>', 'flows', integerArgument(1, 1024), usual.nflow),
  option('--nmsg <n>', 'messages of a request', integerArgument(1, 64), usual.nmsg),
  option('--nreq <n>', 'requests of a flow that are under way', integerArgument(1, 256), usual.nreq),
  option(
    '--msize <bytes>',
    `of a message (default: ${usual.msize}, of lat ${LATENCY_BYTES})`,
    byteArgument(1, MAX_MESSAGE_BYTES),
  ),
  option(
    '--iterations <n>',
    'messages of basic, rounds of lat, requests of each flow otherwise (default: 8, 10000, as many as fit in --seconds; the default of transport_test is 1000000, which would keep you for up to an hour); 0: the default',
    integerArgument(0, MAX_COUNT),
    0,
  ),
  option(
    '--seconds <s>',
    'how long tpt and bi send without --iterations',
    decimalArgument(0.001, DAY_SECONDS),
    usual.seconds,
  ),
  option('--warmup [bool]', 'a second, or 1000 rounds of lat, that do not count', switchArgument, false).preset('true'),
  option(
    '--flush [bool]',
    'refused: it is for writes into memory of a GPU, and every --perftype moves that of hosts',
    switchArgument,
    false,
  ).preset('true'),
  option('--bi [bool]', 'both sides send', switchArgument, false).preset('true'),
  option('--compare <rounds>', 'beside bare UDP and iperf3, in turn', integerArgument(0, 1000), 0),
  option('--ranks <n>', 'of incast and permutation', integerArgument(2, 64), 4),
  option('--seed <n>', 'of permutation', integerArgument(0, MAX_COUNT), 1),
];

type TransportFlags = FlagsOf<typeof transportOptions> & PeerFlags & OutputFlags;

export function addTransportBench(bench: Command): void {
  const command = bench
    .command('transport')
    .summary('messages between two processes or many ranks, over UDP or RDMA queue pairs')
    .description(
      'Start the server, then the client, which decides what is measured; the server ends by itself. Between hosts both ' +
        'need the same WEFTLINE_TOKEN. The patterns incast, permutation and engines need no role: they start ranks on this ' +
        'machine. engines compares one pair of processes with several engines (--engines) with as many pairs with one.',
    );
  addBenchRoleOptions(command, DEFAULT_PORT).addHelpText(
    'after',
    `
Examples:
  export WEFTLINE_TOKEN=$(cat token)
  weftline bench transport --role server
  weftline bench transport --role client --peer-ip 10.0.0.1 --perftype tpt --msize 1M --compare 5
  weftline bench transport --role client --peer-ip 10.0.0.1 --iterations 1000000
  weftline bench transport --perftype incast --ranks 8 --msize 4M
  weftline bench transport --perftype engines --engines 4 --msize 1M --compare 5`,
  );
  addOptions(command, transportOptions);
  addReportOptions(command);
  addSettingOptions(command, [
    'timeoutMs',
    'trace',
    'transportIo',
    ...(Object.keys(rdmaSettingsTable) as SettingName[]),
    'transportEngines',
    'transportSpread',
    'transportPaths',
    'transportRails',
    'transportSegmentBytes',
    'transportSegmentationOffload',
    'transportSocketBufferBytes',
    'transportSpinUs',
    'transportPinCore',
    'transportThread',
    ...(Object.keys(protocolSettingsTable) as SettingName[]),
  ]);
  command.action((flags: TransportFlags) => run(command, flags));
}

async function run(command: Command, flags: TransportFlags): Promise<void> {
  const output = new Output(flags);
  const workload = workloadOf(flags);
  const { perftype } = workload;
  const check = (): void => {
    refuseFlush(flags.flush);
    checkTransportWorkload(workload);
  };
  const { line: onLine } = output;
  if (perftype === 'incast' || perftype === 'permutation') {
    checkUsage(command, check);
    await withRanks(flags.ranks, async (world) => {
      const report = await runRankBench(world, workload, { seed: flags.seed, onLine });
      if (report !== undefined) output.report(ranksTransportView(report), report);
    });
    return;
  }
  if (perftype === 'engines') {
    checkUsage(command, check);
    const engines = readSettings().transportEngines || DEFAULT_ENGINES;
    await withRanks(2 * engines, async (world) => {
      const report = await runPairsBench(world, workload, { rounds: Math.max(1, flags.compare), onLine });
      if (report !== undefined) output.report(enginesTransportView(report), report);
    });
    return;
  }
  const { port } = flags;
  if (benchRole(command, flags) === 'server') {
    checkUsage(command, () => refuseFlush(flags.flush));
    const host = listenAddress(flags);
    await serveTransportBench({ host, port, onLine, onListening: (at) => onLine(listeningLine(host, at)) });
    return;
  }
  const host = peerAddress(flags);
  checkUsage(command, () => checkPeerAddress(host));
  try {
    checkUsage(command, check);
  } catch (error) {
    await giveUpTransportBench({ host, port }, error);
    throw error;
  }
  const report = await runTransportBench({ host, port, workload, rounds: flags.compare, onLine });
  output.report(transportView(report), report);
}

/** Refuses --flush: a receiver's flush in transport_test makes RDMA writes visible to its GPU. Fails with WL_INVALID_ARGUMENT. */
function refuseFlush(flush: boolean): void {
  if (!flush) return;
  const expected =
    'false, or no --flush: it makes RDMA writes into memory of a GPU visible to its kernels, and every --perftype here moves memory of hosts, which sees what arrives without it';
  throw invalidArgument('--flush', flush, expected);
}

function workloadOf(flags: TransportFlags): TransportWorkload {
  const { nflow, nmsg, nreq, iterations, seconds, warmup } = flags;
  const perftype = flags.perftype === 'bi' ? 'tpt' : flags.perftype;
  const msize = flags.msize ?? (perftype === 'lat' ? LATENCY_BYTES : usual.msize);
  const bi = flags.bi || flags.perftype === 'bi';
  return { perftype, nflow, nmsg, nreq, msize, iterations, seconds, warmup, bi };
}

// What people read of it: two processes, ranks, and engines beside pairs of processes.

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

function ranksTransportView({ workload, ranks, totalGbps, seed }: RankBenchReport): View {
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

function enginesTransportView(report: PairsBenchReport): View {
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
