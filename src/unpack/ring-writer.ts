// Takes blocks over into slots of a ring and checks what it took: nothing is moved unless everything can be.
import {
  BLOCK_HEADER_WORDS,
  blockHeaderWord,
  FRAGMENT_WORDS,
  fragmentWord,
  MAX_BLOCK_DESCRIPTORS,
  RING_DESCRIPTORS,
} from '../abi/unpack-block.ts';
import { wideAt } from '../abi/wide-words.ts';
import { invalidArgument } from '../core/errors.ts';
import { BlockSpans } from './block-spans.ts';
import { DescriptorBlock } from './descriptor-block.ts';
import { outsideError, overlapError, sumError, tooManyError, wrongBlockError } from './descriptor-errors.ts';
import { OverlapSearch } from './overlap-search.ts';

/** An unpack writes the destination, a pack the bounce buffer. */
export type Direction = 'unpack' | 'pack';

const TWO_32 = 2 ** 32;
/** Pieces shorter than this cost more than they spread, and a warp moves longer ones no faster. */
const MIN_PIECE_BYTES = 1024;
const MAX_PIECE_BYTES = 4096;

export class RingWriter {
  /** Bytes of the blocks that were taken last. */
  totalBytes = 0;
  /** Their fragments, without empty ones. */
  fragments = 0;
  /** Descriptors of the fullest slot. */
  mostDescriptors = 0;
  /** True if one of them has a ready flag. */
  waits = false;
  readonly #isPack: boolean;
  readonly #overlaps: OverlapSearch;
  readonly #spans: BlockSpans;

  /** `blocks`: the most that are taken at once. */
  constructor(direction: Direction, blocks: number) {
    this.#isPack = direction === 'pack';
    this.#overlaps = new OverlapSearch(blocks);
    this.#spans = new BlockSpans(blocks);
  }

  /**
   * Copies each block into its slot, without empty fragments. Fails with WL_INVALID_ARGUMENT, naming the block and the
   * descriptor, unless all of them may be moved at the same time. Each word of a block is read once: a producer that goes
   * on writing changes nothing after the check.
   */
  take(blocks: readonly DescriptorBlock[], slotAt: (block: number) => Uint32Array): void {
    this.totalBytes = 0;
    this.fragments = 0;
    this.mostDescriptors = 0;
    this.waits = false;
    this.#overlaps.clear();
    for (let index = 0; index < blocks.length; index++) {
      const block = blocks[index]!;
      requireBlock(block, index);
      this.#takeBlock(block, index, slotAt(index));
    }
    if (blocks.length > 1) this.#requireAnyOrder(blocks.length);
    const overlap = this.#overlaps.find();
    if (overlap !== undefined) throw overlapError(overlap, this.#isPack ? 'source' : 'destination');
  }

  /** Cuts the long fragments of what was taken, so that so many warps have work, and says how warps are to take them. */
  divide(blocks: number, warps: number, isSmall: boolean, slotAt: (block: number) => Uint32Array): void {
    const share = Math.min(
      MAX_PIECE_BYTES,
      Math.max(MIN_PIECE_BYTES, 2 ** Math.ceil(Math.log2(this.totalBytes / warps))),
    );
    for (let index = 0; index < blocks; index++) {
      const slot = slotAt(index);
      slot[blockHeaderWord.isSmall] = isSmall ? 1 : 0;
      const count = cutFragments(slot, share);
      slot[blockHeaderWord.count] = count;
      if (count > this.mostDescriptors) this.mostDescriptors = count;
    }
  }

  #requireAnyOrder(blocks: number): void {
    const dependence = this.#spans.findDependence(blocks);
    if (dependence === undefined) return;
    const { reader, writer } = dependence;
    const what = `it reads memory that block ${writer} writes, expected blocks that may be moved in any order: launch it behind that one`;
    throw wrongBlockError(reader, what, { otherBlock: writer });
  }

  #takeBlock({ words, capacity }: DescriptorBlock, block: number, slot: Uint32Array): void {
    for (let word = 0; word < BLOCK_HEADER_WORDS; word++) slot[word] = words[word]!;
    const count = countOf(slot, block, capacity);
    const bounce = wideAt(slot, blockHeaderWord.bounce);
    const bounceBytes = wideAt(slot, blockHeaderWord.bounceBytes);
    const destination = wideAt(slot, blockHeaderWord.destination);
    const destinationBytes = wideAt(slot, blockHeaderWord.destinationBytes);
    checkSpans(block, { bounce, bounceBytes, destination, destinationBytes });
    if (hasFlag(slot, block)) this.waits = true;
    const overlaps = this.#overlaps;
    const { starts, lengths, names, next } = overlaps;
    const isPack = this.#isPack;
    const written = isPack ? bounce : destination;
    const [ofBounce, ofDestination] = isPack ? packUses : unpackUses;
    this.#spans.set(block, ofBounce, bounce, bounceBytes);
    this.#spans.set(block, ofDestination, destination, destinationBytes);
    let total = 0;
    let to = BLOCK_HEADER_WORDS;
    let range = next;
    let first = -1;
    let bits = 0;
    let isOrdered = true;
    let end = 0;
    let least = Infinity;
    let most = 0;
    for (let descriptor = 0, at = BLOCK_HEADER_WORDS; descriptor < count; descriptor++, at += FRAGMENT_WORDS) {
      const sourceOffset = words[at + fragmentWord.sourceOffset]!;
      const length = words[at + fragmentWord.length]!;
      const low = words[at + fragmentWord.destinationOffset]!;
      const high = words[at + fragmentWord.destinationOffset + 1]!;
      const destinationOffset = low + high * TWO_32;
      if (sourceOffset + length > bounceBytes) {
        throw outsideError({ block, descriptor, side: 'source', offset: sourceOffset, length, bytes: bounceBytes });
      }
      if (destinationOffset + length > destinationBytes) {
        const bytes = destinationBytes;
        throw outsideError({ block, descriptor, side: 'destination', offset: destinationOffset, length, bytes });
      }
      if (length === 0) continue;
      total += length;
      slot[to + fragmentWord.sourceOffset] = sourceOffset;
      slot[to + fragmentWord.length] = length;
      slot[to + fragmentWord.destinationOffset] = low;
      slot[to + fragmentWord.destinationOffset + 1] = high;
      to += FRAGMENT_WORDS;
      const offset = isPack ? sourceOffset : destinationOffset;
      if (first < 0) first = offset;
      bits |= (isPack ? sourceOffset ^ first : low ^ first) | length;
      isOrdered &&= offset >= end;
      end = offset + length;
      if (offset < least) least = offset;
      if (end > most) most = end;
      starts[range] = written + offset;
      lengths[range] = length;
      names[range] = block * MAX_BLOCK_DESCRIPTORS + descriptor;
      range += 1;
    }
    overlaps.addBlock({
      count: range - next,
      first: written + first,
      bits,
      isOrdered,
      least: written + least,
      most: written + most,
    });
    const said = wideAt(slot, blockHeaderWord.totalBytes);
    if (total !== said) throw sumError(block, { said, total, count });
    const fragments = (to - BLOCK_HEADER_WORDS) / FRAGMENT_WORDS;
    slot[blockHeaderWord.count] = fragments;
    if (fragments === 0) this.#spans.leaveOut(block);
    this.totalBytes += total;
    this.fragments += fragments;
    if (fragments > this.mostDescriptors) this.mostDescriptors = fragments;
  }
}

function requireBlock(block: DescriptorBlock, index: number): void {
  if (!(block instanceof DescriptorBlock)) throw invalidArgument(`blocks[${index}]`, block, 'a DescriptorBlock');
  if (block.words.length > 0) return;
  throw wrongBlockError(index, 'its buffer is detached, expected memory that it still has', {});
}

interface Spans {
  readonly bounce: number;
  readonly bounceBytes: number;
  readonly destination: number;
  readonly destinationBytes: number;
}

function checkSpans(block: number, spans: Spans): void {
  const { bounce, bounceBytes, destination, destinationBytes } = spans;
  const ends = Math.max(bounce + bounceBytes, destination + destinationBytes);
  if (!Number.isSafeInteger(ends)) {
    throw wrongBlockError(block, 'its bounce buffer or destination ends above 2^53, expected addresses below', {
      ...spans,
    });
  }
  if (bounce < destination + destinationBytes && destination < bounce + bounceBytes) {
    throw wrongBlockError(block, 'its bounce buffer and destination overlap, expected separate memory', { ...spans });
  }
}

/** In place, from the last descriptor to the first. Returns how many descriptors there are now. */
function cutFragments(slot: Uint32Array, share: number): number {
  const count = slot[blockHeaderWord.count]!;
  const lengthAt = (index: number): number => slot[BLOCK_HEADER_WORDS + index * FRAGMENT_WORDS + fragmentWord.length]!;
  let longest = 0;
  for (let index = 0; index < count; index++) if (lengthAt(index) > longest) longest = lengthAt(index);
  if (longest <= share) return count;
  let bytes = share;
  // Each fragment has at most one piece that is not full.
  const room = RING_DESCRIPTORS - count;
  while (wideAt(slot, blockHeaderWord.totalBytes) / bytes > room) bytes *= 2;
  let pieces = 0;
  for (let index = 0; index < count; index++) pieces += Math.ceil(lengthAt(index) / bytes);
  let to = BLOCK_HEADER_WORDS + pieces * FRAGMENT_WORDS;
  for (let index = count - 1; index >= 0; index--) {
    const from = BLOCK_HEADER_WORDS + index * FRAGMENT_WORDS;
    const length = slot[from + fragmentWord.length]!;
    const sourceOffset = slot[from + fragmentWord.sourceOffset]!;
    const destinationOffset = wideAt(slot, from + fragmentWord.destinationOffset);
    for (let start = (Math.ceil(length / bytes) - 1) * bytes; start >= 0; start -= bytes) {
      to -= FRAGMENT_WORDS;
      const place = destinationOffset + start;
      slot[to + fragmentWord.sourceOffset] = sourceOffset + start;
      slot[to + fragmentWord.length] = Math.min(bytes, length - start);
      slot[to + fragmentWord.destinationOffset] = place;
      slot[to + fragmentWord.destinationOffset + 1] = place / TWO_32;
    }
  }
  return pieces;
}

/** What a block does with its bounce buffer and with its destination. */
const unpackUses = ['read', 'write'] as const;
const packUses = ['write', 'read'] as const;

/** True if the block has a ready flag. */
function hasFlag(slot: Uint32Array, block: number): boolean {
  const flag = wideAt(slot, blockHeaderWord.readyFlag);
  if (flag % 8 === 0) return flag !== 0;
  throw wrongBlockError(block, `its ready flag lies at ${flag}, expected a multiple of 8`, { flag });
}

function countOf(slot: Uint32Array, block: number, capacity: number): number {
  const count = slot[blockHeaderWord.count]!;
  if (count > capacity) throw tooManyError(block, count, capacity);
  return count;
}
