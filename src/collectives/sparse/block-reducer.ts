// What a worker's calls ask of whoever sums the blocks on their way: aggregators, or a switch that can.
import type { SparseCall, SparseTraffic } from './sparse-call.ts';

/**
 * One call at a time. Sums come in any order; `finalBlocks` says how far the tensor is done. WorkerSlots is the one for
 * aggregators, DirectReducer for GPUs that reach each other; one for a switch would hand it the blocks in begin(), and ask it in advance() which of its requests are over.
 */
export interface BlockReducer {
  /** Counts what has gone on; never resets. */
  readonly progress: number;
  /** What the call that began last has moved so far. */
  readonly traffic: SparseTraffic;
  /** The number of first blocks of the call that began last which have their sums. Does not shrink within a call. */
  readonly finalBlocks: number;
  /** Makes memory for marks of so many elements, before begin(). Without it nothing has begun: WL_MEMORY. */
  reserve(count: number): Promise<void> | void;
  /** Marks the blocks and sends the first of them; the call goes on by advance(). */
  begin(call: SparseCall): void;
  /** Hot path. Takes the results that have come. True when the call is over. */
  advance(): boolean;
  /** Ranks of the group that owe a result. */
  awaited(): number[];
  /** An i32 of the tensors' device, which goes up behind the sums that are there. */
  flagAt(address: number): CompletionFlag;
  /** Nothing of this touches tensors any more once it has resolved. */
  close(): Promise<void> | void;
}

/**
 * The tensors of one call at a time. Blocks that count are copied into messages in the host's memory, sums from there. Hot path,
 * but for `reserve`, `close` and `flagAt`. What a device has to do is asked for again and again: nobody rings when it is done.
 */
export interface TensorBlocks {
  /** Makes memory for so many elements, before begin(). Without it nothing has begun: WL_MEMORY. */
  reserve(count: number): Promise<void> | void;
  /** The blocks are to be marked; those of the output that do not count become zero. */
  begin(call: SparseCall): void;
  /** True once all below may be called. */
  isMarked(): boolean;
  /** How many of the call's blocks count. */
  readonly ownBlocks: number;
  has(block: number): boolean;
  /** The next block that counts behind this one in its lane, or the lane's number above those of all blocks. */
  next(block: number): number;
  /** True once a block that counts, and all before it, can be copied. */
  isReady(block: number): boolean;
  /** Copies neighbouring blocks that count to a message, and fills up the tensor's last one with zeros. */
  copyOut(to: number, block: number, run: number): void;
  /** True if so many sums can be taken in now. */
  hasRoom(blocks: number): boolean;
  /** Takes sums of neighbouring blocks from a message, which may change afterwards. */
  copyIn(from: number, block: number, run: number): void;
  /** All sums are taken in: true when whatever comes next on the device finds them in the output. */
  finish(): boolean;
  /** An i32 of the tensors' device, which goes up behind the sums that were taken in. */
  flagAt(address: number): CompletionFlag;
  /** Nothing of this touches tensors any more once it has resolved. */
  close(): Promise<void> | void;
}

// Tells a kernel, or another thread, how far the output of a call is done: by a flag word that it polls, part by part, in order.

/**
 * The flag word. It goes up by one for each part, once whoever sees that sees the part's bytes. MemoryFlag is one for bytes
 * that this processor has copied.
 */
export interface CompletionFlag {
  /** A part is written. `isLast`: isDone will be asked for, so this one's request is signalled. False if it must be told again. */
  block(isLast: boolean): boolean;
  /** Takes in what is done. */
  poll(): void;
  /** All parts up to the last one are told. */
  readonly isDone: boolean;
}

/** An i32 in memory that threads share. */
export class MemoryFlag implements CompletionFlag {
  readonly isDone = true;
  readonly #word: Int32Array;

  constructor(word: Int32Array) {
    this.#word = word;
  }

  block(): boolean {
    // ORDER: sequentially consistent, so behind the bytes of the part.
    Atomics.add(this.#word, 0, 1);
    Atomics.notify(this.#word, 0);
    return true;
  }

  poll(): void {}
}

export class BlockCompletions {
  readonly #flag: CompletionFlag;
  readonly #parts: number;
  readonly #blocksPerPart: number;
  readonly #blocks: number;
  #told = 0;

  /** `blocks`: of the call; the last part may have fewer than `blocksPerPart`. */
  constructor(
    flag: CompletionFlag,
    { blocks, blocksPerPart }: { readonly blocks: number; readonly blocksPerPart: number },
  ) {
    this.#flag = flag;
    this.#blocks = blocks;
    this.#blocksPerPart = blocksPerPart;
    this.#parts = Math.ceil(blocks / blocksPerPart);
  }

  /** Hot path. The first blocks, so many, are final. True when all parts are, and are told. */
  processCompletions(finalBlocks: number): boolean {
    const flag = this.#flag;
    const isAll = finalBlocks >= this.#blocks;
    const parts = isAll ? this.#parts : Math.floor(finalBlocks / this.#blocksPerPart);
    while (this.#told < parts && flag.block(this.#told + 1 === this.#parts)) this.#told++;
    flag.poll();
    return this.#told === this.#parts && flag.isDone;
  }
}

interface StagedFlagWork {
  /** Adds behind all sums that were taken in so far. */
  tell(parts: number): void;
  /** What the device does next follows what was told. */
  join(): void;
}

/** A flag in memory of a GPU: parts that are done together are added in one go, behind the sums of these parts. */
export class StagedFlag implements CompletionFlag {
  readonly #work: StagedFlagWork;
  #untold = 0;
  #isJoined = true;

  constructor(work: StagedFlagWork) {
    this.#work = work;
  }

  block(): boolean {
    this.#untold++;
    return true;
  }

  poll(): void {
    if (this.#untold === 0) return;
    this.#work.tell(this.#untold);
    this.#untold = 0;
    this.#isJoined = false;
  }

  /** Asked when all parts were told. */
  get isDone(): boolean {
    if (!this.#isJoined) this.#work.join();
    this.#isJoined = true;
    return true;
  }
}
