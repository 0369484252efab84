// Blocks of tensors in the memory that messages lie in as well: a kernel marks them, and all copies are done at once.
import { reductionFormats } from '../../abi/element-formats.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Storage } from '../../device/tensor.ts';
import { type CompletionFlag, MemoryFlag, type TensorBlocks } from './block-reducer.ts';
import { blocksOf, infinityOf, type SlotShape, strideOf } from './slot-shape.ts';
import { noCall, type SparseCall } from './sparse-call.ts';

export class CpuBlocks implements TensorBlocks {
  ownBlocks = 0;
  readonly #device: CpuDevice;
  readonly #shape: SlotShape;
  readonly #stride: number;
  readonly #infinity: number;
  #call: SparseCall = noCall;
  #blocks = 0;
  #blockBytes = 0;
  #bitmapStorage: Storage | undefined;
  #bitmap: Uint8Array = new Uint8Array(0);

  constructor(device: CpuDevice, shape: SlotShape) {
    this.#device = device;
    this.#shape = shape;
    this.#stride = strideOf(shape);
    this.#infinity = infinityOf(shape);
  }

  reserve(count: number): Promise<void> | void {
    const blocks = blocksOf(this.#shape, count);
    if (this.#bitmap.length >= blocks) return;
    const making = this.#device.allocating(() => this.#device.allocate(blocks));
    return making instanceof Promise ? making.then((made) => this.#useBitmap(made)) : this.#useBitmap(making);
  }

  begin(call: SparseCall): void {
    this.#call = call;
    this.#blocks = blocksOf(this.#shape, call.count);
    this.#blockBytes = this.#shape.blockSize * call.elementBytes;
    const { count, dtype, elementBytes, input, output, threshold, isDense } = call;
    if (isDense) {
      this.#bitmap.fill(0, 0, this.#blocks);
      this.ownBlocks = this.#blocks;
      return;
    }
    const bitmap = this.#bitmapStorage?.address ?? 0;
    const { kernels } = this.#device;
    const [bytes, format] = [count * elementBytes, reductionFormats[dtype]];
    this.ownBlocks = kernels.markBlocks(input, bytes, this.#blockBytes, format, threshold, bitmap, output);
  }

  isMarked(): boolean {
    return true;
  }

  has(block: number): boolean {
    return this.#bitmap[block] === 0;
  }

  next(block: number): number {
    const [bitmap, blocks, stride] = [this.#bitmap, this.#blocks, this.#stride];
    for (let next = block + stride; next < blocks; next += stride) if (bitmap[next] === 0) return next;
    return this.#infinity + (block % stride);
  }

  isReady(): boolean {
    return true;
  }

  copyOut(to: number, block: number, run: number): void {
    const [device, blockBytes] = [this.#device, this.#blockBytes];
    const bytes = this.#bytesOf(block, run);
    device.kernels.copyBytes(to, this.#call.input + block * blockBytes, bytes);
    // The rest of the last block is summed as well.
    if (bytes < run * blockBytes) device.hostView('u8', to + bytes, run * blockBytes - bytes).fill(0);
  }

  hasRoom(): boolean {
    return true;
  }

  copyIn(from: number, block: number, run: number): void {
    const to = this.#call.output + block * this.#blockBytes;
    this.#device.kernels.copyBytes(to, from, this.#bytesOf(block, run));
  }

  finish(): boolean {
    return true;
  }

  flagAt(address: number): CompletionFlag {
    return new MemoryFlag(this.#device.hostView('i32', address, 1));
  }

  close(): void {
    this.#bitmapStorage?.[Symbol.dispose]();
    this.#bitmapStorage = undefined;
  }

  #useBitmap(storage: Storage): void {
    this.#bitmapStorage?.[Symbol.dispose]();
    this.#bitmapStorage = storage;
    this.#bitmap = this.#device.hostView('u8', storage.address, storage.bytes);
  }

  /** Bytes of so many blocks, of which the tensor's last one may be shorter. */
  #bytesOf(block: number, run: number): number {
    const { count, elementBytes } = this.#call;
    return Math.min(run * this.#blockBytes, count * elementBytes - block * this.#blockBytes);
  }
}
