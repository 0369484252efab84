// What the layer's dispatch and combine accept, and the checks that make sure of it before any byte moves.
import { checkOptions, isWhole, type OptionNames } from '../../core/check-options.ts';
import { waitOptionNames, type WaitOptions } from '../../core/deadline.ts';
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { CudaStream } from '../../device/cuda/cuda-stream.ts';
import type { Device } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';
import { callOptionNames, type CallOptions, checkOverlap } from '../../group/overlap.ts';
import { checkTensor, rowAlignment } from '../../group/tensor-check.ts';
import type { EPConfig, TokenDType } from './ep-config.ts';
import { EPAllToAllLayoutDesc } from './layout-desc.ts';

/** What EPAll2AllLayer.dispatch() takes. */
export interface LayerDispatchArguments<D extends TokenDType = 'bf16'> extends CallOptions {
  /** [T, H] of the layer's dtype; T at most maxTokensPerRank, may differ between ranks. */
  readonly x: Tensor<D>;
  /** [T, K] expert ids; -1 or the number of experts for a dropped choice. A token may choose an expert more than once. */
  readonly topkIdx: Tensor<'i32' | 'i64'>;
  /** [T, K] of the layer's weightDtype; all ranks or none. */
  readonly topkWeights?: Tensor<'f32' | 'bf16'>;
  /**
   * [T, K]: the row of each choice when the outputs of all ranks are numbered as one. Must lie in the block of the
   * choice's expert, and all choices of all ranks together must name every row once. All ranks or none.
   */
  readonly fullScatterIndices?: Tensor<'i32' | 'i64'>;
  /**
   * Bound on the rows that this rank receives, at most the rows of the output buffer: results get this many rows, those behind
   * the received ones marked -1 in the descriptor, whose `recvCounts` tells how many came. All ranks or none; not with
   * fullScatterIndices. 0 or absent: exact size. The host of a GPU then waits for nothing; a dispatch that fails (WL_CAPACITY
   * and the like) shows at a later call or wait.
   */
  readonly numWorstTokens?: number;
}

const dispatchOptionNames: OptionNames<LayerDispatchArguments> = {
  x: true,
  topkIdx: true,
  topkWeights: true,
  fullScatterIndices: true,
  numWorstTokens: true,
  ...callOptionNames,
};

/** What a dispatch is checked against. */
interface LayerDispatchRules {
  readonly config: EPConfig;
  readonly device: Device;
  /** Rows that the output holds now. */
  readonly capacityRows: number;
  /** The call, for errors. */
  readonly call: string;
}

/** Fails with WL_INVALID_ARGUMENT or WL_CAPACITY before anything moves; `call` names the call in the error. */
export function checkLayerDispatch(
  args: LayerDispatchArguments<TokenDType>,
  { config, device, capacityRows, call }: LayerDispatchRules,
): LayerInput {
  checkOptions(args, dispatchOptionNames, `arguments of EPAll2AllLayer.${call}`);
  checkOverlap(args);
  const alignment = rowAlignment(config.rowBytes);
  const dtype = [config.tokenDtype];
  const x = checkTensor('x', args.x, { device, dtype, shape: ['T', config.hidden], alignment });
  const numTokens = x.shape[0]!;
  if (numTokens > config.maxTokensPerRank) {
    throw new WeftlineError(
      'WL_CAPACITY',
      `Cannot dispatch ${numTokens} tokens: the layer was made for at most ${config.maxTokensPerRank} per rank (maxTokensPerRank)`,
      { details: { numTokens, maxTokensPerRank: config.maxTokensPerRank } },
    );
  }
  const shape = [numTokens, config.maxTopk];
  const topkIdx = checkTensor('topkIdx', args.topkIdx, { device, dtype: ['i32', 'i64'], shape });
  const topkWeights =
    args.topkWeights === undefined
      ? undefined
      : checkTensor('topkWeights', args.topkWeights, { device, dtype: [config.weightDtype], shape });
  const fullScatterIndices =
    args.fullScatterIndices === undefined
      ? undefined
      : checkTensor('fullScatterIndices', args.fullScatterIndices, { device, dtype: ['i32', 'i64'], shape });
  const rowBound = checkBound(args, capacityRows);
  return { x, topkIdx, topkWeights, fullScatterIndices, numTokens, rowBound };
}

function checkBound(
  { numWorstTokens = 0, fullScatterIndices }: LayerDispatchArguments<TokenDType>,
  capacityRows: number,
): number {
  if (!isWhole(numWorstTokens, 0) || numWorstTokens > capacityRows) {
    const allowed = `0 to ${capacityRows}, the rows of the output buffer (capacity, or context.reallocateDispatchOutputBuf())`;
    throw invalidArgument('numWorstTokens', numWorstTokens, allowed);
  }
  if (numWorstTokens !== 0 && fullScatterIndices !== undefined) {
    throw invalidArgument('numWorstTokens', numWorstTokens, '0 or absent with fullScatterIndices');
  }
  return numWorstTokens;
}

/** What EPAll2AllLayer.combine() takes. */
export interface LayerCombineArguments<D extends TokenDType = 'bf16'> extends CallOptions {
  /** [recv, H] of the layer's dtype: the experts' output, row by row as in recvX of dispatch, already weighted. */
  readonly x: Tensor<D>;
  readonly handle: EPAllToAllLayoutDesc;
  /** [T, H] of the layer's dtype to write the result to; made by combine if absent. */
  readonly out?: Tensor<D>;
}

export interface CheckedLayerCombine {
  readonly x: Tensor<TokenDType>;
  readonly desc: EPAllToAllLayoutDesc;
  readonly out: Tensor<TokenDType> | undefined;
}

/** A live descriptor of the layer with this context. */
export function checkDescriptor(desc: unknown, context: object): EPAllToAllLayoutDesc {
  const allowed = 'a live descriptor from a dispatch of this layer';
  if (!(desc instanceof EPAllToAllLayoutDesc)) throw invalidArgument('handle', desc, allowed);
  if (desc.tables.owner !== context) throw invalidArgument('handle', 'a descriptor of another layer', allowed);
  if (desc.disposed) throw invalidArgument('handle', 'a closed descriptor', allowed);
  return desc;
}

const combineOptionNames: OptionNames<LayerCombineArguments> = {
  x: true,
  handle: true,
  out: true,
  ...callOptionNames,
};

/** Fails with WL_INVALID_ARGUMENT before anything moves. */
export function checkLayerCombine(
  args: LayerCombineArguments<TokenDType>,
  context: { readonly device: Device; readonly config: EPConfig },
): CheckedLayerCombine {
  checkOptions(args, combineOptionNames, 'arguments of EPAll2AllLayer.combine');
  checkOverlap(args);
  const { device, config } = context;
  const desc = checkDescriptor(args.handle, context);
  const { hidden, rowBytes } = config;
  const dtype = [config.tokenDtype];
  const x = checkTensor('x', args.x, { device, dtype, shape: [desc.numRecvTokens, hidden] });
  const out =
    args.out === undefined
      ? undefined
      : checkTensor('out', args.out, {
          device,
          dtype,
          shape: [desc.numDispatchTokenCurRank, hidden],
          alignment: rowAlignment(rowBytes),
        });
  return { x, desc, out };
}

/** How EPAll2AllLayer.barrier() meets. */
export interface LayerBarrierOptions extends WaitOptions {
  /** The stream to enqueue on; a CPU device has none. */
  readonly stream?: CudaStream;
  /** True: the ranks of each host among themselves. */
  readonly intraNodeOnly?: boolean;
}

export const layerBarrierNames: OptionNames<LayerBarrierOptions> = {
  stream: true,
  intraNodeOnly: true,
  ...waitOptionNames,
};

// The checked arguments of a layer's dispatch.

export interface LayerInput {
  readonly x: Tensor<TokenDType>;
  readonly topkIdx: Tensor<'i32' | 'i64'>;
  readonly topkWeights: Tensor<'f32' | 'bf16'> | undefined;
  readonly fullScatterIndices: Tensor<'i32' | 'i64'> | undefined;
  readonly numTokens: number;
  /** Rows of the results; 0 for as many as come. */
  readonly rowBound: number;
}
