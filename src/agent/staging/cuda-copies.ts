// Copies of one GPU for staging: on a stream for each way, by copy engines, or by a kernel where many small ones go together.
import type { channelPutArguments } from '../../abi/device-api.ts';
import { WeftlineError } from '../../core/errors.ts';
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../device/cuda/cuda-event.ts';
import { type CudaStream, StreamWrites } from '../../device/cuda/cuda-stream.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import type { Settings } from '../../settings/settings.ts';
import { DescriptorBlock, PackLauncher, UnpackLauncher } from '../../unpack/index.ts';
import { type CopyRun, type CopyWay, type DeviceCopies, NO_TICKET, type StagingGpu } from './devices.ts';
import { MAX_PIECE_FRAGMENTS, ringBytesOf, type RingShape, type RingStorage, stagingRingHead } from './ring.ts';
import { kernelFiles } from '../../device/cuda/kernel-files.ts';

/** Rings that are there from the beginning: to pin memory later could wait for a kernel that waits for a peer. */
const SPARE_RINGS = 4;
/** All rings together, or as many of this side's own size, whichever is more. */
const MAX_PINNED_BYTES = 2 ** 30;
const MAX_OWN_RINGS = 256;

/** What HostMemory of a GPU offers. */
interface PinnedMemory {
  readonly bytes: number;
  readonly hostAddress: number;
  readonly buffer: ArrayBufferLike;
}

/** Pinned memory for rings. It is kept, because to pin and to free wait for kernels, and bounded, because peers ask for it. */
export class PinnedRings {
  readonly #allocate: (bytes: number) => PinnedMemory;
  readonly #spare: PinnedMemory[] = [];
  readonly #most: number;
  #pinnedBytes = 0;

  /** `ownBytes` is the size of this side's own rings. */
  constructor(allocate: (bytes: number) => PinnedMemory, ownBytes: number) {
    this.#allocate = allocate;
    this.#most = Math.max(MAX_PINNED_BYTES, MAX_OWN_RINGS * ownBytes);
    for (let ring = 0; ring < SPARE_RINGS; ring++) this.#spare.push(this.#pin(ownBytes));
  }

  /** The smallest spare ring that is large enough, else a new one. Fails with WL_CAPACITY beyond the bound. */
  make(bytes: number): RingStorage {
    const memory = this.#takeSpare(bytes) ?? this.#pin(bytes);
    new Uint8Array(memory.buffer, 0, stagingRingHead.size).fill(0);
    return {
      address: memory.hostAddress,
      buffer: memory.buffer,
      byteOffset: 0,
      free: () => void this.#spare.push(memory),
    };
  }

  #takeSpare(bytes: number): PinnedMemory | undefined {
    let best: PinnedMemory | undefined;
    for (const spare of this.#spare) {
      if (spare.bytes >= bytes && (best === undefined || spare.bytes < best.bytes)) best = spare;
    }
    if (best !== undefined) this.#spare.splice(this.#spare.indexOf(best), 1);
    return best;
  }

  #pin(bytes: number): PinnedMemory {
    if (this.#pinnedBytes + bytes > this.#most) {
      throw new WeftlineError(
        'WL_CAPACITY',
        `Cannot pin a ring of ${bytes} bytes for staging: rings hold ${this.#pinnedBytes} of at most ${this.#most} bytes. Close links, or set smaller pieces (WEFTLINE_STAGING_PIECE, WEFTLINE_STAGING_PIECES) on all sides`,
        { details: { bytes, pinnedBytes: this.#pinnedBytes, mostBytes: this.#most } },
      );
    }
    const memory = this.#allocate(bytes);
    this.#pinnedBytes += bytes;
    return memory;
  }
}

/** The copy engine takes a call for each copy: for fewer, or longer ones, that is quicker. */
const MIN_COPIES = 8;
const MAX_AVERAGE_BYTES = 32 << 10;
/** Multiprocessors that memory of the host keeps busy. */
const MULTIPROCESSORS = 4;
/** Launches under way. */
const SLOTS = 64;

/** `full`: there is no room now. `not`: this is nothing for the kernel. */
type Moved = 'moved' | 'full' | 'not';

interface Range {
  address: number;
  bytes: number;
}

/** Many small copies between the memory of a GPU and a ring, by one kernel: it packs what goes out and unpacks what comes in. */
class ScatteredCopies {
  readonly #pack: PackLauncher;
  readonly #unpack: UnpackLauncher;
  readonly #block = new DescriptorBlock(MAX_PIECE_FRAGMENTS);
  readonly #options: { stream: CudaStream };
  readonly #bounce: Range = { address: 0, bytes: 0 };
  readonly #memory: Range = { address: 0, bytes: 0 };

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
    const { count, memory, place, bytes } = run;
    if (count < MIN_COPIES || sumOf(bytes, count) > MAX_AVERAGE_BYTES * count) return 'not';
    const [here, there] = [this.#bounce, this.#memory];
    setRange(here, place, run);
    setRange(there, memory, run);
    const [first, least] = [here.address, there.address];
    here.address += run.address;
    const block = this.#block.begin(here, there);
    for (let at = 0; at < count; at++) block.add(place[at]! - first, bytes[at]!, memory[at]! - least);
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

/** All that begins in those places. */
function setRange(range: Range, places: Float64Array, { bytes, count }: CopyRun): void {
  let least = places[0]!;
  let end = 0;
  for (let at = 0; at < count; at++) {
    least = Math.min(least, places[at]!);
    end = Math.max(end, places[at]! + bytes[at]!);
  }
  range.address = least;
  range.bytes = end - least;
}

/** Pieces of work of one way that may be under way. */
const EVENTS = 128;
const TWO_32 = 2 ** 32;

type PutPlan = LaunchPlan<keyof typeof channelPutArguments.offset>;

/** Work of one way in order: a ticket is the number of a piece of work, and its event is done when that is. */
class WorkQueue {
  readonly stream: CudaStream;
  issued = 0;
  #done = 0;
  readonly #events: readonly CudaEvent[];

  constructor(device: CudaDevice) {
    this.stream = device.createStream({ priority: 'high' });
    this.#events = Array.from({ length: EVENTS }, () => device.createEvent());
  }

  get hasRoom(): boolean {
    return this.issued - this.#done < EVENTS || this.look() > this.issued - EVENTS;
  }

  /** What was enqueued is a piece of work. */
  mark(): number {
    (this.#events[this.issued % EVENTS] as CudaEvent).record(this.stream);
    this.issued++;
    return this.issued;
  }

  /** The last ticket whose work is done. */
  look(): number {
    while (this.#done < this.issued && (this.#events[this.#done % EVENTS] as CudaEvent).isDone()) this.#done++;
    return this.#done;
  }

  isDone(ticket: number): boolean {
    return this.#done >= ticket || this.look() >= ticket;
  }
}

class CudaCopies implements DeviceCopies {
  readonly ready: Promise<void>;
  readonly #device: CudaDevice;
  readonly #out: WorkQueue;
  readonly #in: WorkQueue;
  /** The kernel that adds writes what nobody reads. */
  readonly #unused: HostMemory;
  /** Undefined where the driver cannot write words. */
  readonly #writes: StreamWrites | undefined;
  #plan: PutPlan | undefined;
  /** Undefined where kernels cannot be had. */
  #scattered: ScatteredCopies | undefined;
  #kernelError: unknown;

  constructor(device: CudaDevice) {
    this.#device = device;
    if (StreamWrites.isSupported(device.context)) this.#writes = new StreamWrites(device.context, 1);
    this.#out = new WorkQueue(device);
    this.#in = new WorkQueue(device);
    this.#unused = device.allocateHost(8);
    // Copies need no kernel: without one, only counters whose sum is not known cannot be added to.
    this.ready = this.#prepare().catch((error: unknown) => void (this.#kernelError = error));
  }

  copy(way: CopyWay, run: CopyRun): number {
    const queue = this.#queue(way);
    if (!queue.hasRoom) return NO_TICKET;
    const moved = this.#scattered?.move(way, run, queue.stream) ?? 'not';
    if (moved === 'full') return NO_TICKET;
    if (moved === 'not') {
      try {
        this.#copyEach(way, run, queue.stream);
      } catch (error) {
        // Copies before the one that failed are under way: who waits for the device waits for them.
        queue.mark();
        throw error;
      }
    }
    return queue.mark();
  }

  #copyEach(way: CopyWay, { address, memory, place, bytes, count }: CopyRun, { handle }: CudaStream): void {
    const { context } = this.#device;
    const { driver } = context;
    context.enter();
    context.workCount += 1;
    for (let at = 0; at < count; at++) {
      const status =
        way === 'out'
          ? driver.cuMemcpyDtoHAsync(address + place[at]!, memory[at]!, bytes[at]!, handle)
          : driver.cuMemcpyHtoDAsync(memory[at]!, address + place[at]!, bytes[at]!, handle);
      if (status !== 0) context.check(way === 'out' ? 'cuMemcpyDtoHAsync' : 'cuMemcpyHtoDAsync', status);
    }
  }

  /** A known sum is written by the stream, which needs no multiprocessor: kernels that wait may hold all of them. */
  add(address: number, value: number, sum: number): number {
    const plan = this.#plan;
    if (!this.#in.hasRoom) return NO_TICKET;
    if (sum >= 0 && this.#writes !== undefined) {
      this.#writes.add64(address, sum % TWO_32, Math.floor(sum / TWO_32));
      this.#writes.enqueue(this.#in.stream);
      return this.#in.mark();
    }
    if (plan === undefined) throw this.#kernelError ?? new WeftlineError('WL_CLOSED', 'The GPU is closed');
    plan.arguments.set('counter', address);
    plan.arguments.set('add', value);
    plan.launch(this.#in.stream);
    return this.#in.mark();
  }

  isDone(way: CopyWay, ticket: number): boolean {
    return this.#queue(way).isDone(ticket);
  }

  latest(way: CopyWay): number {
    return this.#queue(way).issued;
  }

  get isBusy(): boolean {
    try {
      return !this.#in.isDone(this.#in.issued) || !this.#out.isDone(this.#out.issued);
    } catch {
      // Callers that wait for the work hear why it failed.
      return false;
    }
  }

  async close(): Promise<void> {
    await Promise.allSettled([this.#in.stream.drained(), this.#out.stream.drained()]);
    await this.#scattered?.close();
  }

  async #prepare(): Promise<void> {
    const { channelPut } = await this.#device.loadKernels(kernelFiles.channel);
    const plan = channelPut.plan({ grid: 1, block: 32 });
    plan.arguments.set('done', this.#unused.deviceAddress);
    // The driver puts off loading until the first launch, which would wait for kernels that run.
    plan.launch(this.#in.stream);
    this.#writes?.add64(this.#unused.deviceAddress, 0, 0);
    this.#writes?.enqueue(this.#in.stream);
    await this.#in.stream.idle();
    this.#plan = plan;
    this.#scattered = await ScatteredCopies.create(this.#device);
  }

  #queue(way: CopyWay): WorkQueue {
    return way === 'in' ? this.#in : this.#out;
  }
}

export async function openStagingGpu(ordinal: number, settings: Settings, shape: RingShape): Promise<StagingGpu> {
  const { timeoutMs, nvrtcPath, cacheFolder, aotFolder, useAot } = settings;
  const device = await CudaDevice.create({ ordinal, timeoutMs, nvrtcPath, cacheFolder, aotFolder, useAot });
  try {
    const copies = new CudaCopies(device);
    const rings = new PinnedRings((bytes) => device.allocateHost(bytes), ringBytesOf(shape));
    return {
      copies,
      makeStorage: (bytes) => rings.make(bytes),
      async close() {
        await copies.close();
        await device.close();
      },
    };
  } catch (error) {
    await device.close();
    throw error;
  }
}
