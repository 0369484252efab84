// Makes the table of parts of two lists of descriptors: finds the region of each entry, and joins neighbours.
import { PartTable } from '../abi/part-table.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { MemoryKind } from './agent-memory.ts';
import type { PlannedTransfer, TransferOperation } from './backend.ts';
import { type DescriptorList, whyNoRange } from './descriptors.ts';

// Finds the registered region that holds a range whole, in logarithmic time, however many regions there are.

/** A region of either side, for looking up addresses. */
interface AddressRange {
  readonly kind: MemoryKind;
  readonly address: number;
  readonly length: number;
}

/**
 * Regions may overlap. The one that was found last is tried first, then the one that begins last of those that hold the
 * range, and of those that begin alike the first of the list.
 */
export class RegionFinder<T extends AddressRange> {
  /** Regions that were found, each once, in the order in which they were found. */
  readonly found: T[] = [];
  /** Of the region that was found last. */
  begin = 0;
  #end = 0;
  #latest = -1;
  /** By descending address. */
  readonly #sorted: readonly T[];
  readonly #begins: Float64Array;
  /** A tree of maxima over the ends: node n covers nodes 2n and 2n + 1, leaf i is node `leaves` + i. */
  readonly #ends: Float64Array;
  readonly #leaves: number;
  /** By place in `#sorted`: index in `found`, or -1. */
  readonly #indices: Int32Array;

  constructor(regions: readonly T[], kind: MemoryKind) {
    const sorted = regions.filter((region) => region.kind === kind).toSorted((a, b) => b.address - a.address);
    this.#sorted = sorted;
    this.#begins = Float64Array.from(sorted, ({ address }) => address);
    this.#leaves = 2 ** Math.ceil(Math.log2(Math.max(1, sorted.length)));
    this.#ends = new Float64Array(2 * this.#leaves);
    for (const [place, { address, length }] of sorted.entries()) this.#ends[this.#leaves + place] = address + length;
    for (let node = this.#leaves - 1; node > 0; node--) {
      this.#ends[node] = Math.max(this.#ends[2 * node]!, this.#ends[2 * node + 1]!);
    }
    this.#indices = new Int32Array(sorted.length).fill(-1);
  }

  /** The index in `found` of a region that holds the range whole; -1 if none does. Both must be safe integers. */
  find(address: number, bytes: number): number {
    const end = address + bytes;
    if (this.#latest !== -1 && address >= this.begin && end <= this.#end) return this.#latest;
    const place = this.#placeOf(address, end);
    if (place === -1) return -1;
    const region = this.#sorted[place] as T;
    if (this.#indices[place] === -1) this.#indices[place] = this.found.push(region) - 1;
    this.#latest = this.#indices[place]!;
    this.begin = region.address;
    this.#end = region.address + region.length;
    return this.#latest;
  }

  /** The region that begins last of those that hold the address, for errors. */
  around(address: number): T | undefined {
    return this.#sorted[this.#placeOf(address, address + 1)];
  }

  #placeOf(address: number, end: number): number {
    let low = 0;
    for (let high = this.#begins.length; low < high;) {
      const middle = (low + high) >>> 1;
      if (this.#begins[middle]! <= address) high = middle;
      else low = middle + 1;
    }
    return this.#firstThatReaches(end, low);
  }

  /** The first place from `from` on whose region ends at `end` or later; -1 if there is none. */
  #firstThatReaches(end: number, from: number): number {
    const ends = this.#ends;
    const leaves = this.#leaves;
    if (from >= this.#begins.length) return -1;
    let node = leaves + from;
    // Up, until a subtree to the right of what was looked at reaches far enough.
    while (ends[node]! < end) {
      while (node % 2 === 1) node >>>= 1;
      if (node === 0) return -1;
      node++;
    }
    while (node < leaves) node = ends[2 * node]! >= end ? 2 * node : 2 * node + 1;
    return node - leaves;
  }
}

interface PlanSide<T extends AddressRange> {
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
