// weftline bench sparse: sums of tensors that are mostly zero, through aggregators, against dense ones.
import type { Command } from 'commander';
import { availableParallelism, totalmem } from 'node:os';
import { runSparseBench } from '../bench/sparse/sparse-bench.ts';
import type { SparseWorkload } from '../bench/sparse/sparse-bench.ts';
import { tensorBytes } from '../bench/sparse/sparse-bench.ts';
import { MAX_LANES } from '../../collectives/sparse/sparse-options.ts';
import { nodesNeeded } from '../../collectives/sparse/reduction-tree.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { openDevice } from '../../device/device-choice.ts';
import { readSettings } from '../../settings/settings.ts';
import { isRank } from '../../world/environment.ts';
import { sparseRoundLine, sparseView } from '../report/collectives-view.ts';
import { addOptions, decimalArgument, type FlagsOf, integerArgument, listArgument, option } from './argument-values.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';
import { ProgressBar } from './progress-bar.ts';
import { addSettingOptions, checkHosts } from './setting-options.ts';
import { checkUsage } from './exit-codes.ts';
import { withRanks } from './with-ranks.ts';

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
      // Of one density each round is a line.
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
