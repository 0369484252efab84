// weftline bench sparse: sums of tensors that are mostly zero, through aggregators, against dense ones.
import type { Command } from 'commander';
import { availableParallelism, totalmem } from 'node:os';
import {
  runSparseBench,
  type SparseWorkload,
  tensorBytes,
  type SparseBenchReport,
  type SparseRow,
} from '../bench/sparse/sparse-bench.ts';
import { MAX_LANES } from '../../collectives/sparse/sparse-options.ts';
import { nodesNeeded } from '../../collectives/sparse/reduction-tree.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { openDevice } from '../../device/device-choice.ts';
import { readSettings } from '../../settings/settings.ts';
import { isRank } from '../../world/environment.ts';
import { addOptions, decimalArgument, type FlagsOf, integerArgument, listArgument, option } from './argument-values.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';
import { ProgressBar, withRanks } from './with-ranks.ts';
import { addSettingOptions, checkHosts } from './setting-options.ts';
import { checkUsage } from './exit-codes.ts';
import { formatBytes } from '../../core/byte-size.ts';
import type { ReportSection } from '../report/html/page-html.ts';
import { curves, fixed, machineLines, scaleFor, table, type View } from '../report/view.ts';

const LARGE_MACHINE = { cores: 16, memory: 64 * 2 ** 30 } as const;
const ELEMENTS = { large: 67_108_864, small: 16_777_216 } as const;

const isLarge = availableParallelism() >= LARGE_MACHINE.cores && totalmem() >= LARGE_MACHINE.memory;
const usualElements = isLarge ? ELEMENTS.large : ELEMENTS.small;

const sparseOptions = [
  option('--workers <n>', 'processes with a tensor', integerArgument(1, 128), 4),
  option('--aggregators <n>', 'processes that add up; 0: the workers do', integerArgument(0, 64), 1),
  option('--fan-in <n>', 'ranks from which an aggregator takes blocks; 0: all workers', integerArgument(0, 1024), 0),
  option('--elements <n>', 'of a tensor', integerArgument(1, 2 ** 28), usualElements).default(
    usualElements,
    `${ELEMENTS.large}, or ${ELEMENTS.small} on small machines`,
  ),
  option('--dtype <dtype>', 'of the elements', ['f32', 'bf16', 'i32'], 'f32'),
  option(
    '--density <list>',
    'shares of blocks that a worker has, each measured in turn',
    listArgument(decimalArgument(0, 1)),
    [0.01],
  ),
  option('--block-size <n>', 'elements of a block', integerArgument(64, 65_536), 256),
  option('--message-size <n>', 'elements of a message at most', integerArgument(64, 2 ** 24), 65_536),
  option('--slots <n>', 'messages of a worker under way', integerArgument(1, 256), 16),
  option('--warmups <n>', 'rounds that do not count', integerArgument(0, 1000), 10),
  option('--rounds <n>', 'of a sparse and a dense call each', integerArgument(1, 10_000), 100),
];

type SparseBenchFlags = FlagsOf<typeof sparseOptions> & OutputFlags;

export function addSparseBench(bench: Command): void {
  const command = bench
    .command('sparse')
    .summary('sums of tensors that are mostly zero, through aggregators, against dense all-reduces')
    .description(
      'Sums of tensors that are mostly zero, through aggregators, against dense all-reduces: of CPU ranks, or of GPUs with ' +
        '--device cuda (auto stands for cpu here).',
    );
  addOptions(command, sparseOptions);
  addReportOptions(command);
  addSettingOptions(command, ['device', 'hosts', 'collectiveSpinUs', 'timeoutMs']);
  command.action(async (flags: SparseBenchFlags) => {
    const output = new Output(flags);
    const workload = workloadOf(flags);
    const ranks = workload.workers + workload.aggregators;
    if (!isRank()) checkHosts(command, ranks);
    checkUsage(command, () => checkCut(workload));
    const bytes = tensorBytes(workload);
    const isSweep = workload.densities.length > 1;
    await withRanks(ranks, async (world) => {
      const isWorker = world.rank < workload.workers;
      const ranksOfWorkers = Array.from({ length: workload.workers }, (_, rank) => rank);
      const workers = isWorker ? await world.group(ranksOfWorkers) : undefined;
      await using device =
        workload.device === 'cuda' && workers !== undefined
          ? await openDevice('cuda', workers)
          : await CpuDevice.create();
      // Each round is a line where there is one density.
      using bar = new ProgressBar({
        title: 'bench sparse',
        unit: 'rounds',
        rank: world.rank,
        isQuiet: flags.quiet === true,
      });
      let measured = 0;
      const report = await runSparseBench(world, device, {
        workload,
        workers,
        progress: {
          round: (round, microseconds) => {
            if (isSweep) return bar.show(++measured, workload.densities.length * workload.rounds);
            output.line(`round: ${round}`);
            output.line(sparseRoundLine(bytes, microseconds));
          },
          wrong: (rank, at, got, expected) => {
            output.line(`rank: ${rank}; result check: error`);
            output.line(`${at}: ${got} ${expected}`);
          },
        },
      });
      if (report === undefined) return;
      output.report(sparseView(report), report);
      const wrong = report.rows.reduce((sum, row) => sum + row.wrong, 0);
      if (wrong > 0) {
        throw new WeftlineError('WL_CHECK', `${wrong} elements of sparse sums differ from those of dense ones`);
      }
    });
  });
}

/** What SparseAllReduce.create() would refuse, before any process starts. Fails with WL_INVALID_ARGUMENT. */
function checkCut({ workers, aggregators, fanIn, blockSize, messageSize }: SparseWorkload): void {
  if (blockSize % 64 !== 0) throw invalidArgument('--block-size', blockSize, 'a multiple of 64');
  const most = blockSize * MAX_LANES;
  if (messageSize % blockSize !== 0 || messageSize > most) {
    throw invalidArgument('--message-size', messageSize, `a multiple of --block-size, ${blockSize}, up to ${most}`);
  }
  if (fanIn === 0) return;
  const needed = fanIn < 2 ? 0 : nodesNeeded(workers, fanIn);
  const there = aggregators === 0 ? workers : aggregators;
  if (needed === 0) throw invalidArgument('--fan-in', fanIn, '0, or 2 and more');
  if (needed > there) {
    throw invalidArgument('--fan-in', fanIn, `a larger one, or --aggregators ${needed}, for ${workers} workers`);
  }
}

function workloadOf(flags: SparseBenchFlags): SparseWorkload {
  const { density, workers, aggregators, fanIn, elements, dtype, blockSize, messageSize, slots, warmups, rounds } =
    flags;
  const { hosts, device } = readSettings();
  return {
    workers,
    aggregators,
    fanIn,
    hosts,
    device: device === 'cuda' ? 'cuda' : 'cpu',
    elements,
    dtype,
    densities: density,
    blockSize,
    messageSize,
    slots,
    warmups,
    rounds,
  };
}

// What people read of it: sums by density.

/** A line of the program that this one follows, which calls 2^30 bytes a GB. */
function sparseRoundLine(bytes: number, microseconds: number): string {
  const perSecond = bytes / (microseconds / 1e6);
  const [decimal, binary] = [perSecond / 1e9, perSecond / 2 ** 30];
  return `tensor size: ${bytes} Bytes; time: ${Math.round(microseconds)} us; alg bw: ${decimal.toFixed(3)} GB/s (${binary.toFixed(3)} GiB/s)`;
}

function sparseView(report: SparseBenchReport): View {
  const { workload, rows, bitmap, crossing, route, gpu } = report;
  const { workers, aggregators, fanIn, elements, dtype, blockSize, messageSize, slots } = workload;
  const helpers = aggregators === 0 ? 'which aggregate' : `and ${aggregators} aggregators`;
  const tree = fanIn === 0 ? '' : ` in trees of fan-in ${fanIn}`;
  const bytes = tensorBytes(workload);
  const wrong = rows.reduce((sum, row) => sum + row.wrong, 0);
  const share = (blocks: number, of: SparseRow): string => percent(blocks / Math.max(1, of.blocks));
  return {
    title: `Sparse sums of ${workers} workers`,
    heading: [
      `${workers} workers ${gpu === undefined ? '' : `on GPUs (${gpu}) `}${helpers}${tree}, ${elements} ${dtype} (${formatBytes(bytes)}), blocks of ${blockSize}, messages of ${messageSize}, ${slots} slots; by ${route}; median of ${workload.rounds} rounds, the slowest worker's time`,
    ],
    parts: [
      table(rows, [
        { head: 'blocks', of: (row) => share(row.ownBlocks, row) },
        { head: 'of sum', of: (row) => share(row.sumBlocks, row) },
        { head: 'sent', of: ({ sentBytes }) => Math.round(sentBytes), show: formatBytes },
        {
          head: '/ theory',
          of: (row) => against(row.sentBytes, row.sentTheory),
          show: fixed(3),
          note: 'how many times the bytes of the blocks alone',
        },
        { head: 'received', of: ({ receivedBytes }) => Math.round(receivedBytes), show: formatBytes },
        { head: '/ theory', of: (row) => against(row.receivedBytes, row.receivedTheory), show: fixed(3) },
        { head: 'messages', of: ({ messages }) => messages, show: fixed(0) },
        { head: 'us', of: ({ sparseMicroseconds }) => sparseMicroseconds, show: fixed(0) },
        { head: 'GB/s', of: ({ sparseMicroseconds }) => bytes / sparseMicroseconds / 1000, show: fixed(2) },
        { head: 'dense us', of: ({ denseMicroseconds }) => denseMicroseconds, show: fixed(0) },
        { head: 'faster', of: (row) => row.denseMicroseconds / row.sparseMicroseconds, show: fixed(2) },
      ]),
      crossing !== undefined && `dense is faster from ${percent(crossing)} of blocks on`,
      `bitmap kernel: ${bitmap.bitmap.toFixed(1)} GB/s, ${(bitmap.bitmap / bitmap.read).toFixed(2)} of a plain read (${bitmap.read.toFixed(1)} GB/s)`,
      byDensity(rows, 'Time by density', 'Of the slowest worker.', 'µs', [
        ['sparse', ({ sparseMicroseconds }) => sparseMicroseconds],
        ['dense', ({ denseMicroseconds }) => denseMicroseconds],
      ]),
      byDensity(rows, 'Bytes by density', 'Of a worker and call. Theory: blocks alone, which lie at random.', 'bytes', [
        ['sent', ({ sentBytes }) => sentBytes],
        ['sent, theory', ({ sentTheory }) => sentTheory],
        ['received', ({ receivedBytes }) => receivedBytes],
        ['received, theory', ({ receivedTheory }) => receivedTheory],
      ]),
    ],
    footing: [
      ...machineLines(report),
      wrong === 0 ? 'result check: ok' : `result check: error, ${wrong} elements differ`,
    ],
  };
}

function byDensity(
  rows: readonly SparseRow[],
  title: string,
  note: string,
  ...[unit, of]: [string, readonly (readonly [name: string, value: (row: SparseRow) => number])[]]
): ReportSection {
  const x = { label: '% of blocks', scale: scaleFor(rows.map(({ density }) => density)) };
  const y = { label: unit, scale: scaleFor(rows.flatMap((row) => of.map(([, value]) => value(row)))) };
  return curves(
    { title, note, x, y },
    of.map(([name, value]) => ({ name, points: rows.map((row) => [row.density * 100, value(row)] as const) })),
  );
}

function percent(share: number): string {
  return `${Number((share * 100).toPrecision(3))} %`;
}

function against(measured: number, theory: number) {
  return theory === 0 ? undefined : measured / theory;
}
