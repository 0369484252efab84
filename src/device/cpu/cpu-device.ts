// The CPU device: one WebAssembly memory per process that holds tensors, windows and everything the kernels touch.
import { type DType, dtypes, type TypedArrayOf } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import { mapFileOver, mapZeroOver, preferHugePages, releasePages } from '../../native/libc.ts';
import { addressOf } from '../../native/library.ts';
import { readSettings } from '../../settings/settings.ts';
import type { Device } from '../device.ts';
import { elementCount, type Storage, Tensor } from '../tensor.ts';
import { AddressSpace } from './address-space.ts';
import { type CpuKernels, instantiateKernels } from './kernels.ts';
import { wasm, type WasmMemory } from './wasm.ts';

const WASM_PAGE = 65_536;
const PAGE = 4096;
/** Blocks from this size on are worth huge pages. */
const HUGE_BLOCK = 4 << 20;
/** Tensors start on a boundary that suits SIMD loads and two cache lines. */
const TENSOR_ALIGNMENT = 128;

export interface CpuDeviceOptions {
  /** Most memory this rank may address, in MiB; the setting `addressSpaceMiB` by default. */
  readonly addressSpaceMiB?: number;
}

export class CpuDevice implements Device {
  readonly kind = 'cpu';
  readonly memory: WasmMemory;
  readonly kernels: CpuKernels;
  readonly space: AddressSpace;
  readonly #abandoned: FinalizationRegistry<number>;

  /** Makes the memory and compiles the kernels into it. Loads no native library. */
  static async create(options: CpuDeviceOptions = {}): Promise<CpuDevice> {
    const { addressSpaceMiB } = readSettings(options);
    const pages = Math.floor((addressSpaceMiB * 1_048_576) / WASM_PAGE);
    const memory = new wasm.Memory({ initial: 16, maximum: pages, shared: true });
    return new CpuDevice(memory, await instantiateKernels(memory), pages);
  }

  private constructor(memory: WasmMemory, kernels: CpuKernels, pages: number) {
    this.memory = memory;
    this.kernels = kernels;
    // The first page belongs to the module's own data; the last one stays unused, so that every end is a 32-bit number.
    this.space = new AddressSpace(WASM_PAGE, Math.min(pages, 65_535) * WASM_PAGE);
    // A safety net: a tensor that nobody disposed frees its memory when it is collected.
    this.#abandoned = new FinalizationRegistry((address) => this.#release(address));
  }

  empty<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    return new Tensor(this.allocate(elementCount(shape) * dtypes[dtype].bytes), dtype, shape);
  }

  async tensor<D extends DType>(dtype: D, shape: readonly number[], values: TypedArrayOf[D]): Promise<Tensor<D>> {
    const tensor = this.empty(dtype, shape);
    await tensor.fromHost(values);
    return tensor;
  }

  /** Uninitialised bytes; disposed by the caller, or with the last tensor over them. */
  allocate(bytes: number, alignment: number = TENSOR_ALIGNMENT): Storage {
    const address = this.space.take(bytes, alignment);
    this.#commit(address + bytes);
    if (bytes >= HUGE_BLOCK && process.platform === 'linux') this.#preferHugePages(address, bytes);
    const storage = new CpuStorage(this, address, bytes, () => {
      this.#abandoned.unregister(storage);
      this.#release(address);
    });
    this.#abandoned.register(storage, address, storage);
    return storage;
  }

  /**
   * Maps a whole shared file, so that kernels and peers see the same bytes. `bytes` must be the file's size. `populate`
   * sets up the page tables at once, which allocates what the file does not hold yet.
   */
  mapFile(fd: number, bytes: number, populate = false): Storage {
    const address = this.space.take(bytes, WASM_PAGE);
    try {
      this.#commit(address + bytes);
      mapFileOver({ address: this.#base() + BigInt(address), bytes, fd, populate });
    } catch (error) {
      this.space.release(address);
      throw error;
    }
    return new CpuStorage(this, address, bytes, () => {
      mapZeroOver(this.#base() + BigInt(address), bytes);
      this.space.release(address);
    });
  }

  /**
   * Gives the pages of freed tensors back to the system. They are kept otherwise, because touching a fresh page costs as
   * much as copying it a few times.
   */
  releaseUnused(): void {
    for (const gap of this.space.gaps()) {
      const start = Math.ceil(gap.start / PAGE) * PAGE;
      const end = Math.floor(Math.min(gap.end, this.memory.buffer.byteLength) / PAGE) * PAGE;
      if (end > start) releasePages(this.#base() + BigInt(start), end - start);
    }
  }

  hostView<D extends DType>(dtype: D, address: number, elements: number): TypedArrayOf[D] {
    return new dtypes[dtype].array(
      this.memory.buffer as unknown as ArrayBuffer,
      address,
      elements,
    ) as unknown as TypedArrayOf[D];
  }

  upload<D extends DType>(tensor: Tensor<D>, values: TypedArrayOf[D]): Promise<void> {
    const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    this.hostView('u8', tensor.address, tensor.bytes).set(bytes);
    return Promise.resolve();
  }

  download<D extends DType>(tensor: Tensor<D>): Promise<TypedArrayOf[D]> {
    const copy = new Uint8Array(tensor.bytes);
    copy.set(this.hostView('u8', tensor.address, tensor.bytes));
    return Promise.resolve(new dtypes[tensor.dtype].array(copy.buffer) as unknown as TypedArrayOf[D]);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return Promise.resolve();
  }

  /** Address of byte 0 in the process; V8 never moves a shared memory. */
  #base(): bigint {
    return addressOf(new Uint8Array(this.memory.buffer, 0, 8));
  }

  /** Grows the memory to hold `end` bytes; the system hands out pages only when they are touched. */
  #commit(end: number): void {
    const missing = end - this.memory.buffer.byteLength;
    if (missing <= 0) return;
    const room = this.space.limit - this.memory.buffer.byteLength;
    const step = Math.min(room, Math.max(missing, 64 << 20));
    try {
      this.memory.grow(Math.ceil(step / WASM_PAGE));
    } catch (cause) {
      throw new WeftlineError('WL_MEMORY', `Cannot grow this rank's memory to ${end} bytes: the system refused it`, {
        details: { end },
        cause,
      });
    }
  }

  #preferHugePages(address: number, bytes: number): void {
    const start = Math.ceil(address / PAGE) * PAGE;
    preferHugePages(this.#base() + BigInt(start), Math.floor((address + bytes - start) / PAGE) * PAGE);
  }

  #release(address: number): void {
    this.space.release(address);
  }
}

class CpuStorage implements Storage {
  readonly device: CpuDevice;
  readonly address: number;
  readonly bytes: number;
  readonly #free: () => void;
  #disposed = false;

  constructor(device: CpuDevice, address: number, bytes: number, free: () => void) {
    this.device = device;
    this.address = address;
    this.bytes = bytes;
    this.#free = free;
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  [Symbol.dispose](): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#free();
  }
}
