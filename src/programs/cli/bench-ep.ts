// weftline bench ep: expert-parallel dispatch and combine against copying the same rows.
import { SingleBar } from 'cli-progress';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { runEpBench } from '../bench/ep/ep-bench.ts';
import type { EpCudaBenchReport } from '../bench/ep/cuda/ep-results.ts';
import type { EpBenchReport } from '../bench/ep/ep-results.ts';
import { runEpHostBench } from '../bench/ep/hosts/host-bench.ts';
import type { EpHostBenchReport } from '../bench/ep/hosts/host-results.ts';
import { requireAddressSpace } from '../bench/ep/ep-memory.ts';
import { checkEpWorkload, defaultEpWorkload, type EpWorkload } from '../bench/ep/ep-workload.ts';
import { cudaDeviceCount } from '../../device/cuda/cuda-context.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { chooseDevice } from '../../device/device-choice.ts';
import { openChosenDevice } from '../../device/open-device.ts';
import { epBenchReport } from '../report/ep-bench-report.ts';
import { epHostBenchReport } from '../report/ep-host-bench-report.ts';
import { epCudaBenchReport } from '../report/ep-cuda-bench-report.ts';
import { readSettings } from '../../settings/settings.ts';
import { isRank } from '../../world/environment.ts';
import type { World } from '../../world/index.ts';
import { ranksOfHosts } from '../../world/pretended-hosts.ts';
import { decimalArgument, integerArgument, listArgument } from './argument-values.ts';
import { addOutputOptions, Output, type OutputFlags } from './output.ts';
import { addSettingOptions } from './setting-options.ts';
import { withRanks } from './with-ranks.ts';

interface EpBenchFlags extends Omit<EpWorkload, 'dtype'>, OutputFlags {
  readonly dtype?: 'bf16' | 'fp8' | 'both';
  readonly sms?: readonly number[];
  readonly iterations: number;
  readonly warmup: number;
  readonly pairs: number;
  readonly layer: boolean;
  /** A setting, which the ranks read for themselves. */
  readonly device?: string;
}

const MAX_COUNT = 2 ** 31;
const MAX_SKEW = 100;
const defaultSms = [8, 16, 24] as const;
const positive = integerArgument(1, MAX_COUNT);

export function addEpBench(bench: Command): void {
  const { ranks, tokens, hidden, topk, experts, seed, skew } = defaultEpWorkload;
  const command = bench
    .command('ep')
    .description('expert-parallel dispatch and combine against copying the same rows')
    .option('--ranks <n>', 'processes on this machine', integerArgument(1, 1024), ranks)
    .option('--tokens <n>', 'tokens of each rank', positive, tokens)
    .option('--hidden <n>', 'elements of a token', positive, hidden)
    .option('--topk <n>', 'experts of a token', positive, topk)
    .option('--experts <n>', 'experts of all ranks', positive, experts)
    .addOption(
      new Option('--dtype <dtype>', 'of dispatched rows (default: bf16 on CPUs, both on GPUs)').choices([
        'bf16',
        'fp8',
        'both',
      ]),
    )
    .option('--sms <list>', `on GPUs: SM counts to run with, as 8,16,24 (default: ${defaultSms.join(',')})`, smList)
    .option('--iterations <n>', 'timed rounds of all cases', positive, 20)
    .option('--warmup <n>', 'rounds before them', integerArgument(0, MAX_COUNT), 3)
    .option('--pairs <n>', 'across hosts: dispatches and combines in turn', positive, 32)
    .option('--seed <n>', 'of tokens and routing', integerArgument(0, MAX_COUNT), seed)
    .option('--skew <s>', 'popularity of experts: 0 even, 1 as words in a text', decimalArgument(0, MAX_SKEW), skew)
    .option('--no-layer', 'leave out EPAll2AllLayer, which takes the most memory');
  addOutputOptions(command);
  addSettingOptions(command, ['device', 'hosts', 'timeoutMs', 'aotFolder', 'useAot', 'nvrtcPath']);
  command.action(async (flags: EpBenchFlags) => {
    const output = new Output(flags);
    checkBeforeLaunch(flags);
    await withRanks(flags.ranks, async (world) => {
      const result = await benchRank(world, flags);
      if (result !== undefined) output.report(result.text, result.report);
    });
  });
}

/** What can be known before any process starts. */
function checkBeforeLaunch(flags: EpBenchFlags): void {
  const { device, addressSpaceMiB, hosts } = readSettings();
  checkEpWorkload(workloadOf(flags));
  if (device === 'cpu' || (device === 'auto' && cudaDeviceCount() === 0)) {
    requireCpuFlags(flags, device === 'cpu' ? 'asked for' : 'there is no GPU');
    // Where other hosts have ranks is known behind join().
    if (isRank()) return;
    const ranksOfHost = Math.max(...ranksOfHosts(hosts, flags.ranks));
    requireAddressSpace(workloadOf(flags), flags.layer, addressSpaceMiB * 1_048_576, ranksOfHost);
  }
}

/** Fails with WL_INVALID_ARGUMENT when a flag asks for what only GPUs do. */
function requireCpuFlags({ sms, dtype }: EpBenchFlags, reason: string): void {
  const advice = sms !== undefined ? '--sms is for GPUs: leave it out' : '--dtype both is for GPUs: use bf16 or fp8';
  if (sms === undefined && dtype !== 'both') return;
  throw new WeftlineError('WL_INVALID_ARGUMENT', `${advice}; these ranks run on the CPU (${reason})`, {
    details: { sms, dtype, reason },
  });
}

/** Across hosts a run has one kind of rows and one count of SMs. Fails with WL_INVALID_ARGUMENT for several. */
function smsAcrossHosts({ dtype, sms }: EpBenchFlags): number | undefined {
  if (dtype === 'both') throw invalidArgument('--dtype', dtype, 'bf16 or fp8 for ranks on several hosts');
  if (sms !== undefined && sms.length > 1) throw invalidArgument('--sms', sms, 'one count for ranks on several hosts');
  return sms?.[0];
}

/** The flags alone, without a second dtype. */
function workloadOf({ ranks, tokens, hidden, topk, experts, dtype, seed, skew }: EpBenchFlags): EpWorkload {
  return { ranks, tokens, hidden, topk, experts, dtype: dtype === 'fp8' ? 'fp8' : 'bf16', seed, skew };
}

interface Result {
  readonly report: EpBenchReport | EpHostBenchReport | EpCudaBenchReport;
  readonly text: string;
}

async function benchRank(world: World, flags: EpBenchFlags): Promise<Result | undefined> {
  const { iterations, warmup, layer, pairs } = flags;
  const choice = await chooseDevice(world.settings.device, world);
  if (choice.kind === 'cpu') requireCpuFlags(flags, choice.reason);
  await using device = await openChosenDevice(choice, world.settings);
  using bar = new RoundBar(world, flags.quiet === true);
  if (world.topology.hosts.length > 1) {
    const workload = { ...workloadOf(flags), ranks: world.size };
    const options = { iterations, warmup, layer, workload, pairs, numSms: smsAcrossHosts(flags) };
    const report = await runEpHostBench(world, device, options, bar.show);
    return report && { report, text: epHostBenchReport(report) };
  }
  if (device.kind === 'cpu') {
    const workload = { ...workloadOf(flags), ranks: world.size };
    const report = await runEpBench(world, device, { iterations, warmup, layer, workload }, bar.show);
    return report && { report, text: epBenchReport(report) };
  }
  // Loaded here, so that CPU ranks never load what GPUs need.
  const { runEpCudaBench } = await import('../bench/ep/cuda/ep-bench.ts');
  const { dtype: _, ...workload } = { ...workloadOf(flags), ranks: world.size };
  const { dtype = 'both', sms = defaultSms } = flags;
  const dtypes = dtype === 'both' ? (['bf16', 'fp8'] as const) : [dtype];
  const report = await runEpCudaBench(world, device, { iterations, warmup, layer, workload, dtypes, sms }, bar.show);
  return report && { report, text: epCudaBenchReport(report) };
}

/** Rank 0 shows how far all are, on a terminal. */
class RoundBar implements Disposable {
  #bar: SingleBar | undefined;
  readonly #shown: boolean;

  constructor({ rank }: World, isQuiet: boolean) {
    this.#shown = rank === 0 && !isQuiet && process.stderr.isTTY;
  }

  readonly show = (done: number, total: number): void => {
    if (!this.#shown) return;
    if (this.#bar === undefined) {
      this.#bar = new SingleBar({
        format: 'bench ep [{bar}] {value} of {total} rounds, {eta_formatted} left',
        stream: process.stderr,
        clearOnComplete: true,
        hideCursor: true,
      });
      this.#bar.start(total, done);
    }
    this.#bar.update(done);
  };

  [Symbol.dispose](): void {
    this.#bar?.stop();
  }
}

function smList(text: string): number[] {
  const numbers = listArgument(integerArgument(1, 1024))(text);
  if (new Set(numbers).size === numbers.length) return numbers;
  throw new InvalidArgumentError('Each SM count may be named once.');
}
