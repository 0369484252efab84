// weftline bench ep: expert-parallel dispatch and combine against copying the same rows.
import { type Command, InvalidArgumentError } from 'commander';
import { runEpBench, type EpBenchReport } from '../bench/ep/ep-bench.ts';
import { type BenchEffort, effortOnSharedGpus, sharedGpuNotice } from '../bench/harness.ts';
import { runLowLatencyBench, lowLatencyVariants, type LowLatencyBenchReport } from '../bench/ep/low-latency.ts';
import { runLowLatencyHostBench, type LowLatencyHostBenchReport } from '../bench/ep/low-latency-hosts.ts';
import { runEpHostBench, type EpHostBenchReport, phaseNames } from '../bench/ep/ep-hosts.ts';
import { requireAddressSpace, checkEpWorkload, defaultEpWorkload, type EpWorkload } from '../bench/ep/ep-workload.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { cudaDeviceCount } from '../../device/cuda/cuda-context.ts';
import { printTo } from '../../core/print.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { chooseDevice, type DeviceChoice, openChosenDevice } from '../../device/device-choice.ts';
import {
  type View,
  bars,
  curves,
  percentiles,
  ratioColumn,
  table,
  timeColumn,
  describeRounds,
  describeWorkload,
  fixed,
  formatTime,
  machineLines,
} from '../report/view.ts';
import { readSettings } from '../../settings/settings.ts';
import { isRank } from '../../world/environment.ts';
import type { World } from '../../world/index.ts';
import { ranksOfHosts } from '../../world/host-identity.ts';
import { addOptions, decimalArgument, type FlagsOf, integerArgument, listArgument, option } from './argument-values.ts';
import { addReportOptions, Output, type OutputFlags } from './output.ts';
import { ProgressBar, withRanks } from './with-ranks.ts';
import { addSettingOptions, checkHosts } from './setting-options.ts';
import { checkUsage } from './exit-codes.ts';
import { formatBytes } from '../../core/byte-size.ts';
import type { TriedShapes } from '../../group/cuda-shapes.ts';
import type { EpCudaBenchReport, ShapeSweepReport, CudaLowLatencyBenchReport } from '../bench/ep/cuda-bench.ts';

const MAX_COUNT = 2 ** 31;
const MAX_SKEW = 100;
const defaultSms = [8, 16, 24] as const;
const SHAPES_SMS = 16;
const positive = integerArgument(1, MAX_COUNT);
/** Tokens of a decoding step: 4096 would take more than the address space of a rank. */
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
function checkLowLatency({ sms, layer, shapes }: EpBenchFlags): void {
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
  if (flags.mode === 'low-latency') return checkLowLatency(flags);
  if (flags.shapes) checkShapes(flags, hosts);
  if (!isRank() && ranksOfHosts(hosts, flags.ranks).length > 1) smsAcrossHosts(flags);
  if (device === 'cpu' || (device === 'auto' && cudaDeviceCount() === 0)) {
    requireCpuFlags(flags, device === 'cpu' ? 'asked for' : 'there is no GPU');
    // The place of ranks on other hosts is known behind join().
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

/** The workload of this world, and the kinds of rows that are asked for: both by default. */
function rowsOf({ size: ranks }: World, flags: EpBenchFlags) {
  const { dtype: _, ...workload } = { ...workloadOf(flags), ranks };
  const { dtype = 'both' } = flags;
  return { workload, dtypes: dtype === 'both' ? (['bf16', 'fp8'] as const) : [dtype] };
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
  const { workload, dtypes } = rowsOf(world, flags);
  const report = await runEpCudaBench(world, device, { ...effort, layer, workload, dtypes, sms }, bar.show);
  return report && { report, view: epCudaView(report) };
}

async function benchShapes(
  world: World,
  device: CudaDevice,
  flags: EpBenchFlags,
  bar: ProgressBar,
): Promise<Result | undefined> {
  const { iterations, warmup, sms } = flags;
  const { runShapeSweep } = await import('../bench/ep/cuda-bench.ts');
  const options = { ...rowsOf(world, flags), iterations, warmup, numSms: sms?.[0] ?? SHAPES_SMS };
  const report = await runShapeSweep(world, device, options, bar.show);
  return report && { report, view: shapesView(report) };
}

async function benchLowLatency(
  world: World,
  flags: EpBenchFlags,
  choice: DeviceChoice,
  { sms, isOneShape, ...rounds }: BenchEffort,
): Promise<Result | undefined> {
  const { variant = 'rank-sums' } = flags;
  await using device = await openChosenDevice(choice, world.settings);
  using bar = barOf(world, flags);
  const { workload, dtypes } = rowsOf(world, flags);
  const options = { workload, variant, dtypes: dtypes.toReversed(), ...rounds, numSms: sms[0]! };
  if (world.topology.hosts.length > 1) {
    const report = await runLowLatencyHostBench(world, device, options, bar.show);
    return report && { report, view: lowLatencyHostView(report) };
  }
  if (device.kind === 'cpu') {
    const report = await runLowLatencyBench(world, device, options, bar.show);
    return report && { report, view: lowLatencyView(report) };
  }
  const { runCudaLowLatencyBench } = await import('../bench/ep/cuda-bench.ts');
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

// What people read of it: CPU ranks, GPUs, ranks across hosts, low latency, and the sweep of shapes.

interface Named {
  readonly name: string;
}

function nameOf({ name }: Named): string {
  return name;
}

const caseColumn = { head: 'case', of: nameOf } as const;
const beyond = { head: 'beyond copying', show: formatTime } as const;
const deviceTime = { head: 'device, µs', show: fixed(1), hasSpread: true } as const;
const ofCopies = { ...ratioColumn('bare copies'), show: fixed(3) };
const inPhase = { head: 'in phase', show: fixed(2), hasSpread: true } as const;

export function epView(report: EpBenchReport): View {
  const { cases, workload, memory, method } = report;
  const [ceiling] = cases;
  const layer = memory.layerWindowsBytes && `, of EPAll2AllLayer ${formatBytes(memory.layerWindowsBytes)}`;
  const hint = memory.deepEpHintBytes && `; DeepEP's size hint is ${formatBytes(memory.deepEpHintBytes)} per rank`;
  return {
    title: 'Dispatch and combine against copying the same rows',
    heading: [`${describeWorkload(workload)}, dispatch ${workload.dtype}; ${describeRounds(report)}`],
    parts: [
      table(
        cases.map((one) => ({ ...one, call: one === ceiling ? undefined : one })),
        [
          caseColumn,
          { ...timeColumn, of: ({ microseconds }) => microseconds, note: method.time },
          {
            head: 'logical GB/s',
            of: ({ logicalGBps }) => logicalGBps,
            show: fixed(2),
            note: method.logical,
            chart: 'Bandwidth against the ceiling',
            unit: 'GB/s',
            rules: ceiling === undefined ? [] : [{ value: ceiling.logicalGBps.median, label: 'ceiling' }],
          },
          { head: 'wire GB/s', of: ({ wireGBps }) => wireGBps, show: fixed(2), note: method.wire },
          { ...ratioColumn('the ceiling'), of: ({ call }) => call?.ratioToCeiling, note: method.ratioToCeiling },
          { head: 'ratio back', of: (one) => one.ratioToCopyBack, show: fixed(2), note: method.ratioToCopyBack },
          { ...beyond, of: ({ call }) => call?.beyondCopyingMicroseconds, note: method.beyondCopying },
        ],
        nameOf,
      ),
      `memory: windows of EpBuffer ${formatBytes(memory.bufferWindowsBytes)}${layer ?? ''} (all ranks), device memory of rank 0 ${formatBytes(memory.deviceBytes)}${hint ?? ''}`,
    ],
    footing: machineLines(report),
  };
}

export function epCudaView(report: EpCudaBenchReport): View {
  const { runs, workload, method } = report;
  const names = runs[0]?.cases.map(nameOf) ?? [];
  const sweep = names.flatMap((_, index) => runs.map(({ numSms, cases }) => ({ numSms, ...cases[index]! })));
  return {
    title: 'Dispatch and combine on GPUs',
    heading: [`${describeWorkload(workload)}; ${describeRounds(report)}`],
    parts: [
      table(
        sweep,
        [
          caseColumn,
          { head: 'SMs', of: ({ numSms }) => numSms },
          { ...deviceTime, of: ({ microseconds }) => microseconds, note: method.time },
          { head: 'logical GB/s', of: (one) => one.logicalGBpsPerRank, show: fixed(0), note: method.logical },
          { head: 'wire', of: ({ wireGBps }) => wireGBps.median / workload.ranks, show: fixed(0), note: method.wire },
          { ...ofCopies, of: ({ ratioToCopy }) => ratioToCopy, note: method.ratioToCopy },
          { head: 'returned', of: (one) => one.returnedMicroseconds, show: fixed(1), note: method.returned },
          { head: 'ready', of: (one) => one.readyMicroseconds, show: fixed(1), note: method.ready },
          {
            head: '+ uncached',
            of: ({ beyondCached: more }) =>
              more && `${more.microseconds.median.toFixed(1)}, ${more.readyMicroseconds.median.toFixed(1)}`,
            note: method.beyondCached,
          },
        ],
        ({ name, numSms }) => `${name}, ${numSms} SMs`,
      ),
      'copies:',
      runs.flatMap(({ numSms, copyShapes }) =>
        Object.entries(copyShapes).map(
          ([name, { blocks, warps, slots, partBytes, shapesTried }]) =>
            `  ${name}, ${numSms} SMs: ${blocks} blocks of ${warps} warps, ${slots} in flight, parts of ${partBytes} bytes; best of ${shapesTried}`,
        ),
      ),
      // One for each kind of rows, and for the layer: more lines than that are told apart by nobody.
      [...new Set(names.map(groupOf))].map((group) =>
        curves(
          {
            title: `Bandwidth by SMs, ${group}`,
            note: `${method.logical} The cases named copy are the ceilings.`,
            x: { label: 'SMs' },
            y: { label: 'GB/s per rank' },
          },
          names
            .filter((name) => groupOf(name) === group)
            .map((name) => ({
              name,
              points: sweep
                .filter((one) => one.name === name)
                .map(({ numSms, logicalGBpsPerRank }) => [numSms, logicalGBpsPerRank.median] as const),
            })),
        ),
      ),
    ],
    footing: machineLines({ machine: report.machine, gpuMachine: report.gpuMachine }),
  };
}

function groupOf(name: string): string {
  if (name.includes('layer')) return 'layer';
  return name.includes('fp8') ? 'fp8' : 'bf16';
}

export function epHostView(report: EpHostBenchReport): View {
  const { hosts, carriers, channels, workload, pairs, cases, device, numSms, method } = report;
  const gpus = device === 'cuda' ? `; GPUs, ${numSms} multiprocessors of each` : '';
  const perPeer = channels === 1 ? 'a channel' : `${channels} channels`;
  const calls = cases.filter(({ ratioToCarrier }) => ratioToCarrier !== undefined);
  const shownPhases = phaseNames.filter((phase) => calls.some(({ phases }) => phases[phase] !== undefined));
  return {
    title: `Dispatch and combine across ${hosts.length} hosts`,
    heading: [
      `${describeWorkload(workload)}, dispatch ${workload.dtype}; ${describeRounds(report)}`,
      `${hosts.length} hosts of ${hosts.map(({ length }) => length).join(', ')} ranks; ${carriers.join(', ')}, ${perPeer} per peer${gpus}`,
    ],
    parts: [
      pairs.map(
        ({ name, pairs: count, p50, p99 }) =>
          `${name}: dispatch and combine in turn, every ${formatTime(p50)} (p99 ${formatTime(p99)}, ${count} pairs)`,
      ),
      table(
        cases,
        [
          caseColumn,
          { ...timeColumn, of: ({ microseconds }) => microseconds, note: method.time },
          { head: 'in hosts', of: (one) => (one.ratioToCarrier ? one.hostBytes : undefined), show: formatBytes },
          { head: 'network', of: ({ networkBytes }) => networkBytes, show: formatBytes },
          {
            head: 'sent / least',
            of: ({ networkBytes, sentBytes }) => (networkBytes === 0 ? undefined : sentBytes / networkBytes),
            show: fixed(3),
            note: method.sent,
          },
          {
            head: 'network GB/s',
            of: ({ networkGBps }) => networkGBps,
            show: fixed(2),
            note: method.network,
            chart: 'Bandwidth between hosts',
            unit: 'GB/s',
          },
          { ...ratioColumn('the carrier'), of: ({ ratioToCarrier }) => ratioToCarrier, note: method.ratioToCarrier },
          { ...inPhase, of: ({ networkPhase }) => networkPhase?.ratioToCarrier, note: method.networkPhase },
        ],
        nameOf,
      ),
      table(calls, [
        { head: 'of it', of: nameOf },
        ...shownPhases.map((phase) => ({
          head: phase,
          of: ({ phases }: (typeof calls)[number]) => phases[phase],
          show: formatTime,
        })),
      ]),
      method.phases,
      bars(
        { title: 'Where the time goes', note: method.phases, unit: 'µs' },
        calls.flatMap(({ name, phases }) =>
          shownPhases.map((series) => ({ name, series, value: phases[series] ?? 0 })),
        ),
      ),
      percentiles('Dispatch and combine in turn', pairs),
    ],
    footing: machineLines(report),
  };
}

function lowLatencyView(report: LowLatencyBenchReport | CudaLowLatencyBenchReport): View {
  const { workload, variant, method } = report;
  const cases = report.cases.map(({ name, dtype, ...of }) => ({
    ...of,
    name: name.includes(dtype) ? name : `${name}, ${dtype}`,
    ratio: 'ratioToCopy' in of ? of.ratioToCopy : undefined,
  }));
  const isOnGpus = 'gpuMachine' in report;
  const show = isOnGpus ? fixed(1) : formatTime;
  return {
    title: 'Low-latency dispatch and combine',
    heading: [`${describeWorkload(workload)}; low latency, ${variant}; ${describeRounds(report)}`],
    parts: [
      table(
        cases,
        [
          { head: 'call', of: nameOf },
          { head: isOnGpus ? 'p50, µs' : 'p50', of: ({ microseconds }) => microseconds.p50, show },
          { head: 'p99', of: ({ microseconds }) => microseconds.p99, show },
          { ...ofCopies, of: (one) => one.ratio },
        ],
        nameOf,
      ),
      Object.entries(method).map(([what, meaning]) => `${what}: ${meaning}`),
      `memory: windows ${formatBytes(isOnGpus ? report.windowBytes : report.windowsBytes)}${isOnGpus ? ' per rank' : ' (all ranks)'}; ${report.pairs} calls or pairs in a chain`,
      percentiles(
        'Latency of a call',
        cases.map(({ name, microseconds }) => ({ name, ...microseconds })),
      ),
    ],
    footing: machineLines(isOnGpus ? { machine: report.machine, gpuMachine: report.gpuMachine } : report),
  };
}

function lowLatencyHostView(report: LowLatencyHostBenchReport): View {
  const { workload, variant, method, hosts, carriers, crossing, pairs, cases, device } = report;
  return {
    title: `Low-latency dispatch and combine across ${hosts.length} hosts`,
    heading: [
      `${describeWorkload(workload)}; low latency, ${variant}; ${describeRounds(report)}`,
      `${hosts.length} hosts of ${hosts.map(({ length }) => length).join(', ')} ranks${device === 'cuda' ? ' with a GPU each' : ''}; ${carriers.join(', ')}; ${crossing} rows of a dispatch cross`,
    ],
    parts: [
      table(
        cases,
        [
          { head: 'call', of: nameOf },
          { head: 'p50', of: ({ microseconds }) => microseconds.p50, show: formatTime, note: method.time },
          { head: 'p99', of: ({ microseconds }) => microseconds.p99, show: formatTime },
          { head: 'beyond the carrier', of: (one) => one.beyondCarrier, show: formatTime, note: method.beyond },
        ],
        nameOf,
      ),
      Object.entries(method).map(([what, meaning]) => `${what}: ${meaning}`),
      `${pairs} calls or pairs in a chain`,
    ],
    footing: machineLines(report),
  };
}

/** Shapes that are shown of each call; the document has them all. */
const SHOWN_SHAPES = 12;

/** The shapes of each call, the fastest first. It has no page. */
function shapesView(report: ShapeSweepReport): View {
  const { workload, numSms, copies, results, machine, gpuMachine } = report;
  type Row = { shape: string; microseconds: { median: number }; ratioToCopy?: { median: number } };
  const tables = Object.entries(copies).flatMap(([name, { shape: copy, microseconds }]) => {
    const rows = results.flatMap(({ shape, calls }) =>
      calls.filter((call) => call.name === name).map((call): Row => ({ ...call, shape: describeShape(shape) })),
    );
    const fastest = rows.toSorted((a, b) => a.microseconds.median - b.microseconds.median).slice(0, SHOWN_SHAPES);
    const { blocks, warps, slots, partBytes } = copy;
    const bare = `bare copy: ${blocks} blocks of ${warps} warps, ${slots} parts of ${partBytes} bytes each`;
    // The first are those of the rules.
    return table<Row>(
      [...new Set([...fastest, ...rows.slice(0, 1)]), { shape: bare, microseconds }],
      [
        { head: name, of: ({ shape }) => shape },
        { head: 'µs', of: (row) => row.microseconds.median, show: fixed(1) },
        { head: 'ratio', of: ({ ratioToCopy }) => ratioToCopy?.median, show: fixed(3) },
      ],
    );
  });
  return {
    title: 'Shapes of dispatch and combine',
    heading: [`${describeWorkload(workload)}; ${numSms} SMs; ${describeRounds(report)}`],
    parts: [
      tables,
      'Times of the slowest rank, medians; ratio: time of the bare copy in the same iterations over that of the call.',
    ],
    footing: machineLines({ machine, gpuMachine }),
  };
}

function describeShape({ sending, gather }: TriedShapes): string {
  if (sending) {
    return `${sending.blocks} blocks, ${sending.warps} warps that move parts of at most ${sending.mostPartBytes} bytes`;
  }
  return gather ? `${gather.blocks} blocks of ${gather.warps} warps` : 'as the rule chooses';
}
