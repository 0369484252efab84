// weftline bench collectives: every collective over a range of sizes, in the columns of nccl-tests.
import { existsSync, statSync } from 'node:fs';
import { type Command, InvalidArgumentError } from 'commander';
import { runCudaCollectivesBench } from '../bench/collectives/cuda-collectives-bench.ts';
import { type AlgorithmRange, readTableFile } from '../../collectives/algorithm-table.ts';
import {
  runCollectivesBench,
  type CollectiveRow,
  type CollectivesBenchReport,
  type CollectiveTimes,
} from '../bench/collectives/collectives-bench.ts';
import {
  type BenchedKind,
  benchedKinds,
  type CollectivesWorkload,
  sizePlans,
} from '../bench/collectives/collectives-workload.ts';
import { runTune, withTable, type TuneReport } from '../bench/collectives/tune.ts';
import { buildMpiLoop } from '../bench/peer-programs.ts';
import { printTo } from '../../core/print.ts';
import { invalidArgument } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { chooseDevice, openChosenDevice } from '../../device/device-choice.ts';
import { sharedGpuNotice } from '../bench/harness.ts';
import { readSettings } from '../../settings/settings.ts';
import type { World } from '../../world/index.ts';
import { isRank } from '../../world/environment.ts';
import { addOptions, byteArgument, type FlagsOf, integerArgument, listArgument, option } from './argument-values.ts';
import { addReportOptions, Output, type OutputFlags, requireWritableFolder, writeOutputFile } from './output.ts';
import { ProgressBar, withRanks } from './with-ranks.ts';
import { addSettingOptions } from './setting-options.ts';
import { checkUsage } from './exit-codes.ts';
import { formatBytes } from '../../core/byte-size.ts';
import type { ReportSection } from '../report/html/page-html.ts';
import { bars, curves, table, type View, counted, fixed, machineLines } from '../report/view.ts';

const size = byteArgument(4, 2 ** 30);
const DEFAULT_SMS = 16;

const collectivesOptions = [
  option('--ranks <n>', 'processes on this machine', integerArgument(1, 256), 4),
  option('--operations <list>', `each once, of ${benchedKinds.join(', ')}`, kindList, benchedKinds).default(
    benchedKinds,
    'all of them',
  ),
  option('--dtype <dtype>', 'of the elements', ['f32', 'bf16', 'i32'], 'f32'),
  option('--op <op>', 'of reductions', ['sum', 'max', 'min'], 'sum'),
  option('--min <bytes>', "the first size: of the larger of a rank's tensors", size, 8),
  option('--max <bytes>', 'the largest size', size, 64 << 20),
  option('--factor <n>', 'from one size to the next', integerArgument(2, 1024), 4),
  option('--iterations <n>', 'calls of a size and round; 0: by the size', integerArgument(0, 1_000_000), 0),
  option('--rounds <n>', 'of everything, in turn with the peer', integerArgument(1, 1000), 3),
  option(
    '--compare <peer>',
    "the same loops by the peer's own collectives: Open MPI, built by mpicc, or on GPUs NCCL, where it is found",
    ['mpi', 'nccl'],
  ),
  option('--sms <n>', 'of GPUs: multiprocessors of a call', integerArgument(1, 32), DEFAULT_SMS),
  option('--piece-bytes <bytes>', 'of GPUs: bytes of a rank that move at a time through the window', size),
  option(
    '--direct-bytes <bytes>',
    'larger calls use tensors where they lie: on GPUs registered ones, on CPUs those of allToAll',
    size,
  ),
  option('--no-register', 'of GPUs: tensors are not registered'),
  option('--copy-engines', 'of GPUs: copy engines move allGather and allToAll between registered tensors'),
  option(
    '--tune <file>',
    'measure the algorithms of allReduce and reduce instead, and write which is the fastest for which sizes',
  ).conflicts(['compare', 'report', 'operations', 'directBytes']),
];

type CollectivesBenchFlags = FlagsOf<typeof collectivesOptions> & OutputFlags;

export function addCollectivesBench(bench: Command): void {
  const command = bench
    .command('collectives')
    .summary('collectives of ranks over a range of sizes, as nccl-tests print them')
    .description(
      'Collectives of ranks over a range of sizes, as nccl-tests print them: of CPU ranks, or of GPUs with --device cuda ' +
        '(auto stands for cpu here).',
    );
  addOptions(command, collectivesOptions);
  addReportOptions(command);
  addSettingOptions(command, ['device', 'hosts', 'collectiveSpinUs', 'collectiveTable', 'timeoutMs', 'trace']);
  command.action(async (flags: CollectivesBenchFlags) => {
    const output = new Output(flags);
    const workload = workloadOf(flags);
    checkUsage(command, () => checkWorkload(workload, flags));
    if (flags.tune !== undefined) return tune(flags.tune, flags, output);
    if (flags.compare === 'mpi' && !isRank()) buildMpiLoop()[Symbol.dispose]();
    await withRanks(flags.ranks, async (world) => {
      if (world.settings.device === 'cuda')
        return await benchOnGpus(world, { ...workload, ranks: world.size }, flags, output);
      using bar = barOf(world, flags);
      await using device = await CpuDevice.create();
      const ofWorld = { ...workload, ranks: world.size };
      const { compare, directBytes } = flags;
      const report = await runCollectivesBench(world, device, {
        workload: ofWorld,
        compare: compare === 'mpi' ? compare : undefined,
        communicator: directBytes === undefined ? {} : { directBytes },
        progress: bar.show,
      });
      if (report !== undefined) output.report(collectivesView(report), report);
    });
  });
}

async function benchOnGpus(
  world: World,
  workload: CollectivesWorkload,
  flags: CollectivesBenchFlags,
  output: Output,
): Promise<void> {
  const { compare, sms: numSms, pieceBytes, directBytes, register: registers, copyEngines = false } = flags;
  const choice = await chooseDevice('cuda', world);
  const { sharing } = choice;
  if (sharing !== undefined && world.rank === 0) printTo(process.stderr, `weftline: ${sharedGpuNotice(sharing)}\n`);
  await using device = await openChosenDevice(choice, world.settings);
  using bar = barOf(world, flags);
  const report = await runCudaCollectivesBench(world, device as CudaDevice, {
    workload: sharing === undefined ? workload : { ...workload, ...FEW_CALLS },
    progress: bar.show,
    compare: compare === 'nccl' ? compare : undefined,
    registers,
    communicator: {
      numSms,
      copyEngines,
      ...(pieceBytes === undefined ? {} : { pieceBytes }),
      ...(directBytes === undefined ? {} : { directBytes }),
    },
    tell: (text) => output.line(text),
  });
  if (report !== undefined) output.report(collectivesView(report), report);
}

/** Calls of ranks that share a GPU, which takes a time slice for each wait. */
const FEW_CALLS = { iterations: 3, rounds: 1 } as const;

function barOf({ rank }: World, { quiet = false }: CollectivesBenchFlags): ProgressBar {
  return new ProgressBar({ title: 'bench collectives', unit: 'operations', rank, isQuiet: quiet });
}

async function tune(file: string, flags: CollectivesBenchFlags, output: Output): Promise<void> {
  requireWritableFolder(file);
  // An empty file is one that was made to be written.
  const before = existsSync(file) && statSync(file).size > 0 ? readTableFile(file) : undefined;
  await withRanks(flags.ranks, async (world) => {
    using bar = barOf(world, flags);
    await using device = await CpuDevice.create();
    const report = await runTune(world, device, { ...workloadOf(flags), ranks: world.size }, bar.show);
    if (report === undefined) return;
    writeOutputFile(file, `${JSON.stringify(withTable(before, report), undefined, 2)}\n`);
    output.report(tuneView(report, file), report);
  });
}

/** Refuses what cannot run before any process starts. Fails with WL_INVALID_ARGUMENT. */
function checkWorkload(workload: CollectivesWorkload, flags: CollectivesBenchFlags): void {
  const { compare, dtype, tune: tuned } = flags;
  sizePlans(workload);
  const { device } = readSettings();
  if (device !== 'cuda') refuseFlagsOfGpus(flags);
  if (tuned !== undefined && device === 'cuda') {
    throw invalidArgument('--tune', tuned, 'CPU ranks: on GPUs the size alone decides (--direct-bytes)');
  }
  if ((compare === 'nccl') !== (device === 'cuda') && compare !== undefined) {
    throw invalidArgument('--compare', compare, device === 'cuda' ? 'nccl on GPUs' : 'mpi, or nccl with --device cuda');
  }
  if (compare === 'mpi' && dtype === 'bf16') {
    throw invalidArgument('--dtype', dtype, 'f32 or i32 with --compare mpi, as MPI has no bf16');
  }
}

function refuseFlagsOfGpus({ sms, pieceBytes, register: registers, copyEngines = false }: CollectivesBenchFlags): void {
  for (const [flag, value, isGiven] of [
    ['--sms', sms, sms !== DEFAULT_SMS],
    ['--piece-bytes', pieceBytes, pieceBytes !== undefined],
    ['--no-register', true, !registers],
    ['--copy-engines', copyEngines, copyEngines],
  ] as const) {
    if (isGiven) throw invalidArgument(flag, value, 'nothing without --device cuda, as it is for GPUs');
  }
}

function workloadOf(flags: CollectivesBenchFlags): CollectivesWorkload {
  const { ranks, operations: kinds, dtype, op, min: minBytes, max: maxBytes, factor, iterations, rounds } = flags;
  return { ranks, kinds, dtype, op, minBytes, maxBytes, factor, iterations, rounds };
}

function kindList(text: string): readonly BenchedKind[] {
  const kinds = listArgument((word) => {
    const kind = benchedKinds.find((one) => one.toLowerCase() === word.toLowerCase());
    if (kind === undefined) throw new InvalidArgumentError(`Expected some of ${benchedKinds.join(', ')}.`);
    return kind;
  })(text);
  const repeated = kinds.find((kind, index) => kinds.indexOf(kind) !== index);
  if (repeated === undefined) return kinds;
  throw new InvalidArgumentError(`Expected each operation once, and ${repeated} stands there again.`);
}

// What people read of it: the columns of nccl-tests, and the peer's times.

const reducing = new Set(['allReduce', 'reduceScatter', 'reduce']);

export function collectivesView(report: CollectivesBenchReport): View {
  const { workload, peer, rows, ratios, ranksOn } = report;
  const kinds = workload.kinds
    .map((kind) => ({ kind, of: rows.filter((row) => row.kind === kind) }))
    .filter(({ of }) => of.length > 0);
  return {
    title: `Collectives of ${workload.ranks} ranks`,
    heading: [
      `${workload.ranks} ${ranksOn} ranks, median of ${workload.rounds} rounds, the slowest rank's time${peer === undefined ? '' : `; peer in the same rounds: ${peer}`}`,
    ],
    parts: [
      ...kinds.map(({ kind, of }) => [
        `# ${kind}`,
        ...headOf(peer !== undefined),
        ...of.map((row) => lineOf(row, report)),
        kindSection(kind, of),
      ]),
      ratios.map(
        ({ kind, sizes, geometricMean, worst, worstBytes }) =>
          `${kind}, ${sizes === 'small' ? 'up to 4 KiB' : 'above'}: ${geometricMean.toFixed(2)} times as fast as the peer in the geometric mean, at worst ${worst.toFixed(2)} (${formatBytes(worstBytes)})`,
      ),
      ratios.length > 0 &&
        bars(
          {
            title: 'Against the peer',
            note: 'How many times as fast as the peer: geometric mean over sizes and both ways of placing. Small: up to 4 KiB.',
            unit: 'times as fast',
            rules: [{ value: 1, label: 'peer' }],
          },
          ratios.map(({ kind, sizes, geometricMean }) => ({ name: kind, series: sizes, value: geometricMean })),
        ),
    ],
    footing: machineLines(report),
  };
}

const COLUMN = 11;
const LEFT = [12, 12, 8, 8] as const;

function headOf(hasPeer: boolean): string[] {
  const way = cells(['time', 'algbw', 'busbw', '#wrong', ...(hasPeer ? ['peer'] : [])]);
  const units = cells(['(us)', '(GB/s)', '(GB/s)', '', ...(hasPeer ? ['(us)'] : [])]);
  return [
    `#${left(['', '', '', ''])}${'out-of-place'.padStart(way.length)}${'in-place'.padStart(way.length)}`,
    `#${left(['size', 'count', 'type', 'redop'])}${way}${way}`,
    `#${left(['(B)', '(elements)', '', ''])}${units}${units}`,
  ];
}

function lineOf({ kind, bytes, count, outOfPlace, inPlace }: CollectiveRow, of: CollectivesBenchReport): string {
  const op = reducing.has(kind) ? of.workload.op : 'none';
  return ` ${left([String(bytes), String(count), of.workload.dtype, op])}${timesOf(outOfPlace)}${timesOf(inPlace)}`;
}

function timesOf({ microseconds, algbw, busbw, wrong, peerMicroseconds: peer }: CollectiveTimes): string {
  const times = [microseconds, algbw, busbw].map(fixed(2));
  return cells([
    ...times,
    wrong === undefined ? 'N/A' : String(wrong),
    ...(peer === undefined ? [] : [peer.toFixed(2)]),
  ]);
}

function left(texts: readonly string[]): string {
  return texts.map((text, at) => text.padStart(LEFT[at]!)).join('');
}

function cells(texts: readonly string[]): string {
  return texts.map((text) => text.padStart(COLUMN)).join('');
}

function kindSection(kind: string, rows: readonly CollectiveRow[]): ReportSection {
  const line = (name: string, value: (row: CollectiveRow) => number) => ({
    name,
    points: rows.map((row) => [row.bytes, value(row)] as const),
  });
  const hasPeer = rows.some(({ outOfPlace }) => outOfPlace.peerMicroseconds !== undefined);
  return curves(
    {
      title: kind,
      note: 'Bus bandwidth, as nccl-tests count it, by the size of the larger tensor of a rank.',
      x: { label: 'bytes', scale: 'log' },
      y: { label: 'bus bandwidth, GB/s' },
    },
    [
      line('out of place', ({ outOfPlace }) => outOfPlace.busbw),
      line('in place', ({ inPlace }) => inPlace.busbw),
      ...(hasPeer ? [line('peer, out of place', ofPeer)] : []),
    ],
  );
}

/** The view of --tune, which has no page. */
function tuneView({ ranks, hosts, rounds, rows, table: tuned }: TuneReport, file: string): View {
  const names = [
    ...new Set(rows.flatMap(({ microseconds }) => Object.keys(microseconds))),
  ] as (keyof (typeof rows)[number]['microseconds'])[];
  return {
    title: 'Algorithms of reductions',
    parts: [
      `${ranks} CPU ranks on ${counted(hosts, 'host')}, f32, in place, median of ${rounds} rounds, the slowest rank's time`,
      table(rows, [
        { head: '', of: ({ kind }) => kind },
        { head: 'bytes', of: ({ bytes }) => bytes, show: formatBytes },
        ...names.map((name) => ({
          head: `${name}, µs`,
          of: ({ microseconds }: (typeof rows)[number]) => microseconds[name],
          show: fixed(1),
        })),
        { head: 'fastest', of: ({ fastest }) => fastest },
      ]),
      `allReduce: ${describeRanges(tuned.allReduce)}`,
      `reduce: ${describeRanges(tuned.reduce)}`,
      `Written to ${file}; WEFTLINE_COLLECTIVE_TABLE=${file} uses it.`,
    ],
  };
}

function ofPeer({ outOfPlace: { busbw, microseconds, peerMicroseconds = 0 } }: CollectiveRow): number {
  return peerMicroseconds === 0 ? 0 : (busbw * microseconds) / peerMicroseconds;
}

function describeRanges(ranges: readonly AlgorithmRange[]): string {
  return ranges
    .map(({ upToBytes, algorithm }) => (upToBytes === undefined ? algorithm : `${algorithm} up to ${upToBytes} bytes`))
    .join(', then ');
}
