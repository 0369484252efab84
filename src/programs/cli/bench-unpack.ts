// weftline bench unpack: scattered fragments to their places, in stages, in parts, and against bare copies.
import type { Command } from 'commander';
import { invalidArgument } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { cudaDeviceCount } from '../../device/cuda/cuda-context.ts';
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { readSettings } from '../../settings/settings.ts';
import { runUnpackBench, type UnpackBenchReport } from '../bench/unpack/unpack-bench.ts';
import { runRoad, serveRoad, type RoadReport } from '../bench/unpack/road.ts';
import { checkUnpackWorkload, defaultUnpackWorkload, type UnpackWorkload } from '../bench/unpack/unpack-workload.ts';
import { addOptions, byteArgument, type FlagsOf, integerArgument, listArgument, option } from './argument-values.ts';
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
import { formatBytes } from '../../core/byte-size.ts';
import { curves, ratioColumn, table, type View, describeRounds, fixed, machineLines, spread } from '../report/view.ts';

const MAX_COUNT = 2 ** 31;
const PAGE = 4096;
const DEFAULT_PORT = 19_998;
const size = byteArgument(16, 2 ** 30);
const usual = defaultUnpackWorkload;

const unpackOptions = [
  option('--chunk <bytes>', 'what arrives together', size, usual.chunkBytes),
  option('--total <bytes>', 'moved per iteration of a stage', size, usual.totalBytes),
  option(
    '--fragments <list>',
    'lengths of fragments, as 256,4K; with --role the first of them, or 4K',
    listArgument(size),
    usual.fragments,
  ),
  option('--sms <list>', 'on GPUs: SM counts of the kernels', listArgument(integerArgument(1, 1024)), [16, 4]),
  option('--iterations <n>', 'timed rounds of all cases', integerArgument(1, MAX_COUNT), 20),
  option('--warmup <n>', 'rounds before them', integerArgument(0, MAX_COUNT), 3),
];

type UnpackBenchFlags = FlagsOf<typeof unpackOptions> & PeerFlags & OutputFlags;

export function addUnpackBench(bench: Command): void {
  const command = bench
    .command('unpack')
    .summary('scattered fragments to their places')
    .description(
      'Stages, parts of a launch, and kernels against bare copies. With --role the whole road: the client sends scattered ' +
        'pages by the transport, and the server moves them to their places in the memory of its device; start it first.',
    );
  addBenchRoleOptions(command, DEFAULT_PORT);
  addOptions(command, unpackOptions);
  addReportOptions(command);
  addSettingOptions(command, ['device', 'unpack', 'timeoutMs', 'aotFolder', 'useAot', 'nvrtcPath']);
  command.action(async (flags: UnpackBenchFlags) => {
    const output = new Output(flags);
    checkUsage(command, () => checkUnpackWorkload(workloadOf(flags)));
    if (flags.role === undefined && flags.server === undefined && flags.serverip === undefined) {
      await measureHere(command, flags, output);
    } else if (benchRole(command, flags) === 'server') await serve(flags, output);
    else await send(command, flags, output);
  });
}

async function measureHere(command: Command, flags: UnpackBenchFlags, output: Output): Promise<void> {
  const { iterations, warmup, sms } = flags;
  const workload = workloadOf(flags);
  await using device = await openBenchDevice();
  checkUsage(command, () => {
    if (device.kind === 'cuda' || command.getOptionValueSource('sms') !== 'cli') return;
    throw invalidArgument('sms', sms, 'none: the CPU device has no multiprocessors');
  });
  const report = await runUnpackBench(device, { workload, sms, iterations, warmup });
  output.report(unpackView(report), report);
}

function workloadOf({ chunk, total, fragments }: UnpackBenchFlags): UnpackWorkload {
  return { chunkBytes: chunk, totalBytes: total, fragments };
}

async function serve(flags: UnpackBenchFlags, { line: onLine }: Output): Promise<void> {
  const host = listenAddress(flags);
  const onListening = (port: number): void => onLine(listeningLine(host, port));
  await using device = await openBenchDevice();
  await serveRoad({ host, port: flags.port, device, mode: readSettings().unpack, onLine, onListening });
}

async function send(command: Command, flags: UnpackBenchFlags, output: Output): Promise<void> {
  const host = peerAddress(flags);
  checkUsage(command, () => checkPeerAddress(host));
  const { chunk, iterations, warmup, port } = flags;
  // One length per run: pages, unless others are asked for.
  const fragmentBytes = flags.fragments === usual.fragments ? PAGE : flags.fragments[0]!;
  const plan = { chunkBytes: chunk, chunks: flags.total / chunk, fragmentBytes, iterations, warmup };
  const report = await runRoad({ host, port, plan, onLine: output.line });
  output.report(roadView(report), report);
}

/** What the setting asks for; a GPU if there is one where nothing does. */
function openBenchDevice(): Promise<CpuDevice | CudaDevice> {
  const settings = readSettings();
  const isCuda = settings.device === 'cuda' || (settings.device === 'auto' && cudaDeviceCount() > 0);
  if (!isCuda) return CpuDevice.create({ addressSpaceMiB: settings.addressSpaceMiB });
  requireGpu();
  const { timeoutMs, nvrtcPath, cacheFolder, aotFolder, useAot } = settings;
  return CudaDevice.create({ timeoutMs, nvrtcPath, cacheFolder, aotFolder, useAot });
}

// What people read of it: stages, parts of a launch, kernels against bare copies, and the whole road.

const time = { head: 'µs', show: fixed(1), hasSpread: true, unit: 'µs' } as const;

function unpackView({ stages, components, kernels, ...report }: UnpackBenchReport): View {
  const { workload, device, machine } = report;
  const kernelName = ({ name, from, numSms }: (typeof kernels)[number]): string =>
    `${name} from ${from}, ${numSms} SMs`;
  const hasDocument = stages.some(({ documentMicrosecondsPerChunk }) => documentMicrosecondsPerChunk !== undefined);
  return {
    title: `Scattered fragments to their places on ${device}`,
    heading: [
      `${device}: ${formatBytes(workload.totalBytes)} in chunks of ${formatBytes(workload.chunkBytes)}; ${describeRounds(report)}`,
    ],
    parts: [
      table(
        stages,
        [
          { head: 'fragments', of: ({ fragmentBytes }) => fragmentBytes, show: formatBytes },
          { head: 'stage', of: ({ name }) => name },
          {
            ...time,
            of: ({ microseconds }) => microseconds,
            chart: 'Time of each stage',
            note: 'from the first call until the last byte is in its place',
          },
          { head: 'per chunk', of: ({ microsecondsPerChunk }) => microsecondsPerChunk, show: fixed(1) },
          { head: 'GB/s', of: ({ gigabytesPerSecond }) => gigabytesPerSecond, show: fixed(2) },
          {
            ...ratioColumn('copies one by one'),
            head: '× copies',
            of: ({ timesCopies }) => timesCopies,
            note: 'how many times faster than copies one by one, in the same rounds',
          },
          { head: 'document', of: ({ documentMicrosecondsPerChunk }) => documentMicrosecondsPerChunk },
          { head: '', of: ({ verdict }) => verdict },
        ],
        ({ name, fragmentBytes }) => `${name}, ${formatBytes(fragmentBytes)}`,
      ),
      hasDocument &&
        'document: µs per chunk by the analysis of a slow unpack path that this bench checks (docs/benchmarks/unpack.md in the repository); a measurement within a factor of 3 confirms it',
      components.length > 0
        ? table(
            components,
            [
              { head: 'part', of: ({ name }) => name },
              { ...time, of: ({ microseconds }) => microseconds, chart: 'Parts of a launch', note: 'each by itself' },
              { head: 'document', of: ({ documentMicroseconds }) => documentMicroseconds },
              { head: '', of: ({ verdict }) => verdict },
            ],
            ({ name }) => name,
          )
        : [],
      kernels.length > 0
        ? [
            ...table(
              kernels,
              [
                { head: 'from', of: ({ from }) => from },
                { head: 'fragments', of: ({ fragmentBytes }) => fragmentBytes, show: formatBytes },
                { head: 'SMs', of: ({ numSms }) => numSms },
                { head: 'kernel', of: ({ name }) => name },
                {
                  head: 'GB/s',
                  of: ({ gigabytesPerSecond }) => gigabytesPerSecond,
                  show: fixed(1),
                  note: 'of payload by events of the device',
                },
                {
                  ...ratioColumn('bare copies'),
                  of: ({ ratioToBareCopy }) => ratioToBareCopy,
                  note: 'time of the bare copy of the same fragments by as many SMs over that of the kernel, in the same rounds',
                },
              ],
              (kernel) => `${kernelName(kernel)}, ${formatBytes(kernel.fragmentBytes)}`,
            ),
            curves(
              {
                title: 'Kernels by length of fragments',
                note: 'Payload, by events of the device, median; the bare copy moves the same fragments.',
                x: { label: 'bytes of a fragment', scale: 'log' },
                y: { label: 'GB/s' },
              },
              [...new Set(kernels.map(kernelName))].map((name) => ({
                name,
                points: kernels
                  .filter((kernel) => kernelName(kernel) === name)
                  .map(({ fragmentBytes, gigabytesPerSecond }) => [fragmentBytes, gigabytesPerSecond.median] as const),
              })),
            ),
          ]
        : [],
    ],
    footing: machineLines({ machine }),
  };
}

/** The view of the whole road, by the transport. */
function roadView({ device, mode, plan, microseconds, gigabytesPerSecond, machine }: RoadReport): View {
  const { chunks, chunkBytes, fragmentBytes } = plan;
  const rate = `BW: ${gigabytesPerSecond.toFixed(2)} GB/s`;
  const [, section] = table(
    [{ microseconds }],
    [{ ...time, of: (one) => one.microseconds, chart: 'Time of all chunks' }],
    () => rate,
  );
  return {
    title: `Pages from another process to ${device} by ${mode}`,
    heading: [
      `${chunks} chunks of ${formatBytes(chunkBytes)} in pages of ${formatBytes(fragmentBytes)} to ${device} by ${mode}; ${describeRounds(plan)}`,
      `Median: ${(microseconds.median / 1000).toFixed(3)} ms, ${rate} (p25 to p75: ${spread(microseconds, fixed(1))} µs); contents verified`,
    ],
    parts: [section!],
    footing: machineLines({ machine }),
  };
}
