// Plans a transfer: finds the regions of both lists of descriptors, pairs their entries, and joins neighbours. All of it in time
// that grows with the number of runs, not of ranges.
import { checkOptions, isWhole, type OptionNames } from '../core/check-options.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { PartTable, PartWriter } from '../transport/part-table.ts';
import type { MemoryKind, PlannedTransfer, TransferOperation } from './backend.ts';
import { type DescriptorList, noEntry, RunFinder } from './descriptors.ts';

/** A region of either side, for looking up addresses. */
interface AddressRange {
  readonly kind: MemoryKind;
  readonly address: number;
  readonly length: number;
}

/**
 * Finds the region that holds a range whole, in logarithmic time, however many regions there are. Regions may overlap. The one that was found last is tried first, then the one that begins last of those that hold the
 * range, and of those that begin alike the first of the list.
 */
export class RegionFinder<T extends AddressRange> {
  /** Regions that were found, each once, in the order in which they were found. */
  readonly found: T[] = [];
  /** Where the region that was found last begins and ends; -1 if none was. */
  begin = -1;
  end = -1;
  #latest = -1;
  /** The regions by descending address. */
  readonly #sorted: readonly T[];
  readonly #begins: Float64Array;
  /** A tree of maxima over the ends: node n covers nodes 2n and 2n + 1, leaf i is node `leaves` + i. */
  readonly #ends: Float64Array;
  readonly #leaves: number;
  /** Indices in `found` by place in `#sorted`, or -1. */
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
    if (this.#latest !== -1 && address >= this.begin && end <= this.end) return this.#latest;
    const place = this.#placeOf(address, end);
    if (place === -1) return -1;
    const region = this.#sorted[place] as T;
    if (this.#indices[place] === -1) this.#indices[place] = this.found.push(region) - 1;
    this.#latest = this.#indices[place]!;
    this.begin = region.address;
    this.end = region.address + region.length;
    return this.#latest;
  }

  /** How many ranges of a run that begins in the region that was found last lie in it whole; the first does. */
  fitting(address: number, bytes: number, stride: number): number {
    return Math.floor((this.end - address - bytes) / stride) + 1;
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

export interface PlanSide<T extends AddressRange> {
  readonly list: DescriptorList;
  readonly regions: readonly T[];
  /** The owner of the memory, for errors: "this agent" or "agent b". */
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
  const { addresses, lengths, strides, counts } = local.list.runs;
  const {
    addresses: remoteAddresses,
    lengths: remoteLengths,
    strides: remoteStrides,
    counts: remoteCounts,
  } = remote.list.runs;
  const writer = new PartWriter(PartTable.withRoom(Math.max(counts.length, remoteCounts.length)), merge);
  /** The run of either side, and how many of its ranges are paired. */
  let [run, done, remoteRun, remoteDone] = [0, 0, 0, 0];
  let [region, remoteRegion] = [-1, -1];
  for (let entry = 0; entry < count;) {
    const bytes = lengths[run]!;
    const remoteBytes = remoteLengths[remoteRun]!;
    if (remoteBytes !== bytes) throw otherSize(entry, bytes, remoteBytes);
    const stride = strides[run]!;
    const address = addresses[run]! + done * stride;
    if (address < here.begin || address + bytes > here.end) region = here.find(address, bytes);
    if (region === -1) throw outside(local, here, entry, address, bytes);
    const remoteStride = remoteStrides[remoteRun]!;
    const remoteAddress = remoteAddresses[remoteRun]! + remoteDone * remoteStride;
    if (remoteAddress < there.begin || remoteAddress + bytes > there.end) {
      remoteRegion = there.find(remoteAddress, bytes);
    }
    if (remoteRegion === -1) throw outside(remote, there, entry, remoteAddress, bytes);
    let ranges = Math.min(counts[run]! - done, remoteCounts[remoteRun]! - remoteDone);
    if (ranges > 1) {
      ranges = Math.min(
        ranges,
        here.fitting(address, bytes, stride),
        there.fitting(remoteAddress, bytes, remoteStride),
      );
    }
    const from = address - here.begin;
    const to = remoteAddress - there.begin;
    writer.add(region, from, stride, remoteRegion, to, remoteStride, bytes, ranges);
    entry += ranges;
    done += ranges;
    remoteDone += ranges;
    if (done === counts[run]) {
      run++;
      done = 0;
    }
    if (remoteDone === remoteCounts[remoteRun]) {
      remoteRun++;
      remoteDone = 0;
    }
  }
  return { locals: here.found, remotes: there.found, parts: writer.finish(), isBySelection: false };
}

function otherSize(index: number, bytes: number, remoteBytes: number): WeftlineError {
  const expected = `${bytes} bytes, as its local one has`;
  return invalidArgument(`remote descriptor ${index}`, `${remoteBytes} bytes`, expected);
}

// oxlint-disable-next-line max-params -- they are few and of different types
function outside<T extends AddressRange>(
  { list, owner }: PlanSide<T>,
  finder: RegionFinder<T>,
  index: number,
  address: number,
  bytes: number,
): WeftlineError {
  const { kind } = list;
  return new WeftlineError(
    'WL_INVALID_ARGUMENT',
    `Descriptor ${index} (${bytes} bytes at 0x${address.toString(16)}, ${kind}) lies in no region that ${owner} has registered${leaving(finder.around(address), address, bytes)}`,
    { details: { index, address, bytes, kind, owner } },
  );
}

/** A range that only leaves its region deserves to be told so. */
function leaving(region: AddressRange | undefined, wanted: number, bytes: number): string {
  if (region === undefined) return '';
  const over = wanted + bytes - region.address - region.length;
  return `: it leaves a region of ${region.length} bytes by ${over}`;
}

// Transfers whose entries are chosen when they are posted.

/** Entries of a transfer's lists that one post moves: entry `local[i]` of the local list goes with entry `remote[i]` of the remote one. */
export interface Selection {
  readonly local: ArrayLike<number>;
  /** The same numbers as `local` by default. */
  readonly remote?: ArrayLike<number>;
}

const selectionNames: OptionNames<Selection> = { local: true, remote: true };

/** Most entries of one selection. */
export const MAX_SELECTED: number = 2 ** 20;

/** The plan of such a transfer. Its table has no rows before the first selection. */
export class SelectionPlan<L extends AddressRange, R extends AddressRange> {
  readonly plan: PlannedTransfer<L, R>;
  /** Entries and bytes of the last selection. */
  entries = 0;
  bytes = 0;
  readonly #here: PlacedRuns<L>;
  readonly #there: PlacedRuns<R>;
  readonly #writer: PartWriter;
  #isSelecting = false;

  /** Fails with WL_INVALID_ARGUMENT: an empty list, or a range that lies in no registered region or leaves it. */
  constructor(local: PlanSide<L>, remote: PlanSide<R>, { merge }: { readonly merge: boolean }) {
    this.#here = new PlacedRuns(local, 'local');
    this.#there = new PlacedRuns(remote, 'remote');
    const parts = PartTable.withRoom(Math.min(MAX_SELECTED, Math.max(local.list.length, remote.list.length)));
    this.#writer = new PartWriter(parts, merge);
    this.plan = { locals: this.#here.regions, remotes: this.#there.regions, parts, isBySelection: true };
  }

  /**
   * Hot path: no allocation. Writes the rows of a selection. Fails with WL_INVALID_ARGUMENT for indices that there are not,
   * numbers of them that differ or are too many, and entries of different sizes; the table is then that of no post.
   */
  select(selection: Selection): void {
    checkOptions(selection, selectionNames, 'selection');
    if (this.#isSelecting)
      throw invalidArgument('selection', selection, 'no post while the arrays of another are read');
    this.#isSelecting = true;
    try {
      this.#select(selection);
    } finally {
      this.#isSelecting = false;
    }
  }

  #select({ local, remote = local }: Selection): void {
    const { parts } = this.plan;
    const count = checkIndices('selection.local', local, parts.capacity);
    if (checkIndices('selection.remote', remote, parts.capacity) !== count) {
      throw invalidArgument('selection.remote.length', remote.length, `${count}, one per local index`);
    }
    const here = this.#here;
    const there = this.#there;
    this.#writer.restart();
    let bytes = 0;
    for (let at = 0; at < count; at++) {
      const index = local[at]!;
      const remoteIndex = remote[at]!;
      if (!here.finder.find(index)) throw noEntry(`selection.local[${at}]`, index, here.list, 'the local list');
      if (!there.finder.find(remoteIndex)) {
        const list = remote === local ? 'the remote list (it is local, if left out)' : 'the remote list';
        throw noEntry(`selection.remote[${at}]`, remoteIndex, there.list, list);
      }
      const { run, within } = here.finder;
      const { run: remoteRun, within: remoteWithin } = there.finder;
      const size = here.lengths[run]!;
      const remoteSize = there.lengths[remoteRun]!;
      if (remoteSize !== size) {
        const expected = `an entry of ${size} bytes, as local entry ${index} has`;
        throw invalidArgument(`selection.remote[${at}]`, `entry ${remoteIndex}, of ${remoteSize} bytes`, expected);
      }
      const stride = here.strides[run]!;
      const remoteStride = there.strides[remoteRun]!;
      const from = here.offsets[run]! + within * stride;
      const to = there.offsets[remoteRun]! + remoteWithin * remoteStride;
      this.#writer.add(here.region[run]!, from, stride, there.region[remoteRun]!, to, remoteStride, size, 1);
      bytes += size;
    }
    this.#writer.finish();
    this.entries = count;
    this.bytes = bytes;
  }
}

function checkIndices(name: string, indices: ArrayLike<number>, most: number): number {
  const count: unknown = indices?.length;
  if (!isWhole(count, 0)) throw invalidArgument(name, indices, 'an array of indices');
  if (count === 0 || count > most) throw invalidArgument(`${name}.length`, count, `1 to ${most}`);
  return count;
}

/** The runs of a list, each of which lies inside of one region; those that do not are split. */
class PlacedRuns<T extends AddressRange> {
  /** Regions that the list touches, each once. */
  readonly regions: readonly T[];
  readonly list: DescriptorList;
  readonly finder: RunFinder;
  /** Columns by run: its region, bytes from the begin of that, and sizes and distances of its ranges. */
  readonly region: Uint32Array;
  readonly offsets: Float64Array;
  readonly lengths: Float64Array;
  readonly strides: Float64Array;

  constructor(side: PlanSide<T>, name: 'local' | 'remote') {
    const { list, regions } = side;
    const { addresses, lengths, strides, counts } = list.runs;
    if (list.length === 0) throw invalidArgument(`${name}.length`, 0, 'at least one descriptor');
    const finder = new RegionFinder(regions, list.kind);
    const placed = { region: [] as number[], offsets: [] as number[], runs: [] as number[], counts: [] as number[] };
    let entry = 0;
    for (let run = 0; run < counts.length; run++) {
      for (let done = 0; done < counts[run]!;) {
        const address = addresses[run]! + done * strides[run]!;
        const found = finder.find(address, lengths[run]!);
        if (found === -1) throw outside(side, finder, entry + done, address, lengths[run]!);
        const left = counts[run]! - done;
        const fitting = left === 1 ? 1 : Math.min(left, finder.fitting(address, lengths[run]!, strides[run]!));
        placed.region.push(found);
        placed.offsets.push(address - finder.begin);
        placed.runs.push(run);
        placed.counts.push(fitting);
        done += fitting;
      }
      entry += counts[run]!;
    }
    this.list = list;
    this.regions = finder.found;
    this.finder = new RunFinder(Uint32Array.from(placed.counts), list.length);
    this.region = Uint32Array.from(placed.region);
    this.offsets = Float64Array.from(placed.offsets);
    this.lengths = Float64Array.from(placed.runs, (run) => lengths[run]!);
    this.strides = Float64Array.from(placed.runs, (run) => strides[run]!);
  }
}
