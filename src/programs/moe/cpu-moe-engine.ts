// A MoE block's computations on a CPU rank: every call is done when it returns.
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { dequantizeRows, quantizeRows } from '../../device/cpu/fp8-rows.ts';
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

async function openGate(device: CpuDevice, { block, x, gate: values }: GateOptions): Promise<Routing> {
  const tokens = x.shape[0] ?? 0;
  const topkIdx = device.empty('i64', [tokens, block.topk]);
  const topkWeights = device.empty('f32', [tokens, block.topk]);
  const gate = await device.tensor('bf16', [block.experts, block.hidden], values);
  const logits = device.empty('f32', [tokens, block.experts]);
  const route = (): void => {
    device.kernels.matmul(logits.address, x.address, 0, gate.address, tokens, block.experts, block.hidden);
    const { ids, weights } = routeTopk(logits.view(), block);
    topkIdx.view().set(ids);
    topkWeights.view().set(weights);
  };
  route();
  const release = (): void => {
    for (const tensor of [topkIdx, topkWeights, gate, logits]) tensor.dispose();
  };
  return { topkIdx, topkWeights, route, [Symbol.dispose]: release };
}
