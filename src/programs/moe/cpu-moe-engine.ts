// A MoE block's computations on a CPU rank: every call is done when it returns.
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { dequantizeRows, quantizeRows } from '../../device/cpu/fp8-rows.ts';
import type { Tensor } from '../../device/tensor.ts';
import { CpuExperts } from './cpu-experts.ts';
import type { GateOptions, MoeEngine, Routing } from './moe-engine.ts';
import { routeTopk } from './router.ts';

export function createCpuMoeEngine(device: CpuDevice): MoeEngine {
  return {
    product: 'CPU kernels',
    createExperts: (weights) => new CpuExperts(device, weights),
    openGate: (options) => openGate(device, options),
    quantizeRows: (x, out) => void quantizeRows(device, x, { out }),
    dequantizeRows: (rows, out) => void dequantizeRows(device, rows, out),
    finish: () => Promise.resolve(),
    [Symbol.dispose]() {},
  };
}

async function openGate(device: CpuDevice, { block, x, weights }: GateOptions): Promise<Routing> {
  const tokens = x.shape[0] ?? 0;
  const topkIdx = device.empty('i64', [tokens, block.topk]);
  const topkWeights = device.empty('f32', [tokens, block.topk]);
  const shape = [block.experts, block.hidden];
  const gate = await device.tensor('bf16', shape, weights.gate);
  const rest = weights.gateRest && (await device.tensor('bf16', shape, weights.gateRest));
  const logits = device.empty('f32', [tokens, block.experts]);
  const more = device.empty('f32', [rest === undefined ? 0 : tokens, block.experts]);
  const shared = weights.sharedGate && (await openSharedGate(device, x, weights.sharedGate));
  const route = (): void => {
    const multiply = (out: Tensor<'f32'>, by: Tensor<'bf16'>): void =>
      device.kernels.matmul(out.address, x.address, 0, by.address, tokens, block.experts, block.hidden);
    multiply(logits, gate);
    if (rest !== undefined) {
      multiply(more, rest);
      const sums = logits.view();
      for (const [at, value] of more.view().entries()) sums[at] = sums[at]! + value;
    }
    const chosen = routeTopk(logits.view(), block, weights.bias);
    topkIdx.view().set(chosen.ids);
    topkWeights.view().set(chosen.weights);
    shared?.route();
  };
  route();
  const release = (): void => {
    for (const tensor of [topkIdx, topkWeights, gate, rest, logits, more]) tensor?.dispose();
    shared?.[Symbol.dispose]();
  };
  const found = shared === undefined ? {} : { sharedWeights: shared.weights };
  return { topkIdx, topkWeights, ...found, route, [Symbol.dispose]: release };
}

interface SharedGate extends Disposable {
  /** [T] */
  readonly weights: Tensor<'f32'>;
  route(): void;
}

/** The sigmoid of the tokens' products with one row. */
async function openSharedGate(device: CpuDevice, x: Tensor<'bf16'>, values: Uint16Array): Promise<SharedGate> {
  const [tokens = 0, hidden = 0] = x.shape;
  const gate = await device.tensor('bf16', [1, hidden], values);
  const weights = device.empty('f32', [tokens]);
  return {
    weights,
    route() {
      device.kernels.matmul(weights.address, x.address, 0, gate.address, tokens, 1, hidden);
      const sums = weights.view();
      for (const [token, sum] of sums.entries()) sums[token] = 1 / (1 + Math.exp(-sum));
    },
    [Symbol.dispose]() {
      gate.dispose();
      weights.dispose();
    },
  };
}
