// The resizable part of the layer's symmetric memory: one row per received (token, expert), sized by capacity.
import { alignUp } from '../../abi/layout.ts';
import { dtypes } from '../../core/dtype.ts';
import { layOutRegions, type WindowRegion } from '../../windows/region-layout.ts';
import { windowFootprint } from '../../windows/symmetric-window.ts';
import type { EPConfig } from './ep-config.ts';

/** Reallocation rounds rows up to this, so that growth comes in few steps. */
const ROW_STEP = 1024;
/** How much more than needed a reallocation takes. */
const GROWTH = 1.25;

/** `expertRows` is where combine reads: the memory of `rows`, unless dispatch's rows must stay as they are. */
export type OutputRegion = 'rows' | 'expertRows' | 'weights' | 'sourceToken' | 'firstRow' | 'duplicates' | 'repeated';

/** What a layer takes for so many received rows, in bytes. */
export interface OutputSize {
  /** Rows that fit. */
  readonly capacityRows: number;
  /** Bytes of one rank's window. */
  readonly bytes: number;
  readonly addressSpaceBytes: number;
  readonly regions: Readonly<Record<OutputRegion, WindowRegion>>;
}

/** Rows for a new context: `capacity` times a balanced load, never more than can arrive. */
export function initialRows(config: EPConfig, capacity: number): number {
  return Math.min(Math.ceil(config.maxTokens * config.topk * capacity), config.maxRecvRows);
}

/** Rows after growing for `needed`, never more than can arrive. */
export function grownRows(config: EPConfig, needed: number): number {
  return Math.min(alignUp(Math.ceil(needed * GROWTH), ROW_STEP), config.maxRecvRows);
}

/**
 * Pure: bytes and offsets for `capacityRows` rows.
 * @param config The layer's.
 * @param capacityRows Received rows that fit.
 */
export function outputSize(config: EPConfig, capacityRows: number): OutputSize {
  const { bytes, regions } = layOutRegions<OutputRegion>({
    rows: capacityRows * config.rowBytes,
    expertRows: config.keepDispatchOutput ? capacityRows * config.rowBytes : 'rows',
    weights: capacityRows * dtypes[config.weightDtype].bytes,
    sourceToken: capacityRows * 4,
    firstRow: capacityRows * 4,
    duplicates: capacityRows * config.topk * 4,
    // A token that is repeated has two rows at least.
    repeated: Math.floor(capacityRows / 2) * 4,
  });
  return { capacityRows, bytes, addressSpaceBytes: windowFootprint(bytes, config.worldSize), regions };
}
