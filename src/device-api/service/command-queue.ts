// A command queue in memory that a device and its host share: what the host takes from it and tells the device.
import { COMMAND_BYTES, commandBits, commandQueueHead, queueCommandKinds } from '../../abi/device-api.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';

const TWO_31 = 2 ** 31;
const TWO_32 = 2 ** 32;

/** One object per side, used again for each command. */
export interface QueueCommand {
  kind: number;
  request: number;
  remote: number;
  target: number;
  /** The source and bytes of a put. */
  source: number;
  bytes: number;
  /** The halves of the number of other commands. */
  low: number;
  high: number;
  /** The host leaves it in the queue until a command behind it is not deferred. */
  isDeferred: boolean;
}

export function emptyQueueCommand(): QueueCommand {
  return { kind: 0, request: 0, remote: 0, target: 0, source: 0, bytes: 0, low: 0, high: 0, isDeferred: false };
}

/** Reads the slot at `first` into `command`; false if it does not hold the command of the lap with this phase. */
export function decodeCommand(words: Uint32Array, first: number, phase: number, command: QueueCommand): boolean {
  // ORDER: the phase of a half is read before the rest of it; the writer writes each half at once.
  const high = Atomics.load(words, first);
  if ((high & 1) !== phase) return false;
  const low = Atomics.load(words, first + 1);
  const target = Atomics.load(words, first + 2);
  if ((target & 1) !== phase) return false;
  const last = Atomics.load(words, first + 3);
  command.kind = (high >>> commandBits.kind) & 3;
  command.remote = (high >>> commandBits.remote) & 63;
  command.request = (high >>> commandBits.request) & 4095;
  command.isDeferred = high >>> commandBits.deferred !== 0;
  command.target = ((high >>> commandBits.targetHigh) & 31) * TWO_31 + (target >>> commandBits.targetLow);
  if (command.kind === queueCommandKinds.put) {
    command.source = ((high >>> commandBits.sourceHigh) & 15) * TWO_32 + low;
    command.bytes = ((high >>> commandBits.bytesHigh) & 1) * TWO_32 + last;
    command.low = 0;
    command.high = 0;
  } else {
    command.source = 0;
    command.bytes = 0;
    command.low = low;
    command.high = last;
  }
  return true;
}

/** Writes a command whose parts are in range; its first word goes last, so that it appears whole. */
export function encodeCommand(words: Uint32Array, first: number, phase: number, command: QueueCommand): void {
  const isPut = command.kind === queueCommandKinds.put;
  const low = isPut ? command.source : command.low;
  const last = isPut ? command.bytes : command.high;
  let high = phase | (command.kind << commandBits.kind) | (command.remote << commandBits.remote);
  high |= command.request << commandBits.request;
  high |= Math.floor(command.target / TWO_31) << commandBits.targetHigh;
  if (isPut) {
    high |= Math.floor(command.source / TWO_32) << commandBits.sourceHigh;
    high |= Math.floor(command.bytes / TWO_32) << commandBits.bytesHigh;
  }
  words[first + 1] = low;
  words[first + 3] = last;
  Atomics.store(words, first + 2, phase | ((command.target % TWO_31) << commandBits.targetLow));
  if (command.isDeferred) high |= 1 << commandBits.deferred;
  Atomics.store(words, first, high >>> 0);
}

/** What is in the slot at `first`: the command of the lap with this phase or none, and whether that one is deferred. */
function peekCommand(words: Uint32Array, first: number, phase: number): 'none' | 'deferred' | 'ready' {
  const high = Atomics.load(words, first);
  if ((high & 1) !== phase || (Atomics.load(words, first + 2) & 1) !== phase) return 'none';
  return high >>> commandBits.deferred === 0 ? 'ready' : 'deferred';
}

/** A request as its host knows it: one local range, the ranges of one peer, and how each is reached. */
export interface RequestShape {
  /** What commands call it. */
  readonly number: number;
  /** Number of the peer at this host. */
  readonly peer: number;
  /** Puts of 8 bytes travel in their command: reading them would take the host a copy of the device. */
  readonly inlines: boolean;
  readonly local: { readonly address: number; readonly bytes: number };
  readonly remotes: readonly {
    /** The address at which this process has mapped the range; 0 if its writes go through the queue. */
    readonly direct: number;
    readonly bytes: number;
  }[];
}

const WORDS = COMMAND_BYTES / 4;
const DELIVERED = commandQueueHead.offset.delivered / 4;
const FAILED = commandQueueHead.offset.failed / 4;

export interface QueueMemory {
  readonly buffer: ArrayBufferLike;
  /** A multiple of 64. */
  readonly byteOffset: number;
  /** Commands, a power of two. */
  readonly capacity: number;
}

export function queueBytes(capacity: number): number {
  return commandQueueHead.size + capacity * COMMAND_BYTES;
}

/** The host's side. Hot path. One reader per queue. */
export class CommandReader {
  readonly capacity: number;
  readonly #head: Int32Array;
  readonly #ring: Uint32Array;
  readonly #shift: number;
  /** Number of the next command that take() gives; wraps at 2^32. */
  taken = 0;
  #delivered = 0;
  /** Commands before this one go, deferred or not; those from here to #looked are deferred and wait. Both wrap. */
  #released = 0;
  #looked = 0;

  constructor(memory: QueueMemory) {
    this.capacity = memory.capacity;
    this.#head = headOf(memory);
    this.#ring = ringOf(memory);
    this.#shift = Math.log2(memory.capacity);
  }

  /** Commands taken and not yet delivered. */
  get underWay(): number {
    return (this.taken - this.#delivered) | 0;
  }

  /** The next command into `command`; false if there is none yet, or it is deferred and nothing makes it go. */
  take(command: QueueCommand): boolean {
    // The device writes only into slots that were delivered, so a ring whose commands are all under way has none.
    if (this.underWay === this.capacity) return false;
    const first = (this.taken & (this.capacity - 1)) * WORDS;
    const phase = phaseOf(this.taken, this.#shift);
    if (!decodeCommand(this.#ring, first, phase, command)) return false;
    if (command.isDeferred && !this.#isReleased()) return false;
    this.taken = (this.taken + 1) | 0;
    return true;
  }

  /** Whether something behind the next command, which is deferred, makes it go. Looks at each command behind it once. */
  #isReleased(): boolean {
    if (((this.#released - this.taken) | 0) > 0) return true;
    if (((this.#looked - this.taken) | 0) <= 0) this.#looked = (this.taken + 1) | 0;
    // A push of two commands writes neither before there is room for both, so the last free slot may stay empty.
    for (; ((this.#looked - this.#delivered) | 0) < this.capacity - 1; this.#looked = (this.#looked + 1) | 0) {
      const first = (this.#looked & (this.capacity - 1)) * WORDS;
      const found = peekCommand(this.#ring, first, phaseOf(this.#looked, this.#shift));
      if (found === 'none') return false;
      if (found === 'ready') break;
    }
    // Fewer than two free slots behind deferred commands release them, too: the device may have no room for one that is not.
    this.#released = this.#looked;
    return true;
  }

  /** The oldest `count` commands under way are visible at their targets: their slots are free. */
  deliver(count: number): void {
    this.#delivered = (this.#delivered + count) | 0;
    Atomics.store(this.#head, DELIVERED, this.#delivered);
  }

  /** Tells, before deliver(), that a command of this request could not be carried out. Only the first counts. */
  fail(request: number): void {
    if (!this.hasFailed) Atomics.store(this.#head, FAILED, request + 1);
  }

  /** True until the device's host has told of the failure. */
  get hasFailed(): boolean {
    return Atomics.load(this.#head, FAILED) !== 0;
  }
}

/** The device's side where kernels are functions of TypeScript: the CPU. One writer per queue. */
export class CommandWriter {
  readonly capacity: number;
  readonly #head: Int32Array;
  readonly #ring: Uint32Array;
  readonly #shift: number;
  /** Commands pushed so far; wraps. */
  pushed = 0;
  /** True after a deferred command: one that is not must follow before it is delivered. */
  hasDeferred = false;

  constructor(memory: QueueMemory) {
    this.capacity = memory.capacity;
    this.#head = headOf(memory);
    this.#ring = ringOf(memory);
    this.#shift = Math.log2(memory.capacity);
  }

  /** False if the ring is full: the host has not delivered what was pushed a lap ago. */
  push(command: QueueCommand): boolean {
    if (((this.pushed - Atomics.load(this.#head, DELIVERED)) | 0) >= this.capacity) return false;
    const first = (this.pushed & (this.capacity - 1)) * WORDS;
    encodeCommand(this.#ring, first, phaseOf(this.pushed, this.#shift), command);
    this.pushed = (this.pushed + 1) | 0;
    this.hasDeferred = command.isDeferred;
    return true;
  }

  /** True once so many commands are delivered. Fails with WL_PEER_FAILED when the host could not carry one out. */
  isDelivered(count: number): boolean {
    const failed = Atomics.load(this.#head, FAILED);
    if (failed !== 0) {
      throw new WeftlineError('WL_PEER_FAILED', `The host could not carry out a command of request ${failed - 1}`, {
        details: { request: failed - 1 },
      });
    }
    return ((Atomics.load(this.#head, DELIVERED) - count) | 0) >= 0;
  }

  forgetFailure(): void {
    Atomics.store(this.#head, FAILED, 0);
  }

  /** Commands that wait or are under way. */
  get depth(): number {
    return (this.pushed - Atomics.load(this.#head, DELIVERED)) | 0;
  }
}

/** 1 in the first lap, then 0, then 1: memory of zeros holds no command. */
function phaseOf(number: number, shift: number): number {
  return ((number >>> shift) & 1) ^ 1;
}

function headOf({ buffer, byteOffset }: QueueMemory): Int32Array {
  return new Int32Array(buffer, byteOffset, commandQueueHead.size / 4);
}

function ringOf({ buffer, byteOffset, capacity }: QueueMemory): Uint32Array {
  return new Uint32Array(buffer, byteOffset + commandQueueHead.size, capacity * WORDS);
}

export function queuesIn(buffer: ArrayBufferLike, queues: number, capacity: number): QueueMemory[] {
  return Array.from({ length: queues }, (_, index) => ({ buffer, byteOffset: index * queueBytes(capacity), capacity }));
}

/** Fails with WL_INVALID_ARGUMENT. `capacity`: commands of each queue, a power of two. */
export function checkQueueLayout(queues: number, capacity: number): void {
  if (!Number.isInteger(queues) || queues < 1 || queues > 64) throw invalidArgument('queues', queues, '1 to 64');
  if (!Number.isInteger(capacity) || !Number.isInteger(Math.log2(capacity)) || capacity < 2 || capacity > 65_536) {
    throw invalidArgument('queueCapacity', capacity, 'a power of two from 2 to 65536');
  }
}
