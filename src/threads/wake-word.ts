// Words of memory that threads of one process share to sleep, to wake and to exclude each other.
import { Futex } from '../native/libc.ts';
import { addressOf, viewAt } from '../native/library.ts';

// A lock between threads of one process, held for as short as a few stores. Waiters block on a futex.

/** What the one word of a SharedLock holds. */
const lockStates = { free: 0, held: 1, contended: 2 } as const;

export class SharedLock {
  readonly #words: Int32Array;

  /** One word of shared memory, zero at the start; every thread makes its own SharedLock over it. */
  constructor(buffer: SharedArrayBuffer, byteOffset: number) {
    this.#words = new Int32Array(buffer, byteOffset, 1);
  }

  /** Hot path. Not reentrant. */
  take(): void {
    const words = this.#words;
    let seen: number = Atomics.compareExchange(words, 0, lockStates.free, lockStates.held);
    while (seen !== lockStates.free) {
      // INVARIANT: a sleeping waiter has left `contended` there, so that the holder wakes one when it releases.
      const mayWait =
        seen === lockStates.contended ||
        Atomics.compareExchange(words, 0, lockStates.held, lockStates.contended) !== lockStates.free;
      if (mayWait) Atomics.wait(words, 0, lockStates.contended);
      seen = Atomics.compareExchange(words, 0, lockStates.free, lockStates.contended);
    }
  }

  /** Hot path. */
  release(): void {
    if (Atomics.exchange(this.#words, 0, lockStates.free) === lockStates.contended) Atomics.notify(this.#words, 0, 1);
  }
}

/**
 * The words, each alone on its cache line. `events`: what happened so far, wraps; written by any thread behind what it announces. `sleepers`: waits of
 * the sleeping thread. ORDER: a ringer adds to `events`, then looks at `sleepers`; a sleeper adds itself, and the sleep
 * itself compares `events` with what was seen. So no ring is slept through. `awaited`: blocking waits for a ring, polling or
 * asleep; written by the sleeping thread, a stale look costs time only. `bells`: how many places of `places` hold the
 * addresses of a bell and of its sleepers; `lock` is held while they change or are used. `unannounced`: who says that something may
 * happen without a ring; written by any thread, a stale look costs one sleep.
 */
const wakeWord = { events: 0, sleepers: 16, awaited: 32, bells: 48, lock: 49, places: 64, unannounced: 96 } as const;
/** The addresses of each take four words. */
const MAX_BELLS = (wakeWord.unannounced - wakeWord.places) / 4;
const WAKE_WORD_BYTES = (wakeWord.unannounced + 16) * 4;

/** A word that a rank sleeps on, in memory that it shares with other processes. */
interface Bell {
  /** One element; grows with each ring. */
  readonly value: Int32Array;
  /** One element; greater than zero while somebody sleeps. */
  readonly waiters: Int32Array;
}

/** A bell as this thread reaches it, by the addresses of its words. */
interface ReachedBell extends Bell {
  readonly at: number;
  readonly waitersAt: number;
  readonly futex: Futex;
}

export class WakeWord {
  /** Memory to be handed to a worker thread, which makes its own WakeWord over it. */
  readonly buffer: SharedArrayBuffer;
  readonly #words: Int32Array;
  readonly #lock: SharedLock;
  /** Native addresses of each bell and its sleepers; 0 for none. */
  readonly #places: Float64Array;
  readonly #bells: (ReachedBell | undefined)[] = [];

  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(WAKE_WORD_BYTES)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer, 0, WAKE_WORD_BYTES / 4);
    this.#lock = new SharedLock(buffer, wakeWord.lock * 4);
    this.#places = new Float64Array(buffer, wakeWord.places * 4, MAX_BELLS * 2);
  }

  /**
   * From now on a ring rings this bell too, if somebody sleeps on it. Its memory must not move. Returns how to end that: then no
   * thread touches the bell any more. undefined if there are too many.
   */
  alsoRing({ value, waiters }: Bell): (() => void) | undefined {
    const place = this.#exclusively(() => {
      const free = Array.from({ length: MAX_BELLS }, (_, at) => at).find((at) => this.#places[2 * at] === 0);
      if (free === undefined) return undefined;
      this.#places[2 * free] = Number(addressOf(value));
      this.#places[2 * free + 1] = Number(addressOf(waiters));
      Atomics.add(this.#words, wakeWord.bells, 1);
      return free;
    });
    if (place === undefined) return undefined;
    return () =>
      this.#exclusively(() => {
        this.#places[2 * place] = 0;
        Atomics.sub(this.#words, wakeWord.bells, 1);
      });
  }

  /** Hot path. Something happened: it can be seen by now. From any thread. */
  ring(): void {
    Atomics.add(this.#words, wakeWord.events, 1);
    if (Atomics.load(this.#words, wakeWord.sleepers) !== 0) Atomics.notify(this.#words, wakeWord.events);
    if (Atomics.load(this.#words, wakeWord.bells) !== 0) this.#ringBells();
  }

  #ringBells(): void {
    this.#lock.take();
    try {
      for (let place = 0; place < MAX_BELLS; place++) {
        if (this.#places[2 * place] === 0) continue;
        const { value, waiters, futex } = this.#reach(place);
        if (Atomics.load(waiters, 0) === 0) continue;
        Atomics.add(value, 0, 1);
        futex.wakeAll();
      }
    } finally {
      this.#lock.release();
    }
  }

  #reach(place: number): ReachedBell {
    const [at, waitersAt] = [this.#places[2 * place]!, this.#places[2 * place + 1]!];
    const known = this.#bells[place];
    if (known?.at === at && known.waitersAt === waitersAt) return known;
    const value = new Int32Array(viewAt(at, 4));
    const bell = { at, waitersAt, value, waiters: new Int32Array(viewAt(waitersAt, 4)), futex: new Futex(value) };
    this.#bells[place] = bell;
    return bell;
  }

  #exclusively<T>(work: () => T): T {
    this.#lock.take();
    try {
      return work();
    } finally {
      this.#lock.release();
    }
  }

  /** Must be read before looking for what is waited for, and given to the sleep. */
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

  /** Something may happen without a ring, until the function that this returns is called. From any thread. */
  expectUnannounced(): () => void {
    Atomics.add(this.#words, wakeWord.unannounced, 1);
    let isOver = false;
    return () => {
      if (!isOver) Atomics.sub(this.#words, wakeWord.unannounced, 1);
      isOver = true;
    };
  }

  /** The sleeping thread must look by itself. */
  get expectsUnannounced(): boolean {
    return Atomics.load(this.#words, wakeWord.unannounced) !== 0;
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

// Atomics.waitAsync, which Node 20 has and the ES library of this language level does not declare.

interface AtomicsWithWaitAsync {
  waitAsync(words: Int32Array, index: number, value: number, milliseconds: number): { readonly value: unknown };
}

/** Resolves when the word is notified, at once if it no longer holds `value`, or after `milliseconds`. */
async function waitAsync(words: Int32Array, index: number, value: number, milliseconds: number): Promise<void> {
  await (Atomics as object as AtomicsWithWaitAsync).waitAsync(words, index, value, milliseconds).value;
}
