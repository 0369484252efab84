// A typed, contiguous, row-major view of device memory.
import { type DType, dtypes, type TypedArrayOf } from '../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';

/** A run of device memory that one owner frees; every tensor over it keeps it alive. */
export interface Storage extends Disposable {
  readonly device: HostAccess;
  /** Address in the device's own memory: an offset into WASM memory on `cpu`, a device pointer on `cuda`. */
  readonly address: number;
  readonly bytes: number;
  readonly disposed: boolean;
}

/** A run of memory that is given back by a function, which is called once. */
export class OwnedStorage<Device extends HostAccess = HostAccess> implements Storage {
  readonly device: Device;
  readonly address: number;
  readonly bytes: number;
  readonly #free: () => void;
  #disposed = false;

  constructor(device: Device, { address, bytes }: MemoryRange, free: () => void) {
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

/**
 * A contiguous tensor. `using` or close() frees what `device.empty` gave. A view of such a tensor, or of memory of an object,
 * frees nothing; a tensor that an operation returned says in its own documentation how long it stays valid.
 */
export class Tensor<D extends DType = DType> implements Disposable {
  /** @internal */
  readonly storage: Storage;
  readonly dtype: D;
  readonly shape: readonly number[];
  readonly address: number;
  readonly elements: number;
  readonly bytes: number;
  #isOwner = false;

  /**
   * The one tensor whose close() frees the storage; all that are made otherwise are views, which free nothing.
   * @internal
   */
  static owning<D extends DType>(storage: Storage, dtype: D, shape: readonly number[]): Tensor<D> {
    const tensor = new Tensor(storage, dtype, shape);
    tensor.#isOwner = true;
    return tensor;
  }

  /** @internal Use `device.tensor` or `device.empty`. */
  constructor(storage: Storage, dtype: D, shape: readonly number[], byteOffset = 0) {
    this.storage = storage;
    this.dtype = dtype;
    this.elements = elementCount(shape);
    this.shape = Object.freeze([...shape]);
    this.bytes = this.elements * dtypes[dtype].bytes;
    this.address = storage.address + byteOffset;
    if (byteOffset < 0 || byteOffset + this.bytes > storage.bytes) {
      throw new WeftlineError(
        'WL_INTERNAL',
        `A ${dtype} tensor [${shape.join(', ')}] at ${byteOffset} exceeds its storage of ${storage.bytes} bytes`,
      );
    }
  }

  /** The device that owns its memory. */
  get device(): HostAccess {
    return this.storage.device;
  }

  /** Rows `start` to `end` (exclusive) of the first dimension: a view, which shares the memory and does not free it. */
  slice(start: number, end: number): Tensor<D> {
    const rows = this.shape[0] ?? 0;
    if (!(Number.isInteger(start) && Number.isInteger(end) && 0 <= start && start <= end && end <= rows)) {
      throw invalidArgument('slice range', [start, end], `0 <= start <= end <= ${rows}`);
    }
    const rowBytes = rows === 0 ? 0 : this.bytes / rows;
    return new Tensor(
      this.storage,
      this.dtype,
      [end - start, ...this.shape.slice(1)],
      this.#byteOffset + start * rowBytes,
    );
  }

  /** The same elements under another shape of equal size: a view, as slice() makes. */
  reshape(shape: readonly number[]): Tensor<D> {
    if (elementCount(shape) !== this.elements) {
      throw invalidArgument('shape', shape, `any with ${this.elements} elements, as in [${this.shape.join(', ')}]`);
    }
    return new Tensor(this.storage, this.dtype, shape, this.#byteOffset);
  }

  /**
   * The elements in place, without a copy; bf16 and fp8e4m3 as bit patterns. Only where the host can address the
   * memory (`cpu`); elsewhere use toHost(). Valid as long as the tensor is, which must be held: the view alone does not keep
   * its memory from being given to others.
   */
  view(): TypedArrayOf[D] {
    this.#requireLive('view');
    return this.device.hostView(this.dtype, this.address, this.elements);
  }

  /** A copy of the elements in host memory. */
  async toHost(): Promise<TypedArrayOf[D]> {
    this.#requireLive('read');
    return this.device.download(this);
  }

  /** Overwrites the elements with values from host memory: a typed array as view() returns it, of as many elements. */
  async fromHost(values: TypedArrayOf[D]): Promise<void> {
    this.#requireLive('write');
    return this.device.upload(this, values);
  }

  /**
   * Gives the memory back at once, if this tensor came from `device.empty` or `device.tensor`, or is a result that was made
   * for the caller. After that, reads and writes of it or of a view of it fail with WL_CLOSED, and calls refuse it. A view gives nothing back. Idempotent.
   */
  close(): void {
    if (this.#isOwner) this.storage[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #requireLive(action: string): void {
    if (this.storage.disposed) throw new WeftlineError('WL_CLOSED', `Cannot ${action} a tensor that was closed`);
  }

  get #byteOffset(): number {
    return this.address - this.storage.address;
  }
}

/** Checks a tensor before values are written to it: of this device, live, of as many elements. Fails with WL_INVALID_ARGUMENT. */
export function requireUpload(device: HostAccess, tensor: Tensor, values: { readonly length: number }): void {
  requireDownload(device, tensor);
  requireValues(tensor.dtype, values);
  if (values.length === tensor.elements) return;
  const { elements, shape } = tensor;
  throw invalidArgument('values.length', values.length, `${elements}, the elements of [${shape.join(', ')}]`);
}

/** Checks a tensor before it is read: of this device, and live. Fails with WL_INVALID_ARGUMENT. */
export function requireDownload(device: HostAccess, tensor: Tensor): void {
  const isOwn = tensor instanceof Tensor && tensor.device === device;
  if (isOwn && !tensor.storage.disposed) return;
  throw invalidArgument('tensor', isOwn ? 'a closed tensor' : tensor, `a live tensor of this ${device.kind} device`);
}

/** Bytes of other arrays would stand for other numbers, and a list of numbers has none. */
function requireValues(dtype: DType, values: unknown): void {
  const { array } = dtypes[dtype];
  if (values instanceof array) return;
  const patterns = array === Uint16Array || dtype === 'fp8e4m3' ? ' of bit patterns' : '';
  throw invalidArgument(
    'values',
    values,
    `${array === Int32Array ? 'an' : 'a'} ${array.name}${patterns}, as elements of ${dtype} are held`,
  );
}

export function elementCount(shape: readonly number[]): number {
  if (!Array.isArray(shape)) throw invalidArgument('shape', shape, 'an array of whole numbers, such as [2, 3]');
  let count = 1;
  for (const extent of shape) {
    if (!Number.isInteger(extent) || extent < 0) throw invalidArgument('shape', shape, 'whole numbers of at least 0');
    count *= extent;
  }
  return count;
}

/** The value of an element is data * the scale of its group. */
export interface ScaledRows {
  /** [T, H] */
  readonly data: Tensor<'fp8e4m3'>;
  /** [T, ceil(H / 128)]: a scale per FP8_GROUP columns. */
  readonly scales: Tensor<'f32'>;
}

// How the host reads and writes memory of a device.

/** The implementation that a device is. */
export type DeviceKind = 'cpu' | 'cuda';

export interface MemoryRange {
  readonly address: number;
  readonly bytes: number;
}

/** A run of elements in a device's own memory; a Tensor is one. */
interface DeviceRange<D extends DType> {
  readonly dtype: D;
  readonly address: number;
  readonly bytes: number;
  readonly elements: number;
}

/** How the host reads and writes memory of a device. */
export interface HostAccess {
  readonly kind: DeviceKind;

  /** Device memory as a typed array in place; WL_UNSUPPORTED where the host cannot address it. */
  hostView<D extends DType>(dtype: D, address: number, elements: number): TypedArrayOf[D];

  /** Copies values into a range of the device's memory: as many as it has elements, else WL_INVALID_ARGUMENT. */
  upload<D extends DType>(range: DeviceRange<D>, values: TypedArrayOf[D]): Promise<void>;

  /** A copy of a range of the device's memory, once earlier work on it is done. */
  download<D extends DType>(range: DeviceRange<D>): Promise<TypedArrayOf[D]>;
}
