// Copies of tables in memory of CPU ranks.
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../device/tensor.ts';

/** Fails with WL_MEMORY. */
export function copyTable<D extends 'i32' | 'u8'>(device: CpuDevice, table: Tensor<D>): Tensor<D> {
  const copy = device.empty(table.dtype, table.shape);
  copy.view().set(table.view());
  return copy;
}

/** The same numbers as i64. Fails with WL_MEMORY. */
export function widenTable(device: CpuDevice, table: Tensor<'i32'>): Tensor<'i64'> {
  const wide = device.empty('i64', table.shape);
  wide.view().set(BigInt64Array.from(table.view(), BigInt));
  return wide;
}
