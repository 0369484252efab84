// weftline bench transport: messages between two processes, or between ranks.
import type { Command } from 'commander';
import { giveUpTransportBench, runTransportBench, serveTransportBench } from '../bench/transport/transport-bench.ts';
import { runPairsBench } from '../bench/transport/transport-pairs.ts';
import { runRankBench } from '../bench/transport/transport-ranks.ts';
import {
  checkTransportWorkload,
  defaultTransportWorkload,
  transportPatterns,
  type TransportWorkload,
} from '../bench/transport/transport-workload.ts';
import { enginesTransportView, ranksTransportView, transportView } from '../report/transport-view.ts';
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
import { readSettings, type SettingName } from '../../settings/settings.ts';
import { protocolSettingsTable, rdmaSettingsTable } from '../../settings/transport-settings-table.ts';
import { addSettingOptions } from './setting-options.ts';
import { checkUsage } from './exit-codes.ts';
import { withRanks } from './with-ranks.ts';

const MAX_COUNT = 2 ** 31;
const MAX_MESSAGE_BYTES = 2 ** 30;
const DAY_SECONDS = 86_400;
const LATENCY_BYTES = 64;
/** Of the pattern engines. */
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

/** In transport_test a receiver's flush makes RDMA writes visible to its GPU; here it means nothing. Fails with WL_INVALID_ARGUMENT. */
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
