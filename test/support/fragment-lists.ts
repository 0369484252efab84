// Random lists of fragments and the plain way to move them, which launchers are tested against.
import { seededRandom } from '#lib/core/seeded-random.js';
import { DescriptorBlock } from 'weftline/unpack';
import type { MemorySpan } from '#lib/unpack/descriptor-block.js';

export interface FragmentOf {
  readonly sourceOffset: number;
  readonly length: number;
  readonly destinationOffset: number;
}

/** Fragments of which no two overlap, on either side. */
export interface FragmentList {
  readonly bounceBytes: number;
  readonly destinationBytes: number;
  readonly fragments: readonly FragmentOf[];
}

export interface ListShape {
  readonly count: number;
  /** Length of a fragment; `random` is in [0, 1). */
  readonly length: (random: () => number) => number;
  /** Both offsets of each fragment are multiples of this. */
  readonly alignment?: number;
  /** Largest gap between neighbours. */
  readonly gap?: number;
}

/** Neighbours in the bounce buffer belong to places in random order. */
export function randomList(seed: number, { count, length, alignment = 1, gap = 40 }: ListShape): FragmentList {
  const random = seededRandom(seed);
  const lengths = Array.from({ length: count }, () => length(random));
  const place = (): { readonly offsets: number[]; readonly end: number } => {
    const order = lengths.map((_, index) => ({ index, key: random() })).toSorted((a, b) => a.key - b.key);
    const offsets = Array.from({ length: count }, () => 0);
    let end = 0;
    for (const { index } of order) {
      const start = end + Math.floor(random() * gap);
      const offset = Math.ceil(start / alignment) * alignment;
      offsets[index] = offset;
      end = offset + lengths[index]!;
    }
    return { offsets, end };
  };
  const [source, destination] = [place(), place()];
  return {
    bounceBytes: Math.max(1, source.end + Math.floor(random() * gap)),
    destinationBytes: Math.max(1, destination.end + Math.floor(random() * gap)),
    fragments: lengths.map((bytes, index) => ({
      sourceOffset: source.offsets[index]!,
      length: bytes,
      destinationOffset: destination.offsets[index]!,
    })),
  };
}

/** Blocks, as many as the fragments need. */
export function blocksOf(
  { fragments }: FragmentList,
  bounce: MemorySpan,
  destination: MemorySpan,
  perBlock = 2048,
): DescriptorBlock[] {
  const blocks: DescriptorBlock[] = [];
  for (let first = 0; first === 0 || first < fragments.length; first += perBlock) {
    const block = new DescriptorBlock().begin(bounce, destination);
    for (const { sourceOffset, length, destinationOffset } of fragments.slice(first, first + perBlock)) {
      block.add(sourceOffset, length, destinationOffset);
    }
    blocks.push(block);
  }
  return blocks;
}

/** What an unpack leaves in a destination, and a pack in a bounce buffer. */
export function referenceUnpack(list: FragmentList, bounce: Uint8Array, destination: Uint8Array): Uint8Array {
  const result = destination.slice();
  for (const { sourceOffset, length, destinationOffset } of list.fragments) {
    result.set(bounce.subarray(sourceOffset, sourceOffset + length), destinationOffset);
  }
  return result;
}

export function referencePack(list: FragmentList, bounce: Uint8Array, destination: Uint8Array): Uint8Array {
  const result = bounce.slice();
  for (const { sourceOffset, length, destinationOffset } of list.fragments) {
    result.set(destination.subarray(destinationOffset, destinationOffset + length), sourceOffset);
  }
  return result;
}

export function randomBytes(seed: number, count: number): Uint8Array {
  const words = new Uint32Array(Math.ceil(count / 4));
  let state = seed | 1;
  for (let index = 0; index < words.length; index++) {
    state = Math.imul(state, 1_664_525) + 1_013_904_223;
    words[index] = state ^ (state >>> 15);
  }
  return new Uint8Array(words.buffer, 0, count);
}
