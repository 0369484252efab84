// How the server moves the pages of a chunk that lies in its ring: by the unpack kernel, or by copies one by one.
import { BLOCK_HEADER_WORDS, blockHeaderWord, FRAGMENT_WORDS, fragmentWord } from '../../../../abi/unpack-block.ts';
import { wideAt } from '../../../../abi/wide-words.ts';
import { invalidArgument } from '../../../../core/errors.ts';
import type { CpuDevice } from '../../../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../../../device/cuda/cuda-event.ts';
import type { Tensor } from '../../../../device/tensor.ts';
import type { Settings } from '../../../../settings/settings.ts';
import { type DescriptorBlock, type MemorySpan, UnpackLauncher } from '../../../../unpack/index.ts';
import { ROAD_DEPTH } from './road-plan.ts';

export interface PageMover extends AsyncDisposable {
  /** Begins to move what lies in a slot. */
  move(slot: number, block: DescriptorBlock): void;
  /** Resolves when the slot may be received into again. */
  whenFree(slot: number): Promise<void>;
}

/** Pinned memory of the host for a GPU, a tensor for the CPU device. */
export interface Bounce {
  readonly bytes: Uint8Array;
  /** As the device sees it. */
  readonly address: number;
  /** As copies see it. */
  readonly hostAddress: number;
}

export interface MoverOptions {
  readonly device: CpuDevice | CudaDevice;
  readonly bounce: Bounce;
  readonly destination: Tensor<'u8'>;
}

export async function createMover(mode: Settings['unpack'], options: MoverOptions): Promise<PageMover> {
  if (mode === 'kernel') return kernelMover(options);
  return options.device.kind === 'cuda' ? copyEngineMover(options.device, options) : cpuCopyMover(options);
}

async function kernelMover({ device }: MoverOptions): Promise<PageMover> {
  const launcher = await UnpackLauncher.create(device, { pool: { slots: ROAD_DEPTH } });
  const launches = Array.from({ length: ROAD_DEPTH }, () => 0);
  return {
    move: (slot, block) => {
      launches[slot] = launcher.launch(block);
    },
    whenFree: (slot) => launcher.wait(launches[slot]),
    [Symbol.asyncDispose]: () => launcher.close(),
  };
}

function copyEngineMover(device: CudaDevice, { bounce, destination }: MoverOptions): PageMover {
  const { context, stream } = device;
  const events: CudaEvent[] = Array.from({ length: ROAD_DEPTH }, () => device.createEvent());
  return {
    move: (slot, block) => {
      forEachPage(block, bounce, destination, (source, bytes, offset) => {
        context.call(
          'cuMemcpyHtoDAsync',
          destination.address + offset,
          bounce.hostAddress + source,
          bytes,
          stream.handle,
        );
      });
      events[slot]!.record(stream);
    },
    whenFree: (slot) => events[slot]!.wait(),
    [Symbol.asyncDispose]: async () => {
      await stream.drained();
      for (const event of events) event[Symbol.dispose]();
    },
  };
}

function cpuCopyMover({ bounce, destination }: MoverOptions): PageMover {
  const to = destination.view();
  return {
    move: (_slot, block) => {
      forEachPage(block, bounce, destination, (source, bytes, offset) => {
        to.set(bounce.bytes.subarray(source, source + bytes), offset);
      });
    },
    whenFree: () => Promise.resolve(),
    [Symbol.asyncDispose]: () => Promise.resolve(),
  };
}

/** Source offsets count from the beginning of the ring. Fails with WL_INVALID_ARGUMENT before a page outside is moved. */
function forEachPage(
  block: DescriptorBlock,
  bounce: Bounce,
  destination: MemorySpan,
  copy: (source: number, bytes: number, offset: number) => void,
): void {
  const { words, count } = block;
  const start = wideAt(words, blockHeaderWord.bounce) - bounce.address;
  for (let index = 0; index < count; index++) {
    const at = BLOCK_HEADER_WORDS + index * FRAGMENT_WORDS;
    const source = start + words[at + fragmentWord.sourceOffset]!;
    const bytes = words[at + fragmentWord.length]!;
    const offset = wideAt(words, at + fragmentWord.destinationOffset);
    if (source + bytes > bounce.bytes.length || offset + bytes > destination.bytes) {
      throw invalidArgument(
        `descriptor ${index} of a chunk`,
        [source, bytes, offset],
        'a range of the ring and of the destination',
      );
    }
    copy(source, bytes, offset);
  }
}
