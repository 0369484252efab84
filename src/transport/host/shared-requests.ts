// The memory between the user's thread and all engines': the request table, the counts of channels, the words to sleep on. Hot path: no
// allocation.
import { channelStates, MAX_CHANNELS, MAX_ENGINES, REQUEST_SLOTS, slotBits, slotStates } from '../engine-commands.ts';
import { ProcessorLoans, type SpinTime } from '../../threads/spin-time.ts';
import { WakeWord } from '../../threads/wake-word.ts';

/** A look at the clock costs as much as several looks at a word. */
const LOOKS_PER_CLOCK = 4;
const CHANNEL_OFFSET = REQUEST_SLOTS * 4;
const BYTES_OFFSET = CHANNEL_OFFSET + MAX_CHANNELS * 8;
const { states, partFailed, partsShift, partsMask, lastShift } = slotBits;
const PART = 1 << partsShift;

/** No engine. */
export const NOBODY = -1;

export class SharedRequests {
  readonly buffer: SharedArrayBuffer;
  /** Rung behind the end of a request, and changed counts and states of channels, and when there is something else to look at. */
  readonly news: WakeWord;
  readonly #entries: Int32Array;
  /** What each channel has delivered, which wraps, and its state. */
  readonly #channels: Int32Array;
  /** Bytes of receives, by engine and slot. */
  readonly #bytes: Float64Array;
  readonly #loans = new ProcessorLoans();

  constructor(
    news: WakeWord = new WakeWord(),
    buffer: SharedArrayBuffer = new SharedArrayBuffer(BYTES_OFFSET + MAX_ENGINES * REQUEST_SLOTS * 8),
  ) {
    this.buffer = buffer;
    this.news = news;
    this.#entries = new Int32Array(buffer, 0, REQUEST_SLOTS);
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

  /**
   * Blocks this thread until a further request has ended than `seen` counts, or the time is over. With `spin` it polls as
   * long as that says, lending the processor to others, the engines' threads among them, before it sleeps.
   */
  waitBlocking(seen: number, milliseconds: number, spin: SpinTime | undefined): void {
    const news = this.news;
    const start = performance.now();
    news.beginWait();
    if (spin === undefined || spin.isShort || !this.#poll(seen, start, milliseconds, spin)) {
      news.sleepBlocking(seen, milliseconds);
    }
    news.endWait();
    if (this.news.seen !== seen) spin?.learn(performance.now() - start);
  }

  #poll(seen: number, start: number, milliseconds: number, spin: SpinTime): boolean {
    const most = Math.min(milliseconds, spin.milliseconds);
    for (let now = start; now - start < most; now = performance.now()) {
      for (let look = 0; look < LOOKS_PER_CLOCK; look++) if (this.news.seen !== seen) return true;
      if (spin.lent(this.#loans.lend(now) - now)) break;
    }
    return this.news.seen !== seen;
  }

  // The side of engines.

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
    this.news.ring();
    return NOBODY;
  }

  /** Counts further operations of a channel as delivered. */
  deliverOfChannel(channel: number, count: number): void {
    Atomics.add(this.#channels, channel * 2, count);
    this.news.ring();
  }

  setChannel(channel: number, state: number): void {
    Atomics.store(this.#channels, channel * 2 + 1, state);
    this.news.ring();
  }
}
