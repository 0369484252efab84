// One word that several threads ring when something happened, and that one thread sleeps on.
import { waitAsync } from './wait-async.ts';

// Words of memory that threads of one process share to sleep, to wake and to exclude each other.

/**
 * The words. `events`: what happened so far, wraps; written by any thread behind what it announces. `sleepers`: waits of
 * the sleeping thread. ORDER: a ringer adds to `events`, then looks at `sleepers`; a sleeper adds itself, and the sleep
 * itself compares `events` with what was seen. So no ring is slept through. `awaited`: blocking waits for a ring, polling or
 * asleep; written by the sleeping thread, a stale look costs time only.
 */
const wakeWord = { events: 0, sleepers: 1, awaited: 2 } as const;
const WAKE_WORDS = 3;

export class WakeWord {
  /** To be handed to a worker thread, which makes its own WakeWord over it. */
  readonly buffer: SharedArrayBuffer;
  readonly #words: Int32Array;

  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(WAKE_WORDS * 4)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer, 0, WAKE_WORDS);
  }

  /** Hot path. Something happened: it can be seen by now. From any thread. */
  ring(): void {
    Atomics.add(this.#words, wakeWord.events, 1);
    if (Atomics.load(this.#words, wakeWord.sleepers) !== 0) Atomics.notify(this.#words, wakeWord.events);
  }

  /** To be read before looking for what is waited for, and given to the sleep. */
  get seen(): number {
    return Atomics.load(this.#words, wakeWord.events);
  }

  /** True while a thread does nothing but wait for a ring, so that ringing soon pays. */
  get isAwaited(): boolean {
    return Atomics.load(this.#words, wakeWord.awaited) !== 0;
  }

  /** Around a blocking wait, polling and sleeping. */
  beginWait(): void {
    Atomics.add(this.#words, wakeWord.awaited, 1);
  }

  endWait(): void {
    Atomics.sub(this.#words, wakeWord.awaited, 1);
  }

  /** Blocks this thread until a ring after `seen`, or until the time is over. */
  sleepBlocking(seen: number, milliseconds: number): void {
    Atomics.add(this.#words, wakeWord.sleepers, 1);
    Atomics.wait(this.#words, wakeWord.events, seen, milliseconds);
    Atomics.sub(this.#words, wakeWord.sleepers, 1);
  }

  /** The same without blocking. */
  async sleep(seen: number, milliseconds: number): Promise<void> {
    Atomics.add(this.#words, wakeWord.sleepers, 1);
    await waitAsync(this.#words, wakeWord.events, seen, milliseconds);
    Atomics.sub(this.#words, wakeWord.sleepers, 1);
  }
}
