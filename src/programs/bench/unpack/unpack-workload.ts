// What the unpack bench moves: chunks that lie in a bounce buffer as fragments of one length, in random order.
import { MAX_BLOCK_DESCRIPTORS } from '../../../abi/unpack.ts';
import { invalidArgument } from '../../../core/errors.ts';
import { DescriptorBlock } from '../../../unpack/index.ts';
import { shuffled } from '../harness.ts';
import type { MemorySpan } from '../../../unpack/descriptor-block.ts';

export interface UnpackWorkload {
  /** Bytes of one chunk: what arrives together. */
  readonly chunkBytes: number;
  /** Moved in one iteration of a stage, a multiple of the chunk. */
  readonly totalBytes: number;
  /** Lengths of fragments, one after the other; each divides the chunk. */
  readonly fragments: readonly number[];
}

/** 512 KiB chunks of 4 MiB, as in the document whose figures are checked. */
export const defaultUnpackWorkload: UnpackWorkload = {
  chunkBytes: 512 << 10,
  totalBytes: 4 << 20,
  fragments: [256, 1024, 4096, 65_536],
};

/** Fails with WL_INVALID_ARGUMENT. */
export function checkUnpackWorkload({ chunkBytes, totalBytes, fragments }: UnpackWorkload): void {
  if (totalBytes < chunkBytes || totalBytes % chunkBytes !== 0) {
    throw invalidArgument('total', totalBytes, `a multiple of the chunk, ${chunkBytes}`);
  }
  for (const bytes of fragments) {
    const fits = bytes % 16 === 0 && chunkBytes % bytes === 0 && chunkBytes / bytes <= MAX_BLOCK_DESCRIPTORS;
    if (fits) continue;
    const expected = `multiples of 16 that divide the chunk, ${chunkBytes}, into at most ${MAX_BLOCK_DESCRIPTORS}`;
    throw invalidArgument('fragments', bytes, expected);
  }
}

/** The place of each fragment, by its place in the bounce buffer; in units of its length. */
export function places(count: number): number[] {
  return shuffled(count, count);
}

/** A block per chunk; the fragments of all of them are spread over the whole destination. */
export function chunkBlocks(
  { chunkBytes, totalBytes }: Pick<UnpackWorkload, 'chunkBytes' | 'totalBytes'>,
  fragmentBytes: number,
  { bounce, destination }: { readonly bounce: MemorySpan; readonly destination: MemorySpan },
): DescriptorBlock[] {
  const order = places(totalBytes / fragmentBytes);
  const perChunk = chunkBytes / fragmentBytes;
  return Array.from({ length: totalBytes / chunkBytes }, (_, chunk) => {
    const block = new DescriptorBlock(perChunk).begin(bounce, destination);
    for (let index = chunk * perChunk; index < (chunk + 1) * perChunk; index++) {
      block.add(index * fragmentBytes, fragmentBytes, order[index]! * fragmentBytes);
    }
    return block;
  });
}
