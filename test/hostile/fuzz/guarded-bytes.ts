// Memory for a decoder to write to, between bytes that it must leave alone.
import { Fault } from './decoder.ts';

const GUARD = 256;
const GUARD_BYTE = 0xa5;

export class GuardedBytes {
  readonly bytes: Uint8Array;
  readonly #whole: Uint8Array;

  /** `bytes`: a multiple of 8. */
  constructor(bytes: number) {
    this.#whole = new Uint8Array(new SharedArrayBuffer(bytes + 2 * GUARD)).fill(GUARD_BYTE);
    this.bytes = this.#whole.subarray(GUARD, GUARD + bytes);
  }

  check(): void {
    if ([this.#whole.subarray(0, GUARD), this.#whole.subarray(-GUARD)].every((guard) => guard.every(isGuard))) return;
    throw new Fault('bytes outside of the region were written');
  }
}

function isGuard(byte: number): boolean {
  return byte === GUARD_BYTE;
}
