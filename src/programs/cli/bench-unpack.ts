// weftline bench unpack: scattered fragments to their places, in stages, in parts, and against bare copies.
import type { Command } from 'commander';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { cudaDeviceCount } from '../../device/cuda/cuda-context.ts';
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { readSettings } from '../../settings/settings.ts';
import { runUnpackBench } from '../bench/unpack/unpack-bench.ts';
import { defaultUnpackWorkload } from '../bench/unpack/unpack-workload.ts';
import { unpackBenchReport } from '../report/unpack-bench-report.ts';
import { byteArgument, integerArgument, listArgument } from './argument-values.ts';
import { addOutputOptions, Output, type OutputFlags } from './output.ts';
import { addSettingOptions } from './setting-options.ts';

interface UnpackBenchFlags extends OutputFlags {
  readonly chunk: number;
  readonly total: number;
  readonly fragments: readonly number[];
  readonly sms: readonly number[];
  readonly iterations: number;
  readonly warmup: number;
}

const MAX_COUNT = 2 ** 31;
const size = byteArgument(16, 2 ** 30);
const { chunkBytes, totalBytes, fragments } = defaultUnpackWorkload;

export function addUnpackBench(bench: Command): void {
  const command = bench
    .command('unpack')
    .description('scattered fragments to their places: stages, parts of a launch, kernels against bare copies')
    .option('--chunk <bytes>', 'what arrives together', size, chunkBytes)
    .option('--total <bytes>', 'moved per iteration of a stage', size, totalBytes)
    .option('--fragments <list>', 'lengths of fragments, as 256,4K', listArgument(size), [...fragments])
    .option('--sms <list>', 'on GPUs: SM counts of the kernels', listArgument(integerArgument(1, 1024)), [16, 4])
    .option('--iterations <n>', 'timed rounds of all cases', integerArgument(1, MAX_COUNT), 20)
    .option('--warmup <n>', 'rounds before them', integerArgument(0, MAX_COUNT), 3);
  addOutputOptions(command);
  addSettingOptions(command, ['device', 'timeoutMs', 'aotFolder', 'useAot', 'nvrtcPath']);
  command.action(async (flags: UnpackBenchFlags) => {
    const output = new Output(flags);
    const { iterations, warmup, sms } = flags;
    await using device = await openBenchDevice();
    const report = await runUnpackBench(device, {
      workload: { chunkBytes: flags.chunk, totalBytes: flags.total, fragments: flags.fragments },
      sms,
      iterations,
      warmup,
    });
    output.report(unpackBenchReport(report), report);
  });
}

/** What the setting asks for; a GPU if there is one where nothing does. */
function openBenchDevice(): Promise<CpuDevice | CudaDevice> {
  const settings = readSettings();
  const isCuda = settings.device === 'cuda' || (settings.device === 'auto' && cudaDeviceCount() > 0);
  if (!isCuda) return CpuDevice.create({ addressSpaceMiB: settings.addressSpaceMiB });
  const { timeoutMs, nvrtcPath, cacheFolder, aotFolder, useAot } = settings;
  return CudaDevice.create({ timeoutMs, nvrtcPath, cacheFolder, aotFolder, useAot });
}
