// One line on the GPUs that a bench ran on.
import { countEqual } from '../../core/count-equal.ts';
import type { GpuMachineDocument } from '../bench/ep/cuda/gpu-machine.ts';

export function describeGpus({ gpus, driver, cuda, links }: GpuMachineDocument): string {
  const models = countEqual(gpus.map(({ name, multiprocessors }) => `${name} (${multiprocessors} SMs)`));
  const kinds = new Set(links?.flatMap((row, index) => row.filter((_, other) => other !== index)));
  const linked = kinds.size === 0 ? '' : `, linked by ${[...kinds].join(', ')}`;
  return `GPUs: ${models}, driver ${driver ?? 'unknown'} (CUDA ${cuda})${linked}`;
}
