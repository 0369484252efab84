// Copies the blocks of a launch, checks the copies, and writes them into slots of a ring: nothing is moved unless all can be.
import { alignUp, wideAt } from '../abi/layout.ts';
import {
  BLOCK_HEADER_WORDS,
  blockHeaderWord,
  descriptorBlockHeader,
  FRAGMENT_WORDS,
  fragmentDescriptor,
  fragmentWord,
  MAX_BLOCK_DESCRIPTORS,
  MAX_RING_SLOTS,
  RING_DESCRIPTORS,
  RING_SLOT_BYTES,
} from '../abi/unpack.ts';
import { invalidArgument, WeftlineError } from '../core/errors.ts';
import { type CpuKernels, instantiateKernelsNow, wasm, type WasmMemory } from '../device/cpu/kernels.ts';
import {
  DescriptorBlock,
  outsideError,
  type Overlap,
  overlapError,
  sumError,
  tooManyError,
  wrongBlockError,
} from './descriptor-block.ts';
import { fragmentCheck, fragmentCheckWord, sortedFragment, sortedFragmentWord } from '../abi/cpu-kernels.ts';

// The WebAssembly memory in which the blocks of a launch are checked: copies of them, and room for the search for overlaps.

const PAGE = 65_536;
/** Page 0 holds the data of the kernels. */
const STATE = PAGE;
const DIGITS = STATE + alignUp(fragmentCheck.size, 64);
const DIGITS_BYTES = 2048 * 4;
const DIVIDED = DIGITS + DIGITS_BYTES;
const COPIES = alignUp(DIVIDED + RING_SLOT_BYTES, 64);
const COPY_BYTES = descriptorBlockHeader.size + MAX_BLOCK_DESCRIPTORS * fragmentDescriptor.size;
/** A fragment is sorted in the time in which so many bytes of bits are cleared and marked. */
const MARK_BYTES_PER_FRAGMENT = 64;
/** More bits would not stay in a cache. */
const MAX_MARK_BYTES = 2 << 20;
const LIST_BYTES_PER_BLOCK = 2 * MAX_BLOCK_DESCRIPTORS * sortedFragment.size;
const MAX_PAGES = Math.ceil((COPIES + MAX_RING_SLOTS * (COPY_BYTES + LIST_BYTES_PER_BLOCK)) / PAGE);

class CheckMemory {
  readonly kernels: CpuKernels;
  /** A FragmentCheck. */
  readonly state: number = STATE;
  /** Memory for the sort. */
  readonly digits: number = DIGITS;
  /** Room for a slot of a ring, where a block is divided. */
  readonly divided: number = DIVIDED;
  /** All of it. */
  words!: Uint32Array;
  readonly #memory: WasmMemory;
  /** End of the copies of the launch. */
  #search: number = COPIES;
  #bytes = 0;

  /** Use checkMemory(). Fails with WL_MEMORY. */
  constructor() {
    try {
      this.#memory = new wasm.Memory({ initial: Math.ceil(COPIES / PAGE), maximum: MAX_PAGES, shared: true });
    } catch (cause) {
      throw noMemory(MAX_PAGES * PAGE, cause);
    }
    this.kernels = instantiateKernelsNow(this.#memory);
    this.#view();
  }

  /** Address to which a block of the launch is copied. */
  copyAt(block: number): number {
    return COPIES + block * COPY_BYTES;
  }

  /** Makes room for the copies of a launch. Fails with WL_MEMORY. */
  reserveCopies(blocks: number): void {
    this.#search = this.copyAt(blocks);
    this.#growTo(this.#search);
  }

  /** Bytes of bits that are worth their time for so many fragments, behind the copies. */
  reserveMarks(fragments: number): number {
    const bytes = Math.min(MAX_MARK_BYTES, fragments * MARK_BYTES_PER_FRAGMENT);
    this.#growTo(this.#search + bytes);
    return bytes;
  }

  /** Makes room for two lists of so many fragments behind the copies. */
  reserveLists(fragments: number): void {
    this.#growTo(this.#search + 2 * fragments * sortedFragment.size);
  }

  /** Start of marks and lists. */
  get search(): number {
    return this.#search;
  }

  #growTo(bytes: number): void {
    if (bytes <= this.#bytes) return;
    try {
      this.#memory.grow(Math.ceil((bytes - this.#bytes) / PAGE));
    } catch (cause) {
      throw noMemory(bytes, cause);
    }
    this.#view();
  }

  #view(): void {
    this.#bytes = this.#memory.buffer.byteLength;
    this.words = new Uint32Array(this.#memory.buffer);
  }
}

let shared: CheckMemory | undefined;

/** Shared by all launchers of this thread, as a check ends before launch() returns. Fails with WL_MEMORY. */
function checkMemory(): CheckMemory {
  shared ??= new CheckMemory();
  return shared;
}

function noMemory(bytes: number, cause: unknown): WeftlineError {
  return new WeftlineError(
    'WL_MEMORY',
    `Cannot check descriptors: the system refused ${bytes} bytes of address space for their copies; raise "ulimit -v", or launch fewer blocks at a time`,
    { details: { bytes }, cause },
  );
}

// What blocks read and write. Those that move in any order may not read what another one writes.

/** A block and one whose memory it reads. */
interface Dependence {
  readonly reader: number;
  readonly writer: number;
}

export class BlockSpans {
  readonly #readFrom: Float64Array;
  readonly #readTo: Float64Array;
  readonly #writeFrom: Float64Array;
  readonly #writeTo: Float64Array;

  constructor(blocks: number) {
    this.#readFrom = new Float64Array(blocks);
    this.#readTo = new Float64Array(blocks);
    this.#writeFrom = new Float64Array(blocks);
    this.#writeTo = new Float64Array(blocks);
  }

  set(block: number, side: 'read' | 'write', address: number, bytes: number): void {
    (side === 'read' ? this.#readFrom : this.#writeFrom)[block] = address;
    (side === 'read' ? this.#readTo : this.#writeTo)[block] = address + bytes;
  }

  /** Says that a block moves nothing. */
  leaveOut(block: number): void {
    this.set(block, 'read', Infinity, 0);
    this.set(block, 'write', Infinity, 0);
  }

  /** True if one of two blocks reads memory that the other one writes. */
  depend(one: number, other: number): boolean {
    return this.#readsFrom(one, other) || this.#readsFrom(other, one);
  }

  /** Blocks are compared one by one only if all that is read and all that is written lie across each other. */
  findDependence(blocks: number): Dependence | undefined {
    let readFrom = Infinity;
    let readTo = 0;
    let writeFrom = Infinity;
    let writeTo = 0;
    for (let block = 0; block < blocks; block++) {
      if (this.#readFrom[block] === Infinity) continue;
      readFrom = Math.min(readFrom, this.#readFrom[block]!);
      readTo = Math.max(readTo, this.#readTo[block]!);
      writeFrom = Math.min(writeFrom, this.#writeFrom[block]!);
      writeTo = Math.max(writeTo, this.#writeTo[block]!);
    }
    if (readFrom >= writeTo || writeFrom >= readTo) return undefined;
    for (let reader = 0; reader < blocks; reader++) {
      for (let writer = 0; writer < blocks; writer++) {
        if (this.#readsFrom(reader, writer)) return { reader, writer };
      }
    }
    return undefined;
  }

  #readsFrom(reader: number, writer: number): boolean {
    return this.#readFrom[reader]! < this.#writeTo[writer]! && this.#writeFrom[writer]! < this.#readTo[reader]!;
  }
}

/** An unpack writes the destination, a pack the bounce buffer. */
export type Direction = 'unpack' | 'pack';

/** Fragments of this length on average and shorter are moved several per warp. */
const SMALL_BYTES = 1024;
/** Pieces shorter than this cost more than they spread, and a warp moves longer ones no faster. */
const MIN_PIECE_BYTES = 1024;
const MAX_PIECE_BYTES = 4096;

/** What is known of blocks that were written into slots. */
export interface WrittenFacts {
  readonly totalBytes: number;
  /** Fragments, without empty ones. */
  readonly fragments: number;
  /** Descriptors of the fullest slot. */
  readonly mostDescriptors: number;
  readonly isSmall: boolean;
  readonly waits: boolean;
}

export class RingWriter implements WrittenFacts {
  /** Bytes of the blocks that were taken last. */
  totalBytes = 0;
  /** Fragments of these blocks, without empty ones. */
  fragments = 0;
  /** Descriptors of the fullest slot that was written. */
  mostDescriptors = 0;
  /** True if one of them has a ready flag. */
  waits = false;
  /** Several fragments per warp. */
  isSmall = false;
  #share = Infinity;
  readonly #packs: number;
  readonly #memory: CheckMemory;
  readonly #spans: BlockSpans;
  /** The longest fragment of each block, and how many have bytes. */
  readonly #longest: Uint32Array;
  readonly #filled: Uint32Array;

  /** `blocks`: the most that are taken at once. Fails with WL_MEMORY. */
  constructor(direction: Direction, blocks: number) {
    this.#packs = direction === 'pack' ? 1 : 0;
    this.#memory = checkMemory();
    this.#spans = new BlockSpans(blocks);
    this.#longest = new Uint32Array(blocks);
    this.#filled = new Uint32Array(blocks);
  }

  /**
   * Copies each block and checks the copies. Fails with WL_INVALID_ARGUMENT, naming the block and the descriptor, unless all
   * of them may be moved at the same time. A producer that goes on writing changes nothing after the check.
   */
  take(blocks: readonly DescriptorBlock[]): void {
    const memory = this.#memory;
    this.totalBytes = 0;
    this.fragments = 0;
    this.waits = false;
    memory.reserveCopies(blocks.length);
    memory.kernels.beginFragmentCheck(memory.state);
    for (let index = 0; index < blocks.length; index++) {
      const block = blocks[index]!;
      requireBlock(block, index);
      this.#copyBlock(block, index);
      this.#checkBlock(index);
    }
    if (blocks.length > 1) this.#requireAnyOrder(blocks.length);
    const overlap = this.#findOverlap(blocks.length);
    if (overlap !== undefined) throw overlapError(overlap, this.#packs === 1 ? 'source' : 'destination');
  }

  /**
   * How what was taken last is to be written: long fragments are cut so that so many warps have work; 0 leaves them whole.
   * `auto` has several fragments per warp where they are short.
   */
  shareAmong(warps: number, smallKernel: boolean | 'auto'): void {
    this.#share = warps === 0 ? Infinity : shareOf(this.totalBytes, warps);
    this.isSmall = smallKernel === 'auto' ? this.totalBytes <= SMALL_BYTES * this.fragments : smallKernel;
    this.mostDescriptors = 0;
  }

  /**
   * Writes a block that was taken, without empty fragments, before blocks are taken again by whatever launcher. Returns how
   * many descriptors the slot has.
   */
  writeBlock(block: number, slot: Uint32Array): number {
    const count = this.#writeFragments(block, slot);
    slot[blockHeaderWord.count] = count;
    slot[blockHeaderWord.isSmall] = this.isSmall ? 1 : 0;
    if (count > this.mostDescriptors) this.mostDescriptors = count;
    return count;
  }

  #requireAnyOrder(blocks: number): void {
    const dependence = this.#spans.findDependence(blocks);
    if (dependence === undefined) return;
    const { reader, writer } = dependence;
    const what = `it reads memory that block ${writer} writes, expected blocks that may be moved in any order: launch it behind that one`;
    throw wrongBlockError(reader, what, { otherBlock: writer });
  }

  /** The count is read once: what the producer writes meanwhile lies in the copy or does not, and the copy is checked. */
  #copyBlock({ words, capacity }: DescriptorBlock, block: number): void {
    const count = words[blockHeaderWord.count]!;
    if (count > capacity) throw tooManyError(block, count, capacity);
    const used = BLOCK_HEADER_WORDS + count * FRAGMENT_WORDS;
    const copy = this.#memory.copyAt(block) / 4;
    const all = this.#memory.words;
    all.set(used === words.length ? words : words.subarray(0, used), copy);
    all[copy + blockHeaderWord.count] = count;
  }

  #checkBlock(block: number): void {
    const { kernels, words, state } = this.#memory;
    const copy = this.#memory.copyAt(block);
    const at = copy / 4;
    const bounce = wideAt(words, at + blockHeaderWord.bounce);
    const bounceBytes = wideAt(words, at + blockHeaderWord.bounceBytes);
    const destination = wideAt(words, at + blockHeaderWord.destination);
    const destinationBytes = wideAt(words, at + blockHeaderWord.destinationBytes);
    checkSpans(block, bounce, bounceBytes, destination, destinationBytes);
    if (hasFlag(words, at, block)) this.waits = true;
    const outside = kernels.checkFragments(copy, this.#packs, state);
    if (outside >= 0) throw this.#outsideError(block, outside);
    const found = state / 4;
    const total = wideAt(words, found + fragmentCheckWord.blockBytes);
    const said = wideAt(words, at + blockHeaderWord.totalBytes);
    const count = words[at + blockHeaderWord.count]!;
    if (total !== said) throw sumError(block, { said, total, count });
    const filled = words[found + fragmentCheckWord.blockFragments]!;
    this.#longest[block] = words[found + fragmentCheckWord.longest]!;
    this.#filled[block] = filled;
    this.totalBytes += total;
    this.fragments += filled;
    if (filled === 0) {
      this.#spans.leaveOut(block);
      return;
    }
    this.#spans.set(block, this.#packs === 1 ? 'write' : 'read', bounce, bounceBytes);
    this.#spans.set(block, this.#packs === 1 ? 'read' : 'write', destination, destinationBytes);
  }

  #outsideError(block: number, descriptor: number): WeftlineError {
    const { words } = this.#memory;
    const header = this.#memory.copyAt(block) / 4;
    const at = header + BLOCK_HEADER_WORDS + descriptor * FRAGMENT_WORDS;
    const length = words[at + fragmentWord.length]!;
    const source = words[at + fragmentWord.sourceOffset]!;
    const reach = Math.min(wideAt(words, header + blockHeaderWord.bounceBytes), MAX_BOUNCE_BYTES);
    if (source + length > reach) {
      return outsideError({ block, descriptor, side: 'source', offset: source, length, bytes: reach });
    }
    const offset = wideAt(words, at + fragmentWord.destinationOffset);
    const bytes = wideAt(words, header + blockHeaderWord.destinationBytes);
    return outsideError({ block, descriptor, side: 'destination', offset, length, bytes });
  }

  #findOverlap(blocks: number): Overlap | undefined {
    const memory = this.#memory;
    if (memory.words[memory.state / 4 + fragmentCheckWord.isOrdered] === 1) return undefined;
    return this.#markAll(blocks) ? undefined : this.#sortAll(blocks);
  }

  /** True if every fragment has marked its units and found none that was marked; false too if they are too many to mark. */
  #markAll(blocks: number): boolean {
    const memory = this.#memory;
    const { kernels, state } = memory;
    const room = memory.reserveMarks(this.fragments);
    const marks = memory.search;
    if (kernels.beginMarks(state, marks, room) === 0) return false;
    for (let block = 0; block < blocks; block++) {
      if (kernels.markFragments(memory.copyAt(block), this.#packs, state, marks) === 0) return false;
    }
    return true;
  }

  #sortAll(blocks: number): Overlap | undefined {
    const memory = this.#memory;
    const { kernels, state, digits } = memory;
    memory.reserveLists(this.fragments);
    const list = memory.search;
    const spare = list + this.fragments * sortedFragment.size;
    let end = list;
    for (let block = 0; block < blocks; block++) {
      const firstName = block * MAX_BLOCK_DESCRIPTORS;
      end = kernels.listFragments(memory.copyAt(block), this.#packs, firstName, state, end);
    }
    const second = kernels.findOverlap(list, end, spare, digits, state);
    return second === 0 ? undefined : this.#describeOverlap(second / 4);
  }

  /** The descriptor that came later is the one to blame. `fragment`: the word of the later one in the sorted list. */
  #describeOverlap(fragment: number): Overlap {
    const { words } = this.#memory;
    const one = words[fragment - sortedFragment.size / 4 + sortedFragmentWord.name]!;
    const other = words[fragment + sortedFragmentWord.name]!;
    const [first, second] = [Math.min(one, other), Math.max(one, other)];
    return {
      block: Math.floor(second / MAX_BLOCK_DESCRIPTORS),
      descriptor: second % MAX_BLOCK_DESCRIPTORS,
      otherBlock: Math.floor(first / MAX_BLOCK_DESCRIPTORS),
      otherDescriptor: first % MAX_BLOCK_DESCRIPTORS,
      address: Math.max(this.#startOf(first), this.#startOf(second)),
    };
  }

  /** Address to which the descriptor of a name writes. */
  #startOf(name: number): number {
    const { words } = this.#memory;
    const header = this.#memory.copyAt(Math.floor(name / MAX_BLOCK_DESCRIPTORS)) / 4;
    const at = header + BLOCK_HEADER_WORDS + (name % MAX_BLOCK_DESCRIPTORS) * FRAGMENT_WORDS;
    return this.#packs === 1
      ? wideAt(words, header + blockHeaderWord.bounce) + words[at + fragmentWord.sourceOffset]!
      : wideAt(words, header + blockHeaderWord.destination) + wideAt(words, at + fragmentWord.destinationOffset);
  }

  #writeFragments(block: number, slot: Uint32Array): number {
    const share = this.#share;
    const { kernels, words, divided } = this.#memory;
    const copy = this.#memory.copyAt(block);
    const at = copy / 4;
    const count = words[at + blockHeaderWord.count]!;
    const filled = this.#filled[block]!;
    const longest = this.#longest[block]!;
    if (filled === count && longest <= share) {
      slot.set(words.subarray(at, at + BLOCK_HEADER_WORDS + count * FRAGMENT_WORDS));
      return count;
    }
    slot.set(words.subarray(at, at + BLOCK_HEADER_WORDS));
    const bytes =
      longest <= share ? longest : pieceBytes(wideAt(words, at + blockHeaderWord.totalBytes), filled, share);
    const pieces = kernels.divideFragments(copy, bytes, divided);
    slot.set(words.subarray(divided / 4, divided / 4 + pieces * FRAGMENT_WORDS), BLOCK_HEADER_WORDS);
    return pieces;
  }
}

function shareOf(bytes: number, warps: number): number {
  return Math.min(MAX_PIECE_BYTES, Math.max(MIN_PIECE_BYTES, 2 ** Math.ceil(Math.log2(bytes / warps))));
}

/** So long that the pieces of a block have room in its slot: each fragment has at most one that is not full. */
function pieceBytes(total: number, fragments: number, share: number): number {
  let bytes = share;
  while (total / bytes > RING_DESCRIPTORS - fragments) bytes *= 2;
  return Math.min(bytes, MAX_LENGTH);
}

/** What source offsets reach. */
const MAX_BOUNCE_BYTES = 2 ** 32;
/** Most bytes of a fragment. */
const MAX_LENGTH = 2 ** 32 - 1;

function requireBlock(block: DescriptorBlock, index: number): void {
  if (!(block instanceof DescriptorBlock)) throw invalidArgument(`blocks[${index}]`, block, 'a DescriptorBlock');
  if (block.words.length > 0) return;
  throw wrongBlockError(index, 'its buffer is detached, expected memory that it still has', {});
}

// oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per block
function checkSpans(
  block: number,
  bounce: number,
  bounceBytes: number,
  destination: number,
  destinationBytes: number,
): void {
  const spans = (): Record<string, number> => ({ bounce, bounceBytes, destination, destinationBytes });
  if (!Number.isSafeInteger(Math.max(bounce + bounceBytes, destination + destinationBytes))) {
    throw wrongBlockError(block, 'its bounce buffer or destination ends above 2^53, expected addresses below', spans());
  }
  if (bounce < destination + destinationBytes && destination < bounce + bounceBytes) {
    throw wrongBlockError(block, 'its bounce buffer and destination overlap, expected separate memory', spans());
  }
}

/** True if the block whose header lies at a word has a ready flag. */
function hasFlag(words: Uint32Array, header: number, block: number): boolean {
  const flag = wideAt(words, header + blockHeaderWord.readyFlag);
  if (flag % 8 === 0) return flag !== 0;
  throw wrongBlockError(block, `its ready flag lies at ${flag}, expected a multiple of 8`, { flag });
}
