// Makes a list of parts of two lists of descriptors: finds the region of each entry, and joins neighbours.
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { MemoryKind } from './agent-memory.ts';
import type { DescriptorList } from './descriptors.ts';

/** A region of either side, for looking up addresses. */
export interface AddressRange {
  readonly kind: MemoryKind;
  readonly address: number;
  readonly length: number;
}

export interface PlannedPart<L, R> {
  readonly local: L;
  readonly localOffset: number;
  readonly remote: R;
  readonly remoteOffset: number;
  bytes: number;
}

export interface PlanSide<T extends AddressRange> {
  readonly list: DescriptorList;
  readonly regions: readonly T[];
  /** Whose memory, for errors: "this agent" or "agent b". */
  readonly owner: string;
}

/**
 * Fails with WL_INVALID_ARGUMENT, having planned nothing: lists of different lengths, entries of different sizes, a range
 * that lies in no registered region or leaves it.
 */
export function planTransfer<L extends AddressRange, R extends AddressRange>(
  local: PlanSide<L>,
  remote: PlanSide<R>,
  { merge }: { readonly merge: boolean },
): PlannedPart<L, R>[] {
  const count = local.list.length;
  if (remote.list.length !== count)
    throw invalidArgument('remote.length', remote.list.length, `${count}, one per local descriptor`);
  if (count === 0) throw invalidArgument('local.length', 0, 'at least one descriptor');
  const findLocal = finder(local);
  const findRemote = finder(remote);
  const parts: PlannedPart<L, R>[] = [];
  for (let index = 0; index < count; index++) {
    const bytes = local.list.lengths[index] as number;
    const remoteBytes = remote.list.lengths[index] as number;
    if (remoteBytes !== bytes) {
      throw invalidArgument(
        `remote descriptor ${index}`,
        `${remoteBytes} bytes`,
        `${bytes} bytes, as its local one has`,
      );
    }
    const from = findLocal(index);
    const to = findRemote(index);
    const localOffset = (local.list.addresses[index] as number) - from.address;
    const remoteOffset = (remote.list.addresses[index] as number) - to.address;
    const last = parts.at(-1);
    const joins =
      merge &&
      last?.local === from &&
      last.remote === to &&
      last.localOffset + last.bytes === localOffset &&
      last.remoteOffset + last.bytes === remoteOffset;
    if (joins) last.bytes += bytes;
    else parts.push({ local: from, localOffset, remote: to, remoteOffset, bytes });
  }
  return parts;
}

/** Finds the region that holds an entry whole. Regions may overlap: the one that begins last is tried first. */
function finder<T extends AddressRange>({ list, regions, owner }: PlanSide<T>): (index: number) => T {
  const sorted = regions.filter(({ kind }) => kind === list.kind).toSorted((a, b) => b.address - a.address);
  let latest: T | undefined;
  return (index) => {
    const address = list.addresses[index] as number;
    const bytes = list.lengths[index] as number;
    if (latest === undefined || !holds(latest, address, bytes)) {
      latest = sorted.find((region) => holds(region, address, bytes));
    }
    if (latest !== undefined) return latest;
    throw new WeftlineError(
      'WL_INVALID_ARGUMENT',
      `Descriptor ${index} (${bytes} bytes at 0x${address.toString(16)}, ${list.kind}) lies in no region that ${owner} has registered${nearest(sorted, address, bytes)}`,
      { details: { index, address, bytes, kind: list.kind, owner } },
    );
  };
}

function holds({ address, length }: AddressRange, wanted: number, bytes: number): boolean {
  return bytes > 0 && wanted >= address && wanted + bytes <= address + length;
}

/** A range that only leaves its region deserves to be told so. */
function nearest(regions: readonly AddressRange[], wanted: number, bytes: number): string {
  const region = regions.find(({ address, length }) => wanted >= address && wanted < address + length);
  if (region === undefined) return '';
  const over = wanted + bytes - region.address - region.length;
  return `: it leaves a region of ${region.length} bytes by ${over}`;
}
