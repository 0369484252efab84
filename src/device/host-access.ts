// How the host reads and writes memory of a device.
import type { DType, TypedArrayOf } from '../core/dtype.ts';

export type DeviceKind = 'cpu' | 'cuda';

export interface MemoryRange {
  readonly address: number;
  readonly bytes: number;
}

/** A run of elements in a device's own memory; a Tensor is one. */
export interface DeviceRange<D extends DType> {
  readonly dtype: D;
  readonly address: number;
  readonly bytes: number;
  readonly elements: number;
}

export interface HostAccess {
  readonly kind: DeviceKind;

  /** Device memory as a typed array in place; WL_UNSUPPORTED where the host cannot address it. */
  hostView<D extends DType>(dtype: D, address: number, elements: number): TypedArrayOf[D];

  upload<D extends DType>(range: DeviceRange<D>, values: TypedArrayOf[D]): Promise<void>;

  download<D extends DType>(range: DeviceRange<D>): Promise<TypedArrayOf[D]>;
}
