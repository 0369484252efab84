// What a worker's calls ask of whoever sums the blocks on their way: aggregators, or a switch that can.
import type { CompletionFlag } from './block-completions.ts';
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
  /** Of the call that began last: its first blocks, so many, have their sums. Does not shrink within a call. */
  readonly finalBlocks: number;
  /** To be called before begin(): memory for marks of so many elements. Without it nothing has begun: WL_MEMORY. */
  reserve(count: number): Promise<void> | void;
  /** Marks the blocks and sends the first of them; the call goes on by advance(). */
  begin(call: SparseCall): void;
  /** Hot path. Takes the results that have come. True when the call is over. */
  advance(): boolean;
  /** Who owes a result: ranks of the group. */
  awaited(): number[];
  /** An i32 of the tensors' device, which goes up behind the sums that are there. */
  flagAt(address: number): CompletionFlag;
  /** Nothing of this touches tensors any more once it has resolved. */
  close(): Promise<void> | void;
}
