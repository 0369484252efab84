// What EpBuffer asks of the engine that carries its calls out; one per kind of device. Arguments were checked before.
import { type CallWait, type Deadline, deadlineOf } from '../../core/deadline.ts';
import type { DType } from '../../core/dtype.ts';
import type { HostNetwork } from '../../group/network/host-network.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { EpRegion } from './buffer-size.ts';
import type { CudaHostNetwork } from '../across-hosts/cuda-host-network.ts';
import type { CheckedCombine } from './combine-arguments.ts';
import type { DispatchPlanInput } from './dispatch-arguments.ts';
import type { DispatchHandle } from './dispatch-handle.ts';
import type { DispatchLayout } from './dispatch-layout.ts';
import type { EpMemory } from './ep-memory.ts';
import type { CombineResult, DispatchResult } from './ep-results.ts';
import type { OverlapOptions } from '../../group/overlap.ts';

/** How long to wait, and between what. */
export interface EpCallOptions extends CallWait, OverlapOptions {
  readonly deadline: Deadline;
}

/** Hot path: what an engine is told of a call's arguments besides the tensors, with the deadline of the call. */
export function callOptions(args: CallWait & OverlapOptions, defaultMs: number): EpCallOptions {
  return {
    deadline: deadlineOf(args, defaultMs),
    signal: args.signal,
    previousEvent: args.previousEvent,
    asyncFinish: args.asyncFinish,
  };
}

export interface EpEngine extends EpMemory {
  /** Of a group on several hosts; for benchmarks. */
  readonly hostNetwork?: HostNetwork | CudaHostNetwork | undefined;
  /** Of engines whose calls a graph can repeat. `requireIdle` fails while the object cannot begin a call, which it is told. */
  guardLaunches?(requireIdle: (what: string) => void): void;
  /** Fails when an earlier call left the ranks in disagreement, or a peer is gone. */
  throwIfUnusable(): void;
  getDispatchLayout(topkIdx: Tensor<'i32' | 'i64'>): DispatchLayout;
  dispatch(input: DispatchPlanInput, options: EpCallOptions): Promise<DispatchResult>;
  dispatchCached(input: DispatchPlanInput, handle: DispatchHandle, options: EpCallOptions): Promise<DispatchResult>;
  combine(input: CheckedCombine, options: EpCallOptions): Promise<CombineResult>;
  barrier(wait: CallWait): Promise<void>;
  /** A tensor over one of this rank's own regions. */
  view<D extends DType>(dtype: D, region: EpRegion, shape: readonly number[]): Tensor<D>;
  close(): Promise<void>;
}
