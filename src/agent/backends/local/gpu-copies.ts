// Copies to and from memory of GPUs: enqueued on a stream of their own, done when an event behind them is. Copy engines make
// them, or a kernel where many small ranges go together.
import { COPY_PIECE_BYTES, COPY_RANGES_THREADS, copyRow, type copyRangesArguments } from '../../../abi/copy-ranges.ts';
import { putWide, wordOffsets } from '../../../abi/layout.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { log } from '../../../core/log.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../../device/cuda/cuda-event.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import type { HostMemory } from '../../../device/cuda/host-memory.ts';
import type { LaunchPlan } from '../../../device/cuda/kernel.ts';
import { kernelFiles } from '../../../device/cuda/kernel-files.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { PartTable } from '../../../transport/part-table.ts';
import type { PlannedTransfer } from '../../backend.ts';
import type { DeviceWork } from './peer-mailbox.ts';

/** The copies of one prepared transfer, and how far they have come. Hot path after construction: no allocation. */
export interface CopyPlan {
  readonly bytes: number;
  /** So little that `post` copies it itself. */
  readonly isShort: boolean;
  /** Finds out how much it is: the parts are others than before. */
  measure(): void;
  /** Starts from the beginning again. */
  begin(): void;
  /** Goes on. True when all bytes are where they belong. Throws when that cannot be. */
  advance(): boolean;
  /** True if nothing works on copies of earlier posts any more. A GPU may, even after a post has failed or was cancelled. */
  isOver(): boolean;
  /** Resolves when that is so. Fails with WL_TIMEOUT. */
  over(): Promise<void>;
  close(): void;
}

/** Up to this much is copied, or given to a GPU, within `post`: less than a millisecond. */
export const INLINE_BYTES: number = 4 << 20;

type Plan = LaunchPlan<keyof typeof copyRangesArguments.offset>;

/** The copy engine takes a call for each range, of some microseconds: for fewer, or longer ones, that is no slower. */
const MIN_RANGES = 8;
const MAX_AVERAGE_BYTES = 1 << 20;
/** Up to here on average, warps move several pieces at a time. */
const SMALL_BYTES = 1024;
/** Pieces of larger ranges that a warp takes at a time: more, and the last warps work alone for longer. */
const MAX_LARGE_PIECES = 8;
/** Thread blocks, each of which fills a multiprocessor: enough to fill the links between two GPUs. */
const MAX_BLOCKS = 16;
const MAX_PIECES = 2 ** 31;

/** The kernel that copies ranges, on one GPU. */
export class RangeKernel {
  static readonly #ofDevices = new WeakMap<CudaDevice, Promise<RangeKernel | undefined>>();
  readonly device: CudaDevice;
  readonly #small: Plan;
  readonly #large: Plan;

  /** Compiled and loaded at the first call. Undefined where it cannot be had: copy engines do its work then. */
  static of(device: CudaDevice): Promise<RangeKernel | undefined> {
    let known = RangeKernel.#ofDevices.get(device);
    if (known === undefined) {
      known = RangeKernel.#create(device).catch((error: unknown) => {
        log('agent', 'warn', `Small ranges of GPU memory are copied one by one: ${(error as Error).message}`);
        return undefined;
      });
      RangeKernel.#ofDevices.set(device, known);
    }
    return known;
  }

  static async #create(device: CudaDevice): Promise<RangeKernel> {
    const { copyRangesSmall, copyRangesLarge } = await device.loadKernels(kernelFiles.copyRanges);
    const shape = { grid: 1, block: COPY_RANGES_THREADS };
    const kernel = new RangeKernel(device, copyRangesSmall.plan(shape), copyRangesLarge.plan(shape));
    // The driver puts off loading until the first launch, which would wait for kernels that run.
    const stream = device.createStream();
    for (const plan of [kernel.#small, kernel.#large]) plan.launch(stream);
    await stream.idle();
    stream[Symbol.dispose]();
    return kernel;
  }

  private constructor(device: CudaDevice, small: Plan, large: Plan) {
    this.device = device;
    this.#small = small;
    this.#large = large;
  }

  /** Hot path. Enqueues the copies of a table of rows. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per post
  launch(rows: number, { count, pieces }: CopyRows, isSmall: boolean, stream: CudaStream): void {
    const plan = isSmall ? this.#small : this.#large;
    const blocks = Math.min(MAX_BLOCKS, this.device.properties.multiprocessors);
    const warps = blocks * (COPY_RANGES_THREADS / 32);
    const set = plan.arguments;
    const piecesOfWarp = Math.min(isSmall ? 32 : MAX_LARGE_PIECES, Math.max(1, Math.ceil(pieces / warps)));
    set.set('rows', rows);
    set.set('count', count);
    set.set('pieces', pieces);
    set.set('piecesOfWarp', piecesOfWarp);
    plan.setGrid(Math.min(blocks, Math.ceil(pieces / piecesOfWarp)));
    plan.launch(stream);
  }
}

/** True if a kernel may be the one to copy these parts. */
export function isMany({
  parts,
  isBySelection,
}: Pick<PlannedTransfer<unknown, unknown>, 'parts' | 'isBySelection'>): boolean {
  return isBySelection || parts.sums().ranges >= MIN_RANGES;
}

const word = wordOffsets(copyRow);
const ROW_WORDS = copyRow.size / 4;

/** The rows of a transfer as the kernel reads them, in memory of the GPU. */
class CopyRows {
  count = 0;
  pieces = 0;
  readonly #kernel: RangeKernel;
  readonly #pinned: HostMemory;
  readonly #words: Uint32Array;
  readonly #rows: Tensor;
  #isUploaded = false;

  /** Fails with WL_MEMORY. */
  constructor(kernel: RangeKernel, capacity: number) {
    this.#kernel = kernel;
    this.#pinned = kernel.device.allocateHost(capacity * copyRow.size);
    try {
      this.#rows = kernel.device.empty('u8', [capacity * copyRow.size]);
    } catch (error) {
      this.#pinned[Symbol.dispose]();
      throw error;
    }
    this.#words = new Uint32Array(this.#pinned.buffer);
  }

  /** Hot path: no allocation. Writes the rows of what one GPU copies. Nothing that was enqueued may still read the rows. */
  fill({ locals, remotes }: GpuWay, { parts, isRead }: GpuCopiesOptions): void {
    const words = this.#words;
    let [count, pieces] = [0, 0];
    for (let row = 0; row < parts.count; row++) {
      const local = locals[parts.local[row]!]! + parts.localOffset[row]!;
      if (Number.isNaN(local)) continue;
      const remote = remotes[parts.remote[row]!]! + parts.remoteOffset[row]!;
      const bytes = parts.bytes[row]!;
      // The kernel divides by it, also for ranges of no bytes.
      const piecesOfRange = Math.max(1, Math.ceil(bytes / COPY_PIECE_BYTES));
      const at = count * ROW_WORDS;
      putWide(words, at + word.from, isRead ? remote : local);
      putWide(words, at + word.to, isRead ? local : remote);
      putWide(words, at + word.fromStride, isRead ? parts.remoteStride[row]! : parts.localStride[row]!);
      putWide(words, at + word.toStride, isRead ? parts.localStride[row]! : parts.remoteStride[row]!);
      putWide(words, at + word.bytes, bytes);
      words[at + word.firstPiece] = pieces;
      words[at + word.piecesOfRange] = piecesOfRange;
      count++;
      pieces += piecesOfRange * parts.ranges[row]!;
    }
    this.count = count;
    this.pieces = pieces;
    this.#isUploaded = false;
  }

  /** Hot path. The rows stay in memory of the GPU until others are filled in. */
  enqueue(stream: CudaStream, isSmall: boolean): void {
    if (this.count === 0) return;
    const { context } = this.#kernel.device;
    if (!this.#isUploaded) {
      const bytes = this.count * copyRow.size;
      const status = context.driver.cuMemcpyHtoDAsync(
        this.#rows.address,
        this.#pinned.hostAddress,
        bytes,
        stream.handle,
      );
      if (status !== 0) context.check('cuMemcpyHtoDAsync', status, `${bytes} bytes of rows`);
      this.#isUploaded = true;
    }
    this.#kernel.launch(this.#rows.address, this, isSmall, stream);
  }

  [Symbol.dispose](): void {
    this.#rows.close();
    this.#pinned[Symbol.dispose]();
  }
}

/** What copies to and from one GPU. */
export interface GpuWay {
  readonly device: CudaDevice;
  readonly stream: CudaStream;
  /** Where regions begin, as the GPU sees them; NaN for those of this side that another one copies. */
  readonly locals: ArrayLike<number>;
  readonly remotes: ArrayLike<number>;
  /** Undefined where copy engines alone may copy. */
  readonly kernel: RangeKernel | undefined;
}

interface GpuCopiesOptions {
  readonly parts: PartTable;
  readonly ways: readonly GpuWay[];
  readonly isRead: boolean;
  /** The parts are others for each post. */
  readonly isBySelection: boolean;
  /** What the peer is told of it. */
  readonly work: DeviceWork;
}

interface OpenWay extends GpuWay {
  readonly event: CudaEvent;
  readonly rows: CopyRows | undefined;
  /** Whether the kernel makes the copies of this post. */
  usesKernel: boolean;
}

/**
 * Copies begin when the transfer is posted; they do not wait for work of other streams: what is sent must lie there, as
 * for a copy by the host. Host memory that the driver does not know is copied by the host within `advance`.
 */
export class GpuCopies implements CopyPlan {
  bytes = 0;
  isShort = false;
  readonly #options: GpuCopiesOptions;
  readonly #ways: OpenWay[] = [];
  /** Whether ranges are so short that warps move several together. */
  #isSmall = false;
  #isEnqueued = false;
  /** While a GPU may work on it. */
  #ticket: number | undefined;

  /** Fails with WL_MEMORY. */
  constructor(options: GpuCopiesOptions) {
    this.#options = options;
    const { parts, isBySelection } = options;
    const hasRows = isBySelection || isForKernel(parts.sums());
    try {
      for (const way of options.ways) {
        const { kernel, device } = way;
        const capacity = isBySelection ? parts.capacity : parts.count;
        const rows = kernel === undefined || !hasRows ? undefined : new CopyRows(kernel, capacity);
        this.#ways.push({ ...way, rows, event: device.createEvent(), usesKernel: false });
      }
    } catch (error) {
      this.close();
      throw error;
    }
    this.measure();
  }

  measure(): void {
    const sums = this.#options.parts.sums();
    this.bytes = sums.bytes;
    this.isShort = sums.bytes <= INLINE_BYTES;
    this.#isSmall = sums.bytes <= SMALL_BYTES * sums.ranges;
    // A kernel of an earlier post, which was cancelled, may still read the rows.
    const mayFill = isForKernel(sums) && this.isOver();
    for (const way of this.#ways) {
      const { rows } = way;
      way.usesKernel = mayFill && rows !== undefined;
      if (!mayFill || rows === undefined) continue;
      rows.fill(way, this.#options);
      way.usesKernel = rows.pieces <= MAX_PIECES;
    }
  }

  begin(): void {
    this.#isEnqueued = false;
  }

  advance(): boolean {
    if (!this.#isEnqueued) this.#enqueue();
    return this.#areDone() && this.isOver();
  }

  isOver(): boolean {
    if (this.#ticket === undefined) return true;
    try {
      if (!this.#areDone()) return false;
    } catch {
      // A device that has failed copies nothing more.
    }
    this.#options.work.end(this.#ticket);
    this.#ticket = undefined;
    return true;
  }

  async over(): Promise<void> {
    if (this.isOver()) return;
    for (const { event } of this.#ways) {
      try {
        await event.wait();
      } catch (error) {
        if (error instanceof WeftlineError && error.code === 'WL_TIMEOUT') throw error;
      }
    }
    this.isOver();
  }

  close(): void {
    for (const { event, rows } of this.#ways) {
      event[Symbol.dispose]();
      rows?.[Symbol.dispose]();
    }
  }

  #areDone(): boolean {
    for (let at = 0; at < this.#ways.length; at++) if (!this.#ways[at]!.event.isDone()) return false;
    return true;
  }

  #enqueue(): void {
    // Copies of an earlier post go before these on the streams: their end is that of these.
    this.#ticket ??= this.#options.work.begin();
    this.#isEnqueued = true;
    for (const way of this.#ways) {
      const { context } = way.device;
      context.enter();
      context.workCount += 1;
      try {
        if (way.usesKernel) way.rows!.enqueue(way.stream, this.#isSmall);
        else this.#enqueueEach(way);
      } finally {
        way.event.record(way.stream);
      }
    }
  }

  #enqueueEach({ device: { context }, stream, locals, remotes }: GpuWay): void {
    const { parts, isRead } = this.#options;
    for (let row = 0; row < parts.count; row++) {
      const local = locals[parts.local[row]!]! + parts.localOffset[row]!;
      if (Number.isNaN(local)) continue;
      const remote = remotes[parts.remote[row]!]! + parts.remoteOffset[row]!;
      for (let range = 0; range < parts.ranges[row]!; range++) {
        const here = local + range * parts.localStride[row]!;
        const there = remote + range * parts.remoteStride[row]!;
        const [to, from] = isRead ? [here, there] : [there, here];
        context.check('cuMemcpyAsync', context.driver.cuMemcpyAsync(to, from, parts.bytes[row]!, stream.handle));
      }
    }
  }
}

function isForKernel({ ranges, bytes }: { readonly ranges: number; readonly bytes: number }): boolean {
  return ranges >= MIN_RANGES && bytes <= MAX_AVERAGE_BYTES * ranges;
}
