// What is wrong with the blocks of a launch, found in the plainest way: what launchers are tested against.
import type { FragmentOf } from './fragment-lists.ts';

export interface CheckedBlock {
  readonly bounce: { readonly address: number; readonly bytes: number };
  readonly destination: { readonly address: number; readonly bytes: number };
  readonly fragments: readonly FragmentOf[];
}

export type Finding =
  | { readonly kind: 'good' }
  | { readonly kind: 'outside'; readonly block: number; readonly descriptor: number; readonly side: string }
  /** Pairs of names "block:descriptor", the later first, of all that share bytes. */
  | { readonly kind: 'overlap'; readonly pairs: ReadonlySet<string> };

/** Offsets have 32 bits: fragments lie in the first 4 GiB of a bounce buffer. */
const MAX_BOUNCE_BYTES = 2 ** 32;

export function findWrong(blocks: readonly CheckedBlock[], packs: boolean): Finding {
  for (const [block, { bounce, destination, fragments }] of blocks.entries()) {
    for (const [descriptor, { sourceOffset, length, destinationOffset }] of fragments.entries()) {
      if (sourceOffset + length > Math.min(bounce.bytes, MAX_BOUNCE_BYTES)) {
        return { kind: 'outside', block, descriptor, side: 'source' };
      }
      if (destinationOffset + length > destination.bytes) {
        return { kind: 'outside', block, descriptor, side: 'destination' };
      }
    }
  }
  const ranges = blocks.flatMap(({ bounce, destination, fragments }, block) =>
    fragments.flatMap(({ sourceOffset, length, destinationOffset }, descriptor) => {
      const start = packs ? bounce.address + sourceOffset : destination.address + destinationOffset;
      return length === 0 ? [] : [{ name: `${block}:${descriptor}`, start, end: start + length }];
    }),
  );
  const pairs = new Set<string>();
  for (const [index, one] of ranges.entries()) {
    for (const other of ranges.slice(0, index)) {
      if (one.start < other.end && other.start < one.end) pairs.add(pairName(one.name, other.name));
    }
  }
  return pairs.size === 0 ? { kind: 'good' } : { kind: 'overlap', pairs };
}

export function pairName(later: string, earlier: string): string {
  return `${later} ${earlier}`;
}
