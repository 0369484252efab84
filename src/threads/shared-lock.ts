// A lock between threads of one process, held for as short as a few stores. Who waits sleeps.

const states = { free: 0, held: 1, contended: 2 } as const;

export class SharedLock {
  readonly #words: Int32Array;

  /** One word of shared memory, zero at the start; every thread makes its own SharedLock over it. */
  constructor(buffer: SharedArrayBuffer, byteOffset: number) {
    this.#words = new Int32Array(buffer, byteOffset, 1);
  }

  /** Hot path. Not reentrant. */
  take(): void {
    const words = this.#words;
    let seen: number = Atomics.compareExchange(words, 0, states.free, states.held);
    while (seen !== states.free) {
      // INVARIANT: whoever sleeps has left `contended` there, so that the holder wakes one when it lets go.
      const mayWait =
        seen === states.contended || Atomics.compareExchange(words, 0, states.held, states.contended) !== states.free;
      if (mayWait) Atomics.wait(words, 0, states.contended);
      seen = Atomics.compareExchange(words, 0, states.free, states.contended);
    }
  }

  /** Hot path. */
  letGo(): void {
    if (Atomics.exchange(this.#words, 0, states.free) === states.contended) Atomics.notify(this.#words, 0, 1);
  }
}
