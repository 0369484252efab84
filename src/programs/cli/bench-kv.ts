// weftline bench kv: pages of KV caches between two processes, beside bulk of the same bytes.
import type { Command } from 'commander';
import { backendNames } from '../../agent/backends/backend-table.ts';
import { type KvBenchReport, type KvBenchWorkload, type KvResult, pointsOf, runKvBench } from '../bench/kv/kv-bench.ts';
import { kvOps } from '../bench/kv/kv-workload.ts';
import { giveUpP2pBench, serveP2pBench } from '../bench/p2p/p2p-bench.ts';
import {
  changeLines,
  counted,
  describeRounds,
  fixed,
  machineLines,
  ratioColumn,
  table,
  timeColumn,
  type View,
} from '../report/view.ts';
import { addOptions, type FlagsOf, integerArgument, listArgument, option } from './argument-values.ts';
import { checkUsage } from './exit-codes.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';
import {
  addBenchRoleOptions,
  benchRole,
  checkPeerAddress,
  listenAddress,
  listeningLine,
  peerAddress,
  type PeerFlags,
  requireGpu,
} from './peer-options.ts';
import { addSettingOptions } from './setting-options.ts';

const DEFAULT_PORT = 20_003;

const kvOptions = [
  option('--tokens <list>', 'tokens of a prompt', listArgument(integerArgument(1, 1 << 20)), [8192]),
  option('--page-tokens <list>', 'tokens of a page', listArgument(integerArgument(1, 4096)), [16, 64]),
  option('--requests <n>', 'requests whose pages move at a time', integerArgument(1, 64), 1),
  option('--mode <mode>', 'what the client does', ['both', ...kvOps], 'both'),
  option('--iterations <n>', 'rounds of pages and bulk', integerArgument(1, 1e6), 24),
  option('--warmup <n>', 'rounds before them', integerArgument(0, 1e6), 2),
  option('--device <kind>', 'where the memory is', ['cpu', 'gpu'], 'cpu'),
  option('--local-gpu-idx <n>', 'the GPU of --device gpu', integerArgument(0, 1023), 0),
  option('--backend <name>', 'this path or none', backendNames),
];

type KvFlags = FlagsOf<typeof kvOptions> & PeerFlags & OutputFlags;

export function addKvBench(bench: Command): void {
  const command = bench
    .command('kv')
    .summary('pages of KV caches from one process to another, beside bulk')
    .description(
      'The caches of DeepSeek-V4-Pro as CollectiveX has them (kv-dsv4): 61 layers, a range for each page of each, every page checked. ' +
        'Bytes alone, without the leases and checksums of KvStore and KvReader. Start the server, then the client, which decides ' +
        'what is measured; the server ends by itself. Between hosts both need the same WEFTLINE_TOKEN.',
    );
  addBenchRoleOptions(command, DEFAULT_PORT);
  addOptions(command, kvOptions);
  addReportOptions(command);
  addSettingOptions(command, [
    'timeoutMs',
    'trace',
    'agentSpinUs',
    'transportPaths',
    'stagingPieceBytes',
    'stagingPieces',
  ]);
  command.action((flags: KvFlags) => run(command, flags));
}

async function run(command: Command, flags: KvFlags): Promise<void> {
  const output = new Output(flags);
  const { device, localGpuIdx: localGpuIndex, port, backend } = flags;
  const options = { localGpuIndex, device, backend, port, ownThread: true };
  if (benchRole(command, flags) === 'server') {
    if (device === 'gpu') requireGpu(localGpuIndex);
    const host = listenAddress(flags);
    await serveP2pBench({
      ...options,
      host,
      onListening: (bound) => output.line(listeningLine(host, bound)),
      onConnected: ({ ip }) => output.line(`connected to ${ip}`),
      onSize: () => {},
      onOneSided: () => {},
    });
    return;
  }
  const remoteIp = peerAddress(flags);
  const { tokens, pageTokens, requests, mode, iterations, warmup } = flags;
  const ops = mode === 'both' ? kvOps : [mode];
  const workload: KvBenchWorkload = { tokens, pageTokens, requests, ops, iterations, warmup };
  checkUsage(command, () => checkPeerAddress(remoteIp));
  try {
    checkUsage(command, () => pointsOf(workload));
    if (device === 'gpu') requireGpu(localGpuIndex);
  } catch (error) {
    await giveUpP2pBench({ host: remoteIp, port }, error);
    throw error;
  }
  output.line(`waiting for the server at ${remoteIp} port ${port}`);
  const report = await runKvBench({
    ...options,
    remoteIp,
    host: flags.host,
    workload,
    onConnected: ({ backend: path }) => output.line(`connected to ${remoteIp} by ${path}`),
    onResult: (result) => output.line(`${nameOf(result)}: ${result.gigabytesPerSecond.median.toFixed(2)} GB/s`),
  });
  output.report(kvView(report), report);
}

function nameOf({ op, tokens, pageTokens }: KvResult): string {
  return `${op}, ${tokens.toLocaleString('en')} tokens in pages of ${pageTokens}`;
}

function kvView(report: KvBenchReport): View {
  const { workload, device, backend, results, method } = report;
  return {
    title: `Pages of KV caches by ${backend}`,
    heading: [
      `kv-dsv4, memory of the ${device}, by ${backend}, ${counted(workload.requests, 'request')} at a time; ${describeRounds(workload)}`,
      'medians, in brackets the quartiles; every page was checked behind the rounds',
    ],
    about: machineLines(report),
    parts: [
      table(
        results,
        [
          { head: '', of: ({ op }) => op },
          { head: 'tokens', of: ({ tokens }) => tokens },
          { head: 'page', of: ({ pageTokens }) => pageTokens },
          { head: 'ranges', of: ({ ranges }) => ranges, note: method.ranges },
          { head: 'MB', of: ({ bytes }) => bytes / 1e6, show: fixed(1) },
          { ...timeColumn, of: ({ microseconds }) => microseconds, chart: 'Time of the pages', note: method.pages },
          { head: 'GB/s', of: ({ gigabytesPerSecond }) => gigabytesPerSecond, show: fixed(2) },
          { head: 'bulk', of: ({ bulk }) => bulk.gigabytesPerSecond, show: fixed(2), note: method.bulk },
          { ...ratioColumn('bulk'), of: ({ ratio }) => ratio, note: method.ratio },
          { head: 'CPU µs a range', of: (one) => one.cpuMicrosecondsPerRange, show: fixed(2), note: method.cpu },
          { head: 'extra µs', of: (one) => one.extraMicrosecondsPerRange, show: fixed(2), note: method.extra },
          { head: 'post ms', of: (one) => one.postMicroseconds.median / 1000, show: fixed(1), note: method.post },
          { head: 'prepare ms', of: (one) => one.prepareMilliseconds, show: fixed(1), note: method.prepare },
        ],
        nameOf,
      ),
      changeLines(report.placement),
    ],
  };
}
