// Puts and signals into memory of a GPU of this host, in order, on a stream of the channel. Hot path: no allocation.
import { asWeftlineError, WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { CudaStream } from '../../../device/cuda/cuda-stream.ts';
import type { HostMemory } from '../../../device/cuda/host-memory.ts';
import { channelKernels } from '../../../device/cuda/kernels/channel.ts';
import type { LaunchPlan } from '../../../device/cuda/launch-plan.ts';
import { StreamWrites } from '../../../device/cuda/stream-writes.ts';
import type { DeviceWork } from './device-work.ts';
import type { channelPutArguments } from '../../../abi/channel-arguments.ts';

/** Up to here one block of a kernel copies faster than the copy engine starts; beyond, that needs no multiprocessor. */
const KERNEL_BYTES = 32 << 10;
const THREADS = 256;
/** Enqueued and not yet done. */
const MAX_PENDING = 512;
/** Words of one call, the news of the last of them included. */
const MAX_WRITES = 33;
const TWO_32 = 2 ** 32;

type PutPlan = LaunchPlan<keyof typeof channelPutArguments.offset>;

export class LocalCudaChannel {
  readonly device: CudaDevice;
  readonly #stream: CudaStream;
  readonly #done: HostMemory;
  readonly #doneWord: Int32Array;
  /** Held back, to go in one call; never while a put is. Undefined where the driver cannot write words. */
  readonly #writes: StreamWrites | undefined;
  #plan: PutPlan | undefined;
  #error: WeftlineError | undefined;
  #posted = 0;
  #delivered = 0;
  /** A put that waits a moment for its signal, to go with it in one launch; of 0 bytes when a copy engine makes it. */
  #isHeld = false;
  #to = 0;
  #from = 0;
  #bytes = 0;
  readonly #work: DeviceWork;
  /** What the peer was told of: operations since the last look, and the earlier ones, up to number `#sealedAt`. */
  #ticket: number | undefined;
  #sealed: number | undefined;
  #sealedAt = 0;

  /** Its kernel is compiled, loaded, and has run once. Until then nothing can be posted. */
  readonly ready: Promise<void>;

  constructor(device: CudaDevice, work: DeviceWork) {
    this.device = device;
    this.#work = work;
    this.#stream = device.createStream({ priority: 'high' });
    this.#done = device.allocateHost(4);
    this.#doneWord = this.#done.view('i32');
    if (StreamWrites.isSupported(device.context)) this.#writes = new StreamWrites(device.context, MAX_WRITES);
    this.ready = this.#prepare();
    this.ready.catch((error: unknown) => (this.#error = asWeftlineError(error)));
  }

  /** Whether streams can store words. */
  get canStore(): boolean {
    return this.#writes !== undefined;
  }

  get error(): WeftlineError | undefined {
    return this.#error;
  }

  get posted(): number {
    return this.#posted;
  }

  get delivered(): number {
    // The word is a number of 32 bits, which the count continues.
    const news = (Atomics.load(this.#doneWord, 0) - this.#delivered) | 0;
    this.#delivered += news;
    return this.#delivered;
  }

  put(to: number, from: number, bytes: number): boolean {
    if (!this.#hasRoom()) return false;
    this.flush();
    if (bytes > KERNEL_BYTES) {
      const { context } = this.device;
      context.call('cuMemcpyDtoDAsync', to, from, bytes, this.#stream.handle);
      context.workCount += 1;
      this.#posted += 1;
      this.#hold(0, 0, 0);
    } else {
      this.#posted += 1;
      this.#hold(to, from, bytes);
    }
    return true;
  }

  /** A known sum is written by the stream, which a kernel that adds takes three times as long for. */
  signal(counter: number, add: number, sum: number | undefined): boolean {
    if (!this.#hasRoom()) return false;
    if (sum !== undefined && this.#writes !== undefined && this.#bytes === 0) {
      return this.#write(this.#writes, counter, sum % TWO_32, Math.floor(sum / TWO_32));
    }
    if (this.#writes !== undefined && this.#writes.count > 0) this.#send(this.#writes);
    this.#posted += 1;
    if (!this.#isHeld) this.#hold(0, 0, 0);
    this.#launch(counter, add);
    return true;
  }

  store(address: number, low: number, high: number): boolean {
    if (this.#writes === undefined) {
      throw new WeftlineError(
        'WL_UNSUPPORTED',
        'The driver cannot write 64-bit words from a stream: words go to this GPU only where kernels reach it directly',
      );
    }
    if (!this.#hasRoom()) return false;
    if (this.#bytes > 0) this.#launch(0, 0);
    return this.#write(this.#writes, address, low, high);
  }

  /** Enqueues what is held back. */
  flush(): void {
    if (!this.#isHeld) return;
    if (this.#bytes > 0 || this.#writes === undefined) this.#launch(0, 0);
    else this.#send(this.#writes);
  }

  /** To be called now and then: tells the peer what is over. */
  settle(): void {
    if (this.#sealed !== undefined && this.#isOver(this.#sealedAt)) {
      this.#work.end(this.#sealed);
      this.#sealed = undefined;
    }
    if (this.#sealed !== undefined || this.#ticket === undefined) return;
    this.#sealed = this.#ticket;
    this.#sealedAt = this.#posted;
    this.#ticket = undefined;
  }

  /** Resolves when what was posted is over. Fails with WL_TIMEOUT. */
  async idle(): Promise<void> {
    if (this.#error === undefined) this.flush();
    await this.#stream.drained();
  }

  /** Waits for what runs. */
  async close(): Promise<void> {
    if (!this.device.context.disposed) await this.#stream.idle().catch(() => undefined);
    for (const ticket of [this.#sealed, this.#ticket]) if (ticket !== undefined) this.#work.end(ticket);
    if (this.device.context.disposed) return;
    this.#stream[Symbol.dispose]();
    this.#done[Symbol.dispose]();
  }

  async #prepare(): Promise<void> {
    const { channelPut } = await this.device.loadKernels(channelKernels);
    const plan = channelPut.plan({ grid: 1, block: THREADS });
    plan.arguments.set('done', this.#done.deviceAddress);
    // The driver puts off loading until the first launch, which would wait for kernels that run.
    plan.launch(this.#stream);
    this.#writes?.add32(this.#done.deviceAddress, 0);
    this.#writes?.enqueue(this.#stream);
    await this.#stream.idle();
    this.#plan = plan;
  }

  /** What follows a true one is posted. */
  #hasRoom(): boolean {
    if (this.#error !== undefined) throw this.#error;
    if (this.#plan === undefined || this.#posted - this.delivered >= MAX_PENDING) return false;
    this.#ticket ??= this.#work.begin();
    return true;
  }

  /** A channel that has failed delivers nothing more. */
  #isOver(posted: number): boolean {
    if (this.delivered >= posted) return true;
    try {
      return this.#error !== undefined && this.#stream.isIdle();
    } catch {
      return true;
    }
  }

  #hold(to: number, from: number, bytes: number): void {
    this.#isHeld = true;
    this.#to = to;
    this.#from = from;
    this.#bytes = bytes;
  }

  #write(writes: StreamWrites, address: number, low: number, high: number): boolean {
    writes.add64(address, low, high);
    this.#isHeld = true;
    this.#posted += 1;
    if (writes.count === MAX_WRITES - 1) this.#send(writes);
    return true;
  }

  /** What is held, with the news of all that was posted; no put that a kernel makes is among it. */
  #send(writes: StreamWrites): void {
    this.#isHeld = false;
    writes.add32(this.#done.deviceAddress, this.#posted >>> 0);
    try {
      writes.enqueue(this.#stream);
    } catch (error) {
      this.#error = asWeftlineError(error);
      throw this.#error;
    }
  }

  #launch(counter: number, add: number): void {
    const plan = this.#plan as PutPlan;
    const block = plan.arguments;
    block.set('to', this.#to);
    block.set('from', this.#from);
    block.set('bytes', this.#bytes);
    block.set('counter', counter);
    block.set('add', add);
    block.set('operations', this.#posted >>> 0);
    this.#isHeld = false;
    this.#bytes = 0;
    try {
      plan.launch(this.#stream);
    } catch (error) {
      this.#error = asWeftlineError(error);
      throw this.#error;
    }
  }
}
