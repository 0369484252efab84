// A sparse all-reduce as a worker carries it out, checked; and what it has moved.
import type { reductionFormats } from '../../abi/element-formats.ts';

export interface SparseCall {
  readonly dtype: keyof typeof reductionFormats;
  readonly elementBytes: number;
  /** Elements. */
  readonly count: number;
  /** Addresses; equal, or of runs that are apart. */
  readonly input: number;
  readonly output: number;
  readonly threshold: number;
  /** All blocks count: they are not looked at. */
  readonly isDense: boolean;
  readonly timeoutMs: number;
}

/** What a call of this worker has moved. */
export interface SparseTraffic {
  /** Blocks of the tensor, and those of this worker and of the sum that are not zero. */
  readonly blocks: number;
  readonly ownBlocks: number;
  readonly sumBlocks: number;
  /** Of messages to aggregators and from them: blocks, and what says which they are. */
  readonly sentBytes: number;
  readonly receivedBytes: number;
  /** Messages that this worker has sent; as many have come. */
  readonly messages: number;
}

/** Before the first one. */
export const noCall: SparseCall = {
  dtype: 'f32',
  elementBytes: 4,
  count: 0,
  input: 0,
  output: 0,
  threshold: 0,
  isDense: false,
  timeoutMs: 0,
};
