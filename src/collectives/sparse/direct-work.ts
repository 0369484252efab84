// What a GPU does for sums with GPUs whose memory it reaches, piece by piece, without waiting for anybody.
import type { BlockWay, WorkMark } from './block-work.ts';
import type { SparseCall } from './sparse-call.ts';

/** A run of blocks, and which of the buffers of every rank's window it goes through. */
export interface Piece {
  readonly first: number;
  readonly blocks: number;
  readonly buffer: number;
}

/** Hot path. */
export interface DirectWork {
  /** Bytes of a buffer for blocks. */
  readonly pieceBytes: number;
  readonly buffers: number;
  /** Blocks that count here, and at any rank, once the last piece of the call is summed. */
  readonly found: Uint32Array;
  makeMark(way: BlockWay): WorkMark;
  /** A call begins: its work follows all that the device's stream has to do now. */
  begin(call: SparseCall): void;
  /** `out`: marks the blocks, clears those of the output that do not count, and puts the others into this rank's window. */
  share(piece: Piece): void;
  /** `in`: adds up what all windows have. `isLast`: brings `found` to the host behind it. */
  sum(piece: Piece, isLast: boolean): void;
  /** Adds to an i32 behind all sums so far. */
  tell(flag: number, parts: number): void;
  /** Whatever the device's stream does next follows the sums so far. */
  join(): void;
  /** Resolves when none of the work is under way any more. */
  close(): Promise<void>;
}
