// Memory of this process that kernels and copies of a GPU reach while it is pinned.
import { addressOf, type Out } from '../../native/library.ts';
import type { CudaContext } from './cuda-context.ts';

/** Usable by all contexts of the process, and mapped into the device's address space. */
const PORTABLE = 1;
const DEVICE_MAPPED = 2;

export class PinnedRange implements Disposable {
  readonly context: CudaContext;
  /** What kernels and copies use. */
  readonly deviceAddress: number;
  readonly #hostAddress: number;
  #disposed = false;

  /** `memory` must not move. Fails with WL_CUDA where the system pins no more. */
  constructor(context: CudaContext, memory: Uint8Array) {
    const host = Number(addressOf(memory));
    context.call('cuMemHostRegister', host, memory.length, PORTABLE | DEVICE_MAPPED);
    const device: Out = [0];
    context.call('cuMemHostGetDevicePointer', device, host, 0);
    this.context = context;
    this.deviceAddress = device[0];
    this.#hostAddress = host;
    context.own(this);
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  /** Before the memory is given back. No work that uses it may be running. Idempotent. */
  [Symbol.dispose](): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.context.disown(this);
    this.context.release('cuMemHostUnregister', this.#hostAddress);
  }
}
