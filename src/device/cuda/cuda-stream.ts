// A queue of device work that runs in order, and beside other streams.
import { checkTimeout, type WaitOptions } from '../../core/deadline.ts';
import { CUDA_ERROR_NOT_READY, type CudaContext, OwnedResource } from './cuda-context.ts';
import { CudaEvent, pollUntil } from './cuda-event.ts';
import { NativeBlock, type Out } from '../../native/library.ts';

// Tells when everything that was enqueued on any stream of a device up to some moment is done.

export interface Fence {
  isPassed(): boolean;
}

export class WorkFences {
  readonly #context: CudaContext;
  readonly #streams: ReadonlySet<CudaStream>;
  readonly #idleEvents: CudaEvent[] = [];
  #latest: StreamFence | undefined;
  #latestWork = -1;

  constructor(context: CudaContext, streams: ReadonlySet<CudaStream>) {
    this.#context = context;
    this.#streams = streams;
  }

  /** A fence after all work enqueued so far; the same one until more work follows. */
  now(): Fence {
    if (this.#latest !== undefined && this.#latestWork === this.#context.workCount) return this.#latest;
    const events: CudaEvent[] = [];
    for (const stream of this.#streams) {
      const event = this.#idleEvents.pop() ?? new CudaEvent(this.#context, { timing: false, timeoutMs: 0 });
      events.push(event.record(stream));
    }
    this.#latest = new StreamFence(events, this.#idleEvents);
    this.#latestWork = this.#context.workCount;
    return this.#latest;
  }
}

class StreamFence implements Fence {
  readonly #events: CudaEvent[];
  readonly #idleEvents: CudaEvent[];

  constructor(events: CudaEvent[], idleEvents: CudaEvent[]) {
    this.#events = events;
    this.#idleEvents = idleEvents;
  }

  isPassed(): boolean {
    for (let last = this.#events.at(-1); last !== undefined; last = this.#events.at(-1)) {
      if (!last.isDone()) return false;
      this.#events.pop();
      this.#idleEvents.push(last);
    }
    return true;
  }
}

const NON_BLOCKING = 1;

interface StreamOptions {
  /** `high`: its blocks are scheduled before those of other streams. */
  readonly priority: 'normal' | 'high';
  readonly timeoutMs: number;
}

export class CudaStream extends OwnedResource {
  /** CUstream. */
  readonly handle: number;
  readonly #timeoutMs: number;
  readonly #onDispose: (stream: CudaStream) => void;

  /** @internal Use device.createStream(). Never waits for the legacy default stream. */
  constructor(context: CudaContext, options: StreamOptions, onDispose: (stream: CudaStream) => void) {
    super(context);
    const least: Out = [0];
    const greatest: Out = [0];
    context.call('cuCtxGetStreamPriorityRange', least, greatest);
    const handle: Out = [0];
    const priority = options.priority === 'high' ? greatest[0] : least[0];
    context.call('cuStreamCreateWithPriority', handle, NON_BLOCKING, priority);
    this.handle = handle[0];
    this.#timeoutMs = options.timeoutMs;
    this.#onDispose = onDispose;
    context.own(this);
  }

  /** What is enqueued from now on starts after the event's mark; the host goes on at once. */
  waitFor(event: CudaEvent): void {
    this.context.enter();
    this.context.check('cuStreamWaitEvent', this.context.driver.cuStreamWaitEvent(this.handle, event.handle, 0));
  }

  /** True when everything enqueued is done. Does not wait. */
  isIdle(): boolean {
    this.context.refuseCapture('a look of the host at a stream');
    this.context.enter();
    const status = this.context.driver.cuStreamQuery(this.handle);
    if (status === CUDA_ERROR_NOT_READY) return false;
    this.context.check('cuStreamQuery', status);
    return true;
  }

  /** Resolves when everything enqueued is done. Fails with WL_TIMEOUT, or WL_CUDA when that work failed. */
  idle(options: WaitOptions = {}): Promise<void> {
    return this.#until(() => this.context.isGood(this.isIdle(), this.handle), options);
  }

  /**
   * The same, before memory is released: kernels that left without doing their work count as done. The next wait
   * for results still throws their failure, once.
   */
  drained(options: WaitOptions = {}): Promise<void> {
    return this.#until(() => this.isIdle(), options);
  }

  async #until(ready: () => boolean, options: WaitOptions): Promise<void> {
    this.context.refuseCapture('a wait of the host for a stream');
    await pollUntil(ready, {
      timeoutMs: checkTimeout(options.timeoutMs ?? this.#timeoutMs),
      signal: options.signal,
      what: `The work of a stream of GPU ${this.context.ordinal}`,
    });
  }

  /** @internal */
  override release(): void {
    this.#onDispose(this);
    this.context.release('cuStreamDestroy', this.handle);
  }
}

// Words that a stream writes to memory of GPUs and hosts by itself, several in one call. Hot path: no allocation.

// Structures of the CUDA driver that are filled in as numbers.

/** CUstreamBatchMemOpParams, in words of 32 bits: operation, address, value, flags. */
const streamWriteWord = { operation: 0, address: 2, value: 4 } as const;
const STREAM_WRITE_WORDS = 12;

const WRITE_32_BITS = 2;
const WRITE_64_BITS = 5;
/** CUdevice_attribute that tells whether batches may write 64 bits. */
const CAN_WRITE_64_BITS = 122;
const TWO_32 = 2 ** 32;

/**
 * A batch. Each write comes after all work that was enqueued before it, and is visible to all GPUs and the host when the
 * next one is. Unlike a kernel it needs no multiprocessor, and it is called in a quarter of the time.
 */
export class StreamWrites {
  readonly #context: CudaContext;
  readonly #block: NativeBlock;
  #count = 0;

  /** False where the driver writes 32 bits at most. */
  static isSupported(context: CudaContext): boolean {
    const can: Out = [0];
    context.call('cuDeviceGetAttribute', can, CAN_WRITE_64_BITS, context.device);
    return can[0] === 1;
  }

  constructor(context: CudaContext, capacity: number) {
    this.#context = context;
    this.#block = new NativeBlock(capacity * STREAM_WRITE_WORDS * 4);
  }

  /** Added and not enqueued. */
  get count(): number {
    return this.#count;
  }

  /** Adds a write at a multiple of 8. The caller counts to the capacity. */
  add64(address: number, low: number, high: number): void {
    this.#add(WRITE_64_BITS, address, low);
    this.#block.words[(this.#count - 1) * STREAM_WRITE_WORDS + streamWriteWord.value + 1] = high;
  }

  /** Adds a write at a multiple of 4. */
  add32(address: number, value: number): void {
    this.#add(WRITE_32_BITS, address, value);
  }

  /** Empties the batch, whether or not the driver takes it. Fails with WL_CUDA. */
  enqueue(stream: CudaStream): void {
    const context = this.#context;
    const count = this.#count;
    this.#count = 0;
    context.enter();
    context.workCount += 1;
    const status = context.driver.cuStreamBatchMemOp(stream.handle, count, this.#block.address, 0);
    if (status !== 0) context.check('cuStreamBatchMemOp', status);
  }

  #add(operation: number, address: number, low: number): void {
    const { words } = this.#block;
    const at = this.#count * STREAM_WRITE_WORDS;
    words[at + streamWriteWord.operation] = operation;
    words[at + streamWriteWord.address] = address % TWO_32;
    words[at + streamWriteWord.address + 1] = Math.floor(address / TWO_32);
    words[at + streamWriteWord.value] = low;
    this.#count += 1;
  }
}
