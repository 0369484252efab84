// Makes the engine of an EpLowLatency on GPUs of one host: the ranks agree, compile, then make windows together.
import { agreeOn } from '../../../collective/agree.ts';
import { CudaCalls, requireCudaLimits } from '../../../collective/cuda-calls.ts';
import type { CallWait } from '../../../core/deadline.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { CudaWindow } from '../../../windows/cuda-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { describeWait } from '../call-words.ts';
import type { LowLatencyEngine } from '../low-latency-engine.ts';
import type { LowLatencyScope } from '../low-latency-scope.ts';
import { comparableConfig, type LowLatencyConfig, lowLatencySize } from '../low-latency-size.ts';
import { requireOneHost } from '../require-one-host.ts';
import { CudaLowLatencyEngine, type CudaLowLatencyParts } from './cuda-low-latency-engine.ts';
import { explainFailure } from './kernel-failures.ts';
import { bindLaunches, loadLaunches, type LowLatencyLaunches } from './low-latency-launches.ts';
import { makeCudaTables } from './low-latency-tables.ts';

export interface CudaLowLatencyOptions {
  readonly group: RankGroup;
  readonly device: CudaDevice;
  /** As the caller gave it, and with defaults. */
  readonly given: LowLatencyConfig;
  readonly config: Required<LowLatencyConfig>;
}

/** Collective: agrees on the configuration, compiles the kernels, makes the tables and the window. */
export async function createCudaLowLatency(
  { group, device, given, config }: CudaLowLatencyOptions,
  wait: CallWait,
): Promise<{ readonly scope: LowLatencyScope; readonly engine: LowLatencyEngine }> {
  const what = 'EpLowLatency';
  const prepare = (): LowLatencyScope['size'] => {
    requireOneHost(group);
    requireFixedRanks(config);
    const size = lowLatencySize(given, group.size, device.kind);
    requireCudaLimits(what, group, config.numExperts);
    return size;
  };
  const size = await agreeOn(group, { what, config: comparableConfig(config, device.kind), prepare }, wait);
  const scope = { group, device, config: Object.freeze({ ...config }), size };
  // Compiling may fail or take long on one rank alone, so the ranks meet again after it.
  const launches = await loadLaunches(device, config.numSms).catch((error: unknown) => error as Error);
  const agreement = { what: `${what} kernels`, config: {}, prepare: () => prepareParts(scope, launches), release };
  const parts = await agreeOn(group, agreement, wait);
  const made: { window?: CudaWindow } = {};
  try {
    const window = await CudaWindow.create({ ...wait, group, device, name: 'low-latency', bytes: size.bytes });
    made.window = window;
    const calls = new CudaCalls(group, device, {
      describe: describeWait,
      explain: (trap) => explainFailure(trap, config),
    });
    bindLaunches(parts.launches, scope, { window, traps: calls.traps, tables: parts.tables });
    return { scope, engine: new CudaLowLatencyEngine(scope, { ...parts, window, calls }) };
  } catch (error) {
    made.window?.[Symbol.dispose]();
    release(parts);
    throw error;
  }
}

function requireFixedRanks({ elastic }: Required<LowLatencyConfig>): void {
  if (!elastic) return;
  throw new WeftlineError(
    'WL_UNSUPPORTED',
    'EpLowLatency on GPUs has fixed ranks: leave out elastic, or use CPU ranks',
  );
}

type Parts = Pick<CudaLowLatencyParts, 'launches' | 'tables'>;

function prepareParts(scope: LowLatencyScope<CudaDevice>, launches: LowLatencyLaunches | Error): Parts {
  if (launches instanceof Error) throw launches;
  const tables = makeCudaTables(scope.device, scope.config, scope.group.size);
  // Where each block counts from.
  scope.device.setBytes(tables.blocks, 0);
  return { launches, tables };
}

function release({ tables }: Parts): void {
  tables[Symbol.dispose]();
}
