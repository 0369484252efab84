// The memory between the user's thread and one engine's: its ring of commands, and the words that wake it. Hot path: no
// allocation.
import { putWide, wideAt, wordOffsets } from '../../abi/layout.ts';
import { invalidArgument } from '../../core/errors.ts';
import { Doorbell } from '../../native/readiness.ts';
import { commandHead, commandRecord, PART_BYTES, REQUEST_SLOTS } from '../engine-commands.ts';

const WORDS = commandRecord.size / 4;
/** A kind is below this: what stands above it in its word is the part's. */
const KINDS = 256;
const RING_BYTES = commandHead.size + REQUEST_SLOTS * commandRecord.size;

const at = wordOffsets(commandHead);
const field = wordOffsets(commandRecord);

/** A request, or an engine's part of it, as both threads write and read it; one object per side, used again for each. */
export class EngineCommand {
  kind = 0;
  slot = 0;
  connection = 0;
  region = 0;
  flow = 0;
  remoteRegion = 0;
  remoteKey = 0;
  /** Place in its request at which a part begins; a multiple of PART_BYTES. */
  partOffset = 0;
  offset = 0;
  bytes = 0;
  remoteOffset = 0;
  add = 0;
}

/** Largest number that a command holds in 32 bits. */
export const MAX_WORD: number = 2 ** 32 - 1;

/** A command would hold another number, which the engine would take for what was meant. */
export function checkHeld(name: string, value: number, most: number): void {
  if (!isWhole(value, most)) throw invalidArgument(name, value, `a whole number from 0 to ${most}`);
}

export function isWhole(value: number, most: number): boolean {
  return Number.isInteger(value) && value >= 0 && value <= most;
}

export class CommandRing {
  readonly buffer: SharedArrayBuffer;
  readonly #words: Int32Array;
  readonly #ring: Uint32Array;
  /** The ring's place of this side: of the next command to write, or to take. */
  #next = 0;

  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(RING_BYTES)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer, 0, commandHead.size / 4);
    this.#ring = new Uint32Array(buffer, commandHead.size, REQUEST_SLOTS * WORDS);
  }

  // The user's side.

  /** False if the ring is full: the engine has not yet taken what was written before. */
  get hasRoom(): boolean {
    return ((this.#next - Atomics.load(this.#words, at.head)) | 0) < REQUEST_SLOTS;
  }

  /** There must be room. */
  put(command: EngineCommand): void {
    const first = (this.#next & (REQUEST_SLOTS - 1)) * WORDS;
    const ring = this.#ring;
    ring[first + field.kindAndPart] = command.kind + (command.partOffset / PART_BYTES) * KINDS;
    ring[first + field.slot] = command.slot;
    ring[first + field.connection] = command.connection;
    ring[first + field.region] = command.region;
    ring[first + field.flow] = command.flow;
    ring[first + field.remoteRegion] = command.remoteRegion;
    ring[first + field.remoteKey] = command.remoteKey;
    putWide(ring, first + field.offset, command.offset);
    putWide(ring, first + field.bytes, command.bytes);
    putWide(ring, first + field.remoteOffset, command.remoteOffset);
    putWide(ring, first + field.add, command.add);
    this.#next = (this.#next + 1) | 0;
    Atomics.store(this.#words, at.tail, this.#next);
  }

  /** Tells the engine that its port holds a message. */
  announceCall(): void {
    Atomics.add(this.#words, at.calls, 1);
  }

  /** True if the engine must be woken to see what was put or announced. */
  get engineSleeps(): boolean {
    return Atomics.load(this.#words, at.sleeping) === 1;
  }

  /** True once the engine has failed; why stands in its last message. */
  get hasCrashed(): boolean {
    return Atomics.load(this.#words, at.crashed) === 1;
  }

  // The side of other engines.

  /** Tells the engine that it may go on with what it holds back. It must then be woken if it sleeps. */
  noteFence(): void {
    Atomics.add(this.#words, at.fences, 1);
  }

  // The engine's side.

  reportCrash(): void {
    Atomics.store(this.#words, at.crashed, 1);
  }

  /** Takes the next command into `command`; false if there is none. */
  take(command: EngineCommand): boolean {
    if (Atomics.load(this.#words, at.tail) === this.#next) return false;
    const first = (this.#next & (REQUEST_SLOTS - 1)) * WORDS;
    const ring = this.#ring;
    const kindAndPart = ring[first + field.kindAndPart]!;
    command.kind = kindAndPart % KINDS;
    command.partOffset = Math.floor(kindAndPart / KINDS) * PART_BYTES;
    command.slot = ring[first + field.slot]!;
    command.connection = ring[first + field.connection]!;
    command.region = ring[first + field.region]!;
    command.flow = ring[first + field.flow]!;
    command.remoteRegion = ring[first + field.remoteRegion]!;
    command.remoteKey = ring[first + field.remoteKey]!;
    command.offset = wideAt(ring, first + field.offset);
    command.bytes = wideAt(ring, first + field.bytes);
    command.remoteOffset = wideAt(ring, first + field.remoteOffset);
    command.add = wideAt(ring, first + field.add);
    this.#next = (this.#next + 1) | 0;
    Atomics.store(this.#words, at.head, this.#next);
    return true;
  }

  /** Messages announced so far. */
  get calls(): number {
    return Atomics.load(this.#words, at.calls);
  }

  /** How often `noteFence` was called. */
  get fences(): number {
    return Atomics.load(this.#words, at.fences);
  }

  /** Must be called before sleeping; false, and nothing to sleep for, if something came since. */
  fallAsleep(seenCalls: number, seenFences: number): boolean {
    Atomics.store(this.#words, at.sleeping, 1);
    if (Atomics.load(this.#words, at.tail) === this.#next && this.calls === seenCalls && this.fences === seenFences) {
      return true;
    }
    this.wakeUp();
    return false;
  }

  wakeUp(): void {
    Atomics.store(this.#words, at.sleeping, 0);
  }
}

/** Wakes the other engines of the transport: notes in their rings that there is news, and rings those that sleep. */
export class EngineBells {
  readonly #rings: readonly CommandRing[];
  #bells: readonly Doorbell[] = [];

  /** `rings` are those of all engines in order; the ring of this engine is among them. */
  constructor(rings: readonly CommandRing[]) {
    this.#rings = rings;
  }

  /** The doorbells by engine. They stay open until this engine has ended. */
  meet(descriptors: readonly number[]): void {
    this.#bells = descriptors.map((fd) => Doorbell.of(fd));
  }

  /** Hot path. Tells an engine that what it holds back may go on. */
  ring(engine: number): void {
    const ring = this.#rings[engine] as CommandRing;
    ring.noteFence();
    if (ring.engineSleeps) this.#bells[engine]?.ring();
  }
}
