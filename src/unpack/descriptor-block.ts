// Descriptors of fragments in the layout that producers and launchers share, over memory that is made once.
import { putWide, wideAt } from '../abi/layout.ts';
import {
  BLOCK_HEADER_WORDS,
  blockHeaderWord,
  descriptorBlockHeader,
  FRAGMENT_WORDS,
  fragmentDescriptor,
  fragmentWord,
  MAX_BLOCK_DESCRIPTORS,
} from '../abi/unpack.ts';
import { type ErrorDetails, invalidArgument, WeftlineError } from '../core/errors.ts';
import { type Storage, Tensor } from '../device/tensor.ts';

/** A run of one device's memory: a tensor, or an address and a number of bytes. */
export interface MemorySpan {
  readonly address: number;
  readonly bytes: number;
}

/** A counter in memory that the device reads: 64 bits, at a multiple of 8. */
interface ReadyFlag {
  readonly address: number;
  /** The block is moved once the counter has reached this. */
  readonly threshold: number;
}

const TWO_32 = 2 ** 32;

/**
 * Says where up to 2048 fragments of a bounce buffer belong in a destination. Make it once and fill it anew for each chunk;
 * it may be changed as soon as launch() has returned.
 */
export class DescriptorBlock {
  /** Header and descriptors as they lie in memory. */
  readonly bytes: Uint8Array;
  /** The most descriptors that it holds. */
  readonly capacity: number;
  /** @internal The same memory. */
  readonly words: Uint32Array;
  /** @internal What begin() was given as a tensor: launchers see whether it is still theirs to use. */
  bounceStorage: Storage | undefined;
  /** @internal */
  destinationStorage: Storage | undefined;

  /**
   * Over memory that another producer fills. The launcher checks the descriptors against the memory that the header names;
   * whether the producer may name that memory is for the caller to decide.
   * @param bytes Header and room for descriptors, at a multiple of 4 in its buffer.
   */
  static over(bytes: Uint8Array): DescriptorBlock {
    if (!(bytes instanceof Uint8Array)) throw invalidArgument('bytes', bytes, 'a Uint8Array');
    return new DescriptorBlock(bytes);
  }

  /** @param capacity The most descriptors, at most 2048; or the memory of a block. */
  constructor(capacity: number | Uint8Array = MAX_BLOCK_DESCRIPTORS) {
    const bytes = typeof capacity === 'number' ? new Uint8Array(bytesOf(capacity)) : capacity;
    const least = descriptorBlockHeader.size + fragmentDescriptor.size;
    if (!(bytes instanceof Uint8Array) || bytes.byteOffset % 4 !== 0 || bytes.byteLength < least) {
      throw invalidArgument('bytes', bytes, `at least ${least} bytes at a multiple of 4 in their buffer`);
    }
    const room = Math.floor((bytes.byteLength - descriptorBlockHeader.size) / fragmentDescriptor.size);
    this.bytes = bytes;
    this.capacity = Math.min(room, MAX_BLOCK_DESCRIPTORS);
    this.words = new Uint32Array(bytes.buffer, bytes.byteOffset, BLOCK_HEADER_WORDS + this.capacity * FRAGMENT_WORDS);
  }

  /** Descriptors that it holds. */
  get count(): number {
    return this.words[blockHeaderWord.count]!;
  }

  /** Sum of their lengths. */
  get totalBytes(): number {
    return wideAt(this.words, blockHeaderWord.totalBytes);
  }

  /**
   * Empties the block and says between which memory it moves. A pack writes the bounce buffer, an unpack reads it. Tensors
   * stay alive as long as the block; launchers refuse those of another device, and those that were closed. Fails with
   * WL_INVALID_ARGUMENT for what is no memory of a device.
   */
  begin(bounce: MemorySpan, destination: MemorySpan, ready?: ReadyFlag): this {
    const { words } = this;
    if (words.length === 0) throw invalidArgument('bytes', 'a detached buffer', 'memory that the block still has');
    requireSpan('bounce', bounce);
    requireWide('bounce.address', bounce.address);
    requireWide('bounce.bytes', bounce.bytes);
    requireSpan('destination', destination);
    requireWide('destination.address', destination.address);
    requireWide('destination.bytes', destination.bytes);
    if (ready !== undefined) {
      if (ready === null) throw invalidArgument('ready', ready, 'an address and a threshold');
      // An address of 0 would mean that there is no flag.
      if (ready.address === 0) throw invalidArgument('ready.address', 0, 'the address of a counter');
      requireWide('ready.address', ready.address);
      requireWide('ready.threshold', ready.threshold);
    }
    words[blockHeaderWord.count] = 0;
    words[blockHeaderWord.isSmall] = 0;
    putWide(words, blockHeaderWord.totalBytes, 0);
    putWide(words, blockHeaderWord.bounce, bounce.address);
    putWide(words, blockHeaderWord.bounceBytes, bounce.bytes);
    putWide(words, blockHeaderWord.destination, destination.address);
    putWide(words, blockHeaderWord.destinationBytes, destination.bytes);
    putWide(words, blockHeaderWord.readyFlag, ready?.address ?? 0);
    putWide(words, blockHeaderWord.readyThreshold, ready?.threshold ?? 0);
    this.bounceStorage = bounce instanceof Tensor ? bounce.storage : undefined;
    this.destinationStorage = destination instanceof Tensor ? destination.storage : undefined;
    return this;
  }

  /**
   * Adds a fragment. Ranges are checked by launch(). Fails with WL_CAPACITY if the block is full, and with
   * WL_INVALID_ARGUMENT for what is no whole number.
   */
  add(sourceOffset: number, length: number, destinationOffset: number): this {
    const { words } = this;
    const count = words[blockHeaderWord.count]!;
    if (count >= this.capacity) throw this.#full();
    if (typeof sourceOffset !== 'number' || sourceOffset >>> 0 !== sourceOffset)
      throw invalidArgument('sourceOffset', sourceOffset, expected32);
    if (typeof length !== 'number' || length >>> 0 !== length) throw invalidArgument('length', length, expected32);
    if (!Number.isSafeInteger(destinationOffset) || destinationOffset < 0) {
      throw invalidArgument('destinationOffset', destinationOffset, expected53);
    }
    const at = BLOCK_HEADER_WORDS + count * FRAGMENT_WORDS;
    words[at + fragmentWord.sourceOffset] = sourceOffset;
    words[at + fragmentWord.length] = length;
    words[at + fragmentWord.destinationOffset] = destinationOffset;
    words[at + fragmentWord.destinationOffset + 1] = destinationOffset / TWO_32;
    words[blockHeaderWord.count] = count + 1;
    putWide(words, blockHeaderWord.totalBytes, this.totalBytes + length);
    return this;
  }

  #full(): WeftlineError {
    return new WeftlineError(
      'WL_CAPACITY',
      `A block of ${this.capacity} descriptors is full: launch it with a second one, which one launch may take too`,
      { details: { capacity: this.capacity } },
    );
  }
}

const expected32 = 'a whole number from 0 to 2^32 - 1';
const expected53 = 'a whole number from 0 to 2^53 - 1';

function requireSpan(name: string, span: MemorySpan): void {
  if (typeof span === 'object' && span !== null && !ArrayBuffer.isView(span)) return;
  throw invalidArgument(name, span, 'a tensor of the device, or the address and the bytes of its memory');
}

/** Other numbers would be cut to words that mean something else. */
function requireWide(name: string, value: number): void {
  if (!Number.isSafeInteger(value) || value < 0) throw invalidArgument(name, value, expected53);
}

function bytesOf(capacity: number): number {
  if (Number.isInteger(capacity) && capacity >= 1 && capacity <= MAX_BLOCK_DESCRIPTORS) {
    return descriptorBlockHeader.size + capacity * fragmentDescriptor.size;
  }
  throw invalidArgument('capacity', capacity, `a whole number from 1 to ${MAX_BLOCK_DESCRIPTORS}`);
}

// Errors of blocks that cannot be moved; each names the block and, where there is one, the descriptor.

/** Two fragments of one launch that would be written to the same bytes. */
export interface Overlap {
  readonly block: number;
  readonly descriptor: number;
  readonly otherBlock: number;
  readonly otherDescriptor: number;
  /** The first byte that both have. */
  readonly address: number;
}

type Side = 'source' | 'destination';

interface Outside {
  readonly block: number;
  readonly descriptor: number;
  readonly side: Side;
  readonly offset: number;
  readonly length: number;
  /** What that side has, or what offsets reach of it. */
  readonly bytes: number;
}

export function outsideError(outside: Outside): WeftlineError {
  const { block, descriptor, side, offset, length, bytes } = outside;
  const memory = side === 'source' ? 'bounce buffer' : 'destination';
  const isAllThatOffsetsReach = side === 'source' && bytes === 2 ** 32;
  const hint = isAllThatOffsetsReach ? ' that offsets of 32 bits reach' : bytes === 0 ? ' that begin() was given' : '';
  return wrongDescriptor(
    { block, descriptor },
    `its ${length} bytes at ${side} offset ${offset} end at ${offset + length}, expected at most ${bytes}, the bytes of the ${memory}${hint}`,
    { ...outside },
  );
}

export function overlapError(overlap: Overlap, side: Side): WeftlineError {
  return wrongDescriptor(
    overlap,
    `it writes the same ${side} bytes as descriptor ${overlap.otherDescriptor} of block ${overlap.otherBlock}, from address ${overlap.address} on; expected ranges that do not overlap`,
    { ...overlap, side },
  );
}

export function tooManyError(block: number, count: number, capacity: number): WeftlineError {
  const what = `its header counts ${count} descriptors, expected at most ${capacity}: descriptor ${capacity} has no room`;
  return wrongBlockError(block, what, { count, capacity, descriptor: capacity });
}

export function sumError(
  block: number,
  { said, total, count }: { readonly said: number; readonly total: number; readonly count: number },
): WeftlineError {
  const what = `its header says ${said} bytes in all, but descriptors 0 to ${count - 1} have ${total}`;
  return wrongBlockError(block, what, { totalBytes: said, sum: total });
}

export function wrongBlockError(block: number, what: string, details: ErrorDetails): WeftlineError {
  return new WeftlineError('WL_INVALID_ARGUMENT', `Invalid block ${block} of the launch: ${what}. Nothing was moved`, {
    details: { block, ...details },
  });
}

/** Memory that is not the launcher's to use. */
export function disposedError(block: number, memory: string): WeftlineError {
  return new WeftlineError(
    'WL_CLOSED',
    `Cannot launch block ${block}: the tensor of its ${memory} was closed. Nothing was moved`,
    { details: { block, memory } },
  );
}

function wrongDescriptor(
  { block, descriptor }: { readonly block: number; readonly descriptor: number },
  what: string,
  details: ErrorDetails,
): WeftlineError {
  return new WeftlineError(
    'WL_INVALID_ARGUMENT',
    `Invalid descriptor ${descriptor} of block ${block} of the launch: ${what}. Nothing was moved`,
    { details: { block, descriptor, ...details } },
  );
}

/** `block` of its launch; `seen` if it is known. */
export function notReadyError(
  block: number,
  seen: number | undefined,
  threshold: number,
  timeoutMs: number,
): WeftlineError {
  return new WeftlineError(
    'WL_TIMEOUT',
    `The ready flag of block ${block} of a launch was ${seen ?? 'lower'} after ${timeoutMs} ms, expected at least ${threshold}: see whether its producer still runs, or raise timeoutMs of the launcher`,
    { details: { block, seen, threshold, timeoutMs } },
  );
}
