// What the window of a sparse all-reduce holds at each rank: its board, and counters and messages of both kinds.
import { SLOT_COUNTER_BYTES, sparseBoard, sparseMessageBytes } from './message-view.ts';
import { layOutRegions, type RegionLayout } from '../../windows/region-layout.ts';
import type { SlotShape } from './slot-shape.ts';

type SparseRegion =
  | 'board'
  | 'contributionCounts'
  | 'resultCounts'
  | 'partialCounts'
  | 'contributions'
  | 'results'
  | 'partials';

export interface SparseRegions extends RegionLayout<SparseRegion> {
  /** Room of one message, of which each slot has two. */
  readonly messageBytes: number;
}

/** Of the longest elements. */
export const MAX_ELEMENT_BYTES = 4;

/** Which kinds of messages one rank may have to write. */
interface SparseUse {
  /** A worker aggregates as well. */
  readonly hasBothRoles: boolean;
  /** Aggregators send to aggregators. */
  readonly isTree: boolean;
}

/** Pure. The same for all ranks; kinds of messages that no rank writes both lie in the same memory. */
export function sparseRegions(
  { blockSize, lanes, slots }: SlotShape,
  { hasBothRoles, isTree }: SparseUse,
): SparseRegions {
  const messageBytes = sparseMessageBytes(lanes, blockSize * MAX_ELEMENT_BYTES);
  const messages = slots * 2 * messageBytes;
  const layout = layOutRegions<SparseRegion>({
    board: sparseBoard.size,
    contributionCounts: slots * SLOT_COUNTER_BYTES,
    resultCounts: slots * SLOT_COUNTER_BYTES,
    partialCounts: slots * SLOT_COUNTER_BYTES,
    contributions: messages,
    results: hasBothRoles || isTree ? messages : 'contributions',
    partials: hasBothRoles && isTree ? messages : 'contributions',
  });
  return { ...layout, messageBytes };
}
