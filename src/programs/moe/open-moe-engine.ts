// Chooses the engine of a MoE block by the kind of its device.
import type { Settings } from '../../settings/settings.ts';
import { createCpuMoeEngine } from './cpu-moe-engine.ts';
import type { MoeDevice, MoeEngine } from './moe-engine.ts';

/** Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA on a GPU whose kernels cannot be had. */
export async function openMoeEngine(device: MoeDevice, settings: Settings): Promise<MoeEngine> {
  if (device.kind === 'cpu') return createCpuMoeEngine(device);
  // Loaded here, so that CPU ranks never load what GPUs need.
  const { createCudaMoeEngine } = await import('./cuda-moe-engine.ts');
  return createCudaMoeEngine(device, settings);
}
