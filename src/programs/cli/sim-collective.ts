// weftline sim collective: an all-reduce, all-to-all or sparse all-reduce between simulated hosts, against what links allow.
import { type Command, Option } from 'commander';
import { seededRandom } from '../../core/seeded-random.ts';
import { readSettings, type SettingName } from '../../settings/settings.ts';
import { protocolSettingsTable } from '../../settings/transport-settings-table.ts';
import { type SimCollectiveDescription, simCollectiveReport } from '../report/sim-collective-report.ts';
import { type CollectiveOptions, runCollective } from '../sim/collective/collective-run.ts';
import type { CollectiveSchedule } from '../sim/collective/collective-schedule.ts';
import { halvingAllReduce, ringAllReduce, treeAllReduce, turnsAllToAll } from '../sim/collective/dense-schedules.ts';
import { SparseSchedule } from '../sim/collective/sparse-schedule.ts';
import { patternTopology, type TopologyName, topologyNames } from '../sim/pattern-topology.ts';
import { byteArgument, decimalArgument, integerArgument } from './argument-values.ts';
import { exitCodes } from './exit-codes.ts';
import { addOutputOptions, Output, type OutputFlags } from './output.ts';
import { addSettingOptions } from './setting-options.ts';
import { simSettings } from './sim-settings.ts';
import { checkUsage } from './usage.ts';

const collectives = ['all-reduce', 'all-to-all', 'sparse-all-reduce'] as const;
const algorithms = ['ring', 'halving', 'tree'] as const;

interface CollectiveFlags extends OutputFlags {
  readonly hosts: number;
  readonly bytes: number;
  readonly algorithm: (typeof algorithms)[number];
  readonly fanIn: number;
  readonly piece: number;
  readonly turns: number;
  readonly aggregators: number;
  readonly density: number;
  readonly blockSize: number;
  readonly messageSize: number;
  readonly slots: number;
  readonly topology: TopologyName;
  readonly rails: number;
  readonly paths: number;
  readonly rate: number;
  readonly delay: number;
  readonly queue: number;
  readonly ecn?: number;
  readonly loss: number;
  readonly segment: number;
  readonly burst: number;
  readonly poll: number;
  readonly until: number;
  readonly seed: number;
}

const MAX_COUNT = 2 ** 31;
const ELEMENT_BYTES = 4;
const protocolSettings = Object.keys(protocolSettingsTable) as SettingName[];

export function addSimCollective(sim: Command): void {
  const command = sim
    .command('collective')
    .description('a collective between hosts, against what the links allow')
    .addArgument(sim.createArgument('<collective>', 'what they do').choices(collectives))
    .option('--hosts <n>', 'hosts that have a tensor', integerArgument(2, 1024), 16)
    .option('--bytes <bytes>', "of each host's tensor", byteArgument(4, MAX_COUNT), 16 * 2 ** 20)
    .addOption(new Option('--algorithm <name>', 'of an all-reduce').choices(algorithms).default('ring'))
    .option('--fan-in <n>', 'of the trees of an all-reduce or of aggregators', integerArgument(2, 1024), 1024)
    .option('--piece <bytes>', 'that a tree hands on at a time', byteArgument(64, MAX_COUNT), 131_072)
    .option('--turns <n>', 'of an all-to-all that are under way', integerArgument(1, 64), 4)
    .option('--aggregators <n>', 'further hosts that add up, of a sparse all-reduce', integerArgument(1, 1023), 1)
    .option('--density <share>', 'of the blocks that a worker has', decimalArgument(0, 1), 0.01)
    .option('--block-size <n>', 'elements (f32) of a block', integerArgument(64, 65_536), 256)
    .option('--message-size <n>', 'elements of a message at most', integerArgument(64, 2 ** 24), 65_536)
    .option('--slots <n>', 'messages of a worker under way', integerArgument(1, 256), 16)
    .addOption(new Option('--topology <name>', 'network').choices(topologyNames).default('leaf-spine'))
    .option('--rails <n>', 'network cards of each host, which share its rate', integerArgument(1, 16), 1)
    .option('--paths <n>', 'paths of a connection', integerArgument(1, 256), 8)
    .option('--rate <Gbps>', 'of each host, all its rails together', decimalArgument(0.001, 10_000), 100)
    .option('--delay <us>', 'of each link', decimalArgument(0, 1_000_000), 1)
    .option('--queue <bytes>', 'that may wait before each link', byteArgument(1, MAX_COUNT), 1_000_000)
    .option('--ecn <bytes>', 'from which on a queue marks packets', byteArgument(0, MAX_COUNT))
    .option('--loss <probability>', 'of each packet on each link', decimalArgument(0, 1), 0)
    .option('--segment <bytes>', 'of a full packet', byteArgument(512, 65_472), 4096)
    .option('--burst <n>', 'most packets that go back to back on one path', integerArgument(1, 64), 16)
    .option('--poll <us>', 'from the arrival of a packet until its host looks', decimalArgument(0, 100_000), 2)
    .option('--until <ms>', 'longest simulated time', decimalArgument(0.001, 1e7), 10_000)
    .option('--seed <n>', 'of everything random', integerArgument(0, MAX_COUNT), 1);
  addOutputOptions(command);
  addSettingOptions(command, protocolSettings);
  command.action((collective: (typeof collectives)[number], flags: CollectiveFlags) => {
    const output = new Output(flags);
    const options = checkUsage(command, () => optionsOf(collective, flags));
    const result = runCollective(options);
    const isSparse = collective === 'sparse-all-reduce';
    const about: SimCollectiveDescription = {
      collective,
      algorithm: options.schedule.name,
      network: options.topology.name,
      hosts: flags.hosts,
      aggregators: isSparse ? flags.aggregators : 0,
      bytes: flags.bytes,
      ...(isSparse ? { density: flags.density } : {}),
      gigabitsPerSecond: flags.rate,
      rails: flags.rails,
      paths: flags.paths,
      congestion: readSettings(options.settings).transportCongestion,
      seed: flags.seed,
    };
    output.report(simCollectiveReport(about, result), { schema: 'weftline.sim.collective/1', ...about, ...result });
    if (result.end !== 'done') process.exitCode = exitCodes.failure.code;
  });
}

function scheduleOf(collective: (typeof collectives)[number], flags: CollectiveFlags): CollectiveSchedule {
  const { hosts, bytes, algorithm, fanIn, piece, turns, aggregators, density, blockSize, messageSize, slots } = flags;
  if (collective === 'all-to-all') return turnsAllToAll(hosts, bytes, turns);
  if (collective === 'sparse-all-reduce') {
    const blockBytes = blockSize * ELEMENT_BYTES;
    return new SparseSchedule({
      workers: hosts,
      aggregators,
      fanIn,
      slots: { blockSize, lanes: Math.max(1, Math.min(256, Math.floor(messageSize / blockSize))), slots },
      blocks: Math.ceil(bytes / blockBytes),
      blockBytes,
      density,
      random: seededRandom(flags.seed + 1),
    });
  }
  if (algorithm === 'halving') return halvingAllReduce(hosts, bytes);
  if (algorithm === 'tree') return treeAllReduce(hosts, bytes, { fanIn, pieceBytes: piece });
  return ringAllReduce(hosts, bytes);
}

function optionsOf(collective: (typeof collectives)[number], flags: CollectiveFlags): CollectiveOptions {
  const { delay, queue, ecn, loss, rate, rails, paths, seed } = flags;
  const schedule = scheduleOf(collective, flags);
  const topology = patternTopology({
    name: flags.topology,
    hosts: schedule.hosts,
    paths,
    rails,
    seed,
    gigabitsPerSecond: rate,
    link: { loss, delay, queueBytes: queue, ecnBytes: ecn ?? Number.POSITIVE_INFINITY },
  });
  return {
    schedule,
    topology,
    // Messages of a sparse all-reduce have numbers of blocks too.
    largestBytes: Math.max(flags.bytes, flags.messageSize * ELEMENT_BYTES) + 65_536,
    hostGigabitsPerSecond: rate,
    seed,
    paths,
    segmentBytes: flags.segment,
    pollDelay: flags.poll,
    nic: { burstSegments: flags.burst, sendBufferBytes: 262_144, carryPayload: false, join: false },
    settings: simSettings({ rate, rails }),
    until: flags.until * 1000,
  };
}
