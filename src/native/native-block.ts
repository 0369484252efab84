// Memory of this process that does not move: the kernel is given its address once, TypeScript reads and writes it.
import { addressOf } from './library.ts';

export class NativeBlock {
  readonly bytes: Uint8Array;
  readonly words: Uint32Array;
  readonly address: number;

  /** Zeroed; lives as long as this object is referenced. An address in the kernel's or in native hands is no reference. */
  constructor(byteLength: number) {
    // Shared memory is never moved or paged out by the collector. It begins at a multiple of 16 bytes only.
    const buffer = new SharedArrayBuffer(Math.ceil(byteLength / 8) * 8 + 64);
    const start = (64 - (Number(addressOf(new Uint8Array(buffer))) % 64)) % 64;
    this.bytes = new Uint8Array(buffer, start, byteLength);
    this.words = new Uint32Array(buffer, start, Math.ceil(byteLength / 4));
    this.address = Number(addressOf(this.bytes));
  }
}
