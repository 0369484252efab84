// The unpack bench: stages, parts of a launch and kernel rates on one device.
import { WeftlineError } from '../../../core/errors.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { type DescriptorBlock, type LauncherConfig, UnpackLauncher } from '../../../unpack/index.ts';
import { type BenchCase, type Rounds, summarize, summarizeRatios, timeInTurn } from '../harness.ts';
import { recordRun } from '../machine.ts';
import { checkUnpackWorkload, chunkBlocks, places, type UnpackWorkload } from './unpack-workload.ts';

/** The document's fragments are pages. */
const DOCUMENT_FRAGMENT = 4096;
const COPIES = 'copies one by one';

interface UnpackBenchOptions extends Rounds {
  readonly workload: UnpackWorkload;
  /** Multiprocessors of the kernels, one count after the other; the stages take the first. */
  readonly sms: readonly number[];
}

export type UnpackBenchReport = Awaited<ReturnType<typeof runUnpackBench>>;

/** Fails with WL_INVALID_ARGUMENT, and with WL_CHECK when a stage leaves other bytes than copies one by one. */
export async function runUnpackBench(device: CpuDevice | CudaDevice, options: UnpackBenchOptions) {
  const { workload, warmup, iterations } = options;
  checkUnpackWorkload(workload);
  using bounce = device.empty('u8', [workload.totalBytes]);
  using destination = device.empty('u8', [workload.totalBytes]);
  await bounce.fromHost(
    Uint8Array.from({ length: workload.totalBytes }, (_, index) => Math.imul(index, 0x9e37_79b9) >>> 24),
  );
  const name = device.kind === 'cuda' ? device.properties.name : 'cpu';
  const head = { schema: 'weftline.bench.unpack/1' as const, device: name, workload, warmup, iterations };
  return await recordRun(undefined, head, async () => {
    const stages = [];
    for (const fragmentBytes of workload.fragments) {
      await using made = await makeStages(device, { bounce, destination, fragmentBytes }, options);
      await checkStages(made.stages, destination);
      stages.push(...(await timeStages(device, made.stages, fragmentBytes, options)));
    }
    if (device.kind === 'cpu') return { stages, components: [], kernels: [] };
    // Loaded here, so that the CPU device never loads what GPUs need.
    const { measureComponents, measureKernelRates } = await import('./cuda-unpack.ts');
    const { workload: _, ...rounds } = options;
    const fragment = Math.min(DOCUMENT_FRAGMENT, workload.chunkBytes);
    const [block] = chunkBlocks(workload, fragment, { bounce, destination });
    const copy = (): void => {
      device.context.call('cuMemcpyDtoDAsync', destination.address, bounce.address, fragment, device.stream.handle);
    };
    const said: Readonly<Record<string, number>> = documentComponents;
    const components = (await measureComponents(device, { block: block!, copy }, rounds)).map((part) => ({
      ...part,
      documentMicroseconds: said[part.name],
      verdict: verdictOf(part.microseconds.median, said[part.name]),
    }));
    return {
      stages,
      components,
      kernels: await measureKernelRates(device, { ...rounds, fragments: workload.fragments }),
    };
  });
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

async function checkStages(stages: readonly BenchCase[], destination: Tensor<'u8'>): Promise<void> {
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
  stages: readonly BenchCase[],
  fragmentBytes: number,
  { workload, ...rounds }: UnpackBenchOptions,
) {
  const { chunkBytes, totalBytes } = workload;
  const times = await timeInTurn(stages, rounds);
  const isDocuments = fragmentBytes === DOCUMENT_FRAGMENT && device.kind === 'cuda';
  const said: Readonly<Record<string, number>> = isDocuments ? documentStages : {};
  const copies = times[stages.findIndex(({ name }) => name === COPIES)]!;
  return stages.map(({ name }, index) => {
    const microseconds = summarize(times[index]!);
    const perChunk = (microseconds.median * chunkBytes) / totalBytes;
    return {
      name,
      fragmentBytes,
      /** The time from the first call until the last byte is in its place. */
      microseconds,
      microsecondsPerChunk: perChunk,
      gigabytesPerSecond: totalBytes / microseconds.median / 1000,
      /** How many times faster than copies one by one, from the same rounds. */
      timesCopies: summarizeRatios(copies, times[index]!),
      /** What the document says per chunk, where it says something: for fragments of 4 KiB. */
      documentMicrosecondsPerChunk: said[name],
      verdict: verdictOf(perChunk, said[name]),
    };
  });
}

/** The stages from the slowest way to unpack chunks to the fastest: each moves all chunks once, from call to last byte. */
interface Stages extends AsyncDisposable {
  readonly stages: readonly BenchCase[];
}

/** Memory of its own for one block, in the device: what the document's launcher took. */
const perChunk: LauncherConfig = { pool: { slots: 1, memory: 'copied' } };

/** The stages of a GPU; `copyOneByOne` moves each fragment by a copy of its own and waits at the end. */
async function cudaStages(
  device: CudaDevice,
  blocks: readonly DescriptorBlock[],
  options: { readonly numSms: number; readonly copyOneByOne: () => Promise<void> },
): Promise<Stages> {
  const { numSms, copyOneByOne } = options;
  const pool = { slots: blocks.length };
  const kept = await UnpackLauncher.create(device, { numSms, pool });
  const staying = await UnpackLauncher.create(device, { numSms, pool, persistent: true, idleMs: 5 });
  const prepared = staying.prepare(blocks);
  const awake: Omit<BenchCase, 'name' | 'run'> = {
    prepare: () => staying.launchSync(blocks[0]!),
    // The kernel has left then, which those that free memory would wait for.
    after: () => device.drained(),
  };
  const stages: BenchCase[] = [
    {
      name: 'stream, launcher and memory per chunk, waited for',
      run: async () => {
        for (const block of blocks) {
          using stream = device.createStream();
          await using launcher = await UnpackLauncher.create(device, { ...perChunk, numSms, stream });
          await launcher.launchSync(block);
        }
      },
    },
    {
      name: 'no stream per chunk',
      run: async () => {
        for (const block of blocks) {
          await using launcher = await UnpackLauncher.create(device, { ...perChunk, numSms });
          await launcher.launchSync(block);
        }
      },
    },
    {
      name: 'asynchronous',
      run: async () => {
        const launchers: UnpackLauncher[] = [];
        for (const block of blocks) {
          const launcher = await UnpackLauncher.create(device, { ...perChunk, numSms });
          launcher.launch(block);
          launchers.push(launcher);
        }
        for (const launcher of launchers) await launcher.wait();
        for (const launcher of launchers) await launcher.close();
      },
    },
    ...keptStages(kept, blocks),
    { name: 'persistent, awake', ...awake, run: () => staying.launchSync(blocks) },
    { name: 'persistent, awake, prepared once', ...awake, run: () => staying.launchSync(prepared) },
    { name: 'copies one by one', run: copyOneByOne },
  ];
  const close = async (): Promise<void> => {
    await staying.close();
    await kept.close();
  };
  return { stages, [Symbol.asyncDispose]: close };
}

/** The stages of the CPU device, which has no streams and nothing to wait for. */
async function cpuStages(
  device: CpuDevice,
  blocks: readonly DescriptorBlock[],
  copyOneByOne: () => Promise<void>,
): Promise<Stages> {
  const kept = await UnpackLauncher.create(device, { pool: { slots: blocks.length } });
  const stages: BenchCase[] = [
    {
      name: 'launcher per chunk',
      run: async () => {
        for (const block of blocks) {
          await using launcher = await UnpackLauncher.create(device, { pool: { slots: 1 } });
          launcher.launch(block);
        }
      },
    },
    ...keptStages(kept, blocks),
    { name: 'copies one by one', run: copyOneByOne },
  ];
  return { stages, [Symbol.asyncDispose]: () => kept.close() };
}

function keptStages(launcher: UnpackLauncher, blocks: readonly DescriptorBlock[]): BenchCase[] {
  const prepared = launcher.prepare(blocks);
  return [
    {
      name: 'preallocated',
      run: () => {
        for (const block of blocks) launcher.launch(block);
        return launcher.wait();
      },
    },
    { name: 'batched', run: () => launcher.launchSync(blocks) },
    { name: 'batched, prepared once', run: () => launcher.launchSync(prepared) },
  ];
}

// The figures of the document whose analysis is checked, in µs of one chunk of 512 KiB, 4 MiB in all.

/** What the document says that each stage takes. */
const documentStages = {
  'stream, launcher and memory per chunk, waited for': 53_000,
  'no stream per chunk': 45_000,
  asynchronous: 1_000,
  preallocated: 500,
  batched: 100,
  'copies one by one': 530,
} as const;

/** What the document says that each part takes per chunk. */
const documentComponents = {
  'create and destroy a stream': 4_000,
  'make and close a launcher': 2_000,
  'take and free device memory': 2_000,
  'copy descriptors': 1_000,
  'launch and wait': 48_000,
} as const;

/** The document is confirmed within a factor of this. */
const AGREEMENT = 3;

/** What a measurement says of the document's figure. */
export function verdictOf(measured: number, document: number | undefined): 'confirms' | 'refutes' | '' {
  if (document === undefined) return '';
  const ratio = document / measured;
  return ratio <= AGREEMENT && ratio >= 1 / AGREEMENT ? 'confirms' : 'refutes';
}
