// What the layer's dispatch and combine accept, and the checks that make sure of it before any byte moves.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { Device } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { WaitOptions } from '../../core/deadline.ts';
import type { OverlapOptions } from '../../collective/overlap.ts';
import { checkTensor, rowAlignment } from '../../collective/tensor-check.ts';
import type { DispatchCombineContext } from './dispatch-combine-context.ts';
import type { EPConfig } from './ep-config.ts';
import { EPAllToAllLayoutDesc } from './layout-desc.ts';

export interface LayerDispatchArguments extends WaitOptions, OverlapOptions {
  /** bf16 [T, H]; T at most maxTokens, may differ between ranks. */
  readonly input: Tensor<'bf16'>;
  /** [T, K] expert ids; -1 or the number of experts for a dropped choice; no expert twice in a row. */
  readonly expIndices: Tensor<'i32' | 'i64'>;
  /** [T, K] of the layer's weightDtype; all ranks or none. */
  readonly weight?: Tensor<'f32' | 'bf16'>;
  /**
   * [T, K]: the row of each choice when the outputs of all ranks are numbered as one. Must lie in the block of the
   * choice's expert, and all choices of all ranks together must name every row once. All ranks or none.
   */
  readonly fullScatterIndices?: Tensor<'i32' | 'i64'>;
}

export interface LayerInput {
  readonly input: Tensor<'bf16'>;
  readonly expIndices: Tensor<'i32' | 'i64'>;
  readonly weight: Tensor<'f32' | 'bf16'> | undefined;
  readonly fullScatterIndices: Tensor<'i32' | 'i64'> | undefined;
  readonly numTokens: number;
}

export function checkLayerDispatch(args: LayerDispatchArguments, config: EPConfig, device: Device): LayerInput {
  const alignment = rowAlignment(config.hidden * 2);
  const input = checkTensor('input', args.input, { device, dtype: ['bf16'], shape: ['T', config.hidden], alignment });
  const numTokens = input.shape[0]!;
  if (numTokens > config.maxTokens) {
    throw new WeftlineError(
      'WL_CAPACITY',
      `Cannot dispatch ${numTokens} tokens: the layer was made for at most ${config.maxTokens} per rank (maxTokens)`,
      { details: { numTokens, maxTokens: config.maxTokens } },
    );
  }
  const shape = [numTokens, config.topk];
  const expIndices = checkTensor('expIndices', args.expIndices, { device, dtype: ['i32', 'i64'], shape });
  const weight = args.weight && checkTensor('weight', args.weight, { device, dtype: [config.weightDtype], shape });
  const fullScatterIndices =
    args.fullScatterIndices &&
    checkTensor('fullScatterIndices', args.fullScatterIndices, { device, dtype: ['i32', 'i64'], shape });
  return { input, expIndices, weight, fullScatterIndices, numTokens };
}

export interface LayerCombineArguments extends WaitOptions, OverlapOptions {
  /** bf16 [recv, H]: the experts' output, row by row as in dispatch's output, already weighted. */
  readonly input: Tensor<'bf16'>;
  readonly layoutDesc: EPAllToAllLayoutDesc;
  /** bf16 [T, H] to write the result to; made by combine if absent. */
  readonly out?: Tensor<'bf16'>;
}

export interface CheckedLayerCombine {
  readonly input: Tensor<'bf16'>;
  readonly desc: EPAllToAllLayoutDesc;
  readonly out: Tensor<'bf16'> | undefined;
}

/** A live descriptor of the layer with this context. */
export function checkDescriptor(desc: unknown, context: object): EPAllToAllLayoutDesc {
  const allowed = 'a live descriptor from a dispatch of this layer';
  if (!(desc instanceof EPAllToAllLayoutDesc)) throw invalidArgument('layoutDesc', desc, allowed);
  if (desc.owner !== context) throw invalidArgument('layoutDesc', 'a descriptor of another layer', allowed);
  if (desc.tokenDstScatterIdx.storage.disposed) throw invalidArgument('layoutDesc', 'a disposed descriptor', allowed);
  return desc;
}

export function checkLayerCombine(args: LayerCombineArguments, context: DispatchCombineContext): CheckedLayerCombine {
  const { device, config } = context;
  const desc = checkDescriptor(args.layoutDesc, context);
  const { hidden } = config;
  const input = checkTensor('input', args.input, { device, dtype: ['bf16'], shape: [desc.numRecvTokens, hidden] });
  const out =
    args.out &&
    checkTensor('out', args.out, {
      device,
      dtype: ['bf16'],
      shape: [desc.numDispatchTokenCurRank, hidden],
      alignment: rowAlignment(hidden * 2),
    });
  return { input, desc, out };
}
