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
