// weftline bench unpack: scattered fragments to their places, in stages, in parts, and against bare copies.
import type { Command } from 'commander';
import { invalidArgument } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { cudaDeviceCount } from '../../device/cuda/cuda-context.ts';
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { readSettings } from '../../settings/settings.ts';
import { runUnpackBench } from '../bench/unpack/unpack-bench.ts';
import { runRoad, serveRoad } from '../bench/unpack/road.ts';
import { checkUnpackWorkload, defaultUnpackWorkload, type UnpackWorkload } from '../bench/unpack/unpack-workload.ts';
import { roadView, unpackView } from '../report/unpack-view.ts';
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
} from './peer-options.ts';
import { requireGpu } from './require-gpu.ts';
import { addSettingOptions } from './setting-options.ts';
import { checkUsage } from './exit-codes.ts';

const MAX_COUNT = 2 ** 31;
const PAGE = 4096;
const DEFAULT_PORT = 19_998;
const size = byteArgument(16, 2 ** 30);
const { chunkBytes, totalBytes, fragments } = defaultUnpackWorkload;

const unpackOptions = [
  option('--chunk <bytes>', 'what arrives together', size, chunkBytes),
  option('--total <bytes>', 'moved per iteration of a stage', size, totalBytes),
  option(
    '--fragments <list>',
    'lengths of fragments, as 256,4K; with --role the first of them, or 4K',
    listArgument(size),
    fragments,
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

function workloadOf({ chunk, total, fragments: lengths }: UnpackBenchFlags): UnpackWorkload {
  return { chunkBytes: chunk, totalBytes: total, fragments: lengths };
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
  const fragmentBytes = flags.fragments === fragments ? PAGE : flags.fragments[0]!;
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
