// A MoE block through EPAll2AllLayer: a token arrives once for each of its experts, the rows of an expert together.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import { EPAll2AllLayer } from '../../ep/layer/ep-all2all-layer.ts';
import type { LayerDispatchResult } from '../../ep/layer/layer-engine.ts';
import type { MoeBlock } from './moe-block.ts';
import type { Tensor } from '../../device/tensor.ts';
import { type ForwardOptions, type MoeForward, type MoePhase, routePhase } from './moe-forward.ts';
import { largestTokenShare } from './token-split.ts';

/** Collective, like every phase that it returns. */
export async function createAll2AllForward(options: ForwardOptions): Promise<MoeForward> {
  const { world, device, block, share, dtype, combinePrecision } = options;
  if (dtype !== 'bf16') throw invalidArgument('dtype', dtype, '"bf16" with dispatcher "all2all"');
  const { x, topkIdx, topkWeights, experts } = share;
  requireNoSharedExpert('all2all', block);
  const layer = await EPAll2AllLayer.create(world, device, {
    maxTokens: Math.max(1, largestTokenShare(block.tokens, world.size)),
    hidden: block.hidden,
    topk: block.topk,
    numTotExperts: block.experts,
    combinePrecision,
  });
  const output = device.empty('bf16', x.shape);
  let received: LayerDispatchResult | undefined;
  const arrived = (): LayerDispatchResult => {
    if (received === undefined) throw new WeftlineError('WL_INTERNAL', 'A phase ran before dispatch');
    return received;
  };

  const dispatch: MoePhase = {
    name: 'dispatch',
    async run() {
      received?.layoutDesc.dispose();
      received = undefined;
      received = await layer.dispatch({ input: x, expIndices: topkIdx, weight: topkWeights });
    },
  };
  const compute: MoePhase = {
    name: 'experts',
    run() {
      const { output: rows, weights, layoutDesc } = arrived();
      const rowsPerExpert = layoutDesc.numRecvTokensPerExpert;
      if (weights?.dtype !== 'f32') throw new WeftlineError('WL_INTERNAL', 'Rows arrived without their weights');
      const input = { x: rows, rowsPerExpert, weights: weights as Tensor<'f32'> };
      experts.forwardExperts(input, layer.combineInput(layoutDesc));
    },
  };
  const combine: MoePhase = {
    name: 'combine',
    async run() {
      const { layoutDesc } = arrived();
      await layer.combine({ input: layer.combineInput(layoutDesc), layoutDesc, out: output });
    },
  };

  return {
    phases: [...routePhase(share), dispatch, compute, combine],
    output,
    get windowBytes() {
      return layer.context.windowBytes;
    },
    async [Symbol.asyncDispose]() {
      received?.layoutDesc.dispose();
      output.dispose();
      await layer.finalize();
    },
  };
}

/** The layer adds up what experts give, and nothing else. Fails with WL_INVALID_ARGUMENT. */
export function requireNoSharedExpert(dispatcher: string, { sharedIntermediate }: MoeBlock): void {
  if (sharedIntermediate === undefined) return;
  throw invalidArgument('dispatcher', dispatcher, '"buffer" for a block with a shared expert, which its combine adds');
}
