// For the kernels: the address of one region in every rank's window, as a table in device memory.
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { Tensor } from '../device/tensor.ts';
import type { SymmetricWindow } from '../memory/symmetric-window.ts';

/** i32 [ranks] holding 32-bit addresses; rank r's at index r. */
export function addressTable(device: CpuDevice, window: SymmetricWindow, regionOffset: number): Tensor<'i32'> {
  const table = device.empty('i32', [window.ranks.length]);
  table.view().set(window.addresses.map((address) => (address + regionOffset) | 0));
  return table;
}
