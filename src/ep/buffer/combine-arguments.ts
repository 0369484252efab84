// What EpBuffer.combine accepts, and the checks that make sure of it before any byte moves.
import { checkOptions, type OptionNames } from '../../core/check-options.ts';
import { invalidArgument } from '../../core/errors.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { WaitOptions } from '../../core/deadline.ts';
import { checkHandle } from './dispatch-arguments.ts';
import type { DispatchHandle } from './dispatch-handle.ts';
import { checkOverlap, type OverlapOptions } from '../../group/overlap.ts';
import type { EpScope } from './scope.ts';
import { checkTensor, overlaps, rowAlignment } from '../../group/tensor-check.ts';

/** Rows that a sum may begin with. */
export const MAX_BIASES = 2;

/** What EpBuffer.combine() takes. */
export interface CombineArguments extends WaitOptions, OverlapOptions {
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
  previousEvent: true,
  asyncFinish: true,
  timeoutMs: true,
  signal: true,
};

/** `window`: this buffer's whole mapping in the rank's memory. */
export function checkCombine(
  args: CombineArguments,
  scope: EpScope,
  window: { readonly address: number; readonly bytes: number },
): CheckedCombine {
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
  }
  return { x, handle, weights, biases, out };
}
