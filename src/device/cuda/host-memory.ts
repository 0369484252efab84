// Host memory that does not move and that kernels reach by a device address: mailboxes, trap records, staging.
import { formatBytes } from '../../core/byte-size.ts';
import { type DType, dtypes, type TypedArrayOf, typedArrayOver } from '../../core/dtype.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { addressOf, type Out, viewAt } from '../../native/library.ts';
import { type CudaContext, OwnedResource } from './cuda-context.ts';

// Memory of this process that kernels and copies of a GPU reach while it is pinned.

export class PinnedRange extends OwnedResource {
  /** What kernels and copies use. */
  readonly deviceAddress: number;
  readonly #hostAddress: number;

  /** `memory` must not move. Fails with WL_CUDA where the system pins no more. */
  constructor(context: CudaContext, memory: Uint8Array) {
    super(context);
    const host = Number(addressOf(memory));
    context.call('cuMemHostRegister', host, memory.length, PORTABLE | DEVICE_MAPPED);
    const device: Out = [0];
    context.call('cuMemHostGetDevicePointer', device, host, 0);
    this.deviceAddress = device[0];
    this.#hostAddress = host;
    context.own(this);
  }

  override release(): void {
    this.context.release('cuMemHostUnregister', this.#hostAddress);
  }
}

/** Usable by all contexts of the process, and mapped into the device's address space. */
const PORTABLE = 1;
const DEVICE_MAPPED = 2;
/** A view of more ends the process. */
const MAX_BYTES = 2 ** 32;

export class HostMemory extends OwnedResource {
  readonly bytes: number;
  /** What kernels use. */
  readonly deviceAddress: number;
  /** What copies use. */
  readonly hostAddress: number;
  readonly #buffer: ArrayBuffer;

  /** Use device.allocateHost(). All bytes are zero. Fails with WL_INVALID_ARGUMENT for more than 4 GiB. */
  constructor(context: CudaContext, bytes: number) {
    super(context);
    if (!(bytes <= MAX_BYTES))
      throw invalidArgument('bytes of host memory', bytes, `at most ${formatBytes(MAX_BYTES)}`);
    const host: Out = [0];
    context.call('cuMemHostAlloc', host, Math.max(bytes, 1), PORTABLE | DEVICE_MAPPED);
    const device: Out = [0];
    context.call('cuMemHostGetDevicePointer', device, host[0], 0);
    this.bytes = bytes;
    this.hostAddress = host[0];
    this.deviceAddress = device[0];
    this.#buffer = viewAt(host[0], Math.max(bytes, 1));
    new Uint8Array(this.#buffer).fill(0);
    context.own(this);
  }

  /** The memory itself; keep the view, making one costs about a microsecond. It must not be touched after dispose. */
  view<D extends DType>(dtype: D, byteOffset = 0, elements?: number): TypedArrayOf[D] {
    const count = elements ?? Math.floor((this.bytes - byteOffset) / dtypes[dtype].bytes);
    return typedArrayOver(dtype, this.buffer, byteOffset, count);
  }

  get buffer(): ArrayBuffer {
    if (this.disposed) throw new WeftlineError('WL_CLOSED', 'Cannot view host memory that was closed');
    return this.#buffer;
  }

  override release(): void {
    this.context.release('cuMemFreeHost', this.hostAddress);
  }
}
