// Words that a stream writes to memory of GPUs and hosts by itself, several in one call. Hot path: no allocation.
import { NativeBlock, type Out } from '../../native/library.ts';
import type { CudaContext } from './cuda-context.ts';
import type { CudaStream } from './cuda-stream.ts';

// Structures of the CUDA driver that are filled in as numbers.

/** CUstreamBatchMemOpParams, in words of 32 bits: operation, address, value, flags. */
const streamWriteWord = { operation: 0, address: 2, value: 4 } as const;
const STREAM_WRITE_WORDS = 12;

const WRITE_32_BITS = 2;
const WRITE_64_BITS = 5;
/** Of CUdevice_attribute: whether batches may write 64 bits. */
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

  /** At a multiple of 8. The caller counts to the capacity. */
  add64(address: number, low: number, high: number): void {
    this.#add(WRITE_64_BITS, address, low);
    this.#block.words[(this.#count - 1) * STREAM_WRITE_WORDS + streamWriteWord.value + 1] = high;
  }

  /** At a multiple of 4. */
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
