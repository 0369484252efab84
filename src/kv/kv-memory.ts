// Where the blocks of a KV cache lie: a block is one range in each part, such as the keys of a layer.
import { DescriptorList } from '../agent/descriptors.ts';
import type { MemoryKind } from '../agent/backend.ts';
import { Registration } from '../agent/registration.ts';
import {
  checkOptions,
  isWhole,
  type OptionNames,
  oneOf,
  type OptionRules,
  checkRules,
  wholeFrom,
} from '../core/check-options.ts';
import { invalidArgument } from '../core/errors.ts';

/** One range of every block: that of block b begins at `offset + b * stride` in registered memory. */
export interface KvPart {
  /** What `agent.register` or `agent.allocate` returned. */
  readonly memory: Registration;
  /** Bytes of the range; on GPUs a multiple of 4. */
  readonly bytes: number;
  /** Bytes from the range of one block to that of the next, at least `bytes`, which it is by default. */
  readonly stride?: number;
  /** Bytes of the memory before the range of block 0; 0 by default. */
  readonly offset?: number;
}

/** Memory of equal blocks, numbered from 0: all of the host, or all of one GPU. The caller's, and open as long as it is used. */
export interface KvMemory {
  /** The number of blocks. */
  readonly blocks: number;
  /** The ranges of a block, in an order that both sides share, as checksums follow it. */
  readonly parts: readonly KvPart[];
}

const partNames: OptionNames<KvPart> = { memory: true, bytes: true, stride: true, offset: true };

/** Ranges of a store: blocks times parts. */
export const MAX_KV_RANGES: number = 1 << 24;

/** What the kernel that sums memory of a GPU up reads at a time. */
const WORD_BYTES = 4;

/** Where a part lies, in the address space of its process. */
export interface PartPlace {
  readonly address: number;
  readonly stride: number;
  readonly bytes: number;
}

/** All ranges of a memory, as descriptors. */
export class KvRanges {
  readonly kind: MemoryKind;
  readonly blocks: number;
  readonly parts: readonly PartPlace[];
  /** Bytes of a block. */
  readonly blockBytes: number;
  /** Part after part, each block by block. */
  readonly list: DescriptorList;

  constructor(kind: MemoryKind, blocks: number, parts: readonly PartPlace[]) {
    this.kind = kind;
    this.blocks = blocks;
    this.parts = parts;
    this.blockBytes = parts.reduce((sum, { bytes }) => sum + bytes, 0);
    this.list = DescriptorList.join(
      parts.map(({ address, stride, bytes }) => {
        const length = (blocks - 1) * stride + bytes;
        return DescriptorList.blocks({ kind, address, length }, { blockBytes: bytes, stride, count: blocks });
      }),
    );
  }

  /** Fails with WL_INVALID_ARGUMENT for parts that leave their memory, that lie on different devices, or that are none. */
  static of(memory: KvMemory): KvRanges {
    const { blocks, parts } = memory;
    if (!isWhole(blocks, 1)) throw invalidArgument('blocks', blocks, 'a whole number of at least 1');
    if (!Array.isArray(parts) || parts.length === 0) throw invalidArgument('parts', parts, 'at least one part');
    if (blocks * parts.length > MAX_KV_RANGES) {
      throw invalidArgument('blocks times parts', blocks * parts.length, `at most ${MAX_KV_RANGES}`);
    }
    const all: readonly KvPart[] = parts;
    const places = all.map((part, index) => placeOf(part, index, blocks));
    const { kind, memory: first } = all[0]!.memory;
    for (const [index, { memory: other }] of all.entries()) {
      if (other.memory.device === first.device) continue;
      throw invalidArgument(`memory of parts[${index}]`, `${other.kind} memory`, 'memory of the device of parts[0]');
    }
    return new KvRanges(kind, blocks, places);
  }

  /** The entries of these blocks, one part after the other: blocks that are neighbours are so in each part. */
  entries(blocks: readonly number[]): Uint32Array {
    const { length } = this.parts;
    const entries = new Uint32Array(blocks.length * length);
    let at = 0;
    for (let part = 0; part < length; part++) for (const block of blocks) entries[at++] = part * this.blocks + block;
    return entries;
  }
}

function placeOf(part: KvPart, index: number, blocks: number): PartPlace {
  checkOptions(part, partNames, `parts[${index}]`);
  const { memory, bytes, stride = bytes, offset = 0 } = part;
  if (!(memory instanceof Registration)) {
    throw invalidArgument(`memory of parts[${index}]`, memory, 'what agent.register() or agent.allocate() returned');
  }
  if (isWhole(bytes, 1) && isWhole(stride, bytes) && isWhole(offset, 0)) {
    const address = memory.address + offset;
    const isAligned = memory.kind === 'host' || [address, stride, bytes].every((number) => number % WORD_BYTES === 0);
    if (isAligned && offset + (blocks - 1) * stride + bytes <= memory.length) return { address, stride, bytes };
  }
  const words = memory.kind === 'host' ? '' : `, in multiples of ${WORD_BYTES} bytes`;
  const expected = `ranges of ${blocks} blocks within ${memory.length} bytes, none upon another${words}`;
  throw invalidArgument(`bytes, stride and offset of parts[${index}]`, [bytes, stride, offset], expected);
}

/** Shape of the tensor that vLLM has for a layer's cache. */
export interface VllmShape {
  /**
   * `kv-first`: [2, blocks, blockTokens, heads, headDim]. `blocks-first`: [blocks, 2, blockTokens, heads, headDim]. `mla`, also
   * for keys of an indexer: [blocks, blockTokens, tokenBytes].
   */
  readonly order: 'kv-first' | 'blocks-first' | 'mla';
  /** The number of blocks. */
  readonly blocks: number;
  /** Tokens, or compressed entries, of a block. */
  readonly blockTokens: number;
  /** Bytes of a token's keys, which are as many as those of its values; of `mla` those of an entry. */
  readonly tokenBytes: number;
}

const shapeRules: OptionRules<VllmShape> = {
  order: oneOf('kv-first', 'blocks-first', 'mla'),
  blocks: wholeFrom(1),
  blockTokens: wholeFrom(1),
  tokenBytes: wholeFrom(1),
};

/**
 * The parts of one layer: its keys and its values, or its entries. Fails with WL_INVALID_ARGUMENT for numbers that are none.
 * @param memory The registered tensor of the layer.
 * @param shape How vLLM shapes it.
 */
export function vllmParts(memory: Registration, shape: VllmShape): KvPart[] {
  checkRules(shape, shapeRules, 'shape');
  const { order, blocks, blockTokens, tokenBytes } = shape;
  const bytes = blockTokens * tokenBytes;
  if (order === 'mla') return [{ memory, bytes }];
  const [stride, values] = order === 'kv-first' ? [bytes, blocks * bytes] : [2 * bytes, bytes];
  return [0, values].map((offset) => ({ memory, bytes, stride, offset }));
}
