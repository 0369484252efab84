// Lists of memory ranges by address, as two agents tell each other which bytes to move.
import { Block, defineLayout } from '../abi/layout.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import type { MemoryKind } from './agent-memory.ts';

/** What has an address: registered memory of either side. */
export interface Addressed {
  readonly kind: MemoryKind;
  readonly address: number;
  /** Bytes. */
  readonly length: number;
}

export interface BlockOptions {
  /** Bytes of one block. */
  readonly blockBytes: number;
  /** From the start of one block to the next; `blockBytes` by default. */
  readonly stride?: number;
  /** Bytes before the first block; 0 by default. */
  readonly offset?: number;
  /** As many as fit by default. */
  readonly count?: number;
}

const kinds: readonly MemoryKind[] = ['host', 'cuda'];
const head = defineLayout('DescriptorListHead', { magic: 'u32', kind: 'u32', count: 'u32', reserved: 'u32' });
const entry = defineLayout('Descriptor', { address: 'u64', bytes: 'u64' });
/** "WLDL" */
const MAGIC = 0x4c_44_4c_57;

/** Ranges of one kind of memory. Immutable; entry i of one side's list goes with entry i of the other's. */
export class DescriptorList {
  readonly kind: MemoryKind;
  readonly addresses: Float64Array;
  readonly lengths: Float64Array;

  /** A part of registered memory; all of it by default. */
  static of({ kind, address, length }: Addressed, offset = 0, bytes: number = length - offset): DescriptorList {
    if (!(offset >= 0 && bytes > 0 && offset + bytes <= length)) {
      throw invalidArgument('range', [offset, bytes], `a part of the ${length} bytes that are registered`);
    }
    return new DescriptorList(kind, Float64Array.of(address + offset), Float64Array.of(bytes));
  }

  /** Equal blocks of registered memory, such as the pages of a key-value cache: entry i is block i. */
  static blocks(memory: Addressed, options: BlockOptions): DescriptorList {
    const { blockBytes, stride = blockBytes, offset = 0 } = options;
    const fitting = Math.floor((memory.length - offset - blockBytes) / stride) + 1;
    const { count = fitting } = options;
    if (!(blockBytes > 0 && stride > 0 && offset >= 0 && count >= 1 && count <= fitting)) {
      throw invalidArgument(
        'blocks',
        JSON.stringify(options),
        `1 to ${Math.max(0, fitting)} blocks of the ${memory.length} bytes`,
      );
    }
    const addresses = Float64Array.from({ length: count }, (_, index) => memory.address + offset + index * stride);
    return new DescriptorList(memory.kind, addresses, new Float64Array(count).fill(blockBytes));
  }

  /** Fails with WL_PROTOCOL for bytes that `encode` did not make. */
  static decode(bytes: Uint8Array): DescriptorList {
    if (bytes.length < head.size) throw bad();
    const block = new Block(head, bytes.buffer, bytes.byteOffset);
    const kind = kinds[block.get('kind')];
    const count = block.get('count');
    if (block.get('magic') !== MAGIC || kind === undefined || bytes.length !== head.size + count * entry.size)
      throw bad();
    const addresses = new Float64Array(count);
    const lengths = new Float64Array(count);
    for (let index = 0; index < count; index++) {
      const item = new Block(entry, bytes.buffer, bytes.byteOffset + head.size + index * entry.size);
      addresses[index] = item.get('address');
      lengths[index] = item.get('bytes');
    }
    return new DescriptorList(kind, addresses, lengths);
  }

  constructor(kind: MemoryKind, addresses: Float64Array, lengths: Float64Array) {
    if (addresses.length !== lengths.length)
      throw invalidArgument('lengths', lengths.length, `${addresses.length}, one per address`);
    this.kind = kind;
    this.addresses = addresses;
    this.lengths = lengths;
  }

  get length(): number {
    return this.addresses.length;
  }

  /** Of all entries. */
  get bytes(): number {
    return this.lengths.reduce((sum, length) => sum + length, 0);
  }

  /** The entries with these indices, in this order. Fails with WL_INVALID_ARGUMENT for an index that there is not. */
  select(indices: ArrayLike<number>): DescriptorList {
    const addresses = new Float64Array(indices.length);
    const lengths = new Float64Array(indices.length);
    for (let at = 0; at < indices.length; at++) {
      const index = indices[at] as number;
      const address = this.addresses[index];
      if (address === undefined) throw invalidArgument('index', index, `0 to ${this.length - 1}`);
      addresses[at] = address;
      lengths[at] = this.lengths[index] as number;
    }
    return new DescriptorList(this.kind, addresses, lengths);
  }

  /** This list's entries, then the other's. */
  concat(other: DescriptorList): DescriptorList {
    if (other.kind !== this.kind) throw invalidArgument('list', other.kind, `ranges of ${this.kind} memory`);
    const addresses = Float64Array.of(...this.addresses, ...other.addresses);
    return new DescriptorList(this.kind, addresses, Float64Array.of(...this.lengths, ...other.lengths));
  }

  /** To be sent to a peer. */
  encode(): Uint8Array {
    const bytes = new Uint8Array(head.size + this.length * entry.size);
    const block = new Block(head, bytes.buffer, 0);
    block.set('magic', MAGIC);
    block.set('kind', kinds.indexOf(this.kind));
    block.set('count', this.length);
    for (let index = 0; index < this.length; index++) {
      const item = new Block(entry, bytes.buffer, head.size + index * entry.size);
      item.set('address', this.addresses[index] as number);
      item.set('bytes', this.lengths[index] as number);
    }
    return bytes;
  }
}

function bad(): WeftlineError {
  return new WeftlineError('WL_PROTOCOL', 'These bytes are not a list of descriptors');
}
