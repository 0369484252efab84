// What ranks of other hosts say in memory that they write to: cells that their signals add to, and why they gave up. CPU ranks
// and hosts of GPUs read and write it alike.
import { networkCellOffset, networkCells, networkCellsBytes } from '../../abi/network.ts';
import type { WeftlineError } from '../../core/errors.ts';
import { decodeAbort, encodeAbort } from '../../windows/abort-record.ts';

/** What a rank says when it gives up: a 32-bit length, then as much text. */
const SLOT_BYTES = 1024;
const LENGTH_BYTES = 4;

/** Bytes of the slots of all ranks of a group. */
export function networkAbortsBytes(ranks: number): number {
  return ranks * SLOT_BYTES;
}

/** Where the words stand: in the memory of a rank, whose part of the window begins at `start` of `buffer`. */
interface PeerWordsPlace {
  readonly buffer: ArrayBufferLike;
  readonly start: number;
  /** Offsets from there: of the cells, and of a slot per rank for what it says when it gives up. */
  readonly cells: number;
  readonly aborts: number;
}

export class PeerWords {
  /** The ranks of the group, by their numbers in the world. */
  readonly #ranks: readonly number[];
  readonly #cells: number;
  readonly #aborts: number;
  /** Low words of all cells. */
  readonly #counts: Int32Array;
  readonly #lengths: Int32Array;
  readonly #texts: Uint8Array;

  constructor(ranks: readonly number[], { buffer, start, cells, aborts }: PeerWordsPlace) {
    this.#ranks = ranks;
    this.#cells = cells;
    this.#aborts = aborts;
    this.#counts = new Int32Array(buffer, start + cells, networkCellsBytes(ranks.length) / 4);
    this.#lengths = new Int32Array(buffer, start + aborts, networkAbortsBytes(ranks.length) / 4);
    this.#texts = new Uint8Array(buffer, start + aborts, networkAbortsBytes(ranks.length));
  }

  /** The offset at which they end. */
  get end(): number {
    return this.#aborts + this.#texts.length;
  }

  /** Hot path. How often a peer has signalled a cell; wraps at 2^32. */
  count(peer: number, cell: number): number {
    return Atomics.load(this.#counts, networkCellOffset(peer, cell) / 4);
  }

  /** Offset of a cell in the line that this rank of the group adds to. */
  cellOf(rank: number, cell: number): number {
    return this.#cells + networkCellOffset(rank, cell);
  }

  /** Hot path. Why a peer gave up; undefined if it has not. */
  told(peer: number): WeftlineError | undefined {
    if (this.count(peer, networkCells.abort) === 0) return undefined;
    const at = peer * SLOT_BYTES;
    const length = Math.min(this.#lengths[at / 4]!, SLOT_BYTES - LENGTH_BYTES);
    return decodeAbort(this.#texts.subarray(at + LENGTH_BYTES, at + LENGTH_BYTES + length), this.#ranks[peer]!);
  }

  /** Puts what this rank says into its own slot: its peers get it from there to the same place of theirs, before the signal. */
  write(rank: number, error: unknown): { readonly offset: number; readonly bytes: number } {
    const text = encodeAbort(error, this.#ranks[rank]!, SLOT_BYTES - LENGTH_BYTES);
    const at = rank * SLOT_BYTES;
    this.#lengths[at / 4] = text.length;
    this.#texts.set(text, at + LENGTH_BYTES);
    return { offset: this.#aborts + at, bytes: LENGTH_BYTES + text.length };
  }
}

/** Chunks of a stream from one peer that are here: chunk i comes on channel i modulo the channels, each in order. */
export class ChunkArrivals {
  readonly #words: Pick<PeerWords, 'count'>;
  readonly #peer: number;
  readonly #firstCell: number;
  /** What a channel's cell held when the last chunk of it was taken, by channel. */
  readonly #seen: Int32Array;
  /** Chunks of this call that were taken. */
  taken = 0;

  /** `firstCell`: that of channel 0; the others follow. `before`: what all of them hold already. */
  // oxlint-disable-next-line max-params -- for tests to come near the wrap-around of `before`
  constructor(words: Pick<PeerWords, 'count'>, peer: number, firstCell: number, channels: number, before = 0) {
    this.#words = words;
    this.#peer = peer;
    this.#firstCell = firstCell;
    this.#seen = new Int32Array(channels).fill(before);
  }

  /** A call begins, whose first chunk has number 0. */
  begin(): void {
    this.taken = 0;
  }

  /** Hot path. Takes the next chunk; false if it is not here. */
  take(): boolean {
    const channel = this.taken % this.#seen.length;
    const before = this.#seen[channel]!;
    if (((this.#words.count(this.#peer, this.#firstCell + channel) - before) | 0) <= 0) return false;
    this.#seen[channel] = (before + 1) | 0;
    this.taken++;
    return true;
  }
}
