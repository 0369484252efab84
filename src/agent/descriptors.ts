// Lists of memory ranges by address, as two agents tell each other which bytes to move.
import { Block, defineLayout, getWide, setWide } from '../abi/layout.ts';
import { checkOptions, isWhole, type OptionNames } from '../core/check-options.ts';
import { invalidArgument, show, WeftlineError } from '../core/errors.ts';
import { type MemoryKind, memoryKinds } from './backend.ts';

/** "WLDL" */
const DESCRIPTOR_LIST_MAGIC = 0x4c_44_4c_57;

/** The head of a list as agents send it to each other; one descriptor per range follows. */
const descriptorListHead = defineLayout('DescriptorListHead', {
  magic: 'u32',
  /** Index in memoryKinds. */
  kind: 'u32',
  count: 'u32',
  reserved: 'u32',
});

const descriptor = defineLayout('Descriptor', { address: 'u64', bytes: 'u64' });

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
export function whyNoRange(address: number, bytes: number): string | undefined {
  if (Number.isSafeInteger(address) && address >= 0 && Number.isSafeInteger(bytes) && bytes > 0) {
    if (Number.isSafeInteger(address + bytes)) return undefined;
  }
  return 'an address and a number of bytes, both whole numbers, at least one byte, ending below 2^53';
}

/** Ranges of one kind of memory. Immutable; entry i of one side's list goes with entry i of the other's. */
export class DescriptorList {
  readonly kind: MemoryKind;
  readonly addresses: Float64Array;
  readonly lengths: Float64Array;
  /** Bytes of all entries. */
  readonly bytes: number;

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
        count <= fitting
      )
    ) {
      throw invalidArgument(
        'blocks',
        Object.entries(options)
          .map(([name, value]) => `${name}: ${show(value)}`)
          .join(', '),
        `whole numbers, with count from 1 to as many blocks as lie in the ${memory.length} bytes`,
      );
    }
    const addresses = new Float64Array(count);
    const first = memory.address + offset;
    for (let index = 0; index < count; index++) addresses[index] = first + index * stride;
    return new DescriptorList(memory.kind, addresses, new Float64Array(count).fill(blockBytes));
  }

  /** All entries of all lists, in this order. Fails with WL_INVALID_ARGUMENT if there is no list, or lists of both kinds. */
  static join(lists: readonly DescriptorList[]): DescriptorList {
    const kind = Array.isArray(lists) ? lists[0]?.kind : undefined;
    if (kind === undefined) throw invalidArgument('lists', lists, 'at least one list');
    for (const list of lists) requireList('list', list);
    const count = lists.reduce((sum, list) => sum + list.length, 0);
    const addresses = new Float64Array(count);
    const lengths = new Float64Array(count);
    let at = 0;
    for (const list of lists) {
      if (list.kind !== kind) throw invalidArgument('list', list.kind, `ranges of ${kind} memory`);
      addresses.set(list.addresses, at);
      lengths.set(list.lengths, at);
      at += list.length;
    }
    return new DescriptorList(kind, addresses, lengths);
  }

  /** Fails with WL_PROTOCOL for bytes that `encode` did not make. */
  static decode(bytes: Uint8Array): DescriptorList {
    if (!(bytes instanceof Uint8Array)) throw invalidArgument('bytes', bytes, 'a Uint8Array that encode() made');
    if (bytes.length < descriptorListHead.size) throw bad(`${bytes.length} bytes are too few`);
    const block = new Block(descriptorListHead, bytes.buffer, bytes.byteOffset);
    if (block.get('magic') !== DESCRIPTOR_LIST_MAGIC) throw bad('they do not begin as one');
    const kind = memoryKinds[block.get('kind')];
    if (kind === undefined) throw bad(`the kind of memory is ${block.get('kind')}`);
    const count = block.get('count');
    const expected = descriptorListHead.size + count * descriptor.size;
    if (bytes.length !== expected) throw bad(`${count} descriptors take ${expected} bytes, got ${bytes.length}`);
    const addresses = new Float64Array(count);
    const lengths = new Float64Array(count);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    for (let index = 0; index < count; index++) {
      const at = descriptorListHead.size + index * descriptor.size;
      addresses[index] = getWide(view, at + descriptor.offset.address);
      lengths[index] = getWide(view, at + descriptor.offset.bytes);
    }
    sumOf(addresses, lengths, bad);
    return new DescriptorList(kind, addresses, lengths);
  }

  /**
   * Takes the arrays as they are. Fails with WL_INVALID_ARGUMENT for ranges that are not whole numbers, are empty or end
   * beyond 2^53, or if all of them together have more bytes than that.
   */
  constructor(kind: MemoryKind, addresses: Float64Array, lengths: Float64Array) {
    if (!memoryKinds.includes(kind)) throw invalidArgument('kind', kind, memoryKinds.join(' or '));
    for (const [name, column] of [
      ['addresses', addresses],
      ['lengths', lengths],
    ] as const) {
      if (!(column instanceof Float64Array)) throw invalidArgument(name, column, 'a Float64Array');
    }
    if (addresses.length !== lengths.length)
      throw invalidArgument('lengths', lengths.length, `${addresses.length}, one per address`);
    this.kind = kind;
    this.addresses = addresses;
    this.lengths = lengths;
    this.bytes = sumOf(addresses, lengths, invalidList);
  }

  /** How many ranges it lists. */
  get length(): number {
    return this.addresses.length;
  }

  /** The entries with these indices, in this order. Fails with WL_INVALID_ARGUMENT for an index that there is not. */
  select(indices: ArrayLike<number>): DescriptorList {
    const count: unknown = indices?.length;
    if (!isWhole(count, 0)) throw invalidArgument('indices', indices, 'an array of indices');
    const addresses = new Float64Array(count);
    const lengths = new Float64Array(indices.length);
    for (let at = 0; at < indices.length; at++) {
      const index = indices[at]!;
      const address = typeof index === 'number' ? this.addresses[index] : undefined;
      if (address === undefined) throw invalidArgument('index', index, `0 to ${this.length - 1}`);
      addresses[at] = address;
      lengths[at] = this.lengths[index]!;
    }
    return new DescriptorList(this.kind, addresses, lengths);
  }

  /** This list's entries, then the other's. To join many lists, take `DescriptorList.join`. */
  concat(other: DescriptorList): DescriptorList {
    requireList('other', other);
    return DescriptorList.join([this, other]);
  }

  /** The list as bytes, to be sent to a peer. */
  encode(): Uint8Array {
    const bytes = new Uint8Array(descriptorListHead.size + this.length * descriptor.size);
    const block = new Block(descriptorListHead, bytes.buffer, 0);
    block.set('magic', DESCRIPTOR_LIST_MAGIC);
    block.set('kind', memoryKinds.indexOf(this.kind));
    block.set('count', this.length);
    const view = new DataView(bytes.buffer);
    for (let index = 0; index < this.length; index++) {
      const at = descriptorListHead.size + index * descriptor.size;
      setWide(view, at + descriptor.offset.address, this.addresses[index]!);
      setWide(view, at + descriptor.offset.bytes, this.lengths[index]!);
    }
    return bytes;
  }
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

/** The sum of all ranges' bytes. `fail` makes the error for the first range that is wrong. */
function sumOf(addresses: Float64Array, lengths: Float64Array, fail: (why: string) => WeftlineError): number {
  let sum = 0;
  for (let index = 0; index < addresses.length; index++) {
    const address = addresses[index]!;
    const bytes = lengths[index]!;
    const why = whyNoRange(address, bytes);
    if (why !== undefined) throw fail(`descriptor ${index} is [${address}, ${bytes}], expected ${why}`);
    sum += bytes;
  }
  if (!Number.isSafeInteger(sum)) throw fail(`its ranges have ${sum} bytes together, expected less than 2^53`);
  return sum;
}

function invalidList(why: string): WeftlineError {
  return new WeftlineError('WL_INVALID_ARGUMENT', `Invalid list of descriptors: ${why}`);
}

function bad(why: string): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', `These bytes are not a list of descriptors: ${why}`);
}
