// What a rank prepares for an EpLowLatency on GPUs before any memory is shared: sizes, kernels, tables.
import { LOW_LATENCY_EMPTY, lowLatencyFailures } from '../../../abi/low-latency.ts';
import { trapReasons } from '../../../abi/trap-record.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import type { ExpiredWait } from '../../../device/cuda/trap-box.ts';
import { requireCudaLimits } from '../../../group/cuda-calls.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { columnsOf, describeWait } from '../call-words.ts';
import type { LowLatencyEngine } from '../low-latency-engine.ts';
import {
  type LowLatencyConfig,
  type LowLatencyScope,
  type LowLatencySize,
  lowLatencySize,
  requireOneHost,
} from '../low-latency-size.ts';
import { type CudaLowLatencyTables, type LowLatencyLaunches, makeCudaTables } from './low-latency-launches.ts';

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

// What a low-latency kernel says of a call that cannot go on, here or at a peer, as an error.

const WORD = 2 ** 32;

/** Undefined for a record of another kind. */
export function explainFailure(trap: ExpiredWait, config: Required<LowLatencyConfig>): WeftlineError | undefined {
  const isHere = trap.reason === trapReasons.callFailed;
  if (!isHere && trap.reason !== trapReasons.peerFailed) return undefined;
  const kind = trap.expected % 256;
  const number = Math.floor(trap.expected / 256);
  const detail = trap.seen % WORD;
  const extent = Math.floor(trap.seen / WORD);
  const rank = trap.peer;
  if (kind === lowLatencyFailures.overflow) {
    const { maxTokensPerExpert: capacity } = config;
    const message = `Expert ${detail} got ${extent} rows in dispatch ${number}, more than its ${capacity} (maxTokensPerExpert); raise that, or drop rows with overflow: 'drop'`;
    const details = { expert: detail, rows: extent, dispatch: number, maxTokensPerExpert: capacity };
    return isHere ? new WeftlineError('WL_CAPACITY', message, { details }) : failedThere(rank, message, details);
  }
  if (kind === lowLatencyFailures.badChoice) {
    const columns = Math.max(1, columnsOf(trap.channel));
    const place = `topkIdx[${Math.floor(detail / columns)}, ${detail % columns}]`;
    const message = `Invalid ${place} of rank ${rank} in dispatch ${number}: expected an expert from 0 to ${config.numExperts - 1}, or -1 for none`;
    const details = { argument: place, rank, dispatch: number };
    return isHere
      ? new WeftlineError('WL_INVALID_ARGUMENT', message, { details })
      : failedThere(rank, message, details);
  }
  return failedThere(rank, `it gave up while this rank was in ${describeWait(trap.channel)}`, { rank });
}

function failedThere(rank: number, message: string, details: Readonly<Record<string, unknown>>): WeftlineError {
  return new WeftlineError('WL_PEER_FAILED', `Rank ${rank} failed: ${message}`, { details, rank });
}
