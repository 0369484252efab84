// weftline sim ep: dispatch and combine across simulated hosts, with the code that ships: one shape against what the links
// need for its rows, or random scenarios.
import type { Command } from 'commander';
import { invalidArgument } from '../../core/errors.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { readSettings } from '../../settings/settings.ts';
import { combinePrecisions } from '../../ep/across-hosts/network-size.ts';
import { counted, fixed, table, type View } from '../report/view.ts';
import type { EpShapeOptions, EpShapeResult } from '../sim/ep/ep-shape.ts';
import { patternTopology } from '../sim/topology.ts';
import { addOptions, byteArgument, decimalArgument, type FlagsOf, integerArgument, option } from './argument-values.ts';
import { checkUsage } from './exit-codes.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';
import { runRandom } from './sim-scenarios.ts';
import { simSettings } from './sim-settings.ts';

const MAX_COUNT = 2 ** 31;

const shapeFlags = [
  option('--hosts <n>', 'hosts, with a rank each', integerArgument(2, 32), 4),
  option('--tokens <n>', 'of each rank', integerArgument(1, 65_536), 128),
  option('--hidden <n>', 'elements of a row', integerArgument(8, 65_536), 7168),
  option('--topk <n>', 'experts of a token', integerArgument(1, 32), 8),
  option('--experts <n>', 'of all ranks, a multiple of their number', integerArgument(1, 65_536), 256),
  option('--precision <type>', "of a host's sums in combine", combinePrecisions, 'bf16'),
  option('--rounds <n>', 'pairs of calls, one after the other', integerArgument(1, 10_000), 3),
  option('--rails <n>', 'network cards of each host, which share its rate', integerArgument(1, 16), 1),
  option('--engines <n>', 'engines of each host', integerArgument(1, 16), 1),
  option('--paths <n>', 'paths of each lane of a connection', integerArgument(1, 256), 8),
  option('--rate <Gbps>', 'of each host, all its rails together', decimalArgument(0.001, 10_000), 100),
  option('--delay <us>', 'of each link', decimalArgument(0, 1_000_000), 1),
  option('--queue <bytes>', 'that may wait before each link', byteArgument(1, MAX_COUNT), 1_000_000),
  option('--loss <probability>', 'of each packet on each link', decimalArgument(0, 1), 0),
  option('--segment <bytes>', 'of a full packet', byteArgument(512, 65_472), 4096),
  option('--burst <n>', 'most packets that go back to back on one path', integerArgument(1, 64), 16),
  option('--poll <us>', 'from the arrival of a packet until its engine looks', decimalArgument(0, 100_000), 2),
  option('--wake <us>', "from an engine's news until its rank looks", decimalArgument(0, 100_000), 5),
  option('--until <ms>', 'longest simulated time', decimalArgument(0.001, 1e7), 10_000),
];

const options = [
  option(
    '--count <n>',
    'random scenarios in place of one shape, with seeds that follow on',
    integerArgument(1, 1e6),
  ).conflicts(shapeFlags.map((flag) => flag.attributeName())),
  ...shapeFlags,
  option('--seed <n>', 'of everything random, or of the first scenario', integerArgument(0, MAX_COUNT), 1),
];

type EpFlags = FlagsOf<typeof options> & OutputFlags;

export function addSimEp(sim: Command): void {
  const command = sim
    .command('ep')
    .description(
      "dispatch and combine of EpBuffer between simulated hosts, against the links' time; or random scenarios",
    );
  addOptions(command, options);
  addReportOptions(command);
  command.action((flags: EpFlags) => (flags.count === undefined ? simulate(command, flags) : runScenarios(flags)));
}

async function runScenarios({ count = 1, ...flags }: EpFlags): Promise<void> {
  const { makeEpScenario } = await import('../sim/ep/ep-scenario.ts');
  const { runEpScenario } = await import('../sim/ep/ep-run.ts');
  const of = { command: 'ep --count 1', schema: 'weftline.sim.ep.random/1' };
  await runRandom(of, { ...flags, count }, async (seed) => {
    const scenario = makeEpScenario(seed);
    const { network, ranks, rounds } = scenario;
    const about = `${network.topology.name}, ${ranks} ranks, ${counted(rounds.length, 'round')}`;
    return { about, ...(await runEpScenario(scenario)) };
  });
}

async function simulate(command: Command, flags: EpFlags): Promise<void> {
  const output = new Output(flags);
  const shape = checkUsage(command, () => shapeOptions(flags));
  const { runEpShape } = await import('../sim/ep/ep-shape.ts');
  const result = await runEpShape(shape);
  const { topology, settings, rail: _rail, ...description } = shape;
  const congestion = readSettings(settings).transportCongestion;
  const document = { schema: 'weftline.sim.ep/1', network: topology.name, congestion, ...description, result };
  output.report(epView(shape, result), document);
}

function shapeOptions(flags: EpFlags): EpShapeOptions {
  const { hosts: ranks, tokens, hidden, topk, experts, rate, rails, paths, engines, seed } = flags;
  if (experts % ranks !== 0) throw invalidArgument('--experts', experts, `a multiple of the ${ranks} ranks`);
  if (hidden % 8 !== 0) throw invalidArgument('--hidden', hidden, 'a multiple of 8');
  if (topk > experts) throw invalidArgument('--topk', topk, `at most the ${experts} experts`);
  const link = { delay: flags.delay, queueBytes: flags.queue, loss: flags.loss };
  return {
    topology: patternTopology({ name: 'star', hosts: ranks, paths, rails, seed, gigabitsPerSecond: rate, link }),
    hostGigabitsPerSecond: rate,
    ranks,
    tokens,
    hidden,
    topk,
    experts,
    combinePrecision: flags.precision,
    rounds: flags.rounds,
    seed,
    paths,
    engines,
    segmentBytes: flags.segment,
    pollDelay: flags.poll,
    wakeDelay: flags.wake,
    hangUpDelay: 1000,
    rail: { burstSegments: flags.burst, sendBufferBytes: 262_144, carryPayload: true, join: false },
    settings: { ...simSettings({ rate, rails }), transportPaths: paths },
    until: flags.until * 1000,
  };
}

function epView(shape: EpShapeOptions, { phases, network, events, mostPackets }: EpShapeResult): View {
  const { topology, tokens, hidden, topk, experts, hostGigabitsPerSecond, engines, paths, rounds, seed } = shape;
  return {
    title: 'Expert parallelism, simulated',
    heading: [
      `${topology.name}, ${hostGigabitsPerSecond} Gbps per host, ${counted(engines ?? 1, 'engine')}, ${counted(paths, 'path')}, seed ${seed}`,
      `${tokens} tokens of ${hidden} per rank, top ${topk} of ${experts} experts; ${counted(rounds, 'round')}, slowest rank`,
    ],
    parts: [
      table(
        phases,
        [
          { head: '', of: ({ phase }) => phase },
          { head: 'mean, µs', of: ({ mean }) => mean, show: fixed(1) },
          { head: 'least', of: ({ least }) => least, show: fixed(1) },
          { head: 'most', of: ({ most }) => most, show: fixed(1) },
          { head: 'busiest link', of: ({ links }) => formatBytes(Math.round(links.bytes)) },
          { head: 'links need, µs', of: ({ links }) => links.time, show: fixed(1) },
          {
            head: 'ratio',
            of: ({ ratio }) => ratio,
            show: fixed(3),
            chart: 'Against the links',
            unit: 'time / what the links need',
            rules: [{ value: 1, label: 'links' }],
          },
        ],
        ({ phase }) => phase,
      ),
      `packets: ${network.sent} sent; dropped ${network.droppedFull} by full queues, ${network.droppedLoss} at random`,
      `simulation: ${events} events, at most ${mostPackets} packets under way; computing takes no time`,
    ],
  };
}
