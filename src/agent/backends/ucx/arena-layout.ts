// How one piece of native memory is laid out as arrays, the same way on every thread.
import { viewAt } from '../../../native/library.ts';
import type { NativeBlock } from '../../../native/native-block.ts';

/** Without memory it only counts: `end` is then how much is needed. */
export class ArenaLayout {
  end = 0;
  readonly #buffer: ArrayBufferLike | undefined;
  readonly #offset: number;
  readonly #address: number;

  private constructor(buffer: ArrayBufferLike | undefined, offset: number, address: number) {
    this.#buffer = buffer;
    this.#offset = offset;
    this.#address = address;
  }

  static counting(): ArenaLayout {
    return new ArenaLayout(undefined, 0, 0);
  }

  /** Of the thread that made the memory. */
  static of({ bytes, address }: NativeBlock): ArenaLayout {
    return new ArenaLayout(bytes.buffer, bytes.byteOffset, address);
  }

  /** Of another thread of the process. */
  static at(address: number, bytes: number): ArenaLayout {
    return new ArenaLayout(viewAt(address, bytes), 0, address);
  }

  integers(count: number): Int32Array {
    const at = this.#take(count * 4);
    return this.#buffer === undefined ? new Int32Array() : new Int32Array(this.#buffer, at, count);
  }

  numbers(count: number): Float64Array {
    const at = this.#take(count * 8);
    return this.#buffer === undefined ? new Float64Array() : new Float64Array(this.#buffer, at, count);
  }

  bytes(count: number): { readonly address: number; readonly bytes: Uint8Array; readonly words: Uint32Array } {
    const address = this.#address + this.end;
    const at = this.#take(count);
    if (this.#buffer === undefined) return { address, bytes: new Uint8Array(), words: new Uint32Array() };
    return {
      address,
      bytes: new Uint8Array(this.#buffer, at, count),
      words: new Uint32Array(this.#buffer, at, count / 4),
    };
  }

  /** Arrays begin on cache lines of their own. */
  #take(bytes: number): number {
    const at = this.#offset + this.end;
    this.end += Math.ceil(bytes / 64) * 64;
    return at;
  }
}
