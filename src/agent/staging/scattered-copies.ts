// Many small copies between the memory of a GPU and a ring, by one kernel: it packs what goes out and unpacks what comes in.
import { MAX_PIECE_FRAGMENTS } from './wire-layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import { DescriptorBlock, PackLauncher, UnpackLauncher } from '../../unpack/index.ts';
import type { CopyRun, CopyWay } from './device-copies.ts';

/** The copy engine takes a call for each copy: for fewer, or longer ones, that is quicker. */
const MIN_COPIES = 8;
const MAX_AVERAGE_BYTES = 32 << 10;
/** As many multiprocessors as memory of the host keeps busy. */
const MULTIPROCESSORS = 4;
/** Launches under way. */
const SLOTS = 64;

/** `full`: there is no room now. `not`: this is nothing for the kernel. */
type Moved = 'moved' | 'full' | 'not';

interface Span {
  address: number;
  bytes: number;
}

export class ScatteredCopies {
  readonly #pack: PackLauncher;
  readonly #unpack: UnpackLauncher;
  readonly #block = new DescriptorBlock(MAX_PIECE_FRAGMENTS);
  readonly #options: { stream: CudaStream };
  readonly #bounce: Span = { address: 0, bytes: 0 };
  readonly #memory: Span = { address: 0, bytes: 0 };

  static async create(device: CudaDevice): Promise<ScatteredCopies> {
    const numSms = Math.min(MULTIPROCESSORS, device.properties.multiprocessors);
    const config = { numSms, pool: { slots: SLOTS } };
    const pack = await PackLauncher.create(device, config);
    try {
      return new ScatteredCopies(pack, await UnpackLauncher.create(device, config), device.stream);
    } catch (error) {
      await pack.close();
      throw error;
    }
  }

  private constructor(pack: PackLauncher, unpack: UnpackLauncher, stream: CudaStream) {
    this.#pack = pack;
    this.#unpack = unpack;
    this.#options = { stream };
  }

  /** Hot path: no allocation. Enqueued on the stream. */
  move(way: CopyWay, run: CopyRun, stream: CudaStream): Moved {
    const { count, bytes } = run;
    if (count < MIN_COPIES || sumOf(bytes, count) > MAX_AVERAGE_BYTES * count) return 'not';
    const bounce = way === 'out' ? run.to : run.from;
    const memory = way === 'out' ? run.from : run.to;
    const [here, there] = [this.#bounce, this.#memory];
    setSpan(here, bounce, run);
    setSpan(there, memory, run);
    const block = this.#block.begin(here, there);
    for (let at = 0; at < count; at++) block.add(bounce[at]! - here.address, bytes[at]!, memory[at]! - there.address);
    this.#options.stream = stream;
    try {
      (way === 'out' ? this.#pack : this.#unpack).launch(block, this.#options);
      return 'moved';
    } catch (error) {
      if (!(error instanceof WeftlineError)) throw error;
      if (error.code === 'WL_BUSY') return 'full';
      // Places that overlap: copies one after another have an order.
      if (error.code === 'WL_INVALID_ARGUMENT') return 'not';
      throw error;
    }
  }

  async close(): Promise<void> {
    await this.#pack.close();
    await this.#unpack.close();
  }
}

function sumOf(bytes: Float64Array, count: number): number {
  let sum = 0;
  for (let at = 0; at < count; at++) sum += bytes[at]!;
  return sum;
}

/** All that the addresses begin. */
function setSpan(span: Span, addresses: Float64Array, { bytes, count }: CopyRun): void {
  let least = addresses[0]!;
  let end = 0;
  for (let at = 0; at < count; at++) {
    least = Math.min(least, addresses[at]!);
    end = Math.max(end, addresses[at]! + bytes[at]!);
  }
  span.address = least;
  span.bytes = end - least;
}
