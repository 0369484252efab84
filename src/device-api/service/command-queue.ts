// A command queue in memory that a device and its host share: what the host takes from it and tells the device.
import { COMMAND_BYTES, commandQueueHead } from '../../abi/device-api.ts';
import { WeftlineError } from '../../core/errors.ts';
import { type QueueCommand, decodeCommand, encodeCommand, peekCommand } from './command.ts';

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
  #taken = 0;
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
    return (this.#taken - this.#delivered) | 0;
  }

  /** Number of the next command that take() gives, and of the next that deliver() ends; they wrap at 2^32. */
  get taken(): number {
    return this.#taken;
  }

  /** The next command into `command`; false if there is none yet, or it is deferred and nothing makes it go. */
  take(command: QueueCommand): boolean {
    // The device writes only into slots that were delivered, so a ring whose commands are all under way has none.
    if (this.underWay === this.capacity) return false;
    const first = (this.#taken & (this.capacity - 1)) * WORDS;
    const phase = phaseOf(this.#taken, this.#shift);
    if (!decodeCommand(this.#ring, first, phase, command)) return false;
    if (command.isDeferred && !this.#isReleased()) return false;
    this.#taken = (this.#taken + 1) | 0;
    return true;
  }

  /** Whether something behind the next command, which is deferred, makes it go. Looks at each command behind it once. */
  #isReleased(): boolean {
    if (((this.#released - this.#taken) | 0) > 0) return true;
    if (((this.#looked - this.#taken) | 0) <= 0) this.#looked = (this.#taken + 1) | 0;
    // A push of two commands writes neither before there is room for both, so the last free slot may stay empty.
    for (; ((this.#looked - this.#delivered) | 0) < this.capacity - 1; this.#looked = (this.#looked + 1) | 0) {
      const first = (this.#looked & (this.capacity - 1)) * WORDS;
      const found = peekCommand(this.#ring, first, phaseOf(this.#looked, this.#shift));
      if (found === 'none') return false;
      if (found === 'ready') break;
    }
    // Also when less than two slots are free behind deferred commands: the device may have no room for one that is not.
    this.#released = this.#looked;
    return true;
  }

  /** The oldest `count` commands under way are visible at their targets: their slots are free. */
  deliver(count: number): void {
    this.#delivered = (this.#delivered + count) | 0;
    Atomics.store(this.#head, DELIVERED, this.#delivered);
  }

  /** Before deliver(): a command of this request could not be carried out. Only the first counts. */
  fail(request: number): void {
    if (!this.hasFailed) Atomics.store(this.#head, FAILED, request + 1);
  }

  /** Until the device's host has told of the failure. */
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
  #pushed = 0;
  #hasDeferred = false;

  constructor(memory: QueueMemory) {
    this.capacity = memory.capacity;
    this.#head = headOf(memory);
    this.#ring = ringOf(memory);
    this.#shift = Math.log2(memory.capacity);
  }

  /** False if the ring is full: the host has not delivered what was pushed a lap ago. */
  push(command: QueueCommand): boolean {
    if (((this.#pushed - Atomics.load(this.#head, DELIVERED)) | 0) >= this.capacity) return false;
    const first = (this.#pushed & (this.capacity - 1)) * WORDS;
    encodeCommand(this.#ring, first, phaseOf(this.#pushed, this.#shift), command);
    this.#pushed = (this.#pushed + 1) | 0;
    this.#hasDeferred = command.isDeferred;
    return true;
  }

  /** True after a deferred command: one that is not must follow before it is delivered. */
  get hasDeferred(): boolean {
    return this.#hasDeferred;
  }

  /** Commands pushed so far; wraps. */
  get pushed(): number {
    return this.#pushed;
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
    return (this.#pushed - Atomics.load(this.#head, DELIVERED)) | 0;
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
