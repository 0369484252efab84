// weftline sim ep: dispatch and combine across simulated hosts, against what their links allow.
import { type Command, Option } from 'commander';
import { invalidArgument } from '../../core/errors.ts';
import { readSettings, type SettingName } from '../../settings/settings.ts';
import { protocolSettingsTable } from '../../settings/transport-settings-table.ts';
import { simEpPage } from '../report/html/pages/sim-ep-page.ts';
import { type SimEpDescription, simEpReport } from '../report/sim-ep-report.ts';
import { epNetwork, type EpTopologyName, epTopologyNames } from '../sim/ep/ep-network.ts';
import { type EpOptions, type EpShape, type RowRule, rowRules } from '../sim/ep/ep-options.ts';
import { runEp } from '../sim/ep/ep-run.ts';
import { readRecordedChoices } from '../sim/ep/recorded-choices.ts';
import { type Routing, type RoutingName, routingNames } from '../sim/ep/routing.ts';
import { type ServeOrderName, serveOrders } from '../sim/ep/serve-order.ts';
import { byteArgument, decimalArgument, integerArgument } from './argument-values.ts';
import { exitCodes } from './exit-codes.ts';
import { addOutputOptions, addReportOption, Output, type OutputFlags } from './output.ts';
import { addSettingOptions } from './setting-options.ts';
import { checkUsageOf } from './usage.ts';
import { simSettings } from './sim-settings.ts';

interface EpFlags extends OutputFlags {
  readonly hosts: number;
  readonly ranksPerHost: number;
  readonly simulatedRanks?: number;
  readonly tokens: number;
  readonly hidden: number;
  readonly topk?: number;
  readonly experts: number;
  readonly dtype: EpShape['dtype'];
  readonly routing: RoutingName;
  readonly zipf: number;
  readonly hot: number;
  readonly recorded?: string;
  readonly rows: RowRule;
  readonly order: ServeOrderName;
  readonly chunk: number;
  readonly outstanding: number;
  readonly rowsPerWrite: number;
  readonly topology: EpTopologyName;
  readonly paths: number;
  readonly rails: number;
  readonly engines: number;
  readonly rate: number;
  readonly delay: number;
  readonly queue: number;
  readonly loss: number;
  readonly segment: number;
  readonly burst: number;
  readonly poll: number;
  readonly skew: number;
  readonly localRate: number;
  readonly slowHost?: number;
  readonly slowLinks: number;
  readonly slowMemory: number;
  readonly sample?: number;
  readonly until: number;
  readonly seed: number;
}

const MAX_COUNT = 2 ** 31;
/** Packets of rows that are simulated if nobody says how many ranks are; a million takes ten seconds or so. */
const USUAL_PACKETS = 4e6;
const share = decimalArgument(0.001, 1);
const protocolSettings = Object.keys(protocolSettingsTable) as SettingName[];

export function addSimEp(sim: Command): void {
  const command = sim
    .command('ep')
    .description('expert parallelism across hosts: a dispatch and a combine, against what the links allow')
    .option('--hosts <n>', 'hosts', integerArgument(2, 128), 8)
    .option('--ranks-per-host <n>', 'ranks of each host, each with network cards of its own', integerArgument(1, 16), 8)
    .option(
      '--simulated-ranks <n>',
      'ranks of each host that are simulated, with all their peers; fewer than all if that is more than 4 million packets',
      integerArgument(1, 16),
    )
    .option('--tokens <n>', 'of each rank', integerArgument(1, 65_536), 4096)
    .option('--hidden <n>', 'elements of a row', integerArgument(8, 65_536), 7168)
    .option('--topk <n>', 'experts of a token (default: 8, or as recorded)', integerArgument(1, 32))
    .option('--experts <n>', 'of all ranks, a multiple of their number', integerArgument(1, 65_536), 256)
    .addOption(new Option('--dtype <type>', 'of rows in dispatch').choices(['bf16', 'fp8']).default('bf16'))
    .addOption(new Option('--routing <how>', 'which experts are chosen').choices(routingNames).default('uniform'))
    .option('--zipf <exponent>', "of Zipf's law", decimalArgument(0, 4), 1)
    .option('--hot <share>', 'of the tokens, that choose the hot expert', share, 1)
    .option('--recorded <file>', 'a MoE block (safetensors) whose choices are used, again and again')
    .addOption(new Option('--rows <rule>', 'how often a row crosses the network').choices(rowRules).default('per-host'))
    .addOption(new Option('--order <order>', 'in which a rank serves hosts').choices(serveOrders).default('rotated'))
    .option('--chunk <bytes>', 'most bytes of rows behind which a signal is sent', byteArgument(1, MAX_COUNT), 65_536)
    .option(
      '--outstanding <bytes>',
      'that may be under way to a rank from all others together; 0: any number',
      byteArgument(0, MAX_COUNT),
      1_048_576,
    )
    .option(
      '--rows-per-write <n>',
      'rows that one write carries; more than 1 simulates less, with bytes as they are',
      integerArgument(1, 1024),
      1,
    )
    .addOption(new Option('--topology <name>', 'network of the cards').choices(epTopologyNames).default('star'))
    .option('--paths <n>', 'paths of each lane of a connection', integerArgument(1, 256), 8)
    .option('--rails <n>', 'network cards of each rank, which share its rate', integerArgument(1, 16), 1)
    .option('--engines <n>', 'engines of each rank', integerArgument(1, 16), 1)
    .option('--rate <Gbps>', 'of each rank', decimalArgument(0.001, 10_000), 100)
    .option('--delay <us>', 'of each link', decimalArgument(0, 1_000_000), 1)
    .option('--queue <bytes>', 'that may wait before each link', byteArgument(1, MAX_COUNT), 1_000_000)
    .option('--loss <probability>', 'of each packet on each link', decimalArgument(0, 1), 0)
    .option('--segment <bytes>', 'of a full packet', byteArgument(512, 65_472), 4096)
    .option('--burst <n>', 'most packets that go back to back on one path', integerArgument(1, 64), 16)
    .option('--poll <us>', 'from the arrival of a packet until its rank looks', decimalArgument(0, 100_000), 2)
    .option('--skew <us>', 'ranks enter a call at random times up to this one', decimalArgument(0, 1e6), 0)
    .option(
      '--local-rate <GBps>',
      "of a rank's copies and sums in the memory of its host",
      decimalArgument(0.001, 1e5),
      100,
    )
    .option('--slow-host <n>', 'a host that is slower than the others', integerArgument(0, 127))
    .option('--slow-links <share>', "of the others' rate that its links have", share, 1)
    .option('--slow-memory <share>', "of the others' rate that its copies and sums have", share, 1)
    .option('--sample <us>', 'take samples this often, for --json and --report', decimalArgument(0.1, 1e9))
    .option('--until <ms>', 'longest simulated time', decimalArgument(0.001, 1e7), 10_000)
    .option('--seed <n>', 'of everything random', integerArgument(0, MAX_COUNT), 1);
  addOutputOptions(command);
  addReportOption(command);
  addSettingOptions(command, protocolSettings);
  command.action((flags: EpFlags) => simulate(command, flags));
}

async function simulate(command: Command, flags: EpFlags): Promise<void> {
  const output = new Output(flags);
  const options = await checkUsageOf(command, epOptions(flags));
  const description: SimEpDescription = {
    shape: options.shape,
    protocol: options.protocol,
    routing: options.routing.name,
    simulatedRanks: options.simulatedRanks,
    network: options.topology.name,
    gigabitsPerSecond: flags.rate,
    rails: flags.rails,
    engines: flags.engines,
    paths: flags.paths,
    congestion: readSettings(options.settings).transportCongestion,
    segmentBytes: flags.segment,
    loss: flags.loss,
    ...(flags.slowHost === undefined
      ? {}
      : { slow: { host: flags.slowHost, links: flags.slowLinks, memory: flags.slowMemory } }),
    seed: flags.seed,
  };
  const result = runEp(options);
  const document = { schema: 'weftline.sim.ep/1', ...description, ...result };
  output.report(simEpReport(description, result), document, () => simEpPage(description, result));
  if (result.end !== 'done') process.exitCode = exitCodes.failure.code;
}

async function epOptions(flags: EpFlags): Promise<EpOptions> {
  const { hosts, ranksPerHost, tokens, hidden, experts, dtype, paths, rails, rate, seed, slowHost } = flags;
  const routing = await chosenRouting(flags);
  const topk = routing.name === 'recorded' ? routing.choices.topk : (flags.topk ?? 8);
  const shape = { hosts, ranksPerHost, tokens, hidden, topk, experts, dtype };
  checkShape(shape, routing);
  if (slowHost !== undefined && slowHost >= hosts) {
    throw invalidArgument('--slow-host', slowHost, `a host from 0 to ${hosts - 1}`);
  }
  const simulatedRanks = simulatedRanksOf(flags, shape);
  const sampleEvery = flags.sample ?? (flags.report === undefined ? undefined : 20);
  return {
    shape,
    protocol: {
      rows: flags.rows,
      order: flags.order,
      chunkBytes: flags.chunk,
      outstandingBytes: flags.outstanding === 0 ? Number.POSITIVE_INFINITY : flags.outstanding,
      rowsPerWrite: flags.rowsPerWrite,
    },
    routing,
    topology: epNetwork({
      name: flags.topology,
      hosts,
      ranks: simulatedRanks,
      rails,
      paths,
      seed,
      gigabitsPerSecond: rate,
      link: { delay: flags.delay, queueBytes: flags.queue, loss: flags.loss },
      ...(slowHost === undefined ? {} : { slowHost: { host: slowHost, linkFactor: flags.slowLinks } }),
    }),
    simulatedRanks,
    paths,
    engines: flags.engines,
    segmentBytes: flags.segment,
    pollDelay: flags.poll,
    nic: { burstSegments: flags.burst, sendBufferBytes: 262_144, carryPayload: false, join: false },
    settings: simSettings({ rate, rails }),
    seed,
    skew: flags.skew,
    localRate: flags.localRate * 1000,
    barrier: 2,
    ...(slowHost === undefined ? {} : { slowHost: { host: slowHost, localFactor: flags.slowMemory } }),
    ...(sampleEvery === undefined ? {} : { sampleEvery }),
    until: flags.until * 1000,
  };
}

async function chosenRouting({ routing, zipf, hot, recorded }: EpFlags): Promise<Routing> {
  if (recorded !== undefined) return { name: 'recorded', choices: await readRecordedChoices(recorded) };
  switch (routing) {
    case 'recorded':
      throw invalidArgument('--routing', routing, '--recorded FILE with it, a MoE block whose choices are used');
    case 'zipf':
      return { name: 'zipf', exponent: zipf };
    case 'hot':
      return { name: 'hot', share: hot };
    case 'uniform':
    default:
      return { name: 'uniform' };
  }
}

function checkShape({ hosts, ranksPerHost, topk, experts }: EpShape, routing: Routing): void {
  const ranks = hosts * ranksPerHost;
  if (experts % ranks !== 0) throw invalidArgument('--experts', experts, `a multiple of the ${ranks} ranks`);
  if (topk > experts) throw invalidArgument('--topk', topk, `at most the ${experts} experts`);
  if (routing.name === 'recorded' && experts % routing.choices.experts !== 0) {
    throw invalidArgument('--experts', experts, `a multiple of the ${routing.choices.experts} recorded ones`);
  }
}

function simulatedRanksOf({ simulatedRanks, topology, segment }: EpFlags, shape: EpShape): number {
  const { hosts, ranksPerHost, tokens, topk, hidden } = shape;
  if (topology === 'leaf-spine') {
    // All cards of a host share its switch.
    if (simulatedRanks === undefined || simulatedRanks === ranksPerHost) return ranksPerHost;
    throw invalidArgument('--simulated-ranks', simulatedRanks, `${ranksPerHost}, all of them, on a leaf-spine network`);
  }
  if (simulatedRanks !== undefined) {
    if (simulatedRanks <= ranksPerHost) return simulatedRanks;
    throw invalidArgument('--simulated-ranks', simulatedRanks, `at most the ${ranksPerHost} ranks of a host`);
  }
  const perRank = 2 * hosts * tokens * Math.min(topk, hosts - 1) * Math.ceil((2 * hidden) / segment);
  return Math.max(1, Math.min(ranksPerHost, Math.floor(USUAL_PACKETS / perRank)));
}
