// Where a worker's blocks come from and where sums go to: all that the protocol knows of the memory of a tensor.
import type { CompletionFlag } from './block-completions.ts';
import type { SparseCall } from './sparse-call.ts';

/**
 * The tensors of one call at a time. Blocks that count are copied into messages in the host's memory, sums from there. Hot path,
 * but for `reserve`, `close` and `flagAt`. What a device has to do is asked for again and again: nobody rings when it is done.
 */
export interface TensorBlocks {
  /** Before begin(): memory for so many elements. Without it nothing has begun: WL_MEMORY. */
  reserve(count: number): Promise<void> | void;
  /** The blocks are to be marked; those of the output that do not count become zero. */
  begin(call: SparseCall): void;
  /** True once all below may be called. */
  isMarked(): boolean;
  /** How many of the call's blocks count. */
  readonly ownBlocks: number;
  has(block: number): boolean;
  /** Behind this one, in its lane: the next block that counts, or the lane's number above those of all blocks. */
  next(block: number): number;
  /** Of a block that counts: it and all before it can be copied now. */
  isReady(block: number): boolean;
  /** Copies neighbouring blocks that count to a message, and fills up the tensor's last one with zeros. */
  copyOut(to: number, block: number, run: number): void;
  /** So many sums can be taken in now. */
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
