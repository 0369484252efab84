// weftline sim: the transport on simulated networks, with traffic patterns or random scenarios, the same for the same seed.
import type { Command } from 'commander';
import { invalidArgument } from '../../core/errors.ts';
import { protocolSettingsTable, readSettings, type SettingName, settingsTable } from '../../settings/settings.ts';
import {
  type LinkFault,
  type PatternName,
  patternNames,
  type PatternOptions,
  runPattern,
  usualTopology,
  type PatternResult,
} from '../sim/pattern-run.ts';
import { changeRail, pathLinks, patternTopology, topologyNames } from '../sim/topology.ts';
import { runScenario } from '../sim/scenario-run.ts';
import { makeScenario } from '../sim/scenario.ts';
import { addOptions, byteArgument, decimalArgument, type FlagsOf, integerArgument, option } from './argument-values.ts';
import { checkUsage, exitCodes } from './exit-codes.ts';
import { addOutputOptions, addReportOptions, Output, type OutputFlags } from './output.ts';
import { addSettingOptions } from './setting-options.ts';
import { addSimEp } from './sim-ep.ts';
import { type RandomFlags, runRandom } from './sim-scenarios.ts';
import { simSettings } from './sim-settings.ts';
import { formatBytes } from '../../core/byte-size.ts';
import type { ReportSection } from '../report/html/page-html.ts';
import { bars, curves, plainBars, ranges, table, type View, counted, fixed } from '../report/view.ts';

export function addSimCommand(program: Command): void {
  const sim = program.command('sim').description('run the transport on a simulated network');
  for (const pattern of patternNames) addPattern(sim, pattern);
  addRandom(sim);
  addSimEp(sim);
}

const MAX_COUNT = 2 ** 31;
const amount = integerArgument(1, 1_000_000);
const patternSentences: Readonly<Record<PatternName, string>> = {
  pair: 'one host sends to another over several paths',
  incast: 'all hosts send to one',
  permutation: 'every host sends to one other, every host receives from one other',
  'all-to-all': 'every host sends to every other one',
};
const usualHosts: Readonly<Record<PatternName, number>> = { pair: 2, incast: 17, permutation: 128, 'all-to-all': 16 };

/** The protocol's settings, but for the congestion control, which has another default and a second name here. */
const protocolSettings = (Object.keys(protocolSettingsTable) as SettingName[]).filter(
  (name) => name !== 'transportCongestion',
);

function optionsOf(pattern: PatternName) {
  return [
    option('--hosts <n>', 'hosts', integerArgument(2, 1024), usualHosts[pattern]),
    option('--topology <name>', `network (default: ${usualTopology[pattern]})`, topologyNames),
    option('--rails <n>', 'network cards of each host, which share its rate', integerArgument(1, 16), 1),
    option('--engines <n>', 'engines of each host; each connection has a lane on each', integerArgument(1, 16), 1),
    option('--nflow <n>', 'flows from a sender to a receiver', amount, 1),
    option('--nmsg <n>', 'messages of each flow', amount, 16),
    option('--nreq <n>', 'receives that each flow keeps posted', amount, 2),
    option('--msize <bytes>', 'bytes of each message', byteArgument(0, MAX_COUNT), 1_000_000),
    option('--paths <n>', 'paths of each lane of a connection', integerArgument(1, 256), pattern === 'incast' ? 1 : 8),
    option('--congestion <algorithm>', 'congestion control; also --cc', settingsTable.transportCongestion.choices).env(
      settingsTable.transportCongestion.env,
    ),
    option('--cc <algorithm>', '', settingsTable.transportCongestion.choices).hideHelp(),
    option(
      '--load <share>',
      "offered share of the hosts' rate, at random times; 1: all at once",
      decimalArgument(0.001, 1),
      1,
    ),
    option('--loss <probability>', 'of each packet on each link', decimalArgument(0, 1), 0),
    option('--loss-rail <n>', 'the only rail that loses packets', integerArgument(0, 15)),
    option(
      '--reorder <probability>',
      'that a packet takes longer on a link, up to the jitter',
      decimalArgument(0, 1),
      0,
    ),
    option('--jitter <us>', 'longest such delay', decimalArgument(0, 1_000_000), 50),
    option('--duplicate <probability>', 'that a packet comes twice, on each link', decimalArgument(0, 1), 0),
    option('--corrupt <probability>', 'that a packet changes on a link; turns checksums on', decimalArgument(0, 1), 0),
    option('--rate <Gbps>', 'of each host, all its rails together', decimalArgument(0.001, 10_000), 100),
    option('--delay <us>', 'of each link', decimalArgument(0, 1_000_000), 1),
    option('--queue <bytes>', 'that may wait before each link', byteArgument(1, MAX_COUNT), 1_000_000),
    option('--ecn <bytes>', 'from which on a queue marks packets', byteArgument(0, MAX_COUNT)),
    option('--segment <bytes>', 'of a full packet', byteArgument(512, 65_472), 4096),
    option('--burst <n>', 'most packets that go back to back on one path', integerArgument(1, 64), 16),
    option('--poll <us>', 'from the arrival of a packet until its host looks', decimalArgument(0, 100_000), 2),
    option('--fail-path <n>', 'a path that dies', integerArgument(0, 255)),
    option('--fail-rail <n>', 'a rail that dies, of all hosts', integerArgument(0, 15)),
    option('--fail-at <us>', 'when it dies', decimalArgument(0, 1e9), 1000),
    option('--recover-at <us>', 'when it works again; never if missing', decimalArgument(0, 1e9)),
    option('--sample <us>', 'take samples this often, for --json and --report', decimalArgument(0.1, 1e9)),
    option('--until <ms>', 'longest simulated time', decimalArgument(0.001, 1e7), 10_000),
    option('--seed <n>', 'of everything random', integerArgument(0, MAX_COUNT), 1),
  ];
}

type PatternFlags = FlagsOf<ReturnType<typeof optionsOf>> & OutputFlags;

function addPattern(sim: Command, pattern: PatternName): void {
  const command = sim.command(pattern).description(patternSentences[pattern]);
  addOptions(command, optionsOf(pattern));
  addReportOptions(command);
  addSettingOptions(command, protocolSettings);
  command.action((flags: PatternFlags) => simulate(command, pattern, flags));
}

async function simulate(command: Command, pattern: PatternName, flags: PatternFlags): Promise<void> {
  const output = new Output(flags);
  const options = checkUsage(command, () => patternOptions(pattern, flags));
  const result = runPattern(options);
  const description = descriptionOf(pattern, flags, options);
  output.report(simView(description, result), { ...description, ...result });
  if (result.end !== 'done') process.exitCode = exitCodes.failure.code;
}

/** What is simulated, for the first lines and the document. */
interface SimDescription extends Readonly<Record<SimCount, number>> {
  readonly pattern: string;
  readonly network: string;
  readonly congestion: string;
  /** The only rail that loses packets; all of them if missing. */
  readonly lossRail?: number;
}

type SimCount =
  | ('gigabitsPerSecond' | 'rails' | 'engines' | 'paths' | 'load' | 'loss')
  | ('flows' | 'messages' | 'messageBytes' | 'seed');

function descriptionOf(
  pattern: PatternName,
  flags: PatternFlags,
  { topology, settings }: PatternOptions,
): SimDescription {
  return {
    pattern,
    network: topology.name,
    gigabitsPerSecond: flags.rate,
    rails: flags.rails,
    engines: flags.engines,
    paths: flags.paths,
    congestion: readSettings(settings).transportCongestion,
    load: flags.load,
    loss: flags.loss,
    ...(flags.lossRail !== undefined && { lossRail: flags.lossRail }),
    flows: flags.nflow,
    messages: flags.nmsg,
    messageBytes: flags.msize,
    seed: flags.seed,
  };
}

function patternOptions(pattern: PatternName, flags: PatternFlags): PatternOptions {
  const { paths, seed, loss, reorder, jitter, duplicate, corrupt, delay, queue, ecn, rate, recoverAt } = flags;
  requireNumber('fail-path', flags.failPath, { one: 'path', of: paths });
  if (recoverAt !== undefined && recoverAt <= flags.failAt) {
    throw invalidArgument('--recover-at', recoverAt, `a time after --fail-at, ${flags.failAt}`);
  }
  requireNumber('fail-rail', flags.failRail, { one: 'rail', of: flags.rails });
  requireNumber('loss-rail', flags.lossRail, { one: 'rail', of: flags.rails });
  const network = patternTopology({
    name: flags.topology ?? usualTopology[pattern],
    hosts: flags.hosts,
    paths,
    rails: flags.rails,
    seed,
    gigabitsPerSecond: rate,
    link: {
      loss: flags.lossRail === undefined ? loss : 0,
      reorder,
      jitter,
      duplicate,
      corrupt,
      delay,
      queueBytes: queue,
      ecnBytes: ecn ?? Number.POSITIVE_INFINITY,
    },
  });
  const topology = flags.lossRail === undefined ? network : changeRail(network, flags.lossRail, { loss });
  const faults: LinkFault[] =
    flags.failPath === undefined
      ? []
      : pathLinks(topology, flags.failPath, paths).map((link) => ({
          link,
          at: flags.failAt,
          ...(recoverAt === undefined ? {} : { recoversAt: recoverAt }),
        }));
  const sampleEvery = flags.sample ?? (flags.report === undefined ? undefined : 20);
  return {
    pattern,
    topology,
    hostGigabitsPerSecond: rate,
    seed,
    flows: flags.nflow,
    messages: flags.nmsg,
    outstanding: flags.nreq,
    messageBytes: flags.msize,
    paths,
    engines: flags.engines,
    segmentBytes: flags.segment,
    load: flags.load,
    pollDelay: flags.poll,
    // A change in a packet shows only where its bytes travel.
    rail: { burstSegments: flags.burst, sendBufferBytes: 262_144, carryPayload: corrupt > 0, join: false },
    settings: {
      ...simSettings({ rate, rails: flags.rails, congestion: flags.cc ?? flags.congestion }),
      ...(corrupt > 0 ? { transportChecksum: 'full' } : {}),
    },
    faults,
    ...(flags.failRail === undefined
      ? {}
      : { outage: { rail: flags.failRail, from: flags.failAt, to: recoverAt ?? Number.POSITIVE_INFINITY } }),
    ...(sampleEvery === undefined ? {} : { sampleEvery }),
    until: flags.until * 1000,
  };
}

function requireNumber(
  flag: string,
  value: number | undefined,
  { one, of }: { readonly one: string; readonly of: number },
): void {
  if (value !== undefined && value >= of) throw invalidArgument(`--${flag}`, value, `a ${one} from 0 to ${of - 1}`);
}

function addRandom(sim: Command): void {
  const command = sim
    .command('random')
    .description('random scenarios with loss, reordering, failures and deaths; a seed that fails is printed')
    .option('--seed <n>', 'of the first scenario', integerArgument(0, MAX_COUNT), 1)
    .option('--count <n>', 'scenarios, with seeds that follow on', amount, 1);
  addOutputOptions(command);
  command.action((flags: RandomFlags) =>
    runRandom({ command: 'random', schema: 'weftline.sim.random/1' }, flags, (seed) => {
      const scenario = makeScenario(seed);
      const { topology, operations } = scenario;
      return { about: `${topology.name}, ${operations.length} operations`, ...runScenario(scenario) };
    }),
  );
}

// What people read of it: what was reached against what the network could do, what was lost, and how it went.

export function simView(description: SimDescription, result: PatternResult): View {
  const { rails, engines, load, lossRail, flows, messages } = description;
  const { samples, theory, railBytes, end } = result;
  return {
    title: `${description.pattern}, simulated`,
    heading: [
      `${description.pattern} on ${description.network}, ${description.gigabitsPerSecond} Gbps per host${alsoSeveral(rails, 'rails')}${alsoSeveral(engines, 'engines')}; ${counted(description.paths, 'path')}, congestion control ${description.congestion}`,
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

function alsoSeveral(count: number, what: string): string {
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
