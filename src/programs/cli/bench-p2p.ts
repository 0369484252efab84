// weftline bench p2p: memory of one process to memory of another, over any backend of an agent.
import type { Command } from 'commander';
import { backendNames } from '../../agent/backends/backend-table.ts';
import {
  type P2pBenchOptions,
  runP2pBench,
  serveP2pBench,
  giveUpP2pBench,
  type P2pBenchReport,
} from '../bench/p2p/p2p-bench.ts';
import {
  type BlockSweep,
  checkP2pWorkload,
  DEFAULT_ITERATIONS,
  defaultSizes,
  MAX_DESCRIPTORS,
  p2pModes,
  type P2pWorkload,
  type BlockResult,
  type SizeResult,
} from '../bench/p2p/p2p-phases.ts';
import {
  addOptions,
  byteArgument,
  type FlagsOf,
  integerArgument,
  listArgument,
  option,
  sweepArgument,
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
  requireGpu,
} from './peer-options.ts';
import { addSettingOptions } from './setting-options.ts';
import { checkUsage } from './exit-codes.ts';
import { median } from '../../core/quantile.ts';
import { latencyQuantiles } from '../bench/harness.ts';
import {
  curves,
  distribution,
  ratioColumn,
  table,
  type View,
  changeLines,
  counted,
  fixed,
  machineLines,
} from '../report/view.ts';

const MAX_COUNT = 2 ** 31;
const DEFAULT_PORT = 20_001;
const amount = integerArgument(1, MAX_COUNT);
const byteList = listArgument(byteArgument(1, MAX_COUNT));
const byteSweep = sweepArgument(byteArgument(1, MAX_COUNT));

const p2pOptions = [
  option('--local-gpu-idx <n>', 'the GPU of --device gpu; told to the peer', integerArgument(0, 1023), 0),
  option('--num-cpus <n>', '', integerArgument(1, 1024)).hideHelp(),
  option('--device <kind>', 'where the memory is', ['cpu', 'gpu'], 'cpu'),
  option('--backend <name>', 'this path or none', backendNames),
  option('--mode <mode>', 'what the client does', p2pModes, p2pModes[0]),
  option('--sizes <list>', 'bytes of messages, as 256,64K,1M', byteList, defaultSizes),
  option('--iterations <n>', 'messages of each size; also --iters', amount, DEFAULT_ITERATIONS),
  option('--iters <n>', '', amount).hideHelp(),
  option('--inflight <n>', 'messages under way at a time', integerArgument(1, 256), 1),
  option('--blocks <first,last>', 'sweep of block sizes, doubling, with the columns of nixlbench', byteSweep),
  option('--batches <first,last>', 'blocks of a transfer in that sweep, doubling', sweepArgument(amount), [1, 1]),
  option('--pings <n>', 'round trips of 256 bytes with a notification', integerArgument(0, MAX_COUNT), 0),
  option(
    '--descriptors <n>',
    'one transfer of so many blocks: time and memory to prepare it',
    integerArgument(0, MAX_DESCRIPTORS),
    0,
  ),
  option(
    '--compare <rounds>',
    'writes (or reads) of 1 MiB and more beside the ceiling of the path: memcpy, bench transport or ucx_perftest; of memory of a GPU between hosts: host memory on the same path',
    integerArgument(0, 1000),
    0,
  ),
  option('--no-agent-thread', "the agent works on the caller's thread alone, inside calls that wait"),
];

type P2pFlags = FlagsOf<typeof p2pOptions> & PeerFlags & OutputFlags;

export function addP2pBench(bench: Command): void {
  const command = bench
    .command('p2p')
    .summary('memory of one process to memory of another, over any path of an agent')
    .description(
      'Start the server, then the client, which decides what is measured; the server ends by itself. ' +
        'Between hosts both need the same WEFTLINE_TOKEN.',
    );
  addBenchRoleOptions(command, DEFAULT_PORT);
  addOptions(command, p2pOptions);
  addReportOptions(command);
  addSettingOptions(command, [
    'timeoutMs',
    'trace',
    'agentSpinUs',
    'transportPaths',
    'transportThread',
    'stagingPieceBytes',
    'stagingPieces',
  ]);
  command.action((flags: P2pFlags) => run(command, flags));
}

async function run(command: Command, flags: P2pFlags): Promise<void> {
  const output = new Output(flags);
  const role = benchRole(command, flags);
  const { device, localGpuIdx: localGpuIndex, port, backend, agentThread: ownThread } = flags;
  const options: P2pBenchOptions = { localGpuIndex, device, backend, port, ownThread };
  // The lines are those of UCCL's benchmark.
  output.line(`weftline P2P Benchmark — role: ${role}`);
  output.line(`Creating Engine with GPU index: ${localGpuIndex}, engine threads: ${ownThread ? 1 : 0}`);
  if (flags.numCpus !== undefined) output.line('--num-cpus has no effect: an agent has one engine thread');
  if (role === 'server') await serve(options, flags, output);
  else await measure(command, options, flags, output);
  output.line(`[${role === 'server' ? 'Server' : 'Client'}] Benchmark complete`);
}

async function serve(options: P2pBenchOptions, flags: P2pFlags, { line, result: show }: Output): Promise<void> {
  checkDevice(options);
  const host = listenAddress(flags);
  await serveP2pBench({
    ...options,
    host,
    onListening: (port) => {
      line(`[Server] ${listeningLine(host, port)}`);
      line('[Server] Waiting for connection …');
    },
    onConnected: ({ ip, gpuIndex, id }, workload) => {
      line(`[Server] Connected to ${ip} (GPU ${gpuIndex}) conn_id=${id}`);
      for (const text of p2pWorkloadLines(workload, options.device, options.localGpuIndex)) line(text);
    },
    onSize: (result) => show(p2pSizeLine('Server', result)),
    onOneSided: (size) => line(p2pOneSidedLine(size)),
  });
}

async function measure(command: Command, options: P2pBenchOptions, flags: P2pFlags, output: Output): Promise<void> {
  const { line, result: show } = output;
  const workload = workloadOf(flags);
  const remoteIp = peerAddress(flags);
  checkUsage(command, () => checkPeerAddress(remoteIp));
  try {
    checkUsage(command, () => checkP2pWorkload(workload));
    checkDevice(options);
  } catch (error) {
    await giveUpP2pBench({ host: remoteIp, port: options.port }, error);
    throw error;
  }
  for (const text of p2pWorkloadLines(workload, options.device, options.localGpuIndex)) line(text);
  let hasBlocks = false;
  const report = await runP2pBench({
    ...options,
    remoteIp,
    host: flags.host,
    workload,
    onConnected: ({ id, backend }, verdicts) => {
      line(`[Client] Connected to ${remoteIp} conn_id=${id}`);
      line(p2pPathLine({ backend, verdicts }));
    },
    onSize: (result) => show(p2pSizeLine('Client', result)),
    onBlock: (result) => {
      if (!hasBlocks) show(p2pBlockLine());
      hasBlocks = true;
      show(p2pBlockLine(result));
    },
  });
  output.report(p2pView(report), report);
}

/** Fails with WL_UNSUPPORTED if the memory is to be of a GPU that this machine does not have. */
function checkDevice({ device, localGpuIndex }: P2pBenchOptions): void {
  if (device === 'gpu') requireGpu(localGpuIndex);
}

function workloadOf({ iterations, iters = iterations, blocks, batches, ...flags }: P2pFlags): P2pWorkload {
  const { mode, sizes, inflight, pings, descriptors, compare } = flags;
  return { mode, sizes, iterations: iters, inflight, pings, descriptors, compare, blocks: sweepOf(blocks, batches) };
}

function sweepOf(blocks: readonly number[] | undefined, batches: readonly number[]): BlockSweep | undefined {
  if (blocks === undefined) return undefined;
  const [startBlockBytes = 1, maxBlockBytes = startBlockBytes] = blocks;
  const [startBatch = 1, maxBatch = startBatch] = batches;
  return { startBlockBytes, maxBlockBytes, startBatch, maxBatch };
}

// What people read of it: lines in the words of UCCL's benchmark and of nixlbench, then ceilings and latencies.

type P2pRole = 'Server' | 'Client';

const ceilingNames = {
  memcpy: 'memcpy',
  transport: 'bench transport, tpt',
  ucx_perftest: 'ucx_perftest',
  host: 'host memory, same path',
} as const;

/** What the client has decided, on both sides. */
export function p2pWorkloadLines({ sizes, iterations, mode }: P2pWorkload, device: string, gpuIndex: number): string[] {
  return [
    `Message sizes: ${sizes.map(sizeText).join(', ')}`,
    `Device: ${device} | Local GPU idx: ${gpuIndex} | Iterations: ${iterations} | Mode: ${mode}`,
  ];
}

/** What a server says of messages that it has no part in. */
function p2pOneSidedLine({ bytes, iterations }: { bytes: number; iterations: number }): string {
  return `[Server] ${sizeText(bytes).padStart(8)} : ${iterations} messages, moved and measured by the client`;
}

export function p2pSizeLine(role: P2pRole, { bytes, gbps, gigabytesPerSecond }: SizeResult): string {
  const [bits, whole] = [gbps, gigabytesPerSecond].map((value) => value.toFixed(2).padStart(6));
  return `[${role}] ${sizeText(bytes).padStart(8)} : ${bits} Gbps | ${whole} GB/s`;
}

const blockColumns: readonly (readonly [head: string, width: number, cell: (of: BlockResult) => string])[] = [
  ['Block Size (B)', 20, ({ blockBytes }) => String(blockBytes)],
  ['Batch Size', 15, ({ batch }) => String(batch)],
  ['B/W (GB/Sec)', 15, ({ gigabytesPerSecond }) => gigabytesPerSecond.toFixed(6)],
  ['Avg Lat. (us)', 15, ({ latencyMicroseconds }) => latencyMicroseconds.toFixed(1)],
  ['Avg Prep (us)', 15, ({ prepareMicroseconds }) => prepareMicroseconds.average.toFixed(1)],
  ['P99 Prep (us)', 15, ({ prepareMicroseconds }) => prepareMicroseconds.p99.toFixed(1)],
  ['Avg Post (us)', 15, ({ postMicroseconds }) => postMicroseconds.average.toFixed(1)],
  ['P99 Post (us)', 15, ({ postMicroseconds }) => postMicroseconds.p99.toFixed(1)],
  ['Avg Tx (us)', 15, ({ transferMicroseconds }) => transferMicroseconds.average.toFixed(1)],
  ['P99 Tx (us)', 15, ({ transferMicroseconds }) => transferMicroseconds.p99.toFixed(1)],
];

/** The columns of nixlbench; their heads without a result. */
function p2pBlockLine(of?: BlockResult): string {
  const line = blockColumns.map(([head, width, cell]) => (of === undefined ? head : cell(of)).padEnd(width)).join('');
  return of === undefined ? line : line.trimEnd();
}

/** The path that it got, and why not another. */
function p2pPathLine({ backend, verdicts }: Pick<P2pBenchReport, 'backend' | 'verdicts'>): string {
  const others = verdicts.flatMap(({ backend: other, why }) => (why === undefined ? [] : [`${other}: ${why}`]));
  return `Path: ${backend}${others.length === 0 ? '' : ` (${others.join('; ')})`}`;
}

/** What follows the lines of sizes and blocks, and the page of all. */
export function p2pView(report: P2pBenchReport): View {
  const { workload, device, backend, sizes, blocks = [], pingMicroseconds, pingCeiling, descriptors, method } = report;
  const ceilings = (report.ceilings ?? []).map((one) => ({ ...one, name: ceilingNames[one.ceiling] }));
  return {
    title: `Memory of one process to memory of another, by ${backend}`,
    about: [
      `${workload.mode}, memory of the ${device}, ${workload.inflight} under way`,
      p2pPathLine(report),
      ...machineLines(report),
    ],
    parts: [
      descriptors !== undefined && descriptorsLine(descriptors),
      pingMicroseconds !== undefined &&
        `round trip of 256 B and a notification: ${latencyQuantiles.map((name, at) => `${name} ${(pingMicroseconds[at] ?? 0).toFixed(2)}`).join(', ')} µs`,
      sizes.length > 0 && sizeSection(report),
      ceilings.length > 0
        ? table(
            ceilings,
            [
              { head: 'beside it, in turn', of: ({ name }) => name },
              { head: 'size', of: ({ bytes }) => bytes, show: sizeText },
              { head: 'GB/s of it', of: (one) => median(one.ceilings), show: fixed(2) },
              { head: `GB/s of ${backend}`, of: ({ own }) => median(own), show: fixed(2) },
              { ...ratioColumn('the ceiling of the path'), of: ({ ratio }) => ratio },
            ],
            ({ ceiling, bytes }) => `${ceiling}, ${bytes.toLocaleString('en')} B`,
          )
        : [],
      (report.notCompared ?? []).map(({ bytes, why }) => `not compared: ${sizeText(bytes)}, ${why}`),
      pingCeiling !== undefined &&
        `round trip beside ${ceilingNames[pingCeiling.ceiling]}, in turn: ${median(pingCeiling.ceilings).toFixed(2)} µs of it, ${median(pingCeiling.own).toFixed(2)} µs of ${backend}, ratio ${pingCeiling.ratio.median.toFixed(2)} (${pingCeiling.ratio.p25.toFixed(2)} to ${pingCeiling.ratio.p75.toFixed(2)})`,
      changeLines(report.placement),
      blocks.length > 0 && blockSection(blocks, method.block),
      pingMicroseconds !== undefined &&
        distribution({ title: 'Latency of a round trip', note: method.ping }, latencyQuantiles, [
          { name: backend, values: pingMicroseconds },
        ]),
    ],
  };
}

function sizeSection({ sizes, ceilings = [], backend, method }: P2pBenchReport) {
  const kinds = [...new Set(ceilings.map(({ ceiling }) => ceiling))];
  return curves(
    { title: 'Bandwidth by size', note: method.size, x: { label: 'bytes', scale: 'log' }, y: { label: 'GB/s' } },
    [
      { name: backend, points: sizes.map(({ bytes, gigabytesPerSecond }) => [bytes, gigabytesPerSecond]) },
      ...kinds.map((kind) => ({
        name: kind,
        points: ceilings
          .filter(({ ceiling }) => ceiling === kind)
          .map(({ bytes, ceilings: found }) => [bytes, median(found)] as const),
      })),
    ],
  );
}

function blockSection(blocks: readonly BlockResult[], note: string) {
  const batches = [...new Set(blocks.map(({ batch }) => batch))];
  return curves(
    {
      title: 'Bandwidth by block size and batch',
      note,
      x: { label: 'bytes of a block', scale: 'log' },
      y: { label: 'GB/s' },
    },
    batches.map((batch) => ({
      name: counted(batch, 'block'),
      points: blocks
        .filter((one) => one.batch === batch)
        .map(({ blockBytes, gigabytesPerSecond }) => [blockBytes, gigabytesPerSecond] as const),
    })),
    {
      head: blockColumns.map(([head]) => head),
      rows: blocks.map((block) => blockColumns.map(([, , cell]) => Number(cell(block)))),
    },
  );
}

function descriptorsLine({
  count,
  parts,
  residentBytes,
  ...times
}: NonNullable<P2pBenchReport['descriptors']>): string {
  const { listMilliseconds: list, prepareMilliseconds, postMilliseconds, moveMilliseconds } = times;
  const texts = [list, prepareMilliseconds, postMilliseconds, moveMilliseconds].map((time) => `${time.toFixed(1)} ms`);
  return `${count} descriptors in ${parts} parts: lists ${texts[0]}, prepare ${texts[1]}, post ${texts[2]}, move ${texts[3]}; ${(residentBytes / 1e6).toFixed(0)} MB`;
}

/** "256 B", "1.0 KB": steps of 1024, as UCCL's benchmark writes them; other reports say KiB. */
function sizeText(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1 << 20) return `${(bytes / 1024).toFixed(1)} KB`;
  return `${(bytes / (1 << 20)).toFixed(1)} MB`;
}
