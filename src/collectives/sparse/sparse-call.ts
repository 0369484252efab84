// A sparse all-reduce as a worker carries it out, checked; and what it has moved.
import type { reductionFormats } from '../../abi/element-formats.ts';
import { WeftlineError } from '../../core/errors.ts';
import { dtypeOf } from '../collective-call.ts';

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
  /** Bytes of messages to aggregators and from them: blocks, and what says which they are. */
  readonly sentBytes: number;
  readonly receivedBytes: number;
  /** Messages that this worker has sent; as many have come. */
  readonly messages: number;
}

/** The call before the first one. */
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

/** What a worker says of its call; `dtype` is a number. */
export interface CallFacts {
  readonly count: number;
  readonly dtype: number;
}

/** The workers `one` and `other`, world ranks, make different calls by that number. */
export function callsDiffer(
  call: number,
  one: CallFacts & { readonly rank: number },
  other: CallFacts & { readonly rank: number },
): WeftlineError {
  const describe = ({ count, dtype }: CallFacts): string => `allReduce of ${count} ${dtypeOf(dtype)}`;
  const [here, there] = [describe(one), describe(other)];
  return new WeftlineError(
    'WL_CONFIG_MISMATCH',
    `Call ${call} of this SparseAllReduce is ${here} on rank ${one.rank}, but ${there} on rank ${other.rank}; all workers must make the same calls in the same order`,
    { details: { call, rank: other.rank, here, there } },
  );
}
