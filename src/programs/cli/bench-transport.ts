// weftline bench transport: messages between two processes, or between ranks, over UDP.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { runTransportBench, serveTransportBench } from '../bench/transport/transport-bench.ts';
import { runRankBench } from '../bench/transport/transport-ranks.ts';
import {
  checkTransportWorkload,
  defaultTransportWorkload,
  type TransportPattern,
  transportPatterns,
  type TransportWorkload,
} from '../bench/transport/transport-workload.ts';
import { rankBenchReport, transportBenchReport } from '../report/transport-bench-report.ts';
import { integerArgument } from './integer-argument.ts';
import { requireWritableFolder, writeJson } from './output-file.ts';
import { addSettingOptions } from './setting-options.ts';
import { withRanks } from './with-ranks.ts';

interface TransportFlags {
  readonly role?: 'server' | 'client';
  readonly serverIp: string;
  readonly port: number;
  readonly perftype: TransportPattern;
  readonly nflow: number;
  readonly nmsg: number;
  readonly nreq: number;
  readonly msize?: number;
  readonly iterations: number;
  readonly seconds: number;
  readonly warmup: boolean;
  readonly flush: boolean;
  readonly bi: boolean;
  readonly compare: number;
  readonly ranks: number;
  readonly seed: number;
  readonly json?: string;
}

const MOST = 2 ** 31;
const LATENCY_BYTES = 64;

export function addTransportBench(bench: Command): void {
  const { nflow, nmsg, nreq, msize, seconds } = defaultTransportWorkload;
  const command = bench
    .command('transport')
    .summary('messages between two processes or many ranks over UDP')
    .description(
      'Start the server, then the client, which decides what is measured; the server ends by itself. Between hosts both need the same WEFTLINE_TOKEN. The patterns ' +
        'incast and permutation need no role: they start ranks on this machine.',
    )
    .addOption(new Option('--role <role>', 'which end this is').choices(['server', 'client']))
    .option('--server-ip <address>', 'where the server listens', '127.0.0.1')
    .option('--port <number>', 'its TCP port', integerArgument(1, 65_535), 19_999)
    .addOption(new Option('--perftype <type>', 'what is measured').choices(transportPatterns).default('tpt'))
    .option('--nflow <n>', 'flows', integerArgument(1, 1024), nflow)
    .option('--nmsg <n>', 'messages of a request', integerArgument(1, 64), nmsg)
    .option('--nreq <n>', 'requests of a flow that are under way', integerArgument(1, 256), nreq)
    .option('--msize <bytes>', `of a message (default: ${msize}, of lat ${LATENCY_BYTES})`, integerArgument(1, 2 ** 30))
    .option('--iterations <n>', 'messages or requests per flow; 0 lets the time decide', integerArgument(0, MOST), 0)
    .option('--seconds <s>', 'how long to send', decimal, seconds)
    .option('--warmup', 'a second, or 1000 rounds of lat, that do not count', false)
    .option('--flush', 'look at the end of each message before offering its memory again', false)
    .option('--bi', 'both sides send', false)
    .option('--compare <rounds>', 'beside bare UDP and iperf3, in turn', integerArgument(0, 1000), 0)
    .option('--ranks <n>', 'of incast and permutation', integerArgument(2, 64), 4)
    .option('--seed <n>', 'of permutation', integerArgument(0, MOST), 1)
    .option('--json <file>', 'write the result document')
    .addHelpText(
      'after',
      `
Examples:
  export WEFTLINE_TOKEN=$(cat token)
  weftline bench transport --role server --server-ip 10.0.0.1
  weftline bench transport --role client --server-ip 10.0.0.1 --perftype tpt --msize 1048576 --compare 5
  weftline bench transport --perftype incast --ranks 8 --msize 4194304`,
    );
  addSettingOptions(command, [
    'timeoutMs',
    'transportPaths',
    'transportSegmentBytes',
    'transportSegmentationOffload',
    'transportSocketBufferBytes',
    'transportSpinUs',
    'transportPinCore',
    'transportThread',
    'transportAuthentication',
  ]);
  command.action((flags: TransportFlags) => run(flags));
}

async function run(flags: TransportFlags): Promise<void> {
  const workload = workloadOf(flags);
  checkTransportWorkload(workload);
  if (flags.json !== undefined) requireWritableFolder(flags.json);
  const { perftype } = workload;
  if (perftype === 'incast' || perftype === 'permutation') {
    await withRanks(flags.ranks, async (world) => {
      const report = await runRankBench(world, workload, { seed: flags.seed, onLine });
      if (report === undefined) return;
      process.stdout.write(rankBenchReport(report));
      writeJson(flags.json, report);
    });
    return;
  }
  const { serverIp: host, port } = flags;
  if (flags.role === undefined) throw new InvalidArgumentError('--role server or --role client is needed.');
  if (flags.role === 'server') {
    await serveTransportBench({ host, port, onLine, onListening: (at) => onLine(`listening at ${host} port ${at}`) });
    return;
  }
  const report = await runTransportBench({ host, port, workload, rounds: flags.compare, onLine });
  process.stdout.write(transportBenchReport(report));
  writeJson(flags.json, report);
}

function workloadOf(flags: TransportFlags): TransportWorkload {
  const { nflow, nmsg, nreq, iterations, seconds, warmup, flush } = flags;
  const perftype = flags.perftype === 'bi' ? 'tpt' : flags.perftype;
  const msize = flags.msize ?? (perftype === 'lat' ? LATENCY_BYTES : defaultTransportWorkload.msize);
  const bi = flags.bi || flags.perftype === 'bi';
  return { perftype, nflow, nmsg, nreq, msize, iterations, seconds, warmup, flush, bi };
}

function onLine(line: string): void {
  process.stdout.write(`${line}\n`);
}

function decimal(text: string): number {
  const value = Number(text);
  if (/^\d+(\.\d+)?$/.test(text) && value > 0 && value <= 86_400) return value;
  throw new InvalidArgumentError('Allowed is a number of seconds up to 86400.');
}
