// Makes the table of parts of two lists of descriptors: finds the region of each entry, and joins neighbours.
import { PartTable } from '../abi/part-table.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { PlannedTransfer, TransferOperation } from './backend.ts';
import { type DescriptorList, whyNoRange } from './descriptors.ts';
import { type AddressRange, RegionFinder } from './region-finder.ts';

export interface PlanSide<T extends AddressRange> {
  readonly list: DescriptorList;
  readonly regions: readonly T[];
  /** Whose memory, for errors: "this agent" or "agent b". */
  readonly owner: string;
}

export function checkOperation(operation: TransferOperation): void {
  if (operation !== 'write' && operation !== 'read') throw invalidArgument('operation', operation, '"write" or "read"');
}

/**
 * Fails with WL_INVALID_ARGUMENT, having planned nothing: lists of different lengths, entries of different sizes, a range
 * that lies in no registered region or leaves it.
 */
export function planTransfer<L extends AddressRange, R extends AddressRange>(
  local: PlanSide<L>,
  remote: PlanSide<R>,
  { merge }: { readonly merge: boolean },
): PlannedTransfer<L, R> {
  const count = local.list.length;
  if (remote.list.length !== count)
    throw invalidArgument('remote.length', remote.list.length, `${count}, one per local descriptor`);
  if (count === 0) throw invalidArgument('local.length', 0, 'at least one descriptor');
  const here = new RegionFinder(local.regions, local.list.kind);
  const there = new RegionFinder(remote.regions, remote.list.kind);
  const table = PartTable.ofCount(count);
  let parts = 0;
  /** The last part: its regions, and where it ends in them. */
  let [lastFrom, lastTo, fromEnd, toEnd] = [-1, -1, 0, 0];
  // A million entries are common: the columns are not looked up anew for each.
  const { addresses: localAddresses, lengths: localLengths } = local.list;
  const { addresses: remoteAddresses, lengths: remoteLengths } = remote.list;
  const { localOffset, remoteOffset, bytes: partBytes, local: localRegion, remote: remoteRegion } = table;
  for (let index = 0; index < count; index++) {
    const bytes = localLengths[index]!;
    const remoteBytes = remoteLengths[index]!;
    if (remoteBytes !== bytes) {
      throw invalidArgument(
        `remote descriptor ${index}`,
        `${remoteBytes} bytes`,
        `${bytes} bytes, as its local one has`,
      );
    }
    const from = regionOf(here, local, index);
    const to = regionOf(there, remote, index);
    const begin = localAddresses[index]! - here.begin;
    const remoteBegin = remoteAddresses[index]! - there.begin;
    if (merge && from === lastFrom && to === lastTo && begin === fromEnd && remoteBegin === toEnd) {
      partBytes[parts - 1]! += bytes;
    } else {
      localRegion[parts] = from;
      remoteRegion[parts] = to;
      localOffset[parts] = begin;
      remoteOffset[parts] = remoteBegin;
      partBytes[parts] = bytes;
      parts++;
    }
    [lastFrom, lastTo, fromEnd, toEnd] = [from, to, begin + bytes, remoteBegin + bytes];
  }
  return { locals: here.found, remotes: there.found, parts: table.head(parts) };
}

/** Checks the entry again: the arrays of a list can be written to. */
function regionOf<T extends AddressRange>(
  finder: RegionFinder<T>,
  { list, owner }: PlanSide<T>,
  index: number,
): number {
  const address = list.addresses[index]!;
  const bytes = list.lengths[index]!;
  const why = whyNoRange(address, bytes);
  if (why !== undefined) throw invalidArgument(`descriptor ${index}`, [address, bytes], why);
  const region = finder.find(address, bytes);
  if (region !== -1) return region;
  throw new WeftlineError(
    'WL_INVALID_ARGUMENT',
    `Descriptor ${index} (${bytes} bytes at 0x${address.toString(16)}, ${list.kind}) lies in no region that ${owner} has registered${leaving(finder.around(address), address, bytes)}`,
    { details: { index, address, bytes, kind: list.kind, owner } },
  );
}

/** A range that only leaves its region deserves to be told so. */
function leaving(region: AddressRange | undefined, wanted: number, bytes: number): string {
  if (region === undefined) return '';
  const over = wanted + bytes - region.address - region.length;
  return `: it leaves a region of ${region.length} bytes by ${over}`;
}
