// The kernels against the bare copy of the same fragments and against the copy engine, in turn on one device.
import { fragmentPair } from '../../../../abi/unpack-block.ts';
import { setWide } from '../../../../abi/wide-words.ts';
import { WeftlineError } from '../../../../core/errors.ts';
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import { benchUnpackKernels } from '../../../../device/cuda/kernels/unpack.ts';
import type { Tensor } from '../../../../device/tensor.ts';
import type { MemorySpan } from '../../../../unpack/index.ts';
import { interleave, type Rounds } from '../../interleaved.ts';
import { type Summary, summarize, summarizeRatios } from '../../statistics.ts';
import { chunkBlocks, places } from '../unpack-workload.ts';
import { PreparedUnpack } from './prepared-unpack.ts';

/** Enough that neither side stays in a cache, and that what a launch takes is small beside it. */
const TOTAL_BYTES = 64 << 20;
/** Descriptors that a block of the rates has at most. */
const CHUNK_BYTES = 512 << 10;
/** Launches of one measurement, one behind the other. */
const REPEATS = 4;

export interface KernelRate {
  readonly name: string;
  /** Where the fragments lie: memory of the device, or pinned memory of the host. */
  readonly from: 'device' | 'pinned';
  readonly numSms: number;
  readonly fragmentBytes: number;
  /** Of payload, by events of the device. */
  readonly gigabytesPerSecond: Summary;
  /** Of the bare copy's time to this one's, from the same rounds; undefined for the bare copy itself. */
  readonly ratioToBareCopy: Summary | undefined;
}

export interface KernelRateOptions extends Rounds {
  readonly sms: readonly number[];
  readonly fragments: readonly number[];
}

interface Case {
  readonly name: string;
  readonly launch: () => void;
}

/** Fails with WL_CHECK when a kernel leaves other bytes than the bare copy. */
export async function measureKernelRates(device: CudaDevice, options: KernelRateOptions): Promise<KernelRate[]> {
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
  const rates: KernelRate[] = [];
  for (const from of ['device', 'pinned'] as const) {
    for (const fragmentBytes of options.fragments) {
      for (const numSms of options.sms) {
        const made = await makeCases(device, { source: sources[from], destination, fragmentBytes, numSms });
        if (from === 'pinned') made.cases.push(copyEngine(device, pinned.hostAddress, destination));
        try {
          await checkCases(device, made.cases, destination);
          const times = await timeCases(device, made.cases, options);
          rates.push(...summarizeCases(made.cases, times, { from, numSms, fragmentBytes }));
        } finally {
          await made.close();
        }
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
): Promise<{ readonly cases: Case[]; readonly close: () => Promise<void> }> {
  const bare = await bareCopies(device, { source, destination, fragmentBytes, numSms });
  const cases: Case[] = [...bare.cases];
  const blocks = chunkBlocks({ chunkBytes: CHUNK_BYTES, totalBytes: TOTAL_BYTES }, fragmentBytes, {
    bounce: source,
    destination,
  });
  const prepared: PreparedUnpack[] = [];
  for (const smallKernel of [true, false]) {
    for (const warpsPerSm of [16, 32] as const) {
      for (const memory of warpsPerSm === 16 ? (['mapped', 'copied'] as const) : (['mapped'] as const)) {
        const unpack = await PreparedUnpack.create(device, blocks, { numSms, smallKernel, warpsPerSm, memory });
        prepared.push(unpack);
        const name = `${smallKernel ? 'small' : 'large'} kernel, ${warpsPerSm} warps, ${memory}`;
        cases.push({ name, launch: () => unpack.launch() });
      }
    }
  }
  const close = async (): Promise<void> => {
    for (const unpack of prepared) await unpack.close();
    bare.pairs.dispose();
  };
  return { cases, close };
}

async function bareCopies(
  device: CudaDevice,
  { source, destination, fragmentBytes, numSms }: Memory,
): Promise<{ readonly cases: readonly Case[]; readonly pairs: Tensor }> {
  const { benchFragments, benchFragmentsBatched } = await device.loadKernels(benchUnpackKernels);
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
    return { name, launch: () => plan.launch() };
  });
  return { cases, pairs };
}

/** One copy of everything in place: what the link gives. */
function copyEngine(device: CudaDevice, hostAddress: number, destination: Tensor<'u8'>): Case {
  const launch = (): void => {
    device.context.call('cuMemcpyHtoDAsync', destination.address, hostAddress, TOTAL_BYTES, device.stream.handle);
  };
  return { name: 'copy engine', launch };
}

async function checkCases(device: CudaDevice, cases: readonly Case[], destination: Tensor<'u8'>): Promise<void> {
  let expected: Uint8Array | undefined;
  for (const { name, launch } of cases) {
    if (name === 'copy engine') continue;
    device.setBytes(destination, 0xee);
    launch();
    const left = await destination.toHost();
    expected ??= left;
    if (Buffer.compare(left, expected) === 0) continue;
    throw new WeftlineError('WL_CHECK', `The ${name} left other bytes than the bare copy`, { details: { name } });
  }
}

async function timeCases(device: CudaDevice, cases: readonly Case[], rounds: Rounds): Promise<number[][]> {
  using begin = device.createEvent({ timing: true });
  using end = device.createEvent({ timing: true });
  const times = cases.map((): number[] => []);
  await interleave(cases.length, rounds, async (index, iteration) => {
    const { launch } = cases[index]!;
    // The first launch keeps the device busy while the others are enqueued.
    launch();
    begin.record(device.stream);
    for (let repeat = 0; repeat < REPEATS; repeat++) launch();
    end.record(device.stream);
    await end.wait();
    if (iteration >= 0) times[index]!.push((end.millisecondsSince(begin) * 1000) / REPEATS);
  });
  return times;
}

function summarizeCases(
  cases: readonly Case[],
  times: readonly (readonly number[])[],
  where: Pick<KernelRate, 'from' | 'numSms' | 'fragmentBytes'>,
): KernelRate[] {
  return cases.map(({ name }, index) => ({
    name,
    ...where,
    gigabytesPerSecond: summarize(times[index]!.map((microseconds) => TOTAL_BYTES / microseconds / 1000)),
    ratioToBareCopy: index === 0 ? undefined : summarizeRatios(times[0]!, times[index]!),
  }));
}
