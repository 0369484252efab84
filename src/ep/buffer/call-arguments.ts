// What EpBuffer.dispatch and combine accept, and the checks that make sure of it before any byte moves.
import { FP8_GROUP } from '../../abi/element-formats.ts';
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import { type CallWait, type Deadline, deadlineOf } from '../../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { Device, DeviceEvent } from '../../device/device.ts';
import type { MemoryRange, ScaledRows, Tensor } from '../../device/tensor.ts';
import type { CudaHostNetwork } from '../across-hosts/cuda-host-network.ts';
import type { EpBufferConfig, EpBufferSize, EpRegion } from './buffer-size.ts';
import { DispatchHandle } from './dispatch-handle.ts';
import type { DispatchLayout } from './dispatch-layout.ts';
import type { HostNetwork } from '../../group/network/host-network.ts';
import { callOptionNames, type CallOptions, checkOverlap, type OverlapOptions } from '../../group/overlap.ts';
import { checkTensor, overlaps, rowAlignment } from '../../group/tensor-check.ts';
import type { PlacedRegions } from '../../windows/region-layout.ts';
import type { RankGroup } from '../../world/rank-group.ts';

/** bf16 rows, or fp8 rows with their scales. */
export type RowsLike = Tensor<'bf16'> | ScaledRows;

/** What EpBuffer.dispatch() takes. */
export interface DispatchArguments<X extends RowsLike = RowsLike> extends CallOptions {
  /** [T, H]; T at most maxTokensPerRank, 0 allowed, may differ between ranks. */
  readonly x: X;
  /** [T, K] expert ids, -1 for none. A token may choose an expert more than once. Leave out with `handle`. */
  readonly topkIdx?: Tensor<'i32' | 'i64'>;
  /** f32 [T, K]; only with topkIdx. */
  readonly topkWeights?: Tensor<'f32'>;
  /** What getDispatchLayout() returned; saves counting again, or stands in for topkIdx when rows alone travel. */
  readonly layout?: DispatchLayout;
  /** The handle of an earlier dispatch: the same routing again, without exchanging counts; no choices or weights travel. */
  readonly handle?: DispatchHandle;
  /** numRecvTokensPerExpert is rounded up to it; 1 by default. */
  readonly expertAlignment?: number;
  /**
   * Bound on received rows: results get this many rows, the surplus marked -1. 0 or absent: exact size. The host of a
   * GPU then waits for nothing; a dispatch that fails (WL_CAPACITY and the like) shows at a later call or wait.
   */
  readonly numWorstTokens?: number;
}

/** The checked arguments. */
export interface DispatchPlanInput {
  readonly data: Tensor<'bf16' | 'fp8e4m3'>;
  readonly scales: Tensor<'f32'> | undefined;
  readonly numTokens: number;
  readonly topkIdx: Tensor<'i32' | 'i64'> | undefined;
  readonly topkWeights: Tensor<'f32'> | undefined;
  readonly layout: DispatchLayout | undefined;
  readonly handle: DispatchHandle | undefined;
  readonly expertAlignment: number;
  readonly numWorstTokens: number;
}

const dispatchArgumentNames: OptionNames<DispatchArguments> = {
  x: true,
  topkIdx: true,
  topkWeights: true,
  layout: true,
  handle: true,
  expertAlignment: true,
  numWorstTokens: true,
  ...callOptionNames,
};

export function checkDispatch(
  args: DispatchArguments,
  scope: EpScope,
  regions: PlacedRegions<EpRegion>,
): DispatchPlanInput {
  checkOptions(args, dispatchArgumentNames, 'arguments of EpBuffer.dispatch');
  checkOverlap(args);
  const { config } = scope;
  const { data, scales } = checkRows(args.x, scope);
  const numTokens = data.shape[0]!;
  if (numTokens > config.maxTokensPerRank) {
    throw new WeftlineError(
      'WL_CAPACITY',
      `Cannot dispatch ${numTokens} tokens: the buffer was made for at most ${config.maxTokensPerRank} per rank (maxTokensPerRank)`,
      { details: { numTokens, maxTokensPerRank: config.maxTokensPerRank } },
    );
  }
  const expertAlignment = args.expertAlignment ?? 1;
  if (!isWhole(expertAlignment, 1)) {
    throw invalidArgument('expertAlignment', expertAlignment, 'a whole number of at least 1');
  }
  const numWorstTokens = args.numWorstTokens ?? 0;
  const most = scope.size.maxRecvTokens;
  if (!isWhole(numWorstTokens, 0) || numWorstTokens > most) {
    throw invalidArgument('numWorstTokens', numWorstTokens, `0 to ${most}, the most this buffer can receive`);
  }
  const routing =
    args.handle === undefined ? checkChoices(args, scope, numTokens) : checkReplay(args, scope, numTokens);
  const { topkIdx, topkWeights, layout } = routing;
  rejectReceived(
    { x: data, 'x.scales': scales, topkIdx, topkWeights, 'layout.isTokenInRank': layout?.isTokenInRank },
    scope,
    regions,
  );
  return { data, scales, numTokens, expertAlignment, numWorstTokens, ...routing };
}

/** Peers overwrite what lies in the window while it would be read; only the rows for combine are this rank's alone. */
function rejectReceived(
  inputs: Readonly<Record<(typeof INPUTS)[number], Tensor | undefined>>,
  { config, size }: EpScope,
  regions: PlacedRegions<EpRegion>,
): void {
  const { storage } = regions;
  for (const name of INPUTS) {
    const tensor = inputs[name];
    if (tensor === undefined || !overlaps(tensor, storage.address, storage.bytes)) continue;
    const start = regions.address('combineRows');
    const end = start + size.regions.combineRows.bytes;
    const inside = tensor.address >= start && tensor.address + tensor.bytes <= end;
    if (config.combineRows === 'separate' && inside) continue;
    const allowed = 'a tensor elsewhere; copy it first, or peers would overwrite it';
    throw invalidArgument(name, 'a tensor in the receive window', allowed);
  }
}

const INPUTS = ['x', 'x.scales', 'topkIdx', 'topkWeights', 'layout.isTokenInRank'] as const;

type Routing = Pick<DispatchPlanInput, 'topkIdx' | 'topkWeights' | 'layout' | 'handle'>;

function checkReplay(args: DispatchArguments, scope: EpScope, numTokens: number): Routing {
  const handle = checkHandle(args.handle, scope);
  for (const name of ['topkIdx', 'topkWeights', 'layout', 'numWorstTokens', 'expertAlignment'] as const) {
    if (args[name] !== undefined) throw invalidArgument(name, 'a value', 'nothing when a handle is given');
  }
  if (handle.numTokens !== numTokens) {
    throw invalidArgument('x rows', numTokens, `${handle.numTokens}, as in the handle's dispatch`);
  }
  return { handle, topkIdx: undefined, topkWeights: undefined, layout: undefined };
}

function checkChoices(args: DispatchArguments, scope: EpScope, numTokens: number): Routing {
  const { device, config } = scope;
  const { topkIdx, topkWeights, layout } = args;
  if (layout !== undefined) checkLayout(layout, scope, numTokens);
  if (topkIdx === undefined) {
    if (layout === undefined) throw invalidArgument('topkIdx', undefined, 'a tensor, unless layout or handle is given');
    if (topkWeights !== undefined)
      throw invalidArgument('topkWeights', 'given without topkIdx', 'absent, or with topkIdx');
    return { handle: undefined, topkIdx: undefined, topkWeights: undefined, layout };
  }
  const choices = checkTensor('topkIdx', topkIdx, { device, dtype: ['i32', 'i64'], shape: [numTokens, 'K'] });
  const k = choices.shape[1]!;
  if (k < 1 || k > config.maxTopk) throw invalidArgument('topkIdx columns', k, `1 to ${config.maxTopk} (maxTopk)`);
  const weights =
    topkWeights === undefined
      ? undefined
      : checkTensor('topkWeights', topkWeights, { device, dtype: ['f32'], shape: [numTokens, k] });
  return { handle: undefined, topkIdx: choices, topkWeights: weights, layout };
}

/** A live handle of this very buffer. */
export function checkHandle(handle: unknown, scope: EpScope): DispatchHandle {
  const allowed = 'a live handle from a dispatch of this buffer';
  if (!(handle instanceof DispatchHandle)) throw invalidArgument('handle', handle, allowed);
  if (handle.owner !== scope) throw invalidArgument('handle', 'a handle of another buffer', allowed);
  if (handle.rowTable.storage.disposed) throw invalidArgument('handle', 'a closed handle', allowed);
  return handle;
}

function checkRows(
  x: unknown,
  { device, config }: EpScope,
): { data: Tensor<'bf16' | 'fp8e4m3'>; scales: Tensor<'f32'> | undefined } {
  if (typeof x === 'object' && x !== null && 'data' in x && 'scales' in x) {
    const data = checkTensor('x.data', x.data, {
      device,
      dtype: ['fp8e4m3'],
      shape: ['T', config.hidden],
      alignment: rowAlignment(config.hidden),
    });
    const groups = Math.ceil(config.hidden / FP8_GROUP);
    const scales = checkTensor('x.scales', x.scales, {
      device,
      dtype: ['f32'],
      shape: [data.shape[0]!, groups],
    });
    return { data, scales };
  }
  const alignment = rowAlignment(config.hidden * 2);
  const data = checkTensor('x', x, { device, dtype: ['bf16'], shape: ['T', config.hidden], alignment });
  return { data, scales: undefined };
}

function checkLayout(layout: DispatchLayout, { device, config, group }: EpScope, numTokens: number): void {
  if (typeof layout !== 'object' || layout === null) {
    throw invalidArgument('layout', layout, 'what getDispatchLayout() returned');
  }
  checkTensor('layout.isTokenInRank', layout.isTokenInRank, { device, dtype: ['u8'], shape: [numTokens, group.size] });
  checkTensor('layout.numTokensPerRank', layout.numTokensPerRank, { device, dtype: ['i32'], shape: [group.size] });
  checkTensor('layout.numTokensPerExpert', layout.numTokensPerExpert, {
    device,
    dtype: ['i32'],
    shape: [config.numExperts],
  });
}

/** Rows that a sum may begin with. */
export const MAX_BIASES = 2;

/** What EpBuffer.combine() takes. */
export interface CombineArguments extends CallOptions {
  /** bf16 [rows of the handle, H]: what the experts of this rank made of each received row, already weighted. */
  readonly x: Tensor<'bf16'>;
  readonly handle: DispatchHandle;
  /** f32 [rows of the handle, K]: summed over the ranks like the rows. */
  readonly topkWeights?: Tensor<'f32'>;
  /** One or two bf16 [T, H], added before the first row. */
  readonly bias?: Tensor<'bf16'> | readonly [Tensor<'bf16'>] | readonly [Tensor<'bf16'>, Tensor<'bf16'>];
  /** bf16 [T, H] to write the result to; made by combine if absent. May be a bias, must not lie in a window. */
  readonly out?: Tensor<'bf16'>;
}

export interface CheckedCombine {
  readonly x: Tensor<'bf16'>;
  readonly handle: DispatchHandle;
  readonly weights: Tensor<'f32'> | undefined;
  readonly biases: readonly Tensor<'bf16'>[];
  readonly out: Tensor<'bf16'> | undefined;
}

const combineArgumentNames: OptionNames<CombineArguments> = {
  x: true,
  handle: true,
  topkWeights: true,
  bias: true,
  out: true,
  ...callOptionNames,
};

/** `window`: this buffer's whole mapping in the rank's memory. */
export function checkCombine(args: CombineArguments, scope: EpScope, window: MemoryRange): CheckedCombine {
  checkOptions(args, combineArgumentNames, 'arguments of EpBuffer.combine');
  checkOverlap(args);
  const { device, config } = scope;
  const handle = checkHandle(args.handle, scope);
  const { rows, numTokens } = handle;
  const x = checkTensor('x', args.x, { device, dtype: ['bf16'], shape: [rows, config.hidden] });
  const weights =
    args.topkWeights === undefined
      ? undefined
      : checkTensor('topkWeights', args.topkWeights, { device, dtype: ['f32'], shape: [rows, 'K'] });
  const k = weights?.shape[1] ?? 0;
  if (weights && (k < 1 || k > config.maxTopk))
    throw invalidArgument('topkWeights columns', k, `1 to ${config.maxTopk} (maxTopk)`);
  const given: readonly unknown[] = args.bias === undefined ? [] : Array.isArray(args.bias) ? args.bias : [args.bias];
  if (given.length > MAX_BIASES) throw invalidArgument('bias', `${given.length} tensors`, 'one or two');
  const alignment = rowAlignment(config.hidden * 2);
  const rule = { device, dtype: ['bf16'] as const, shape: [numTokens, config.hidden], alignment };
  const biases = given.map((bias, index) => checkTensor(`bias[${index}]`, bias, rule));
  const out = args.out === undefined ? undefined : checkTensor('out', args.out, rule);
  for (const [name, tensor] of [
    ['out', out],
    ['bias[0]', biases[0]],
    ['bias[1]', biases[1]],
  ] as const) {
    if (tensor && overlaps(tensor, window.address, window.bytes)) {
      throw invalidArgument(name, 'a tensor in the window', 'a tensor of its own, for peers read and write the window');
    }
    // Rows of the result would be written over rows of the bias that are still to be read.
    if (tensor && out && tensor.address !== out.address && overlaps(tensor, out.address, out.bytes)) {
      throw invalidArgument(name, 'a tensor that overlaps out', 'the same tensor as out, or memory of its own');
    }
  }
  return { x, handle, weights, biases, out };
}

// What belongs together for all parts of one buffer; handles name it as their owner.

export interface EpScope<D extends Device = Device> {
  readonly group: RankGroup;
  readonly device: D;
  readonly config: Readonly<Required<EpBufferConfig>>;
  readonly size: EpBufferSize;
}

// What EpBuffer asks of the engine that carries its calls out; one per kind of device. Arguments were checked before.

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

export interface EpEngine {
  /** What peers read and write here: inputs must not lie in it, but for the rows of combine. */
  readonly regions: PlacedRegions<EpRegion>;
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
  close(): Promise<void>;
}

// What EpBuffer's calls return.

/**
 * All tensors but the handle's lie in this rank's window: they stay valid until the next dispatch on this buffer and
 * must not be closed. Their types, `X` of the rows, `I` of the choices and `W` of the weights, are those of what was sent.
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
  /** When the rows are there; only with asyncFinish. The caller closes it. */
  readonly event: DeviceEvent | undefined;
}

/** Owned by the caller. `W` is the type of the sums of the weights. */
export interface CombineResult<W extends Tensor<'f32'> | undefined = Tensor<'f32'> | undefined> {
  /** bf16 [T, H]: bias + the rows of all ranks that held the token, in rank order, summed in f32, rounded once. */
  readonly combinedX: Tensor<'bf16'>;
  /** f32 [T, K]: the sum of the ranks' weight rows. Undefined where none were given. */
  readonly combinedTopkWeights: W;
  /** When the sums are there; only with asyncFinish. The caller closes it. */
  readonly event: DeviceEvent | undefined;
}
