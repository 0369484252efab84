// Memory of a rank's window that collective calls use in turn; all ranks use the same places for the same piece.
import type { RingShape } from './window-regions.ts';

export class StagingRing {
  /** Of one block, which is the most that a piece may have. */
  readonly bytes: number;
  readonly #offset: number;
  readonly #blocks: number;
  readonly #maxPieces: number;
  /** By block: the last post, and the call, of the pieces that were in it in the round before. */
  readonly #lastPiece: Int32Array;
  readonly #lastCall: Int32Array;
  /** Of the pieces that are in the present block now. */
  #usedPiece = 0;
  #usedCall = 0;
  #block = 0;
  #pieces = 0;
  #end = 0;
  #isFree = true;

  /** `offset`: of the first block in every rank's part of the window. */
  constructor(offset: number, { blocks, bytes, maxPieces }: RingShape) {
    this.bytes = bytes;
    this.#offset = offset;
    this.#blocks = blocks;
    this.#maxPieces = maxPieces;
    this.#lastPiece = new Int32Array(blocks).fill(-1);
    this.#lastCall = new Int32Array(blocks);
  }

  /**
   * True once the caller knows that nobody reads what was in the present block before. A rank that has posted more than
   * `lastPiece` has taken all it needed of it.
   */
  get isFree(): boolean {
    return this.#isFree;
  }

  get lastPiece(): number {
    return this.#lastPiece[this.#block]!;
  }

  get lastCall(): number {
    return this.#lastCall[this.#block]!;
  }

  setFree(): void {
    this.#isFree = true;
  }

  /** Offset of a place for a piece: behind the last one, so that small messages share pages and caches; or in the next block. */
  next(bytes: number): number {
    if (this.#pieces === this.#maxPieces || this.#end + bytes > this.bytes) {
      this.#lastPiece[this.#block] = this.#usedPiece;
      this.#lastCall[this.#block] = this.#usedCall;
      this.#block = (this.#block + 1) % this.#blocks;
      this.#pieces = 0;
      this.#end = 0;
      this.#isFree = false;
    }
    const place = this.#offset + this.#block * this.bytes + this.#end;
    this.#pieces += 1;
    this.#end += bytes;
    return place;
  }

  /** The piece that got the last place ends with that post. */
  used(piece: number, call: number): void {
    this.#usedPiece = piece;
    this.#usedCall = call;
  }
}
