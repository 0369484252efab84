// weftline bench ep: expert-parallel dispatch and combine against copying the same rows.
import { type Command, InvalidArgumentError } from 'commander';
import { runEpBench } from '../bench/ep/ep-bench.ts';
import { type BenchEffort, effortOnSharedGpus, sharedGpuNotice } from '../bench/harness.ts';
import { runLowLatencyBench } from '../bench/ep/low-latency.ts';
import { lowLatencyVariants } from '../bench/ep/low-latency.ts';
import { runEpHostBench } from '../bench/ep/ep-hosts.ts';
import { requireAddressSpace } from '../bench/ep/ep-memory.ts';
import { checkEpWorkload, defaultEpWorkload, type EpWorkload } from '../bench/ep/ep-workload.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { cudaDeviceCount } from '../../device/cuda/cuda-context.ts';
import { printTo } from '../../core/print.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { chooseDevice, type DeviceChoice, openChosenDevice } from '../../device/device-choice.ts';
import { epCudaView, epHostView, epView, lowLatencyView, shapesView } from '../report/ep-view.ts';
import type { View } from '../report/view.ts';
import { readSettings } from '../../settings/settings.ts';
import { isRank } from '../../world/environment.ts';
import type { World } from '../../world/index.ts';
import { ranksOfHosts } from '../../world/host-identity.ts';
import { addOptions, decimalArgument, type FlagsOf, integerArgument, listArgument, option } from './argument-values.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';
import { ProgressBar } from './progress-bar.ts';
import { addSettingOptions, checkHosts } from './setting-options.ts';
import { checkUsage } from './exit-codes.ts';
import { withRanks } from './with-ranks.ts';

const MAX_COUNT = 2 ** 31;
const MAX_SKEW = 100;
const defaultSms = [8, 16, 24] as const;
const SHAPES_SMS = 16;
const positive = integerArgument(1, MAX_COUNT);
/** As decoding has them: 4096 would take more than the address space of a rank. */
const LOW_LATENCY_TOKENS = 128;

const usual = defaultEpWorkload;
const epOptions = [
  option('--ranks <n>', 'processes on this machine', integerArgument(1, 1024), usual.ranks),
  option(
    '--tokens <n>',
    `tokens of each rank (default: ${usual.tokens}, or ${LOW_LATENCY_TOKENS} in low-latency mode)`,
    positive,
  ),
  option('--hidden <n>', 'elements of a token', positive, usual.hidden),
  option('--topk <n>', 'experts of a token', positive, usual.topk),
  option('--experts <n>', 'experts of all ranks', positive, usual.experts),
  option('--dtype <dtype>', 'of dispatched rows (default: bf16 on CPUs, both on GPUs)', ['bf16', 'fp8', 'both']),
  option(
    '--mode <mode>',
    'normal: EpBuffer and the layer; low-latency: EpLowLatency, with fp8 and bf16 rows',
    ['normal', 'low-latency'],
    'normal',
  ),
  option('--variant <name>', `of low-latency mode (default: ${lowLatencyVariants[0]})`, [...lowLatencyVariants]),
  option(
    '--sms <list>',
    `on GPUs: SM counts to run with, as 8,16,24 (default: ${defaultSms.join(',')}); one count in low-latency mode (default: all) and across hosts`,
    smList,
  ),
  option('--iterations <n>', 'timed rounds of all cases', positive, 20),
  option('--warmup <n>', 'rounds before them', integerArgument(0, MAX_COUNT), 3),
  option('--pairs <n>', 'across hosts and in low-latency mode: dispatches and combines in turn', positive, 32),
  option('--seed <n>', 'of tokens and routing', integerArgument(0, MAX_COUNT), usual.seed),
  option('--skew <s>', 'popularity of experts: 0 even, 1 as words in a text', decimalArgument(0, MAX_SKEW), usual.skew),
  option('--no-layer', 'leave out EPAll2AllLayer, which takes the most memory'),
  option('--shapes', 'on GPUs: cached dispatch and combine with many numbers of blocks and warps and sizes of parts'),
];

type GivenFlags = FlagsOf<typeof epOptions> & OutputFlags;
type EpBenchFlags = GivenFlags & { readonly tokens: number };

export function addEpBench(bench: Command): void {
  const command = bench.command('ep').description('expert-parallel dispatch and combine against copying the same rows');
  addOptions(command, epOptions);
  addReportOptions(command);
  addSettingOptions(command, ['device', 'hosts', 'timeoutMs', 'trace', 'aotFolder', 'useAot', 'nvrtcPath']);
  command.action(async (given: GivenFlags) => {
    const flags = {
      ...given,
      tokens: given.tokens ?? (given.mode === 'low-latency' ? LOW_LATENCY_TOKENS : usual.tokens),
    };
    const output = new Output(flags);
    if (!isRank()) checkHosts(command, flags.ranks);
    checkUsage(command, () => checkBeforeLaunch(flags));
    await withRanks(flags.ranks, async (world) => {
      const result = await benchRank(world, flags);
      if (result !== undefined) output.report(result.view, result.report);
    });
  });
}

/** What it takes depends on the variant; its own sizes say what does not fit. */
function checkLowLatency({ ranks, sms, layer, shapes }: EpBenchFlags, hosts: string): void {
  if (!isRank() && ranksOfHosts(hosts, ranks).length > 1) {
    throw invalidArgument('--hosts', hosts, 'one host with --mode low-latency');
  }
  if (sms !== undefined && sms.length > 1) throw invalidArgument('--sms', sms, 'one count with --mode low-latency');
  if (!layer) throw invalidArgument('--no-layer', true, 'nothing with --mode low-latency, which has no layer');
  if (shapes) throw invalidArgument('--shapes', true, 'nothing with --mode low-latency');
}

/** What can be known before any process starts. */
function checkBeforeLaunch(flags: EpBenchFlags): void {
  const { device, addressSpaceMiB, hosts } = readSettings();
  checkEpWorkload(workloadOf(flags));
  if (flags.variant !== undefined && flags.mode !== 'low-latency') {
    throw invalidArgument('--variant', flags.variant, 'nothing without --mode low-latency');
  }
  if (flags.mode === 'low-latency') return checkLowLatency(flags, hosts);
  if (flags.shapes) checkShapes(flags, hosts);
  if (!isRank() && ranksOfHosts(hosts, flags.ranks).length > 1) smsAcrossHosts(flags);
  if (device === 'cpu' || (device === 'auto' && cudaDeviceCount() === 0)) {
    requireCpuFlags(flags, device === 'cpu' ? 'asked for' : 'there is no GPU');
    // Where other hosts have ranks is known behind join().
    if (isRank()) return;
    requireAddressSpace(workloadOf(flags), flags.layer, addressSpaceMiB * 1_048_576, ranksOfHosts(hosts, flags.ranks));
  }
}

function checkShapes({ ranks, sms, report }: EpBenchFlags, hosts: string): void {
  if (report !== undefined) throw invalidArgument('--report', report, 'nothing with --shapes, which has no page');
  if (!isRank() && ranksOfHosts(hosts, ranks).length > 1)
    throw invalidArgument('--hosts', hosts, 'one host with --shapes');
  if (sms !== undefined && sms.length > 1) throw invalidArgument('--sms', sms, 'one count with --shapes');
}

/** Fails with WL_INVALID_ARGUMENT when a flag asks for what only GPUs do. */
function requireCpuFlags({ sms, dtype, shapes }: EpBenchFlags, reason: string): void {
  if (shapes) throw invalidArgument('--shapes', true, `ranks on GPUs; these run on the CPU (${reason})`);
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
  readonly report: object;
  readonly view: View;
}

async function benchRank(world: World, flags: EpBenchFlags): Promise<Result | undefined> {
  const choice = await chooseDevice(world.settings.device, world);
  const { sms, ...effort } = effortOf(world, flags, choice);
  const { iterations, warmup, pairs } = effort;
  const { layer } = flags;
  if (flags.mode === 'low-latency') return benchLowLatency(world, flags, choice, { ...effort, sms });
  if (choice.kind === 'cpu') requireCpuFlags(flags, choice.reason);
  await using device = await openChosenDevice(choice, world.settings);
  using bar = barOf(world, flags);
  if (world.topology.hosts.length > 1) {
    const workload = { ...workloadOf(flags), ranks: world.size };
    const options = { iterations, warmup, layer, workload, pairs, numSms: smsAcrossHosts(flags) };
    const report = await runEpHostBench(world, device, options, bar.show);
    return report && { report, view: epHostView(report) };
  }
  if (device.kind === 'cpu') {
    const workload = { ...workloadOf(flags), ranks: world.size };
    const report = await runEpBench(world, device, { iterations, warmup, layer, workload }, bar.show);
    return report && { report, view: epView(report) };
  }
  if (flags.shapes) return await benchShapes(world, device, flags, bar);
  // Loaded here, so that CPU ranks never load what GPUs need.
  const { runEpCudaBench } = await import('../bench/ep/cuda-bench.ts');
  const { dtype: _, ...workload } = { ...workloadOf(flags), ranks: world.size };
  const { dtype = 'both' } = flags;
  const dtypes = dtype === 'both' ? (['bf16', 'fp8'] as const) : [dtype];
  const report = await runEpCudaBench(world, device, { ...effort, layer, workload, dtypes, sms }, bar.show);
  return report && { report, view: epCudaView(report) };
}

async function benchShapes(
  world: World,
  device: CudaDevice,
  flags: EpBenchFlags,
  bar: ProgressBar,
): Promise<Result | undefined> {
  const { iterations, warmup, dtype = 'both', sms } = flags;
  const { runShapeSweep } = await import('../bench/ep/cuda-shapes.ts');
  const { dtype: _, ...workload } = { ...workloadOf(flags), ranks: world.size };
  const dtypes = dtype === 'both' ? (['bf16', 'fp8'] as const) : [dtype];
  const options = { workload, dtypes, iterations, warmup, numSms: sms?.[0] ?? SHAPES_SMS };
  const report = await runShapeSweep(world, device, options, bar.show);
  return report && { report, view: shapesView(report) };
}

async function benchLowLatency(
  world: World,
  flags: EpBenchFlags,
  choice: DeviceChoice,
  { sms, isOneShape, ...rounds }: BenchEffort,
): Promise<Result | undefined> {
  const { variant = 'rank-sums', dtype = 'both' } = flags;
  await using device = await openChosenDevice(choice, world.settings);
  using bar = barOf(world, flags);
  const { dtype: _, ...workload } = { ...workloadOf(flags), ranks: world.size };
  const dtypes = dtype === 'both' ? (['fp8', 'bf16'] as const) : [dtype];
  const options = { workload, variant, dtypes, ...rounds, numSms: sms[0]! };
  if (device.kind === 'cpu') {
    const report = await runLowLatencyBench(world, device, options, bar.show);
    return report && { report, view: lowLatencyView(report) };
  }
  const { runCudaLowLatencyBench } = await import('../bench/ep/cuda-low-latency.ts');
  const report = await runCudaLowLatencyBench(world, device, { ...options, isOneShape }, bar.show);
  return report && { report, view: lowLatencyView(report) };
}

function barOf({ rank }: World, { quiet = false }: EpBenchFlags): ProgressBar {
  return new ProgressBar({ title: 'bench ep', unit: 'rounds', rank, isQuiet: quiet });
}

/** What is asked for, or much less where ranks share a GPU, which rank 0 says before anything is measured. */
function effortOf({ rank }: World, flags: EpBenchFlags, { sharing }: DeviceChoice): BenchEffort {
  const { iterations, warmup, pairs, sms = flags.mode === 'low-latency' ? [0] : defaultSms, shapes } = flags;
  const asked: BenchEffort = { iterations, warmup, pairs, sms, isOneShape: false };
  if (sharing === undefined) return asked;
  if (shapes) throw invalidArgument('--shapes', true, `a GPU for each rank, and ${sharing}`);
  if (rank === 0) printTo(process.stderr, `weftline: ${sharedGpuNotice(sharing)}\n`);
  return effortOnSharedGpus(asked);
}

function smList(text: string): readonly number[] {
  const numbers = listArgument(integerArgument(1, 1024))(text);
  if (new Set(numbers).size === numbers.length) return numbers;
  throw new InvalidArgumentError('Each SM count may be named once.');
}
