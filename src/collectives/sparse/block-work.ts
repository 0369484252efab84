// What a GPU does for a worker's tensors, piece by piece, without waiting for the host: marks, copies, additions to flags.
import { WeftlineError } from '../../core/errors.ts';
import type { SparseCall } from './sparse-call.ts';

/** `out`: from the tensor to the host; `in`: the other way. Work of one way is done in order. */
export type BlockWay = 'out' | 'in';

/** Memory that host and device reach. */
export interface SharedBytes extends Disposable {
  /** The address as the device knows it. */
  readonly deviceAddress: number;
  /** All of it, and nothing else. */
  readonly buffer: ArrayBuffer;
}

/** A point in the work of one way. */
export interface WorkMark {
  /** It is behind what was enqueued so far. */
  record(): void;
  /** All before it is done, and visible here. True before the first record(). Fails as that work did. */
  isDone(): boolean;
}

/** What the marks of a call's blocks give, in memory that the host reads. */
export interface BlockIndex {
  /** How many blocks count. */
  readonly found: Uint32Array;
  /** The number of each block among those that count; SPARSE_NO_BLOCK for others. */
  readonly numbers: Uint32Array;
  /** The next block that counts in the lane of each block. */
  readonly nexts: Uint32Array;
}

/** Blocks between the call's tensor and memory in which they lie one behind the other. */
export interface BlockMove {
  readonly packed: number;
  readonly count: number;
}

/** Hot path, but for what makes memory. */
export interface BlockWork {
  /** Memory of the device and index for so many blocks. Fails with WL_MEMORY. */
  reserve(blocks: number): BlockIndex;
  allocateHost(bytes: number): SharedBytes;
  makeMark(way: BlockWay): WorkMark;
  /** A call begins: its work follows all that the device's stream has to do now. */
  begin(call: SparseCall, blocks: number): void;
  /** Clears what does not count in the output, and fills the index. */
  mark(): void;
  /** Blocks from that number among those that count; in a dense call all do. */
  gather(first: number, move: BlockMove): void;
  /** `list`: where the numbers of blocks lie, u32, as the device knows it. */
  scatter(list: number, move: BlockMove): void;
  /** Adds to an i32 behind all that was scattered. */
  tell(flag: number, parts: number): void;
  /** Whatever the device's stream does next follows what was scattered and told so far. */
  join(): void;
  /** Resolves when none of the work is under way any more. */
  close(): Promise<void>;
}

// What a GPU does for sums with GPUs whose memory it reaches, piece by piece, without waiting for anybody.

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

// How long a call waits for work of a GPU that does not come to its end.

export class WorkPatience {
  /** Times since which marks are waited for that are not done. */
  readonly #since = new Map<WorkMark, number>();

  /** A call begins. */
  reset(): void {
    this.#since.clear();
  }

  /** Hot path. Whether the work is done; fails with WL_TIMEOUT when it has been asked for so long. */
  isDone(mark: WorkMark, timeoutMs: number): boolean {
    if (mark.isDone()) {
      this.#since.delete(mark);
      return true;
    }
    const now = performance.now();
    const since = this.#since.get(mark);
    if (since === undefined) this.#since.set(mark, now);
    if (now - (since ?? now) < timeoutMs) return false;
    throw new WeftlineError(
      'WL_TIMEOUT',
      `The GPU has not moved the blocks of a sparse allReduce within ${timeoutMs} ms: earlier work of device.stream may hold it up, or a kernel that polls the flag and leaves no multiprocessor free`,
      { details: { timeoutMs } },
    );
  }
}
