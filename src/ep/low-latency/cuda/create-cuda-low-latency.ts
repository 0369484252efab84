// Makes the engine of an EpLowLatency on GPUs of one host: the ranks agree, compile, then make windows together.
import { agreeOn } from '../../../group/agree.ts';
import { CudaCalls } from '../../../group/cuda-calls.ts';
import type { CallWait, Deadline } from '../../../core/deadline.ts';
import { CudaWindow } from '../../../windows/cuda-window.ts';
import { describeWait } from '../call-words.ts';
import { comparableConfig } from '../low-latency-size.ts';
import { createElasticCuda } from './create-elastic-cuda.ts';
import { CudaLowLatencyEngine } from './cuda-low-latency-engine.ts';
import { explainFailure } from './kernel-failures.ts';
import { bindLaunches, loadLaunches } from './low-latency-launches.ts';
import {
  type CudaLowLatency,
  type CudaLowLatencyOptions,
  emptyRegions,
  prepareParts,
  releaseParts,
  sizeOf,
  WHAT,
} from './prepare-parts.ts';

/** Collective: agrees on the configuration, compiles the kernels, makes the tables and the window. Of an elastic object a rank whose former process did so joins it. */
export async function createCudaLowLatency(
  options: CudaLowLatencyOptions,
  wait: CallWait & { readonly deadline: Deadline },
): Promise<CudaLowLatency> {
  const { group, device, config } = options;
  if (config.elastic) return createElasticCuda(options, wait);
  const agreed = { what: WHAT, config: comparableConfig(config, device.kind), prepare: () => sizeOf(options) };
  const size = await agreeOn(group, agreed, wait);
  const scope = { group, device, config: Object.freeze({ ...config }), size };
  // Compiling may fail or take long on one rank alone, so the ranks meet again after it.
  const launches = await loadLaunches(device, config).catch((error: unknown) => error as Error);
  const agreement = {
    what: `${WHAT} kernels`,
    config: {},
    prepare: () => prepareParts(scope, launches),
    release: releaseParts,
  };
  const parts = await agreeOn(group, agreement, wait);
  const made: { window?: CudaWindow } = {};
  try {
    const window = await CudaWindow.create({
      ...wait,
      group,
      device,
      name: 'low-latency',
      bytes: size.bytes,
      addsToPeers: WHAT,
      fill: ({ address }) => emptyRegions(scope, address),
    });
    made.window = window;
    const calls = new CudaCalls(group, device, {
      describe: describeWait,
      explain: (trap) => explainFailure(trap, config),
    });
    bindLaunches(parts.launches, scope, { windows: window.addresses, traps: calls.traps, tables: parts.tables });
    return { scope, engine: new CudaLowLatencyEngine(scope, { ...parts, window, calls }), next: 1 };
  } catch (error) {
    made.window?.[Symbol.dispose]();
    releaseParts(parts);
    throw error;
  }
}
