// Slots of a rank's window that collective calls use in turn; all ranks use the same one for the same piece.
import type { SlotShape } from './window-regions.ts';

export class StagingRing {
  /** Of one slot. */
  readonly bytes: number;
  readonly #offset: number;
  readonly #count: number;
  /** By slot: the last post and the call of the piece that used it last. */
  readonly #lastPiece: Int32Array;
  readonly #lastCall: Int32Array;
  #slot = 0;

  /** `offset`: of the first slot in every rank's part of the window. */
  constructor(offset: number, { count, bytes }: SlotShape) {
    this.bytes = bytes;
    this.#offset = offset;
    this.#count = count;
    this.#lastPiece = new Int32Array(count).fill(-1);
    this.#lastCall = new Int32Array(count);
  }

  /** Offset of the slot in use. */
  get offset(): number {
    return this.#offset + this.#slot * this.bytes;
  }

  /** A rank that has posted more than this piece has taken all it needed from this slot. */
  get lastPiece(): number {
    return this.#lastPiece[this.#slot]!;
  }

  get lastCall(): number {
    return this.#lastCall[this.#slot]!;
  }

  /** Turns to the next slot, for a piece of that call. */
  next(): void {
    this.#slot = (this.#slot + 1) % this.#count;
  }

  /** The piece in the present slot ends with that post. */
  used(piece: number, call: number): void {
    this.#lastPiece[this.#slot] = piece;
    this.#lastCall[this.#slot] = call;
  }
}
