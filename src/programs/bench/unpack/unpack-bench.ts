// The unpack bench: stages, parts of a launch and kernel rates on one device, one document.
import { WeftlineError } from '../../../core/errors.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { monotonicMicroseconds } from '../clock.ts';
import { interleave, type Rounds } from '../interleaved.ts';
import { loadAverage, machineDocument } from '../machine.ts';
import { summarize, summarizeRatios } from '../statistics.ts';
import { documentComponents, documentStages, verdictOf } from './document-figures.ts';
import type { ComponentResult, StageResult, UnpackBenchReport } from './unpack-results.ts';
import { cpuStages, cudaStages, type Stage, type Stages } from './unpack-stages.ts';
import { checkUnpackWorkload, chunkBlocks, places, type UnpackWorkload } from './unpack-workload.ts';

/** The document's fragments are pages. */
const DOCUMENT_FRAGMENT = 4096;
const COPIES = 'copies one by one';

export interface UnpackBenchOptions extends Rounds {
  readonly workload: UnpackWorkload;
  /** Multiprocessors of the kernels, one count after the other; the stages take the first. */
  readonly sms: readonly number[];
}

/** Fails with WL_INVALID_ARGUMENT, and with WL_CHECK when a stage leaves other bytes than copies one by one. */
export async function runUnpackBench(
  device: CpuDevice | CudaDevice,
  options: UnpackBenchOptions,
): Promise<UnpackBenchReport> {
  const { workload, warmup, iterations } = options;
  checkUnpackWorkload(workload);
  const before = loadAverage();
  using bounce = device.empty('u8', [workload.totalBytes]);
  using destination = device.empty('u8', [workload.totalBytes]);
  await bounce.fromHost(
    Uint8Array.from({ length: workload.totalBytes }, (_, index) => Math.imul(index, 0x9e37_79b9) >>> 24),
  );
  const stages: StageResult[] = [];
  for (const fragmentBytes of workload.fragments) {
    await using made = await makeStages(device, { bounce, destination, fragmentBytes }, options);
    await checkStages(made.stages, destination);
    stages.push(...(await timeStages(device, made.stages, fragmentBytes, options)));
  }
  const components = device.kind === 'cuda' ? await timeComponents(device, { bounce, destination }, options) : [];
  // Loaded here, so that the CPU device never loads what GPUs need.
  const kernels =
    device.kind === 'cuda'
      ? await (
          await import('./cuda/kernel-rates.ts')
        ).measureKernelRates(device, { ...options, fragments: workload.fragments })
      : [];
  return {
    schema: 'weftline.bench.unpack/1',
    date: new Date().toISOString(),
    device: device.kind === 'cuda' ? device.properties.name : 'cpu',
    workload,
    warmup,
    iterations,
    machine: machineDocument(),
    loadAverage: { before, after: loadAverage() },
    stages,
    components,
    kernels,
  };
}

interface Memory {
  readonly bounce: Tensor<'u8'>;
  readonly destination: Tensor<'u8'>;
}

function makeStages(
  device: CpuDevice | CudaDevice,
  { bounce, destination, fragmentBytes }: Memory & { readonly fragmentBytes: number },
  { workload, sms }: UnpackBenchOptions,
): Promise<Stages> {
  const blocks = chunkBlocks(workload, fragmentBytes, { bounce, destination });
  const order = places(workload.totalBytes / fragmentBytes);
  if (device.kind === 'cpu') {
    const [from, to] = [bounce.view(), destination.view()];
    return cpuStages(device, blocks, () => {
      for (let index = 0; index < order.length; index++) {
        const at = index * fragmentBytes;
        to.set(from.subarray(at, at + fragmentBytes), order[index]! * fragmentBytes);
      }
      return Promise.resolve();
    });
  }
  const { context, stream } = device;
  return cudaStages(device, blocks, {
    numSms: sms[0]!,
    copyOneByOne: () => {
      const { driver } = context;
      context.enter();
      for (let index = 0; index < order.length; index++) {
        const to = destination.address + order[index]! * fragmentBytes;
        const from = bounce.address + index * fragmentBytes;
        const status = driver.cuMemcpyDtoDAsync(to, from, fragmentBytes, stream.handle);
        if (status !== 0) context.check('cuMemcpyDtoDAsync', status);
      }
      return stream.idle();
    },
  });
}

async function checkStages(stages: readonly Stage[], destination: Tensor<'u8'>): Promise<void> {
  const empty = new Uint8Array(destination.bytes).fill(0xee);
  const reference = stages.find(({ name }) => name === COPIES)!;
  await destination.fromHost(empty);
  await reference.run();
  const expected = await destination.toHost();
  for (const { name, run, after } of stages) {
    await destination.fromHost(empty);
    await run();
    await after?.();
    const left = await destination.toHost();
    if (Buffer.compare(left, expected) === 0) continue;
    throw new WeftlineError('WL_CHECK', `The stage "${name}" left other bytes than copies one by one`, {
      details: { name },
    });
  }
}

async function timeStages(
  device: CpuDevice | CudaDevice,
  stages: readonly Stage[],
  fragmentBytes: number,
  { workload, ...rounds }: UnpackBenchOptions,
): Promise<StageResult[]> {
  const { chunkBytes, totalBytes } = workload;
  const times = stages.map((): number[] => []);
  await interleave(stages.length, rounds, async (index, iteration) => {
    const stage = stages[index]!;
    await stage.prepare?.();
    const begin = monotonicMicroseconds();
    await stage.run();
    const end = monotonicMicroseconds();
    await stage.after?.();
    if (iteration >= 0) times[index]!.push(end - begin);
  });
  const isDocuments = fragmentBytes === DOCUMENT_FRAGMENT && device.kind === 'cuda';
  const copies = times[stages.findIndex(({ name }) => name === COPIES)]!;
  return stages.map(({ name }, index) => {
    const microseconds = summarize(times[index]!);
    const perChunk = (microseconds.median * chunkBytes) / totalBytes;
    const said: Readonly<Record<string, number>> = isDocuments ? documentStages : {};
    return {
      name,
      fragmentBytes,
      microseconds,
      microsecondsPerChunk: perChunk,
      gigabytesPerSecond: totalBytes / microseconds.median / 1000,
      timesCopies: summarizeRatios(copies, times[index]!),
      documentMicrosecondsPerChunk: said[name],
      verdict: verdictOf(perChunk, said[name]),
    };
  });
}

async function timeComponents(
  device: CudaDevice,
  { bounce, destination }: Memory,
  { workload, ...rounds }: UnpackBenchOptions,
): Promise<ComponentResult[]> {
  const { measureComponents } = await import('./cuda/components.ts');
  const fragment = Math.min(DOCUMENT_FRAGMENT, workload.chunkBytes);
  const [block] = chunkBlocks(workload, fragment, { bounce, destination });
  const copy = (): void => {
    device.context.call('cuMemcpyDtoDAsync', destination.address, bounce.address, fragment, device.stream.handle);
  };
  const said: Readonly<Record<string, number>> = documentComponents;
  const components = await measureComponents(device, { block: block!, copy }, rounds);
  return components.map((component) => ({
    ...component,
    documentMicroseconds: said[component.name],
    verdict: verdictOf(component.microseconds.median, said[component.name]),
  }));
}
