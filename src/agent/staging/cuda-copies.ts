// Copies of one GPU for staging: on a stream for each way, by copy engines, or by a kernel where many small ones go together.
import type { channelPutArguments } from '../../abi/device-api.ts';
import { WeftlineError } from '../../core/errors.ts';
import { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { CudaEvent } from '../../device/cuda/cuda-event.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import { channelKernels } from '../../device/cuda/kernels/device-api.ts';
import type { HostMemory } from '../../device/cuda/host-memory.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import { StreamWrites } from '../../device/cuda/stream-writes.ts';
import type { Settings } from '../../settings/settings.ts';
import { type CopyRun, type CopyWay, type DeviceCopies, NO_TICKET } from './device-copies.ts';
import type { StagingGpu } from './device-table.ts';
import { ScatteredCopies } from './scattered-copies.ts';
import { PinnedRings } from './pinned-rings.ts';
import { ringBytesOf, type RingShape } from './ring-memory.ts';

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
        // Those before the one that failed are under way: who waits for the device waits for them.
        queue.mark();
        throw error;
      }
    }
    return queue.mark();
  }

  #copyEach(way: CopyWay, { to, from, bytes, count }: CopyRun, { handle }: CudaStream): void {
    const { context } = this.#device;
    const { driver } = context;
    context.enter();
    context.workCount += 1;
    for (let at = 0; at < count; at++) {
      if (way === 'out') {
        const status = driver.cuMemcpyDtoHAsync(to[at]!, from[at]!, bytes[at]!, handle);
        if (status !== 0) context.check('cuMemcpyDtoHAsync', status);
      } else {
        const status = driver.cuMemcpyHtoDAsync(to[at]!, from[at]!, bytes[at]!, handle);
        if (status !== 0) context.check('cuMemcpyHtoDAsync', status);
      }
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
      // Those who wait for the work hear why it failed.
      return false;
    }
  }

  async close(): Promise<void> {
    await Promise.allSettled([this.#in.stream.drained(), this.#out.stream.drained()]);
    await this.#scattered?.close();
  }

  async #prepare(): Promise<void> {
    const { channelPut } = await this.#device.loadKernels(channelKernels);
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
