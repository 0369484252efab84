// Where the blocks of a KV cache lie: a block is one range in each part, such as the keys of a layer.
import { crc32 } from 'node:zlib';
import type { Agent } from '../agent/agent.ts';
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
import { invalidArgument, WeftlineError } from '../core/errors.ts';

/** One range of every block: that of block b begins at `offset + b * stride` in registered memory. */
export interface KvPart {
  /** What `register` or `allocate` of the agent of the store or reader returned. */
  readonly memory: Registration;
  /** Bytes of the range, less than 2^31; on GPUs a multiple of 4. */
  readonly bytes: number;
  /** Bytes from the range of one block to that of the next, at least `bytes`, which it is by default. */
  readonly stride?: number;
  /** Bytes of the memory before the range of block 0; 0 by default. */
  readonly offset?: number;
  /**
   * What lies in it, such as "layer 3 keys". Where both sides name a part, the names must be the same: parts of one size that one
   * side has in another order would else be hits with keys where values belong. None by default.
   */
  readonly name?: string;
}

/** Memory of equal blocks, numbered from 0: all of the host, or all of one GPU. The caller's, and open as long as it is used. */
export interface KvMemory {
  /** The number of blocks. */
  readonly blocks: number;
  /** The ranges of a block, in an order that both sides share, as checksums follow it. */
  readonly parts: readonly KvPart[];
}

const partNames: OptionNames<KvPart> = { memory: true, bytes: true, stride: true, offset: true, name: true };

/** Ranges of a store: blocks times parts. */
export const MAX_KV_RANGES: number = 1 << 24;

/** Most bytes of a range: zlib takes a length of 32 bits, and sums up nothing of 2^32 bytes. */
const MAX_RANGE_BYTES = 2 ** 31 - 1;

/** A word of a table, and what the kernel that sums memory of a GPU up reads at a time. */
export const WORD_BYTES = 4;

/** Where a part lies, in the address space of its process. */
export interface PartPlace {
  readonly address: number;
  readonly stride: number;
  readonly bytes: number;
  /** The checksum of its name; 0 if it has none. */
  readonly label: number;
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

  /**
   * Fails with WL_INVALID_ARGUMENT for parts that leave their memory, that have bytes in common, that lie on different devices or
   * in memory of another agent, or that are none.
   */
  static of(agent: Agent, memory: KvMemory): KvRanges {
    const { blocks, parts } = memory;
    if (!isWhole(blocks, 1)) throw invalidArgument('blocks', blocks, 'a whole number of at least 1');
    if (!Array.isArray(parts) || parts.length === 0) throw invalidArgument('parts', parts, 'at least one part');
    if (blocks * parts.length > MAX_KV_RANGES) {
      throw invalidArgument('blocks times parts', blocks * parts.length, `at most ${MAX_KV_RANGES}`);
    }
    const all: readonly KvPart[] = Array.from(parts);
    const places = all.map((part, index) => placeOf(agent, part, index, blocks));
    const { kind, memory: first } = all[0]!.memory;
    for (const [index, { memory: other }] of all.entries()) {
      if (other.memory.device === first.device) continue;
      throw invalidArgument(`memory of parts[${index}]`, `${other.kind} memory`, 'memory of the device of parts[0]');
    }
    requireApart(places, blocks);
    return new KvRanges(kind, blocks, places);
  }

  /** How the parts of a block differ from those of this side's, which must be alike; undefined if they do not. */
  whyUnlike(own: KvRanges): string | undefined {
    const [there, here] = [this.parts, own.parts];
    if (there.length !== here.length) return `has ${there.length} parts, one of this reader ${here.length}`;
    for (const [index, { bytes, label }] of there.entries()) {
      const part = here[index]!;
      if (bytes !== part.bytes) return `has ${bytes} bytes in part ${index}, one of this reader ${part.bytes}`;
      if (label !== part.label && label !== 0 && part.label !== 0)
        return `has a part ${index} of another name than one of this reader`;
    }
    return undefined;
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

function placeOf(agent: Agent, part: KvPart, index: number, blocks: number): PartPlace {
  const what = `parts[${index}]`;
  checkOptions(part, partNames, what);
  const { memory, bytes, stride = bytes, offset = 0, name = '' } = part;
  if (!(memory instanceof Registration)) {
    throw invalidArgument(`memory of ${what}`, memory, 'what agent.register() or agent.allocate() returned');
  }
  if (!agent.has(memory)) {
    const expected = `memory that is registered with agent ${agent.name}, and open`;
    throw invalidArgument(`memory of ${what}`, memory.name, expected);
  }
  if (typeof name !== 'string') throw invalidArgument(`name of ${what}`, name, 'a text');
  const unit = memory.kind === 'host' ? 1 : WORD_BYTES;
  const check = (field: string, value: number, least: number, most = Infinity): void => {
    const isAligned = isWhole(value, least) && (field === 'offset' ? memory.address + value : value) % unit === 0;
    if (isAligned && value <= most) return;
    const words = unit === 1 ? '' : `, from address 0 a multiple of ${unit}`;
    const limit = most === Infinity ? '' : ` and at most ${most}`;
    throw invalidArgument(`${field} of ${what}`, value, `a whole number of at least ${least}${limit}${words}`);
  };
  check('bytes', bytes, 1, MAX_RANGE_BYTES);
  check('stride', stride, bytes);
  check('offset', offset, 0);
  const needed = offset + (blocks - 1) * stride + bytes;
  if (needed <= memory.length) return { address: memory.address + offset, stride, bytes, label: crc32(name) };
  const message = `Invalid ${what}: ${blocks} blocks with bytes ${bytes}, stride ${stride} and offset ${offset} need ${needed} bytes, and its memory has ${memory.length}: register more, or have fewer blocks`;
  throw new WeftlineError('WL_INVALID_ARGUMENT', message, { details: { part: index, needed, bytes: memory.length } });
}

/** Fails with WL_INVALID_ARGUMENT for parts that have bytes in common: sealing one would damage the other. */
function requireApart(places: readonly PartPlace[], blocks: number): void {
  const endOf = ({ address, stride, bytes }: PartPlace): number => address + (blocks - 1) * stride + bytes;
  const ordered = places.toSorted((a, b) => a.address - b.address);
  if (ordered.every((place, index) => index === 0 || endOf(ordered[index - 1]!) <= place.address)) return;
  // They lie between each other. Ranges are apart exactly if each begins behind the ends of as many as begin before it.
  const begins = new Float64Array(places.length * blocks);
  for (let at = 0; at < begins.length; at++) {
    const { address, stride } = places[at % places.length]!;
    begins[at] = address + Math.floor(at / places.length) * stride;
  }
  const ends = begins.map((begin, at) => begin + places[at % places.length]!.bytes).toSorted();
  const shared = begins.toSorted().find((begin, at) => at > 0 && begin < ends[at - 1]!);
  if (shared === undefined) return;
  const both = [...places.keys()].filter((part) => {
    const { address, stride, bytes } = places[part]!;
    return shared >= address && shared < endOf(places[part]!) && (shared - address) % stride < bytes;
  });
  const message = `Invalid parts: parts[${both[0]}] and parts[${both[1]}] have bytes in common: give each bytes of its own, by another memory, or by offset and stride (vllmParts: by as many blocks as there are)`;
  throw new WeftlineError('WL_INVALID_ARGUMENT', message, { details: { parts: both } });
}

/** Shape of the tensor that vLLM has for a layer's cache. */
export interface VllmShape {
  /** The layer's number or name, the same on both sides: layers in another order are then misses. */
  readonly layer: number | string;
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
  layer: {
    allows: (value) => isWhole(value, 0) || (typeof value === 'string' && value !== ''),
    expected: 'the number of a layer, from 0 on, or its name',
  },
  order: oneOf('kv-first', 'blocks-first', 'mla'),
  blocks: wholeFrom(1),
  blockTokens: wholeFrom(1),
  tokenBytes: wholeFrom(1),
};

/**
 * The parts of one layer, by name: `layer 3 keys` and `layer 3 values`, or `layer 3 entries`. Fails with WL_INVALID_ARGUMENT for numbers that are none.
 * @param memory The registered tensor of the layer.
 * @param shape How vLLM shapes it.
 */
export function vllmParts(memory: Registration, shape: VllmShape): KvPart[] {
  checkRules(shape, shapeRules, 'shape');
  const { layer, order, blocks, blockTokens, tokenBytes } = shape;
  const name = typeof layer === 'number' ? `layer ${layer}` : layer;
  const bytes = blockTokens * tokenBytes;
  if (order === 'mla') return [{ memory, bytes, name: `${name} entries` }];
  const [stride, values] = order === 'kv-first' ? [bytes, blocks * bytes] : [2 * bytes, bytes];
  const keys = { memory, bytes, stride };
  return [
    { ...keys, offset: 0, name: `${name} keys` },
    { ...keys, offset: values, name: `${name} values` },
  ];
}
