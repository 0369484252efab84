// The memory between the user's thread and the engine's: command ring, request table, words to sleep on. Hot path: no allocation.
import { wordOffsets } from '../../abi/layout.ts';
import { commandRecord, REQUEST_SLOTS, sharedHead, slotStates } from '../../abi/transport-command.ts';
import { putWide, wideAt } from '../../abi/wide-words.ts';
import { ProcessorLoans } from '../../threads/processor-loans.ts';
import type { SpinTime } from '../../threads/spin-time.ts';
import { waitAsync } from '../../threads/wait-async.ts';

/** A look at the clock costs as much as several looks at a word. */
const LOOKS_PER_CLOCK = 4;
const WORDS = commandRecord.size / 4;
const RING_OFFSET = sharedHead.size;
const STATE_OFFSET = RING_OFFSET + REQUEST_SLOTS * commandRecord.size;
const BYTES_OFFSET = STATE_OFFSET + REQUEST_SLOTS * 4;

const SHARED_BYTES = BYTES_OFFSET + REQUEST_SLOTS * 8;

const at = wordOffsets(sharedHead);
const field = wordOffsets(commandRecord);

/** A request as both threads write and read it; one object per side, used again for each. */
export interface EngineCommand {
  kind: number;
  slot: number;
  connection: number;
  region: number;
  flow: number;
  remoteRegion: number;
  remoteKey: number;
  offset: number;
  bytes: number;
  remoteOffset: number;
  add: number;
}

export function emptyEngineCommand(): EngineCommand {
  return {
    kind: 0,
    slot: 0,
    connection: 0,
    region: 0,
    flow: 0,
    remoteRegion: 0,
    remoteKey: 0,
    offset: 0,
    bytes: 0,
    remoteOffset: 0,
    add: 0,
  };
}

export class SharedRequests {
  readonly buffer: SharedArrayBuffer;
  readonly #words: Int32Array;
  readonly #ring: Uint32Array;
  readonly #states: Int32Array;
  readonly #bytes: Float64Array;
  /** The ring's place of this side: of the next command to write, or to take. */
  #next = 0;
  readonly #loans = new ProcessorLoans();

  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(SHARED_BYTES)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer, 0, sharedHead.size / 4);
    this.#ring = new Uint32Array(buffer, RING_OFFSET, REQUEST_SLOTS * WORDS);
    this.#states = new Int32Array(buffer, STATE_OFFSET, REQUEST_SLOTS);
    this.#bytes = new Float64Array(buffer, BYTES_OFFSET, REQUEST_SLOTS);
  }

  // The user's side.

  /** False if the ring is full: the engine has not yet taken what was written before. */
  put(command: EngineCommand): boolean {
    if (((this.#next - Atomics.load(this.#words, at.head)) | 0) >= REQUEST_SLOTS) return false;
    const first = (this.#next & (REQUEST_SLOTS - 1)) * WORDS;
    const ring = this.#ring;
    ring[first + field.kind] = command.kind;
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
    return true;
  }

  /** Tells the engine that its port holds a message. */
  announceCall(): void {
    Atomics.add(this.#words, at.calls, 1);
  }

  /** True if the engine must be woken to see what was put or announced. */
  get engineSleeps(): boolean {
    return Atomics.load(this.#words, at.sleeping) === 1;
  }

  /** Marks a free entry as that of a request. */
  open(slot: number): void {
    Atomics.store(this.#states, slot, slotStates.pending);
  }

  release(slot: number): void {
    Atomics.store(this.#states, slot, slotStates.free);
  }

  stateOf(slot: number): number {
    return Atomics.load(this.#states, slot);
  }

  /** Valid once the request has ended. */
  bytesOf(slot: number): number {
    return this.#bytes[slot]!;
  }

  /** True once the engine has failed; why stands in its last message. */
  get hasCrashed(): boolean {
    return Atomics.load(this.#words, at.crashed) === 1;
  }

  /** How many requests have ended so far, to give to a wait. */
  get ended(): number {
    return Atomics.load(this.#words, at.ended);
  }

  /**
   * Blocks this thread until a further request has ended than `seen` counts, or the time is over. With `spin` it polls as
   * long as that says, lending the processor to others, the engine's thread among them, before it sleeps.
   */
  waitBlocking(seen: number, milliseconds: number, spin: SpinTime | undefined): void {
    const words = this.#words;
    const start = performance.now();
    Atomics.add(words, at.awaited, 1);
    if (spin === undefined || spin.isShort || !this.#poll(seen, start, milliseconds, spin)) {
      Atomics.add(words, at.waiters, 1);
      Atomics.wait(words, at.ended, seen, milliseconds);
      Atomics.sub(words, at.waiters, 1);
    }
    Atomics.sub(words, at.awaited, 1);
    if (this.ended !== seen) spin?.learn(performance.now() - start);
  }

  #poll(seen: number, start: number, milliseconds: number, spin: SpinTime): boolean {
    const most = Math.min(milliseconds, spin.milliseconds);
    for (let now = start; now - start < most; now = performance.now()) {
      for (let look = 0; look < LOOKS_PER_CLOCK; look++) if (this.ended !== seen) return true;
      if (spin.lent(this.#loans.lend(now) - now)) break;
    }
    return this.ended !== seen;
  }

  /** The same without blocking. */
  async wait(seen: number, milliseconds: number): Promise<void> {
    Atomics.add(this.#words, at.waiters, 1);
    await waitAsync(this.#words, at.ended, seen, milliseconds);
    Atomics.sub(this.#words, at.waiters, 1);
  }

  /** Ends waits although nothing has ended: there is something else to look at. */
  wakeWaiters(): void {
    Atomics.add(this.#words, at.ended, 1);
    Atomics.notify(this.#words, at.ended);
  }

  // The engine's side.

  /** Ends waits of the user's side, which finds the reason in the engine's last message. */
  reportCrash(): void {
    Atomics.store(this.#words, at.crashed, 1);
    this.wakeWaiters();
  }

  /** Takes the next command into `command`; false if there is none. */
  take(command: EngineCommand): boolean {
    if (Atomics.load(this.#words, at.tail) === this.#next) return false;
    const first = (this.#next & (REQUEST_SLOTS - 1)) * WORDS;
    const ring = this.#ring;
    command.kind = ring[first + field.kind]!;
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

  /** True while a thread of the user's side does nothing but wait for a request to end. */
  get isAwaited(): boolean {
    return Atomics.load(this.#words, at.awaited) !== 0;
  }

  /** Messages announced so far. */
  get calls(): number {
    return Atomics.load(this.#words, at.calls);
  }

  /** To be called before sleeping; false, and nothing to sleep for, if something came since. */
  fallAsleep(seenCalls: number): boolean {
    Atomics.store(this.#words, at.sleeping, 1);
    if (Atomics.load(this.#words, at.tail) === this.#next && this.calls === seenCalls) return true;
    this.wakeUp();
    return false;
  }

  wakeUp(): void {
    Atomics.store(this.#words, at.sleeping, 0);
  }

  /** Publishes that a request has ended, with the bytes that came. */
  finish(slot: number, isDone: boolean, bytes: number): void {
    this.#bytes[slot] = bytes;
    Atomics.store(this.#states, slot, isDone ? slotStates.done : slotStates.failed);
    Atomics.add(this.#words, at.ended, 1);
    if (Atomics.load(this.#words, at.waiters) !== 0) Atomics.notify(this.#words, at.ended);
  }
}
