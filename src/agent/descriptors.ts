// Lists of memory ranges by address, as two agents tell each other which bytes to move.
import { Block, defineLayout, getWide, setWide } from '../abi/layout.ts';
import { checkOptions, isWhole, type OptionNames } from '../core/check-options.ts';
import { invalidArgument, show, WeftlineError } from '../core/errors.ts';
import { type MemoryKind, memoryKinds } from './backend.ts';

/** "WLDL" */
const DESCRIPTOR_LIST_MAGIC = 0x4c_44_4c_57;

/** The head of a list as agents send it to each other; its runs follow. */
const descriptorListHead = defineLayout('DescriptorListHead', {
  magic: 'u32',
  /** Index in memoryKinds. */
  kind: 'u32',
  /** How many runs there are. */
  runs: 'u32',
  /** 1 if each run has a stride and a count, 0 if all of them are single ranges. */
  areStrided: 'u32',
});

const singleRange = defineLayout('DescriptorRange', { address: 'u64', bytes: 'u64' });
const stridedRun = defineLayout('DescriptorRun', { address: 'u64', bytes: 'u64', stride: 'u64', count: 'u64' });

/** What has an address: registered memory of either side. */
export interface Addressed {
  readonly kind: MemoryKind;
  readonly address: number;
  /** Bytes. */
  readonly length: number;
}

/** Blocks of equal size within a region. */
interface BlockOptions {
  /** Bytes of one block. */
  readonly blockBytes: number;
  /** Bytes from the start of one block to the next; `blockBytes` by default. */
  readonly stride?: number;
  /** Bytes before the first block; 0 by default. */
  readonly offset?: number;
  /** The number of blocks; as many as fit by default. */
  readonly count?: number;
}

const blockOptionNames: OptionNames<BlockOptions> = { blockBytes: true, stride: true, offset: true, count: true };

/**
 * What was expected, if these numbers are no range; undefined if they are one. Whole numbers up to 2^53, so that sums and differences of
 * addresses are exact: native code copies from and to what they name.
 */
function whyNoRange(address: number, bytes: number): string | undefined {
  if (Number.isSafeInteger(address) && address >= 0 && Number.isSafeInteger(bytes) && bytes > 0) {
    if (Number.isSafeInteger(address + bytes)) return undefined;
  }
  return 'an address and a number of bytes, both whole numbers, at least one byte, ending below 2^53';
}

/**
 * Run i is `counts[i]` ranges of `lengths[i]` bytes, the first at `addresses[i]`, each `strides[i]` bytes behind the one before;
 * the stride of a single range is its length, whatever the caller gave: nothing that is multiplied by it becomes NaN.
 */
export interface Runs {
  readonly addresses: Float64Array;
  readonly lengths: Float64Array;
  readonly strides: Float64Array;
  readonly counts: Uint32Array;
}

/**
 * Ranges of one kind of memory. Immutable; entry i of one side's list goes with entry i of the other's. Ranges of equal size
 * at equal distances are held as one run, so that blocks take as much memory and time whether they are ten or a million.
 */
export class DescriptorList {
  readonly kind: MemoryKind;
  /** How many ranges it lists. */
  readonly length: number;
  /** Bytes of all entries. */
  readonly bytes: number;
  /** @internal */
  readonly runs: Runs;
  readonly #finder: RunFinder;

  /** A part of registered memory; all of it by default. */
  static of(memory: Addressed, offset = 0, bytes: number = restOf(memory, offset)): DescriptorList {
    checkPart(memory, offset, bytes);
    return new DescriptorList(memory.kind, Float64Array.of(memory.address + offset), Float64Array.of(bytes));
  }

  /** Equal blocks of registered memory, such as the pages of a key-value cache: entry i is block i. */
  static blocks(memory: Addressed, options: BlockOptions): DescriptorList {
    requireMemory(memory);
    checkOptions(options, blockOptionNames, 'options of blocks');
    const { blockBytes, stride = blockBytes, offset = 0 } = options;
    const areNumbers = [blockBytes, stride, offset].every((number) => Number.isSafeInteger(number));
    const fitting = areNumbers ? Math.floor((memory.length - offset - blockBytes) / stride) + 1 : 0;
    const { count = fitting } = options;
    if (
      !(
        areNumbers &&
        Number.isSafeInteger(count) &&
        blockBytes > 0 &&
        stride > 0 &&
        offset >= 0 &&
        count >= 1 &&
        count <= Math.min(fitting, MAX_COUNT)
      )
    ) {
      throw invalidArgument(
        'blocks',
        Object.entries(options)
          .map(([name, value]) => `${name}: ${show(value)}`)
          .join(', '),
        `whole numbers, blockBytes and stride from 1, offset from 0, count from 1 to as many blocks as lie in the ${memory.length} bytes`,
      );
    }
    return new DescriptorList(
      memory.kind,
      Float64Array.of(memory.address + offset),
      Float64Array.of(blockBytes),
      Float64Array.of(stride),
      Uint32Array.of(count),
    );
  }

  /** All entries of all lists, in this order. Fails with WL_INVALID_ARGUMENT if there is no list, or lists of both kinds. */
  static join(lists: readonly DescriptorList[]): DescriptorList {
    const kind = Array.isArray(lists) ? lists[0]?.kind : undefined;
    if (kind === undefined) throw invalidArgument('lists', lists, 'an array of at least one list');
    for (const list of lists) requireList('list', list);
    const joined = runsOf(lists.reduce((sum, { runs }) => sum + runs.counts.length, 0));
    let at = 0;
    for (const { kind: other, runs } of lists) {
      if (other !== kind) throw invalidArgument('list', other, `ranges of ${kind} memory`);
      for (const column of columnNames) joined[column].set(runs[column], at);
      at += runs.counts.length;
    }
    return listOf(kind, joined);
  }

  /** Fails with WL_PROTOCOL for bytes that `encode` did not make. */
  static decode(bytes: Uint8Array): DescriptorList {
    if (!(bytes instanceof Uint8Array)) throw invalidArgument('bytes', bytes, 'a Uint8Array that encode() made');
    if (bytes.length < descriptorListHead.size) throw bad(`${bytes.length} bytes are too few`);
    const block = new Block(descriptorListHead, bytes.buffer, bytes.byteOffset);
    if (block.get('magic') !== DESCRIPTOR_LIST_MAGIC) throw bad('they do not begin as one');
    const kind = memoryKinds[block.get('kind')];
    if (kind === undefined) throw bad(`the kind of memory is ${block.get('kind')}`);
    const count = block.get('runs');
    const areStrided = block.get('areStrided');
    if (areStrided > 1) throw bad(`its runs are of kind ${areStrided}`);
    const { size } = areStrided === 1 ? stridedRun : singleRange;
    const expected = descriptorListHead.size + count * size;
    if (bytes.length !== expected) throw bad(`${count} runs take ${expected} bytes, got ${bytes.length}`);
    const runs = runsOf(count);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    for (let index = 0; index < count; index++) {
      const at = descriptorListHead.size + index * size;
      runs.addresses[index] = getWide(view, at + stridedRun.offset.address);
      runs.lengths[index] = getWide(view, at + stridedRun.offset.bytes);
      const ranges = areStrided === 1 ? getWide(view, at + stridedRun.offset.count) : 1;
      if (ranges > MAX_COUNT) throw bad(`descriptor ${index} is ${ranges} ranges, expected at most ${MAX_COUNT}`);
      const stride = areStrided === 1 ? getWide(view, at + stridedRun.offset.stride) : 0;
      if (ranges === 1 && stride !== 0)
        throw bad(`descriptor ${index} is one range with a stride of ${stride}, expected 0`);
      runs.strides[index] = ranges === 1 ? runs.lengths[index]! : stride;
      runs.counts[index] = ranges;
    }
    checkRuns(runs, bad);
    return listOf(kind, runs);
  }

  /**
   * Copies the arrays. With strides and counts, entry i of the arrays is a run: `counts[i]` ranges of `lengths[i]` bytes, the
   * first at `addresses[i]`, each `strides[i]` bytes (1 or more) behind the one before; else it is one range. Fails with
   * WL_INVALID_ARGUMENT for ranges that are not whole numbers, are empty or end beyond 2^53, or if all of them together have more
   * bytes than that.
   */
  // oxlint-disable-next-line max-params -- columns, which come in pairs
  constructor(
    kind: MemoryKind,
    addresses: Float64Array,
    lengths: Float64Array,
    strides: Float64Array = lengths,
    counts?: Uint32Array,
  ) {
    if (!memoryKinds.includes(kind)) throw invalidArgument('kind', kind, memoryKinds.join(' or '));
    for (const [name, column] of Object.entries({ addresses, lengths, strides })) {
      if (!(column instanceof Float64Array)) throw invalidArgument(name, column, 'a Float64Array');
    }
    if (counts !== undefined && !(counts instanceof Uint32Array))
      throw invalidArgument('counts', counts, 'a Uint32Array');
    for (const [name, column] of Object.entries({ lengths, strides, counts })) {
      if (column !== undefined && column.length !== addresses.length)
        throw invalidArgument(name, column.length, `${addresses.length}, one per address`);
    }
    // ORDER: copied, then checked: another thread may write to the caller's.
    const copied = lengths.slice();
    const ranges = counts?.slice() ?? new Uint32Array(lengths.length).fill(1);
    this.runs = {
      addresses: addresses.slice(),
      lengths: copied,
      strides: strides === lengths ? copied : strides.map((stride, run) => (ranges[run] === 1 ? copied[run]! : stride)),
      counts: ranges,
    };
    const { bytes, length } = checkRuns(this.runs, invalidList);
    this.kind = kind;
    this.bytes = bytes;
    this.length = length;
    this.#finder = new RunFinder(this.runs.counts, length);
  }

  /** Where entry `index` lies, and its bytes. Fails with WL_INVALID_ARGUMENT for an index that there is not. */
  entry(index: number): { readonly address: number; readonly length: number } {
    if (!this.#finder.find(index)) throw noEntry('index', index, this, 'the list');
    const { run, within } = this.#finder;
    const { addresses, lengths, strides } = this.runs;
    return { address: addresses[run]! + within * strides[run]!, length: lengths[run]! };
  }

  /** The entries with these indices, in this order. Fails with WL_INVALID_ARGUMENT for an index that there is not. */
  select(indices: ArrayLike<number>): DescriptorList {
    const count: unknown = indices?.length;
    if (!isWhole(count, 0)) throw invalidArgument('indices', indices, 'an array of indices');
    if (count > MAX_INDICES) throw invalidArgument('indices.length', count, `at most ${MAX_INDICES}`);
    const { addresses, lengths, strides } = this.runs;
    const finder = this.#finder;
    const selected = runsOf(count);
    let made = 0;
    /** The entry that would go on with the run that was made last. */
    let [next, lastRun] = [-1, -1];
    for (let at = 0; at < count; at++) {
      const index = indices[at]!;
      if (!finder.find(index)) throw noEntry(`indices[${at}]`, index, this, 'the list');
      const { run, within } = finder;
      if (index === next && run === lastRun) {
        selected.counts[made - 1]! += 1;
        selected.strides[made - 1] = strides[run]!;
      } else {
        selected.addresses[made] = addresses[run]! + within * strides[run]!;
        selected.lengths[made] = lengths[run]!;
        selected.counts[made++] = 1;
      }
      next = index + 1;
      lastRun = run;
    }
    const lengthsOfRuns = selected.lengths.subarray(0, made);
    return listOf(this.kind, {
      addresses: selected.addresses.subarray(0, made),
      lengths: lengthsOfRuns,
      // They mean nothing where all ranges are single: a column is saved.
      strides: made === count ? lengthsOfRuns : selected.strides.subarray(0, made),
      counts: selected.counts.subarray(0, made),
    });
  }

  /** This list's entries, then the other's. To join many lists, take `DescriptorList.join`. */
  concat(other: DescriptorList): DescriptorList {
    requireList('other', other);
    return DescriptorList.join([this, other]);
  }

  /** The list as bytes, to be sent to a peer. */
  encode(): Uint8Array {
    const { addresses, lengths, strides, counts } = this.runs;
    const areStrided = this.length > counts.length;
    const { size } = areStrided ? stridedRun : singleRange;
    const bytes = new Uint8Array(descriptorListHead.size + counts.length * size);
    const block = new Block(descriptorListHead, bytes.buffer, 0);
    block.set('magic', DESCRIPTOR_LIST_MAGIC);
    block.set('kind', memoryKinds.indexOf(this.kind));
    block.set('runs', counts.length);
    block.set('areStrided', areStrided ? 1 : 0);
    const view = new DataView(bytes.buffer);
    for (let index = 0; index < counts.length; index++) {
      const at = descriptorListHead.size + index * size;
      setWide(view, at + stridedRun.offset.address, addresses[index]!);
      setWide(view, at + stridedRun.offset.bytes, lengths[index]!);
      if (!areStrided) continue;
      setWide(view, at + stridedRun.offset.stride, counts[index] === 1 ? 0 : strides[index]!);
      setWide(view, at + stridedRun.offset.count, counts[index]!);
    }
    return bytes;
  }

  /** @internal The ranges that the first `bytes` bytes take, each by itself. For lists that are known to be short there. */
  expand(bytes: number = this.bytes): Pick<Runs, 'addresses' | 'lengths'> {
    const { runs } = this;
    if (runs.counts.length === this.length) return runs;
    let left = bytes;
    const counts = runs.counts.map((count, run) => {
      const taken = Math.min(count, Math.ceil(Math.max(0, left) / runs.lengths[run]!));
      left -= taken * runs.lengths[run]!;
      return taken;
    });
    const length = counts.reduce((sum, count) => sum + count, 0);
    const [addresses, lengths] = [new Float64Array(length), new Float64Array(length)];
    let entry = 0;
    for (const [run, count] of counts.entries()) {
      lengths.fill(runs.lengths[run]!, entry, entry + count);
      for (let within = 0; within < count; within++) {
        addresses[entry++] = runs.addresses[run]! + within * runs.strides[run]!;
      }
    }
    return { addresses, lengths };
  }
}

/** Finds the run of an entry in constant time if it lies in the run of the one before, or all runs are single; else in logarithmic time. */
export class RunFinder {
  /** What was found: the run, and the number of the entry in it. */
  run = 0;
  within = 0;
  readonly #length: number;
  readonly #counts: Uint32Array;
  readonly #areSingle: boolean;
  /** The entry with which each run begins. */
  #starts: Float64Array | undefined;

  constructor(counts: Uint32Array, length: number) {
    this.#counts = counts;
    this.#length = length;
    this.#areSingle = counts.length === length;
  }

  /** Hot path. False for what is no index of an entry. */
  find(index: number): boolean {
    if (!(Number.isInteger(index) && index >= 0 && index < this.#length)) return false;
    if (this.#areSingle) {
      this.run = index;
      return true;
    }
    const starts = (this.#starts ??= startsOf(this.#counts));
    let { run } = this;
    if (index < starts[run]! || index >= starts[run]! + this.#counts[run]!) {
      run = 0;
      for (let end = starts.length; end - run > 1;) {
        const middle = (run + end) >>> 1;
        if (starts[middle]! <= index) run = middle;
        else end = middle;
      }
      this.run = run;
    }
    this.within = index - starts[run]!;
    return true;
  }
}

/** An index that a list does not have; `argument` says which one it is. */
// oxlint-disable-next-line max-params -- they are few and of different types
export function noEntry(argument: string, index: number, { length }: DescriptorList, list: string): WeftlineError {
  return invalidArgument(argument, index, `the number of an entry of ${list}, 0 to ${length - 1}`);
}

function startsOf(counts: Uint32Array): Float64Array {
  const starts = new Float64Array(counts.length);
  for (let run = 1; run < counts.length; run++) starts[run] = starts[run - 1]! + counts[run - 1]!;
  return starts;
}

/** Most ranges of a run. */
const MAX_COUNT = 2 ** 32 - 1;
/** Most entries that are selected at a time: their columns take 2 GiB. */
const MAX_INDICES = 2 ** 26;

const columnNames = ['addresses', 'lengths', 'strides', 'counts'] as const;

function runsOf(count: number): Runs {
  return {
    addresses: new Float64Array(count),
    lengths: new Float64Array(count),
    strides: new Float64Array(count),
    counts: new Uint32Array(count),
  };
}

function listOf(kind: MemoryKind, { addresses, lengths, strides, counts }: Runs): DescriptorList {
  return new DescriptorList(kind, addresses, lengths, strides, counts);
}

/** Fails with WL_INVALID_ARGUMENT unless `bytes` bytes from `offset` on are a part of the memory. */
export function checkPart(memory: Addressed, offset: number, bytes: number): void {
  requireMemory(memory);
  const { length } = memory;
  if (whyNoRange(offset, bytes) === undefined && offset + bytes <= length) return;
  throw invalidArgument('range', [offset, bytes], `a part of the ${length} bytes that are registered`);
}

/** Fails with WL_INVALID_ARGUMENT for anything but a list. */
export function requireList(name: string, list: unknown): void {
  if (!(list instanceof DescriptorList)) throw invalidArgument(name, list, 'a DescriptorList');
}

function requireMemory(memory: unknown): void {
  const { kind, address, length }: Partial<Addressed> = typeof memory === 'object' && memory !== null ? memory : {};
  if (kind !== undefined && memoryKinds.includes(kind) && typeof address === 'number' && typeof length === 'number')
    return;
  throw invalidArgument('memory', memory, 'what register() or allocate() returned, or remoteMemory() lists');
}

/** Bytes from `offset` on; NaN, which is no size, for an offset that is no number: a bigint would fail with an error of its own. */
export function restOf(memory: Addressed, offset: number): number {
  requireMemory(memory);
  return typeof offset === 'number' ? memory.length - offset : Number.NaN;
}

/** The sums of all runs. `fail` makes the error for the first run that is wrong. */
function checkRuns(
  { addresses, lengths, strides, counts }: Runs,
  fail: (why: string) => WeftlineError,
): { readonly bytes: number; readonly length: number } {
  let [bytes, length] = [0, 0];
  for (let run = 0; run < counts.length; run++) {
    const address = addresses[run]!;
    const range = lengths[run]!;
    const stride = strides[run]!;
    const count = counts[run]!;
    const why = whyNoRange(address, range);
    if (why !== undefined) throw fail(`descriptor ${run} is [${address}, ${range}], expected ${why}`);
    const isRun = isWhole(stride, 1) && Number.isSafeInteger(address + (count - 1) * stride + range);
    if (count === 0 || (count > 1 && !isRun)) {
      throw fail(
        `descriptor ${run} is ${count} ranges from [${address}, ${range}] on, ${stride} bytes apart, expected one range or more, whole numbers of bytes apart, at least one, ending below 2^53`,
      );
    }
    bytes += range * count;
    length += count;
  }
  if (!Number.isSafeInteger(bytes)) throw fail(`its ranges have ${bytes} bytes together, expected less than 2^53`);
  return { bytes, length };
}

function invalidList(why: string): WeftlineError {
  return new WeftlineError('WL_INVALID_ARGUMENT', `Invalid list of descriptors: ${why}`);
}

function bad(why: string): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', `These bytes are not a list of descriptors: ${why}`);
}
