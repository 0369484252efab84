// What a rank prepares for an EpLowLatency on GPUs before any memory is shared: sizes, kernels, tables.
import { LOW_LATENCY_EMPTY } from '../../../abi/low-latency.ts';
import { requireCudaLimits } from '../../../group/cuda-calls.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import type { LowLatencyEngine } from '../low-latency-engine.ts';
import type { LowLatencyScope } from '../low-latency-scope.ts';
import { type LowLatencyConfig, type LowLatencySize, lowLatencySize } from '../low-latency-size.ts';
import { requireOneHost } from '../require-one-host.ts';
import type { LowLatencyLaunches } from './low-latency-launches.ts';
import { type CudaLowLatencyTables, makeCudaTables } from './low-latency-tables.ts';

export const WHAT = 'EpLowLatency';

export interface CudaLowLatencyOptions {
  readonly group: RankGroup;
  readonly device: CudaDevice;
  /** As the caller gave it, and with defaults. */
  readonly given: LowLatencyConfig;
  readonly config: Required<LowLatencyConfig>;
}

/** An engine, and the number of its first dispatch. */
export interface CudaLowLatency {
  readonly scope: LowLatencyScope;
  readonly engine: LowLatencyEngine;
  readonly next: number;
}

/** Fails with WL_UNSUPPORTED or WL_INVALID_ARGUMENT. */
export function sizeOf({ group, device, given, config }: CudaLowLatencyOptions): LowLatencySize {
  requireOneHost(group);
  const size = lowLatencySize(given, group.size, device.kind);
  requireCudaLimits(WHAT, group, config.numExperts);
  return size;
}

export interface PreparedParts {
  readonly launches: LowLatencyLaunches;
  readonly tables: CudaLowLatencyTables;
}

/** Fails with the error that loading the kernels had, or WL_MEMORY. */
export function prepareParts(
  { device, config, group }: LowLatencyScope<CudaDevice>,
  launches: LowLatencyLaunches | Error,
): PreparedParts {
  if (launches instanceof Error) throw launches;
  const tables = makeCudaTables(device, config, group.size);
  // Where kernels count from.
  for (const table of [tables.blocks, tables.decisions, tables.elastic]) {
    if (table.bytes > 0) device.setBytes(table, 0);
  }
  return { launches, tables };
}

/** Enqueues filling the regions whose words show that they have come. `window`: the address of this rank's part. */
export function emptyRegions({ device, config, size }: LowLatencyScope<CudaDevice>, window: number): void {
  const { fp8Rows, scales, combineRows } = size.regions;
  if (fp8Rows.bytes === 0) return;
  // All bytes of the word are alike.
  const byte = LOW_LATENCY_EMPTY & 0xff;
  const empty = config.combineTravels === 'rank-sums' ? [fp8Rows, scales, combineRows] : [fp8Rows, scales];
  for (const { offset, bytes } of empty) device.setBytes({ address: window + offset, bytes }, byte);
}

export function releaseParts({ tables }: PreparedParts): void {
  tables[Symbol.dispose]();
}
