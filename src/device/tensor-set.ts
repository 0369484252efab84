// Tensors that are allocated together and freed together, by their set alone; when one does not fit, none is kept.
import type { DType } from '../core/dtype.ts';
import type { Device } from './device.ts';
import type { Tensor } from './tensor.ts';

/** What allocates: a device, or a set on it. */
export type TensorAllocator = Pick<Device, 'empty'>;

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

  /** A view: whoever gets it cannot free what the set owns. */
  empty<D extends DType>(dtype: D, shape: readonly number[]): Tensor<D> {
    const tensor = this.#device.empty(dtype, shape);
    this.#tensors.push(tensor);
    return tensor.reshape(shape);
  }

  [Symbol.dispose](): void {
    for (const tensor of this.#tensors) tensor.dispose();
  }
}
