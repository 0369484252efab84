// The unpack bench on GPUs: what each part of a launch takes by itself, and the kernels against bare copies of the same fragments.
import { descriptorBlockHeader, fragmentDescriptor, fragmentPair } from '../../../abi/unpack.ts';
import { setWide } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { HostMemory } from '../../../device/cuda/host-memory.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { Out } from '../../../native/library.ts';
import { LaunchedFragments, type WarpsPerSm } from '../../../unpack/cuda/launched-fragments.ts';
import { checkConfig, type CheckedConfig } from '../../../unpack/launcher-config.ts';
import { type DescriptorBlock, UnpackLauncher } from '../../../unpack/index.ts';
import { RingWriter } from '../../../unpack/ring-writer.ts';
import {
  type BenchCase,
  measureInTurn,
  type Rounds,
  summarize,
  summarizeRates,
  summarizeRatios,
  timeInTurn,
} from '../harness.ts';
import { chunkBlocks, places } from './unpack-workload.ts';
import type { MemorySpan } from '../../../unpack/descriptor-block.ts';
import { kernelFiles } from '../../../device/cuda/kernel-files.ts';

/** What the document's launcher took per chunk. */
const POOL_BYTES = 64 << 10;

/** `block`: one chunk with its descriptors; `copy`: one fragment of it, by the copy engine. */
export async function measureComponents(
  device: CudaDevice,
  { block, copy }: { readonly block: DescriptorBlock; readonly copy: () => void },
  rounds: Rounds,
) {
  await using launcher = await UnpackLauncher.create(device);
  using pinned = new HostMemory(device.context, POOL_BYTES);
  using target = device.empty('u8', [POOL_BYTES]);
  using event = device.createEvent();
  const descriptorBytes = descriptorBlockHeader.size + block.count * fragmentDescriptor.size;
  const { context, stream } = device;
  const address: Out = [0];
  const copyDescriptors = (): void => {
    context.call('cuMemcpyHtoDAsync', target.address, pinned.hostAddress, descriptorBytes, stream.handle);
  };
  const idle = (): Promise<void> => stream.idle();
  const parts: readonly BenchCase[] = [
    { name: 'create and destroy a stream', run: () => device.createStream()[Symbol.dispose]() },
    {
      name: 'take and free device memory',
      run: () => {
        context.call('cuMemAlloc', address, POOL_BYTES);
        context.call('cuMemFree', address[0]);
      },
    },
    { name: 'take and free pinned memory', run: () => new HostMemory(context, POOL_BYTES)[Symbol.dispose]() },
    {
      name: 'make and close a launcher',
      run: async () => (await UnpackLauncher.create(device, { pool: { slots: 1, memory: 'copied' } })).close(),
    },
    { name: 'enqueue a copy of descriptors', run: copyDescriptors, after: idle },
    {
      name: 'copy descriptors',
      run: () => {
        copyDescriptors();
        return idle();
      },
    },
    { name: 'launch, check of the descriptors included', run: () => void launcher.launch(block), after: idle },
    { name: 'launch and wait', run: () => launcher.launchSync(block) },
    { name: 'record an event', run: () => void event.record(stream), after: idle },
    { name: 'enqueue the copy of one fragment', run: copy, after: idle },
  ];
  const times = await timeInTurn(parts, rounds);
  return parts.map(({ name }, index) => ({ name, microseconds: summarize(times[index]!) }));
}

/** Enough that neither side stays in a cache, and that what a launch takes is small beside it. */
const TOTAL_BYTES = 64 << 20;
/** Descriptors that a block of the rates has at most. */
const CHUNK_BYTES = 512 << 10;
/** Launches of one measurement, one behind the other. */
const REPEATS = 4;

interface KernelRateOptions extends Rounds {
  readonly sms: readonly number[];
  readonly fragments: readonly number[];
}

/** Fails with WL_CHECK when a kernel leaves other bytes than the bare copy. */
export async function measureKernelRates(device: CudaDevice, options: KernelRateOptions) {
  using destination = device.empty('u8', [TOTAL_BYTES]);
  using local = device.empty('u8', [TOTAL_BYTES]);
  using pinned = device.allocateHost(TOTAL_BYTES);
  const words = pinned.view('i32');
  for (let word = 0; word < words.length; word++) words[word] = Math.imul(word, 0x9e37_79b9);
  device.context.call('cuMemcpyHtoDAsync', local.address, pinned.hostAddress, TOTAL_BYTES, device.stream.handle);
  const sources = {
    device: local,
    pinned: { address: pinned.deviceAddress, bytes: TOTAL_BYTES },
  } as const;
  const rates = [];
  for (const from of ['device', 'pinned'] as const) {
    for (const fragmentBytes of options.fragments) {
      for (const numSms of options.sms) {
        await using made = await makeCases(device, { source: sources[from], destination, fragmentBytes, numSms });
        if (from === 'pinned') made.cases.push(copyEngine(device, pinned.hostAddress, destination));
        await checkCases(device, made.cases, destination);
        const times = await timeCases(device, made.cases, options);
        rates.push(...summarizeCases(made.cases, times, { from, numSms, fragmentBytes }));
      }
    }
  }
  return rates;
}

interface Memory {
  readonly source: MemorySpan;
  readonly destination: Tensor<'u8'>;
  readonly fragmentBytes: number;
  readonly numSms: number;
}

async function makeCases(
  device: CudaDevice,
  { source, destination, fragmentBytes, numSms }: Memory,
): Promise<AsyncDisposable & { readonly cases: BenchCase[] }> {
  const bare = await bareCopies(device, { source, destination, fragmentBytes, numSms });
  const cases: BenchCase[] = [...bare.cases];
  const blocks = chunkBlocks({ chunkBytes: CHUNK_BYTES, totalBytes: TOTAL_BYTES }, fragmentBytes, {
    bounce: source,
    destination,
  });
  const engines: LaunchedFragments[] = [];
  for (const smallKernel of [true, false]) {
    for (const warpsPerSm of [16, 32] as const) {
      for (const memory of warpsPerSm === 16 ? (['mapped', 'copied'] as const) : (['mapped'] as const)) {
        const { engine, run } = await prepareUnpack(device, blocks, { numSms, smallKernel, warpsPerSm, memory });
        engines.push(engine);
        const name = `${smallKernel ? 'small' : 'large'} kernel, ${warpsPerSm} warps, ${memory}`;
        cases.push({ name, run });
      }
    }
  }
  const close = async (): Promise<void> => {
    for (const engine of engines) await engine.close();
    bare.pairs.close();
  };
  return { cases, [Symbol.asyncDispose]: close };
}

async function bareCopies(
  device: CudaDevice,
  { source, destination, fragmentBytes, numSms }: Memory,
): Promise<{ readonly cases: readonly BenchCase[]; readonly pairs: Tensor }> {
  const { benchFragments, benchFragmentsBatched } = await device.loadKernels(kernelFiles.benchUnpack);
  const count = TOTAL_BYTES / fragmentBytes;
  const values = new DataView(new ArrayBuffer(count * fragmentPair.size));
  for (const [index, place] of places(count).entries()) {
    setWide(values, index * fragmentPair.size + fragmentPair.offset.from, source.address + index * fragmentBytes);
    setWide(values, index * fragmentPair.size + fragmentPair.offset.to, destination.address + place * fragmentBytes);
  }
  const pairs = await device.tensor('u8', [values.byteLength], new Uint8Array(values.buffer));
  const cases = [
    { name: 'bare copy', kernel: benchFragmentsBatched },
    { name: 'bare copy, one load at a time', kernel: benchFragments },
  ].map(({ name, kernel }) => {
    const plan = kernel.plan({ grid: numSms, block: 1024 });
    plan.arguments.set('pairs', pairs.address);
    plan.arguments.set('count', count);
    plan.arguments.set('bytes', fragmentBytes);
    return { name, run: () => plan.launch() };
  });
  return { cases, pairs };
}

/** One copy of everything in place: what the link gives. */
function copyEngine({ context, stream }: CudaDevice, hostAddress: number, { address }: Tensor<'u8'>): BenchCase {
  const run = (): void => context.call('cuMemcpyHtoDAsync', address, hostAddress, TOTAL_BYTES, stream.handle);
  return { name: 'copy engine', run };
}

async function checkCases(device: CudaDevice, cases: readonly BenchCase[], destination: Tensor<'u8'>): Promise<void> {
  let expected: Uint8Array | undefined;
  for (const { name, run } of cases) {
    if (name === 'copy engine') continue;
    device.setBytes(destination, 0xee);
    run();
    const left = await destination.toHost();
    expected ??= left;
    if (Buffer.compare(left, expected) === 0) continue;
    throw new WeftlineError('WL_CHECK', `The ${name} left other bytes than the bare copy`, { details: { name } });
  }
}

async function timeCases(device: CudaDevice, cases: readonly BenchCase[], rounds: Rounds): Promise<number[][]> {
  using begin = device.createEvent({ timing: true });
  using end = device.createEvent({ timing: true });
  const samples = await measureInTurn(undefined, cases, rounds, async ({ run }) => {
    // The first launch keeps the device busy while the others are enqueued.
    run();
    begin.record(device.stream);
    for (let repeat = 0; repeat < REPEATS; repeat++) run();
    end.record(device.stream);
    await end.wait();
    return { time: (end.millisecondsSince(begin) * 1000) / REPEATS };
  });
  return samples.map((of) => of.slowest('time'));
}

function summarizeCases(
  cases: readonly BenchCase[],
  times: readonly (readonly number[])[],
  where: { readonly from: 'device' | 'pinned'; readonly numSms: number; readonly fragmentBytes: number },
) {
  return cases.map(({ name }, index) => ({
    name,
    ...where,
    /** The rate of payload, by events of the device. */
    gigabytesPerSecond: summarizeRates(TOTAL_BYTES, times[index]!),
    /** The bare copy's time over this one's, from the same rounds; undefined for the bare copy itself. */
    ratioToBareCopy: index === 0 ? undefined : summarizeRatios(times[0]!, times[index]!),
  }));
}

interface PreparedOptions {
  readonly numSms: number;
  readonly smallKernel: boolean;
  readonly warpsPerSm: WarpsPerSm;
  readonly memory: CheckedConfig['memory'];
}

/** What launches the same descriptors again and again. */
async function prepareUnpack(
  device: CudaDevice,
  blocks: readonly DescriptorBlock[],
  { numSms, smallKernel, warpsPerSm, memory }: PreparedOptions,
): Promise<{ readonly engine: LaunchedFragments; readonly run: () => void }> {
  const pool = { slots: blocks.length, memory };
  const config = checkConfig({ numSms, smallKernel, pool }, device.properties.multiprocessors);
  const engine = await LaunchedFragments.create(device, config, 'unpack', warpsPerSm);
  const writer = new RingWriter('unpack', blocks.length);
  writer.take(blocks);
  writer.shareAmong(engine.warps, smallKernel);
  for (let block = 0; block < blocks.length; block++) writer.writeBlock(block, engine.slotWords(block));
  const { mostDescriptors, waits } = writer;
  const run = { ticket: 0, firstSlot: 0, blocks: blocks.length, mostDescriptors, isSmall: smallKernel, waits };
  return { engine, run: () => engine.submit(run) };
}
