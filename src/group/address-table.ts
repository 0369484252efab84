// Tables in device memory that give kernels the address of one region in every rank's window.
import type { Tensor } from '../device/tensor.ts';
import type { TensorAllocator } from '../device/device.ts';
import type { SymmetricWindow } from '../windows/symmetric-window.ts';
import type { RankGroup } from '../world/rank-group.ts';

export type AddressTables<Region extends string> = Readonly<Record<Region, Tensor<'i32'>>>;

/**
 * One table i32 [ranks] per region, rank r's 32-bit address at index r, 0 for ranks of other hosts; made before the window,
 * filled after it.
 */
export function makeAddressTables<Region extends string>(
  allocator: TensorAllocator,
  regions: readonly Region[],
  ranks: number,
): AddressTables<Region> {
  const tables = regions.map((region) => [region, allocator.empty('i32', [ranks])] as const);
  return Object.fromEntries(tables) as AddressTables<Region>;
}

/** Tables with an entry for each rank of this host, in the order of the window. */
export function fillLocalTables<Region extends string>(
  tables: AddressTables<Region>,
  window: SymmetricWindow,
  regions: Readonly<Record<Region, { readonly offset: number }>>,
): void {
  for (const [region, table] of Object.entries(tables) as [Region, Tensor<'i32'>][]) {
    table.view().set(window.addresses.map((address) => (address + regions[region].offset) | 0));
  }
}

export function fillAddressTables<Region extends string>(
  tables: AddressTables<Region>,
  { window, group }: { readonly window: SymmetricWindow; readonly group: RankGroup },
  regions: Readonly<Record<Region, { readonly offset: number }>>,
): void {
  const { scaleUpRanks } = group.topology;
  for (const [region, table] of Object.entries(tables) as [Region, Tensor<'i32'>][]) {
    const view = table.view().fill(0);
    for (const [index, rank] of scaleUpRanks.entries()) {
      view[rank] = (window.addresses[index]! + regions[region].offset) | 0;
    }
  }
}
