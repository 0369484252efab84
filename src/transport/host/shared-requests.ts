// The memory between the user's thread and all engines': the request table, the counts of channels, the words to sleep on. Hot path: no
// allocation.
import { wordOffsets } from '../../abi/layout.ts';
import {
  channelStates,
  MAX_CHANNELS,
  MAX_ENGINES,
  REQUEST_SLOTS,
  requestHead,
  slotBits,
  slotStates,
} from '../engine-commands.ts';
import { ProcessorLoans, type SpinTime } from '../../threads/spin-time.ts';
import { waitAsync } from '../../threads/wake-word.ts';

/** A look at the clock costs as much as several looks at a word. */
const LOOKS_PER_CLOCK = 4;
const STATE_OFFSET = requestHead.size;
const CHANNEL_OFFSET = STATE_OFFSET + REQUEST_SLOTS * 4;
const BYTES_OFFSET = CHANNEL_OFFSET + MAX_CHANNELS * 8;
const { states, partFailed, partsShift, partsMask, lastShift } = slotBits;
const PART = 1 << partsShift;

const at = wordOffsets(requestHead);

/** No engine. */
export const NOBODY = -1;

export class SharedRequests {
  readonly buffer: SharedArrayBuffer;
  readonly #words: Int32Array;
  readonly #entries: Int32Array;
  /** What each channel has delivered, which wraps, and its state. */
  readonly #channels: Int32Array;
  /** Bytes of receives, by engine and slot. */
  readonly #bytes: Float64Array;
  readonly #loans = new ProcessorLoans();

  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(BYTES_OFFSET + MAX_ENGINES * REQUEST_SLOTS * 8)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer, 0, requestHead.size / 4);
    this.#entries = new Int32Array(buffer, STATE_OFFSET, REQUEST_SLOTS);
    this.#channels = new Int32Array(buffer, CHANNEL_OFFSET, MAX_CHANNELS * 2);
    this.#bytes = new Float64Array(buffer, BYTES_OFFSET, MAX_ENGINES * REQUEST_SLOTS);
  }

  // The user's side.

  /**
   * Marks a free entry as that of a request with so many parts, each on an engine of its own. `last` is the engine that is
   * told when all but its own part have ended, or NOBODY.
   */
  open(slot: number, parts: number, last: number): void {
    Atomics.store(this.#entries, slot, slotStates.pending + parts * PART + ((last + 1) << lastShift));
  }

  release(slot: number): void {
    Atomics.store(this.#entries, slot, slotStates.free);
  }

  stateOf(slot: number): number {
    return Atomics.load(this.#entries, slot) & states;
  }

  /** What the engine's part of a request brought. Valid once the request has ended. */
  bytesOf(slot: number, engine: number): number {
    return this.#bytes[engine * REQUEST_SLOTS + slot]!;
  }

  openChannel(channel: number): void {
    Atomics.store(this.#channels, channel * 2, 0);
    this.setChannel(channel, channelStates.open);
  }

  channelDelivered(channel: number): number {
    return Atomics.load(this.#channels, channel * 2);
  }

  channelState(channel: number): number {
    return Atomics.load(this.#channels, channel * 2 + 1);
  }

  /** How many requests have ended so far, to give to a wait. */
  get ended(): number {
    return Atomics.load(this.#words, at.ended);
  }

  /**
   * Blocks this thread until a further request has ended than `seen` counts, or the time is over. With `spin` it polls as
   * long as that says, lending the processor to others, the engines' threads among them, before it sleeps.
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

  // The side of engines.

  /** True while a thread of the user's side does nothing but wait for a request to end. */
  get isAwaited(): boolean {
    return Atomics.load(this.#words, at.awaited) !== 0;
  }

  /** Parts of a request that have not ended. */
  partsLeft(slot: number): number {
    return (Atomics.load(this.#entries, slot) >> partsShift) & partsMask;
  }

  /** A part of a pending request has failed. */
  hasFailedPart(slot: number): boolean {
    return (Atomics.load(this.#entries, slot) & partFailed) !== 0;
  }

  /**
   * Notes that an engine's part of a request has ended, with the bytes that came, and publishes the request's end if it was
   * the last. Returns the engine that is to be told that only its own part is left, or NOBODY.
   */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per request
  finish(slot: number, engine: number, isDone: boolean, bytes: number): number {
    const entries = this.#entries;
    this.#bytes[engine * REQUEST_SLOTS + slot] = bytes;
    let entry = Atomics.load(entries, slot);
    while (((entry >> partsShift) & partsMask) > 1) {
      const next = (entry - PART) | (isDone ? 0 : partFailed);
      const seen = Atomics.compareExchange(entries, slot, entry, next);
      if (seen === entry) return ((next >> partsShift) & partsMask) === 1 ? (next >> lastShift) - 1 : NOBODY;
      entry = seen;
    }
    const isWhole = isDone && (entry & partFailed) === 0;
    Atomics.store(entries, slot, isWhole ? slotStates.done : slotStates.failed);
    this.#noteEnd();
    return NOBODY;
  }

  /** Counts further operations of a channel as delivered. */
  deliverOfChannel(channel: number, count: number): void {
    Atomics.add(this.#channels, channel * 2, count);
    this.#noteEnd();
  }

  setChannel(channel: number, state: number): void {
    Atomics.store(this.#channels, channel * 2 + 1, state);
    this.#noteEnd();
  }

  #noteEnd(): void {
    Atomics.add(this.#words, at.ended, 1);
    if (Atomics.load(this.#words, at.waiters) !== 0) Atomics.notify(this.#words, at.ended);
  }
}
