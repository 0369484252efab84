// A MoE block through EpBuffer: a token travels once to each rank that holds one of its experts.
import { WeftlineError } from '../../core/errors.ts';
import { FP8_GROUP } from '../../abi/element-formats.ts';
import type { ScaledRows } from '../../device/formats/scaled-rows.ts';
import { Tensor } from '../../device/tensor.ts';
import { EpBuffer } from '../../ep/buffer/ep-buffer.ts';
import type { DispatchResult } from '../../ep/buffer/ep-results.ts';
import { type ForwardOptions, type MoeForward, type MoePhase, routePhase } from './moe-forward.ts';
import type { MoeDevice } from './moe-engine.ts';
import { largestTokenShare } from './token-split.ts';

/** Collective, like every phase that it returns. */
export async function createBufferForward(options: ForwardOptions): Promise<MoeForward> {
  const { world, device, engine, block, share, dtype, combinePrecision } = options;
  const { x, topkIdx, topkWeights, experts } = share;
  const buffer = await EpBuffer.create(world, device, {
    maxTokensPerRank: Math.max(1, largestTokenShare(block.tokens, world.size)),
    hidden: block.hidden,
    numExperts: block.experts,
    maxTopk: block.topk,
    combinePrecision,
  });
  const fp8 = dtype === 'fp8' ? emptyScaledRows(device, x) : undefined;
  const output = device.empty('bf16', x.shape);
  let received: DispatchResult | undefined;
  const arrived = (): DispatchResult => {
    if (received === undefined) throw new WeftlineError('WL_INTERNAL', 'A phase ran before dispatch');
    return received;
  };

  const quantize: MoePhase = { name: 'quantize', run: () => fp8 && engine.quantizeRows(x, fp8) };
  const dispatch: MoePhase = {
    name: 'dispatch',
    async run() {
      received?.handle.dispose();
      received = undefined;
      received = await buffer.dispatch({ x: fp8 ?? x, topkIdx, topkWeights });
    },
  };
  const dequantize: MoePhase = {
    name: 'dequantize',
    run() {
      const { recvX, handle } = arrived();
      // The rows that combine reads are free until the experts write them.
      if (!(recvX instanceof Tensor)) engine.dequantizeRows(recvX, buffer.combineInput(handle));
    },
  };
  const compute: MoePhase = {
    name: 'experts',
    run() {
      const { recvX, recvTopkIdx, recvTopkWeights, numRecvTokensPerExpert: rowsPerExpert, handle } = arrived();
      if (!recvTopkIdx || !recvTopkWeights)
        throw new WeftlineError('WL_INTERNAL', 'Rows arrived without their choices');
      const out = buffer.combineInput(handle);
      const rows = recvX instanceof Tensor ? recvX : out;
      const input = { x: rows, topkIdx: recvTopkIdx, topkWeights: recvTopkWeights, rowsPerExpert };
      experts.forwardTokens(input, out);
    },
  };
  const combine: MoePhase = {
    name: 'combine',
    async run() {
      const { handle } = arrived();
      const bias = shared === undefined ? {} : { bias: output };
      await buffer.combine({ x: buffer.combineInput(handle), handle, ...bias, out: output });
    },
  };
  const { shared } = share;
  const computeShared: MoePhase = {
    name: 'shared',
    // Where combine() adds its sums to it.
    run: () => shared?.experts.forwardExperts({ ...shared, x, rowsPerExpert: [x.shape[0] ?? 0] }, output),
  };

  const arrive = fp8 ? [quantize, dispatch, dequantize] : [dispatch];
  return {
    phases: [...routePhase(share), ...arrive, compute, ...(shared === undefined ? [] : [computeShared]), combine],
    output,
    windowBytes: buffer.size.bytes + (buffer.size.network?.bytes ?? 0),
    async [Symbol.asyncDispose]() {
      received?.handle.dispose();
      for (const tensor of [output, ...(fp8 ? [fp8.data, fp8.scales] : [])]) tensor.dispose();
      await buffer[Symbol.asyncDispose]();
    },
  };
}

function emptyScaledRows(device: MoeDevice, { shape: [tokens = 0, hidden = 0] }: Tensor<'bf16'>): ScaledRows {
  return {
    data: device.empty('fp8e4m3', [tokens, hidden]),
    scales: device.empty('f32', [tokens, Math.ceil(hidden / FP8_GROUP)]),
  };
}
