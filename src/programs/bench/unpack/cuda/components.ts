// What each part of a launch takes by itself, on the host's clock.
import { descriptorBlockHeader, fragmentDescriptor } from '../../../../abi/unpack-block.ts';
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import { HostMemory } from '../../../../device/cuda/host-memory.ts';
import type { Out } from '../../../../native/library.ts';
import { type DescriptorBlock, UnpackLauncher } from '../../../../unpack/index.ts';
import { monotonicMicroseconds } from '../../clock.ts';
import { interleave, type Rounds } from '../../interleaved.ts';
import { type Summary, summarize } from '../../statistics.ts';

export interface Component {
  readonly name: string;
  readonly microseconds: Summary;
}

/** What the document's launcher took per chunk. */
const POOL_BYTES = 64 << 10;

interface Part {
  readonly name: string;
  readonly run: () => void | Promise<void>;
  /** Not timed: undoes what ran. */
  readonly after?: () => void | Promise<void>;
}

/** `block`: one chunk with its descriptors; `copy`: one fragment of it, by the copy engine. */
export async function measureComponents(
  device: CudaDevice,
  { block, copy }: { readonly block: DescriptorBlock; readonly copy: () => void },
  rounds: Rounds,
): Promise<Component[]> {
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
  const parts: readonly Part[] = [
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
  const times = parts.map((): number[] => []);
  await interleave(parts.length, rounds, async (index, iteration) => {
    const { run, after } = parts[index]!;
    const begin = monotonicMicroseconds();
    const running = run();
    if (running !== undefined) await running;
    const end = monotonicMicroseconds();
    await after?.();
    if (iteration >= 0) times[index]!.push(end - begin);
  });
  return parts.map(({ name }, index) => ({ name, microseconds: summarize(times[index]!) }));
}
