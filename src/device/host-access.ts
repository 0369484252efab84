// How the host reads and writes memory of a device.
import type { DType, TypedArrayOf } from '../core/dtype.ts';

/** Which implementation a device is. */
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
