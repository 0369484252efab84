// What EpBuffer asks of the engine that carries its calls out; one per kind of device. Arguments were checked before.
import { type CallWait, type Deadline, deadlineOf } from '../../core/deadline.ts';
import type { DType } from '../../core/dtype.ts';
import type { DeviceEvent } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { HostNetwork } from '../../group/network/host-network.ts';
import type { OverlapOptions } from '../../group/overlap.ts';
import type { CudaHostNetwork } from '../across-hosts/cuda-host-network.ts';
import type { EpRegion } from './buffer-size.ts';
import type { CheckedCombine, DispatchPlanInput, EpMemory, RowsLike } from './call-arguments.ts';
import type { DispatchHandle } from './dispatch-handle.ts';
import type { DispatchLayout } from './dispatch-layout.ts';

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
  /** The way to the other hosts of a group on several, for benchmarks. */
  readonly hostNetwork?: HostNetwork | CudaHostNetwork | undefined;
  /** Engines whose calls a graph can repeat have it. `requireIdle` fails while the object cannot begin a call, which it is told. */
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

// What EpBuffer's calls return.

/**
 * All tensors but the handle's lie in this rank's window: they stay valid until the next dispatch on this buffer and
 * must not be disposed. Their types, `X` of the rows, `I` of the choices and `W` of the weights, are those of what was sent.
 */
export interface DispatchResult<
  X extends RowsLike = RowsLike,
  I extends Tensor<'i32' | 'i64'> | undefined = Tensor<'i32' | 'i64'> | undefined,
  W extends Tensor<'f32'> | undefined = Tensor<'f32'> | undefined,
> {
  /** [recv, H], ordered by source rank, then token index; in the form of `x`. With numWorstTokens [numWorstTokens, H]. */
  readonly recvX: X;
  /** [recv, K] local expert ids, -1 for experts of other ranks; dtype of topkIdx. Undefined where none were sent. */
  readonly recvTopkIdx: I;
  /** f32 [recv, K], 0 where recvTopkIdx is -1. Undefined where none were sent. */
  readonly recvTopkWeights: W;
  /** Choices per local expert, rounded up to expertAlignment (the count only, no rows are added). */
  readonly numRecvTokensPerExpert: readonly number[];
  readonly handle: DispatchHandle;
  /** When the rows are there; only with asyncFinish. Disposed by the caller. */
  readonly event: DeviceEvent | undefined;
}

/** Owned by the caller. `W` is the type of the sums of the weights. */
export interface CombineResult<W extends Tensor<'f32'> | undefined = Tensor<'f32'> | undefined> {
  /** bf16 [T, H]: bias + the rows of all ranks that held the token, in rank order, summed in f32, rounded once. */
  readonly combinedX: Tensor<'bf16'>;
  /** f32 [T, K]: the sum of the ranks' weight rows. Undefined where none were given. */
  readonly combinedTopkWeights: W;
  /** When the sums are there; only with asyncFinish. Disposed by the caller. */
  readonly event: DeviceEvent | undefined;
}
