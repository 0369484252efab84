// A MoE block's computations on a GPU: every call is enqueued on device.stream; only the gate's choices are the host's.
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { CudaFp8Rows } from '../../device/cuda/fp8-rows.ts';
import type { Settings } from '../../settings/settings.ts';
import { createCpuMoeEngine } from './cpu-moe-engine.ts';
import { CudaExperts, loadExpertLaunches } from './cuda-experts.ts';
import { openGroupedProduct } from './open-product.ts';
import type { GateOptions, MoeEngine, Routing } from './moe-engine.ts';

/** Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function createCudaMoeEngine(device: CudaDevice, settings: Settings): Promise<MoeEngine> {
  const launches = await loadExpertLaunches(device);
  const fp8Rows = await CudaFp8Rows.create(device);
  const product = await openGroupedProduct(device, settings);
  return {
    product: product.name,
    createExperts: (weights) => new CudaExperts(device, weights, { launches, product }),
    openGate: (options) => openGate(device, options),
    quantizeRows: (x, out) => fp8Rows.quantize(x, out),
    dequantizeRows: (rows, out) => fp8Rows.dequantize(rows, out),
    finish: () => device.stream.idle(),
    [Symbol.dispose]: () => product[Symbol.dispose](),
  };
}

/** Chooses on the CPU, once: a gate is a small part of a block, and its choices stay the same from pass to pass. */
async function openGate(device: CudaDevice, { block, x, xValues, weights }: GateOptions): Promise<Routing> {
  await using cpu = await CpuDevice.create();
  using rows = await cpu.tensor('bf16', x.shape, xValues);
  using chosen = await createCpuMoeEngine(cpu).openGate({ block, x: rows, xValues, weights });
  const topkIdx = await device.tensor('i64', chosen.topkIdx.shape, chosen.topkIdx.view());
  const topkWeights = await device.tensor('f32', chosen.topkWeights.shape, chosen.topkWeights.view());
  const { sharedWeights: shared } = chosen;
  const sharedWeights = shared && (await device.tensor('f32', shared.shape, shared.view()));
  const release = (): void => {
    for (const tensor of [topkIdx, topkWeights, sharedWeights]) tensor?.dispose();
  };
  const found = sharedWeights === undefined ? {} : { sharedWeights };
  return { topkIdx, topkWeights, ...found, route: undefined, [Symbol.dispose]: release };
}
