// Copies to and from host memory: made by this thread, at once.
import { copyMemory } from '../../native/libc.ts';
import { viewAt } from '../../native/library.ts';
import type { CopyRun, DeviceCopies } from './device-copies.ts';

export class PlainCopies implements DeviceCopies {
  readonly ready: Promise<void> = Promise.resolve();
  readonly isBusy = false;
  #cellAddress = 0;
  #cell = new BigUint64Array(1);

  copy(_way: unknown, { to, from, bytes, count }: CopyRun): number {
    for (let at = 0; at < count; at++) copyMemory(to[at]!, from[at]!, bytes[at]!);
    return 0;
  }

  /** ORDER: atomic, so that a thread that sees the new count sees the data that was written before it. */
  add(address: number, value: number): number {
    if (this.#cellAddress !== address) {
      this.#cellAddress = address;
      this.#cell = new BigUint64Array(viewAt(address, 8));
    }
    Atomics.add(this.#cell, 0, BigInt(value));
    return 0;
  }

  isDone(): boolean {
    return true;
  }

  latest(): number {
    return 0;
  }

  async close(): Promise<void> {}
}
