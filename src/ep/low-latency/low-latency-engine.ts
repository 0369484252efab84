// What EpLowLatency asks of the engine that carries its calls out; one per kind of device. Arguments were checked before.
import type { Deadline } from '../../core/deadline.ts';
import type { MemoryRange, Tensor } from '../../device/tensor.ts';
import type { LowLatencyDispatchResult, LowLatencyHandle, LowLatencyMembership } from './low-latency-results.ts';
import type { CheckedLowLatencyCombine, CheckedLowLatencyDispatch } from './low-latency-arguments.ts';

export interface LowLatencyWait {
  readonly deadline: Deadline;
  readonly signal: AbortSignal | undefined;
}

/** A combine whose rows peers can read. */
export interface SentCombine {
  readonly input: CheckedLowLatencyCombine;
  /** Of the combine, from 1; the same on all ranks. */
  readonly number: number;
  readonly out: Tensor<'bf16'>;
}

export interface LowLatencyEngine {
  /** What peers read and write here: inputs must not lie in it, but for the rows of combine. */
  readonly mapped: MemoryRange;
  /** Of an elastic object: who takes part. */
  readonly membership?: LowLatencyMembership | undefined;
  /** Fails when an earlier call left the ranks in disagreement, or a peer is gone. */
  throwIfUnusable(): void;
  /** Choices that cannot be fail here, and memory that is missing, before anything has moved. */
  prepareDispatch(input: CheckedLowLatencyDispatch, sequence: number): Promise<void> | void;
  /** sendDispatch() and receiveDispatch() in one. */
  dispatch(input: CheckedLowLatencyDispatch, sequence: number, wait: LowLatencyWait): Promise<LowLatencyDispatchResult>;
  /** Puts this rank's rows to all ranks; waits for peers only where they are a call behind. */
  sendDispatch(input: CheckedLowLatencyDispatch, sequence: number, wait: LowLatencyWait): Promise<void>;
  receiveDispatch(
    input: CheckedLowLatencyDispatch,
    sequence: number,
    wait: LowLatencyWait,
  ): Promise<LowLatencyDispatchResult>;
  /** Memory of this rank that peers read in a combine with that handle, once they read nothing of earlier ones there. */
  combineBuffer(handle: LowLatencyHandle, wait: LowLatencyWait): Promise<Tensor<'bf16'>>;
  /** Where that is, without waiting. */
  combineBufferAddress(handle: LowLatencyHandle): number;
  /** sendCombine() and receiveCombine() in one. */
  combine(input: CheckedLowLatencyCombine, wait: LowLatencyWait): Promise<Tensor<'bf16'>>;
  sendCombine(input: CheckedLowLatencyCombine, wait: LowLatencyWait): Promise<SentCombine>;
  receiveCombine(sent: SentCombine, wait: LowLatencyWait): Promise<Tensor<'bf16'>>;
  barrier(wait: LowLatencyWait): Promise<void>;
  /** Of engines whose calls a graph can repeat. `requireIdle` fails while the object cannot begin a call, which it is told. */
  guardLaunches?(requireIdle: (what: string) => void): void;
  close(): Promise<void> | void;
}
