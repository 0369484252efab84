// What the rest of weftline asks of a device; the implementations are cpu/ and cuda/.
import type { WaitOptions } from '../core/deadline.ts';
import type { DType, TypedArrayOf } from '../core/dtype.ts';
import type { HostAccess, Tensor } from './tensor.ts';

/** What tensors live on and kernels run on: a CpuDevice or a CudaDevice. */
export interface Device extends HostAccess, AsyncDisposable {
  /**
   * Uninitialised memory for a tensor. Fails with WL_MEMORY, telling what is used and by how much it is short. A tensor that
   * is not closed keeps its memory until it is collected, which cannot happen within this call: close what you make in
   * a loop, or make it by tensor().
   */
  empty<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D>;

  /**
   * A tensor with the given values; bf16 and fp8e4m3 as bit patterns. Before it fails with WL_MEMORY, and now and then when
   * much memory is in use, it has the memory of tensors that nobody holds given back, which takes a garbage collection.
   */
  tensor<D extends DType>(dtype: D, shape: readonly number[], values: TypedArrayOf[D]): Promise<Tensor<D>>;

  /** Waits for running work, then gives back what was made from the device. Idempotent; `await using` does the same. */
  close(): Promise<void>;
}

/** A point in the work of a device that the host, or another stream, can wait for. */
export interface DeviceEvent extends Disposable {
  /** True when the work before it is done. Does not wait. */
  isDone(): boolean;
  /** Resolves when the work before it is done. Fails with WL_TIMEOUT, the signal's reason, or what that work failed with. */
  wait(options?: WaitOptions): Promise<void>;
  /** Gives it back; the work before it goes on. Idempotent. */
  close(): void;
}

/** The event of a device whose work is done when the call returns. */
export const passedEvent: DeviceEvent = {
  isDone: () => true,
  wait: () => Promise.resolve(),
  close: () => {},
  [Symbol.dispose]: () => {},
};

/** What allocates: a device, or a set on it. */
export type TensorAllocator = Pick<Device, 'empty'>;

/** Tensors that are allocated together and freed together, by their set alone; when one does not fit, none is kept. */
export class TensorSet implements TensorAllocator, Disposable {
  readonly #device: Device;
  readonly #tensors: Tensor[] = [];

  private constructor(device: Device) {
    this.#device = device;
  }

  /** Runs `allocate`, and frees what it took if it throws. The caller disposes the set. */
  static make<T>(device: Device, allocate: (set: TensorSet) => T): { readonly set: TensorSet; readonly made: T } {
    const set = new TensorSet(device);
    try {
      return { set, made: allocate(set) };
    } catch (error) {
      set[Symbol.dispose]();
      throw error;
    }
  }

  /** The same for tables: what `allocate` made, with the set that frees all of it. */
  static together<T extends object>(
    device: Device,
    allocate: (set: TensorSet) => T,
  ): T & Disposable & { close(): void } {
    const { set, made } = TensorSet.make(device, allocate);
    const close = (): void => set[Symbol.dispose]();
    return { ...made, close, [Symbol.dispose]: close };
  }

  /** A view: whoever gets it cannot free what the set owns. */
  empty<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    const tensor = this.#device.empty(dtype, shape);
    this.#tensors.push(tensor);
    return tensor.reshape(shape);
  }

  [Symbol.dispose](): void {
    for (const tensor of this.#tensors) tensor.close();
  }
}
