// The CPU device: one WebAssembly memory per process that holds tensors, windows and everything the kernels touch.
import { alignUp } from '../../abi/layout.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { type DType, dtypes, requireDType, type TypedArrayOf, typedArrayOver } from '../../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { isWhole } from '../../core/check-options.ts';
import { mapFileOver, mapZeroOver, preferHugePages } from '../../native/libc.ts';
import { addressOf } from '../../native/library.ts';
import { readSettings, settingsTable } from '../../settings/settings.ts';
import { AbandonedMemory } from '../abandoned-memory.ts';
import type { Device } from '../device.ts';
import { elementCount, OwnedStorage, requireDownload, requireUpload, type Storage, Tensor } from '../tensor.ts';
import { addressSpaceAdvice, type CpuKernels, instantiateKernels, wasm, type WasmMemory } from './kernels.ts';

// Hands out ranges of one address space: first fit over a sorted list of gaps, neighbours merged on release.

interface Range {
  start: number;
  end: number;
}

export class AddressSpace {
  readonly #limit: number;
  readonly #gaps: Range[];
  readonly #taken = new Map<number, number>();
  #used = 0;

  /** Manages [start, limit). */
  constructor(start: number, limit: number) {
    this.#limit = limit;
    this.#gaps = [{ start, end: limit }];
  }

  /** Bytes handed out at the moment. */
  get used(): number {
    return this.#used;
  }

  get limit(): number {
    return this.#limit;
  }

  /** The largest single range that could be handed out. */
  get largestGap(): number {
    return this.#gaps.reduce((most, gap) => Math.max(most, gap.end - gap.start), 0);
  }

  /** Takes `bytes` at a multiple of `alignment`. Fails with WL_MEMORY. */
  take(bytes: number, alignment: number): number {
    const size = alignUp(Math.max(bytes, 1), alignment);
    for (let index = 0; index < this.#gaps.length; index++) {
      const gap = this.#gaps[index]!;
      const start = alignUp(gap.start, alignment);
      const end = start + size;
      if (end > gap.end) continue;
      const rest = end < gap.end ? { start: end, end: gap.end } : undefined;
      if (start > gap.start) {
        gap.end = start;
        if (rest !== undefined) this.#gaps.splice(index + 1, 0, rest);
      } else if (rest === undefined) this.#gaps.splice(index, 1);
      else gap.start = end;
      this.#taken.set(start, size);
      this.#used += size;
      return start;
    }
    throw new WeftlineError(
      'WL_MEMORY',
      `Cannot take ${formatBytes(bytes)} of this rank's address space: ${formatBytes(this.#used)} of ${formatBytes(this.#limit)} are in use and the largest gap is ${formatBytes(this.largestGap)}; close tensors and buffers, or use fewer tokens per rank`,
      { details: { bytes, used: this.#used, limit: this.#limit, largestGap: this.largestGap } },
    );
  }

  /** Gives a range back by its start. Returns its size. */
  release(start: number): number {
    const size = this.#taken.get(start);
    if (size === undefined) throw new WeftlineError('WL_INTERNAL', `Address ${start} is not in use`);
    this.#taken.delete(start);
    this.#used -= size;
    let index = this.#gaps.findIndex((gap) => gap.start > start);
    if (index === -1) index = this.#gaps.length;
    const before = this.#gaps[index - 1];
    const after = this.#gaps[index];
    const merged = { start, end: start + size };
    let from = index;
    let count = 0;
    if (before?.end === merged.start) {
      merged.start = before.start;
      from = index - 1;
      count += 1;
    }
    if (after?.start === merged.end) {
      merged.end = after.end;
      count += 1;
    }
    this.#gaps.splice(from, count, merged);
    return size;
  }
}

const WASM_PAGE = 65_536;
const PAGE = 4096;
/** Blocks from this size on are worth huge pages. */
const HUGE_BLOCK = 4 << 20;
/** Tensors start on a boundary that suits SIMD loads and two cache lines. */
const TENSOR_ALIGNMENT = 128;

/** Settings of a CPU device; those that are left out come from the environment. */
export interface CpuDeviceOptions {
  /** Most memory this rank may address, in MiB; the setting `addressSpaceMiB` by default. */
  readonly addressSpaceMiB?: number;
}

/** Tensors in one WebAssembly memory of this process, and the kernels that work on them. A rank has one. */
export class CpuDevice implements Device {
  readonly kind = 'cpu';
  /** @internal */
  readonly memory: WasmMemory;
  /** @internal */
  readonly kernels: CpuKernels;
  /** @internal */
  readonly space: AddressSpace;
  readonly #abandoned: AbandonedMemory;
  /** memory.buffer, which takes long to ask for, as it was after the last growth. */
  #buffer: SharedArrayBuffer;
  #mappings = 0;

  /**
   * Makes the memory and compiles the kernels into it. Loads no native library. Fails with WL_MEMORY or WL_CONFIG.
   * @param options Settings; the environment counts for what is left out.
   */
  static async create(options: CpuDeviceOptions = {}): Promise<CpuDevice> {
    const { addressSpaceMiB } = readSettings(options);
    const pages = Math.floor((addressSpaceMiB * 1_048_576) / WASM_PAGE);
    const memory = reserveMemory(pages);
    return new CpuDevice(memory, await instantiateKernels(memory), pages);
  }

  private constructor(memory: WasmMemory, kernels: CpuKernels, pages: number) {
    this.memory = memory;
    this.#buffer = memory.buffer;
    this.kernels = kernels;
    // The first page belongs to the module's own data; the last one stays unused, so that every end is a 32-bit number.
    this.space = new AddressSpace(WASM_PAGE, Math.min(pages, 65_535) * WASM_PAGE);
    this.#abandoned = new AbandonedMemory({
      release: (address) => void this.space.release(address),
      bytesInUse: () => this.space.used,
    });
  }

  /** Uninitialised memory for a tensor; see Device. */
  empty<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    requireDType(dtype);
    return Tensor.owning(this.allocate(elementCount(shape) * dtypes[dtype].bytes), dtype, shape);
  }

  /** A tensor with the given values; see Device. */
  async tensor<D extends DType>(dtype: D, shape: readonly number[], values: TypedArrayOf[D]): Promise<Tensor<D>> {
    const tensor = await this.allocating(() => this.empty(dtype, shape));
    await tensor.fromHost(values);
    return tensor;
  }

  /**
   * Runs `allocate`; when memory is short, what nobody holds any more is collected first. For calls that may wait.
   * @internal
   */
  allocating<T>(allocate: () => T): T | Promise<T> {
    return this.#abandoned.allocating(allocate);
  }

  /**
   * Uninitialised bytes; disposed by the caller, or some time after the last tensor over them was dropped. Their pages are kept for the next
   * owner, because touching a fresh page costs as much as copying it a few times.
   * @internal
   */
  allocate(bytes: number, alignment: number = TENSOR_ALIGNMENT): Storage {
    const address = this.space.take(bytes, alignment);
    this.#commitTaken(address, bytes);
    if (bytes >= HUGE_BLOCK && process.platform === 'linux') this.#preferHugePages(address, bytes);
    const storage = new OwnedStorage(this, { address, bytes }, () => {
      this.#abandoned.forget(storage);
      this.space.release(address);
    });
    this.#abandoned.watch(storage);
    return storage;
  }

  /**
   * Changes whenever a file is mapped into this memory or unmapped: devices that hold its pages, not its addresses, must
   * then get it anew.
   * @internal
   */
  get mappings(): number {
    return this.#mappings;
  }

  /**
   * Maps a whole shared file, so that kernels and peers see the same bytes. `bytes` must be the file's size. `populate`
   * sets up the page tables at once, which allocates what the file does not hold yet.
   * @internal
   */
  mapFile(fd: number, bytes: number, populate = false): Storage {
    this.#mappings++;
    const address = this.space.take(bytes, WASM_PAGE);
    this.#commitTaken(address, bytes);
    try {
      mapFileOver({ address: this.#base() + BigInt(address), bytes, fd, populate });
    } catch (error) {
      this.space.release(address);
      throw error;
    }
    return new OwnedStorage(this, { address, bytes }, () => {
      this.#mappings++;
      mapZeroOver(this.#base() + BigInt(address), bytes);
      this.space.release(address);
    });
  }

  /** A view of this memory, without a copy. `address` is in bytes, and a multiple of the element size. */
  hostView<D extends DType>(dtype: D, address: number, elements: number): TypedArrayOf[D] {
    requireDType(dtype);
    const { bytes } = dtypes[dtype];
    const most = this.#buffer.byteLength;
    const isInside = isWhole(address, 0) && isWhole(elements, 0) && address + elements * bytes <= most;
    if (isInside && address % bytes === 0) return typedArrayOver(dtype, this.#buffer, address, elements);
    throw invalidArgument(
      'address and elements',
      [address, elements],
      `inside of the ${most} bytes of this device, the address a multiple of ${bytes}`,
    );
  }

  /** Copies values into a tensor. */
  async upload<D extends DType>(tensor: Tensor<D>, values: TypedArrayOf[D]): Promise<void> {
    requireUpload(this, tensor, values);
    const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    this.hostView('u8', tensor.address, tensor.bytes).set(bytes);
  }

  /** A copy of a tensor's values. */
  async download<D extends DType>(tensor: Tensor<D>): Promise<TypedArrayOf[D]> {
    requireDownload(this, tensor);
    const copy = new Uint8Array(tensor.bytes);
    copy.set(this.hostView('u8', tensor.address, tensor.bytes));
    return typedArrayOver(tensor.dtype, copy.buffer);
  }

  /** There is nothing to wait for: the memory goes when nobody holds the device and its tensors any more. */
  close(): Promise<void> {
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Address of byte 0 in the process; V8 never moves a shared memory. */
  #base(): bigint {
    return addressOf(new Uint8Array(this.memory.buffer, 0, 8));
  }

  /** Grows the memory to hold a range just taken; the system hands out pages only when they are touched. */
  #commitTaken(address: number, bytes: number): void {
    const end = address + bytes;
    const missing = end - this.#buffer.byteLength;
    if (missing <= 0) return;
    const room = this.space.limit - this.#buffer.byteLength;
    const step = Math.min(room, Math.max(missing, 64 << 20));
    try {
      this.memory.grow(Math.ceil(step / WASM_PAGE));
      this.#buffer = this.memory.buffer;
    } catch (cause) {
      this.space.release(address);
      throw new WeftlineError(
        'WL_MEMORY',
        `Cannot grow this rank's memory to ${formatBytes(end)}: the system refused it; raise its memory limit, or use fewer tokens per rank`,
        { details: { end }, cause },
      );
    }
  }

  #preferHugePages(address: number, bytes: number): void {
    const start = Math.ceil(address / PAGE) * PAGE;
    const length = Math.floor((address + bytes - start) / PAGE) * PAGE;
    preferHugePages(new Uint8Array(this.memory.buffer, start, length));
  }
}

/** Takes address space for all that the memory may become; pages come later, as they are touched. */
function reserveMemory(pages: number): WasmMemory {
  try {
    return new wasm.Memory({ initial: 16, maximum: pages, shared: true });
  } catch (cause) {
    const mib = (pages * WASM_PAGE) / 1_048_576;
    const advice = addressSpaceAdvice(`${settingsTable.addressSpaceMiB.env} to less`, isSmallGranted());
    throw new WeftlineError(
      'WL_MEMORY',
      `Cannot reserve ${mib} MiB of address space for this rank: the system refused it; ${advice} ("weftline doctor" shows what is granted)`,
      { details: { mib }, cause },
    );
  }
}

function isSmallGranted(): boolean {
  try {
    return new wasm.Memory({ initial: 1, maximum: 1, shared: true }).buffer.byteLength > 0;
  } catch {
    return false;
  }
}
