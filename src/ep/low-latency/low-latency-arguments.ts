// What the calls of EpLowLatency accept, and the checks that make sure of it before any byte moves.
import { FP8_GROUP } from '../../abi/element-formats.ts';
import { lowLatencyScales } from '../../abi/low-latency.ts';
import { checkTensor, overlaps, rowAlignment } from '../../group/tensor-check.ts';
import { checkOptions, type OptionNames, requireFlag } from '../../core/check-options.ts';
import type { Deadline, WaitOptions } from '../../core/deadline.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { MemoryRange, Tensor } from '../../device/tensor.ts';
import {
  type LowLatencyDispatchResult,
  LowLatencyHandle,
  type LowLatencyMembership,
  type LowLatencyRows,
  type LowLatencyScaledRows,
} from './low-latency-results.ts';
import type { LowLatencyScope } from './low-latency-size.ts';

/** How scales of fp8 rows are written: f32, f32 rounded up to powers of two, or the exponents of those, packed. */
export type LowLatencyScales = keyof typeof lowLatencyScales;

/** What EpLowLatency.dispatch() takes. */
export interface LowLatencyDispatchArguments extends WaitOptions {
  /** bf16 [T, H], T at most maxTokensPerRank; on every rank as many as it has, also none. */
  readonly x: Tensor<'bf16'>;
  /**
   * [T, K]: the experts of each token, -1 for none. An expert that a token names more than once gets one row of it, to which
   * combine applies all these weights. K and dtype are the same on all ranks.
   */
  readonly topkIdx: Tensor<'i32' | 'i64'>;
  /** f32 [T, K]. Needed with combineTravels 'rank-sums'; in 'rank-major' they are handed to the receivers; else not allowed. */
  readonly topkWeights?: Tensor<'f32'>;
  /** What travels: 'fp8' (default), quantised on the way as quantizeRows() does, or 'bf16'. The same on all ranks. */
  readonly dtype?: 'fp8' | 'bf16';
  /** How scales of fp8 rows are written: 'f32' (default), 'rounded' or 'ue8m0'. The same on all ranks. */
  readonly scales?: LowLatencyScales;
  /** Tensors for the received rows in 'expert-major', as recvX of the result would be; memory of this object by default. */
  readonly out?: LowLatencyRows;
  /** i32 [experts of this rank]: the rows that came for each expert, dropped ones too, are added to it. */
  readonly cumulativeLocalExpertRecvStats?: Tensor<'i32'>;
  /**
   * i64 [ranks]: the nanoseconds for which this call, or its hook, waited for each source rank are added to it. On GPUs the
   * wait for fp8 rows in 'expert-major' of ranks that are fixed is counted until the source has begun the call.
   */
  readonly waitStats?: Tensor<'i64'>;
  /** True: return when this rank's rows are sent, with a `hook` that receives, and until whose end the tensors for results must live. */
  readonly returnRecvHook?: boolean;
}

/** The same arguments for rows of the dtype `D`, which is 'fp8' where none is given. */
export type LowLatencyDispatchOf<D extends 'fp8' | 'bf16'> = LowLatencyDispatchArguments &
  ({ readonly dtype: D } | { readonly dtype?: undefined });

export interface CheckedLowLatencyDispatch {
  readonly x: Tensor<'bf16'>;
  readonly topkIdx: Tensor<'i32' | 'i64'>;
  readonly topkWeights: Tensor<'f32'> | undefined;
  /** Undefined for bf16 rows. */
  readonly scales: LowLatencyScales | undefined;
  readonly out: LowLatencyRows | undefined;
  readonly expertStats: Tensor<'i32'> | undefined;
  readonly waitStats: Tensor<'i64'> | undefined;
}

/** What EpLowLatency.combine() takes. */
export interface LowLatencyCombineArguments extends WaitOptions {
  /**
   * bf16 in the shape of recvX: what this rank's experts made of each received row; in 'rank-major' already weighted and
   * added up per token. With zeroCopy the tensor that combineInput() returned. Rows behind the received ones are not read.
   */
  readonly x: Tensor<'bf16'>;
  readonly handle: LowLatencyHandle;
  /** f32 [T, K], with combineTravels 'choices' alone: the weights of this rank's tokens. */
  readonly topkWeights?: Tensor<'f32'>;
  /** True: fail if x would have to be copied to where peers read it. */
  readonly zeroCopy?: boolean;
  /** bf16 [T, H] for the result, not in a window; a new tensor by default. */
  readonly out?: Tensor<'bf16'>;
  /**
   * i64 [ranks]: the nanoseconds for which this call, or its hook, waited for each rank are added to it. On GPUs the wait for
   * 'rank-sums' of ranks that are fixed is counted until the rank has begun the call.
   */
  readonly waitStats?: Tensor<'i64'>;
  /**
   * True: return when peers can read this rank's rows, with a `hook` that waits for theirs and adds them up. Until it has ended,
   * `out`, `topkWeights` and `waitStats` must live, and the weights stay as they are.
   */
  readonly returnRecvHook?: boolean;
}

export interface CheckedLowLatencyCombine {
  readonly x: Tensor<'bf16'>;
  readonly handle: LowLatencyHandle;
  readonly topkWeights: Tensor<'f32'> | undefined;
  readonly out: Tensor<'bf16'> | undefined;
  readonly waitStats: Tensor<'i64'> | undefined;
}

const dispatchNames: OptionNames<LowLatencyDispatchArguments> = {
  x: true,
  topkIdx: true,
  topkWeights: true,
  dtype: true,
  scales: true,
  out: true,
  cumulativeLocalExpertRecvStats: true,
  waitStats: true,
  returnRecvHook: true,
  timeoutMs: true,
  signal: true,
};

const combineNames: OptionNames<LowLatencyCombineArguments> = {
  x: true,
  handle: true,
  topkWeights: true,
  zeroCopy: true,
  out: true,
  waitStats: true,
  returnRecvHook: true,
  timeoutMs: true,
  signal: true,
};

/** `window`: the object's whole mapping in the rank's memory. */
export function checkLowLatencyDispatch(
  args: LowLatencyDispatchArguments,
  scope: LowLatencyScope,
  window: MemoryRange,
): CheckedLowLatencyDispatch {
  checkOptions(args, dispatchNames, 'arguments of EpLowLatency.dispatch');
  requireFlag('returnRecvHook', args.returnRecvHook);
  const { device, config } = scope;
  const { hidden, maxTokensPerRank, maxTopk, layout } = config;
  const x = checkTensor('x', args.x, {
    device,
    dtype: ['bf16'],
    shape: ['T', hidden],
    alignment: rowAlignment(hidden * 2),
  });
  const tokens = x.shape[0]!;
  if (tokens > maxTokensPerRank)
    throw invalidArgument('x rows', tokens, `at most ${maxTokensPerRank} (maxTokensPerRank)`);
  const topkIdx = checkTensor('topkIdx', args.topkIdx, { device, dtype: ['i32', 'i64'], shape: [tokens, 'K'] });
  const k = topkIdx.shape[1]!;
  if (k < 1 || k > maxTopk) throw invalidArgument('topkIdx columns', k, `1 to ${maxTopk} (maxTopk)`);
  const topkWeights = checkWeights(args.topkWeights, [tokens, k], scope, 'dispatch');
  const scales = checkFormat(args);
  const out = args.out === undefined ? undefined : checkOut(args.out, scales, scope);
  if (layout === 'rank-major' && args.cumulativeLocalExpertRecvStats !== undefined) {
    throw invalidArgument('cumulativeLocalExpertRecvStats', 'a value', "nothing with layout 'rank-major'");
  }
  const expertStats =
    args.cumulativeLocalExpertRecvStats === undefined
      ? undefined
      : checkTensor('cumulativeLocalExpertRecvStats', args.cumulativeLocalExpertRecvStats, {
          device,
          dtype: ['i32'],
          shape: [config.numExperts / scope.group.size],
        });
  const waitStats = checkWaitStats(args.waitStats, scope);
  const given = out === undefined ? {} : 'data' in out ? { 'out.data': out.data, 'out.scales': out.scales } : { out };
  rejectWindow({ x, topkIdx, topkWeights, ...given }, window);
  return { x, topkIdx, topkWeights, scales, out, expertStats, waitStats };
}

/** `window`: the object's whole mapping; `buffer`: where the combine with that handle reads this rank's rows. */
export function checkLowLatencyCombine(
  args: LowLatencyCombineArguments,
  scope: LowLatencyScope,
  { window, buffer }: { readonly window: MemoryRange; readonly buffer: (handle: LowLatencyHandle) => number },
): CheckedLowLatencyCombine {
  checkOptions(args, combineNames, 'arguments of EpLowLatency.combine');
  requireFlag('returnRecvHook', args.returnRecvHook);
  requireFlag('zeroCopy', args.zeroCopy);
  const { device, config } = scope;
  const handle = checkLowLatencyHandle(args.handle, scope);
  const { numTokens, topk } = handle;
  const alignment = rowAlignment(config.hidden * 2);
  const x = checkTensor('x', args.x, { device, dtype: ['bf16'], shape: rowShape(scope), alignment });
  const topkWeights = checkWeights(args.topkWeights, [numTokens, topk], scope, 'combine');
  const out =
    args.out === undefined
      ? undefined
      : checkTensor('out', args.out, { device, dtype: ['bf16'], shape: [numTokens, config.hidden], alignment });
  const waitStats = checkWaitStats(args.waitStats, scope);
  const isInPlace = x.address === buffer(handle);
  if (args.zeroCopy === true && !isInPlace && readsInPlace(scope)) {
    throw invalidArgument('x', 'a tensor elsewhere', 'what combineInput(handle) returned, as zeroCopy asks');
  }
  rejectWindow({ ...(!isInPlace && { x }), out, topkWeights }, window);
  return { x, handle, topkWeights, out, waitStats };
}

/** A handle of this very object; whether it is still valid, the object knows. */
export function checkLowLatencyHandle(handle: unknown, scope: LowLatencyScope): LowLatencyHandle {
  const allowed = 'a handle from a dispatch of this EpLowLatency';
  if (!(handle instanceof LowLatencyHandle)) throw invalidArgument('handle', handle, allowed);
  if (handle.owner !== scope) throw invalidArgument('handle', 'a handle of another object', allowed);
  return handle;
}

/** Whether peers read the experts' rows themselves; else each rank adds them up from wherever they lie. */
export function readsInPlace({ config }: LowLatencyScope): boolean {
  return config.layout === 'rank-major' || config.combineTravels === 'choices';
}

/** Shape of the received rows, and of those that combine takes. */
export function rowShape({ config, group }: LowLatencyScope): readonly [number, number, number] {
  return config.layout === 'rank-major'
    ? [group.size, config.maxTokensPerRank, config.hidden]
    : [config.numExperts / group.size, config.maxTokensPerExpert, config.hidden];
}

/** Shape of the scales of those rows. */
export function scaleShape(scope: LowLatencyScope, scales: LowLatencyScales): readonly [number, number, number] {
  const [blocks, rows, hidden] = rowShape(scope);
  return [blocks, scaleWords(hidden, scales), rows];
}

/** 32-bit words of the scales of a row. */
export function scaleWords(hidden: number, scales: LowLatencyScales): number {
  const groups = Math.ceil(hidden / FP8_GROUP);
  return scales === 'ue8m0' ? Math.ceil(groups / 4) : groups;
}

export function scalesDtype(scales: LowLatencyScales): 'f32' | 'i32' {
  return scales === 'ue8m0' ? 'i32' : 'f32';
}

function checkFormat({ dtype = 'fp8', scales }: LowLatencyDispatchArguments): LowLatencyScales | undefined {
  if (dtype === 'bf16') {
    if (scales !== undefined) throw invalidArgument('scales', scales, "nothing with dtype 'bf16'");
    return undefined;
  }
  if (dtype !== 'fp8') throw invalidArgument('dtype', dtype, '"fp8" or "bf16"');
  if (scales === undefined) return 'f32';
  if (typeof scales === 'string' && Object.hasOwn(lowLatencyScales, scales)) return scales;
  throw invalidArgument('scales', scales, '"f32", "rounded" or "ue8m0"');
}

/** Weights go with dispatch where ranks add up, and to combine where the token's rank does. */
function checkWeights(
  weights: unknown,
  shape: readonly [number, number],
  { device, config: { layout, combineTravels } }: LowLatencyScope,
  call: 'dispatch' | 'combine',
): Tensor<'f32'> | undefined {
  const isByChoice = combineTravels === 'choices';
  const isTaken = layout === 'rank-major' ? call === 'dispatch' : (call === 'combine') === isByChoice;
  if (!isTaken) {
    if (weights === undefined) return undefined;
    const where = layout === 'rank-major' ? 'the rows of x are weighted already' : `they are given to ${other(call)}`;
    throw invalidArgument('topkWeights', 'a value', `nothing: ${where}`);
  }
  if (weights === undefined && layout === 'rank-major') return undefined;
  return checkTensor('topkWeights', weights, { device, dtype: ['f32'], shape });
}

function other(call: 'dispatch' | 'combine'): string {
  return call === 'dispatch' ? "combine, as combineTravels is 'choices'" : "dispatch, as combineTravels is 'rank-sums'";
}

function checkOut(out: unknown, scales: LowLatencyScales | undefined, scope: LowLatencyScope): LowLatencyRows {
  const { device, config } = scope;
  if (config.layout === 'rank-major') {
    throw invalidArgument('out', out, "nothing with layout 'rank-major', whose rows stay where they came");
  }
  const shape = rowShape(scope);
  if (scales === undefined) {
    return checkTensor('out', out, { device, dtype: ['bf16'], shape, alignment: rowAlignment(config.hidden * 2) });
  }
  if (typeof out !== 'object' || out === null || !('data' in out) || !('scales' in out)) {
    throw invalidArgument('out', out, '{ data, scales } for fp8 rows');
  }
  const given = out as LowLatencyScaledRows;
  checkTensor('out.data', given.data, { device, dtype: ['fp8e4m3'], shape, alignment: rowAlignment(config.hidden) });
  const words = { device, dtype: [scalesDtype(scales)], shape: scaleShape(scope, scales) };
  checkTensor('out.scales', given.scales, words);
  return given;
}

function checkWaitStats(stats: unknown, { device, group }: LowLatencyScope): Tensor<'i64'> | undefined {
  if (stats === undefined) return undefined;
  return checkTensor('waitStats', stats, { device, dtype: ['i64'], shape: [group.size] });
}

function rejectWindow(tensors: Readonly<Record<string, Tensor | undefined>>, window: MemoryRange): void {
  for (const [name, tensor] of Object.entries(tensors)) {
    if (tensor === undefined || !overlaps(tensor, window.address, window.bytes)) continue;
    throw invalidArgument(name, 'a tensor in the window', 'a tensor of its own, for peers read and write the window');
  }
}

// What EpLowLatency asks of the engine that carries its calls out; one per kind of device. Arguments were checked before.

export interface LowLatencyWait {
  readonly deadline: Deadline;
  readonly signal: AbortSignal | undefined;
}

/** A combine whose rows peers can read. */
export interface SentCombine {
  readonly input: CheckedLowLatencyCombine;
  /** Number of the combine, from 1; the same on all ranks. */
  readonly number: number;
  readonly out: Tensor<'bf16'>;
}

export interface LowLatencyEngine {
  /** What peers read and write here: inputs must not lie in it, but for the rows of combine. */
  readonly mapped: MemoryRange;
  /** The ranks of an elastic object that take part. */
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
  /** The address of that memory, without waiting. */
  combineBufferAddress(handle: LowLatencyHandle): number;
  /** sendCombine() and receiveCombine() in one. */
  combine(input: CheckedLowLatencyCombine, wait: LowLatencyWait): Promise<Tensor<'bf16'>>;
  sendCombine(input: CheckedLowLatencyCombine, wait: LowLatencyWait): Promise<SentCombine>;
  receiveCombine(sent: SentCombine, wait: LowLatencyWait): Promise<Tensor<'bf16'>>;
  barrier(wait: LowLatencyWait): Promise<void>;
  /** Engines whose calls a graph can repeat have it. `requireIdle` fails while the object cannot begin a call, which it is told. */
  guardLaunches?(requireIdle: (what: string) => void): void;
  close(): Promise<void> | void;
}
