// What the calls of EpLowLatency return.
import type { Deadline, WaitOptions } from '../../core/deadline.ts';
import type { Tensor } from '../../device/tensor.ts';

/** Quantised rows: the value of an element is its data times the scale of its group of 128 columns. */
export interface LowLatencyScaledRows {
  /** [experts or ranks, rows, H]. */
  readonly data: Tensor<'fp8e4m3'>;
  /**
   * Column-major, so that the scales of one group stand side by side: f32 [experts or ranks, ceil(H / 128), rows]; with
   * scales 'ue8m0' i32 [experts or ranks, ceil(ceil(H / 128) / 4), rows], four exponents (the upper 8 bits of an f32 without
   * its sign) per word, the first group lowest.
   */
  readonly scales: Tensor<'f32' | 'i32'>;
}

/** Rows in the form in which a dispatch with the dtype `D` sends them. */
export type LowLatencyRows<D extends 'fp8' | 'bf16' = 'fp8' | 'bf16'> = D extends 'bf16'
  ? Tensor<'bf16'>
  : LowLatencyScaledRows;

/**
 * Valid, as is its handle, until the second dispatch after its own begins: two results are alive at once. Nothing of it
 * needs to be closed; `out` is the caller's.
 */
export interface LowLatencyDispatchResult<D extends 'fp8' | 'bf16' = 'fp8' | 'bf16'> {
  /**
   * 'expert-major': [experts of this rank, C, H], of each expert the rows of source ranks in order, tokens in order.
   * 'rank-major': [ranks, M, H], the tokens of each source rank in order. What lies behind the rows is undefined.
   */
  readonly recvX: LowLatencyRows<D>;
  /** i32 [experts of this rank]: rows of each expert; in 'rank-major' i32 [ranks]: rows of each source rank. */
  readonly recvCount: Tensor<'i32'>;
  /** i32 [experts of this rank]: rows that found no place; absent in 'rank-major', where all do. */
  readonly dropped: Tensor<'i32'> | undefined;
  /** Only with `elastic`: i32 [ranks], 1 where the source rank's rows are in the result, 0 where it is not active. */
  readonly activeMask?: Tensor<'i32'> | undefined;
  /** 'rank-major' alone: [ranks, M, K], in the dtype of topkIdx: local expert ids, -1 for those of other ranks and behind the rows. */
  readonly recvTopkIdx: Tensor<'i32' | 'i64'> | undefined;
  /** 'rank-major' with topkWeights alone: f32 [ranks, M, K], 0 where recvTopkIdx is -1. */
  readonly recvTopkWeights: Tensor<'f32'> | undefined;
  readonly handle: LowLatencyHandle;
}

/** A dispatch with returnRecvHook, whose rows are on their way; nothing works on it until the hook is called. */
export interface PendingDispatch<D extends 'fp8' | 'bf16' = 'fp8' | 'bf16'> {
  /** Call it once: it waits for the rows of all ranks, with a deadline of its own that begins then. */
  readonly hook: (options?: WaitOptions) => Promise<LowLatencyDispatchResult<D>>;
}

/** What a combine returns. */
export interface LowLatencyCombineResult {
  /** bf16 [T, H]: `out`, or a tensor of the caller's from now on. */
  readonly combinedX: Tensor<'bf16'>;
  /** Only with `elastic`, valid as long as the handle: i32 [ranks], 1 where the rank's sums are in the result. */
  readonly activeMask?: Tensor<'i32'> | undefined;
  /** Only with `elastic`, valid as long: i32 [T], choices of each token that were dropped because their rank is not active. */
  readonly droppedChoices?: Tensor<'i32'> | undefined;
}

/** A combine with returnRecvHook: peers can read this rank's rows, and nothing works on it until the hook is called. */
export interface PendingCombine {
  /** Call it once. It waits for the rows of all ranks; its own deadline begins now. */
  readonly hook: (options?: WaitOptions) => Promise<LowLatencyCombineResult>;
}

/** Made by EpLowLatency.dispatch and valid until the second dispatch after its own begins. It owns nothing. */
export class LowLatencyHandle {
  /** @internal The object that made it, compared by identity. */
  readonly owner: object;
  /** Number of the dispatch, from 1; the same on all ranks. */
  readonly sequence: number;
  /** T: tokens that this rank sent. */
  readonly numTokens: number;
  /** K: choices of each. */
  readonly topk: number;
  /**
   * i32 [experts of this rank, C], in 'rank-major' [ranks, M]: the token of each row at its source rank; -1 behind the rows,
   * written anew by every dispatch.
   */
  readonly recvSrcIdx: Tensor<'i32'>;
  /** 'expert-major' alone: i32 [experts of this rank, ranks, 2], first row and number of rows of each source rank. */
  readonly recvRange: Tensor<'i32'> | undefined;

  /** @internal */
  constructor(parts: Pick<LowLatencyHandle, 'owner' | 'sequence' | 'numTokens' | 'topk' | 'recvSrcIdx' | 'recvRange'>) {
    this.owner = parts.owner;
    this.sequence = parts.sequence;
    this.numTokens = parts.numTokens;
    this.topk = parts.topk;
    this.recvSrcIdx = parts.recvSrcIdx;
    this.recvRange = parts.recvRange;
  }
}

// What callers see of the ranks that take part in an elastic EpLowLatency, and what an engine offers for it.

/** The ranks that take part. All ranks see the same, but for changes that are under way. */
export interface LowLatencyView {
  /** Grows with every change; the same number is the same view. */
  readonly epoch: number;
  /** Whether each rank takes part in the next dispatch. */
  readonly active: readonly boolean[];
  /** Whether each rank has mapped the window and waits to become active. */
  readonly connected: readonly boolean[];
}

/** How connectRanks() waits, and what it does then. */
export interface ConnectOptions extends WaitOptions {
  /** True (default): the ranks become active. False: they stay connected until commit(). */
  readonly activate?: boolean;
}

/** Dispatches from a decision until the ranks that it concerns join or leave: every rank hears of it before that. */
export const LOW_LATENCY_NOTICE = 8;

/** What a combine had to do without. Valid as long as the handle. */
export interface LowLatencyShortfall {
  /** i32 [ranks]: 1 where the rank's sums are in the result. */
  readonly activeMask: Tensor<'i32'>;
  /** i32 [T]: choices of each token whose experts are on ranks without. */
  readonly droppedChoices: Tensor<'i32'>;
}

/** How long a rank waits for others to come. */
export interface MembershipWait {
  readonly deadline: Deadline;
  readonly signal: AbortSignal | undefined;
}

/** Ranks here are those of the group; `next` is the number of this rank's next dispatch. */
export interface LowLatencyMembership {
  view(next: number): LowLatencyView;
  /** What the last combine with that handle had to do without. */
  shortfall(handle: LowLatencyHandle): LowLatencyShortfall;
  /** From now on nobody waits for the rank, nor reads its rows. */
  mask(rank: number): void;
  /** Resolves once all of these ranks are connected; then, with `activate`, they join. */
  connect(ranks: readonly number[], activate: boolean, wait: MembershipWait): Promise<void>;
  /** They leave after the notice. */
  disconnect(ranks: readonly number[], next: number): void;
  /** All ranks that are connected join after the notice. */
  commit(next: number): void;
  /** Offers this rank, which is not active, and resolves to the number of its next dispatch once it is. */
  rejoin(wait: MembershipWait): Promise<number>;
}
