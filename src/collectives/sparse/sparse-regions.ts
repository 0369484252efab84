// What the window of a sparse all-reduce holds at each rank: its board, and counters and messages of both kinds.
import { SLOT_COUNTER_BYTES, sparseBoard, sparseMessageBytes } from '../../abi/sparse-message.ts';
import { layOutRegions, type RegionLayout } from '../../windows/region-layout.ts';
import type { SlotShape } from './slot-shape.ts';

type SparseRegion = 'board' | 'contributionCounts' | 'resultCounts' | 'contributions' | 'results';

export interface SparseRegions extends RegionLayout<SparseRegion> {
  /** Room of one message, of which each slot has two. */
  readonly messageBytes: number;
}

/** Of the longest elements. */
const MAX_ELEMENT_BYTES = 4;

/** Pure. The same for all ranks; where none has both roles, a rank's messages of either kind lie in the same memory. */
export function sparseRegions({ blockSize, lanes, slots }: SlotShape, hasBothRoles: boolean): SparseRegions {
  const messageBytes = sparseMessageBytes(lanes, blockSize * MAX_ELEMENT_BYTES);
  const layout = layOutRegions<SparseRegion>({
    board: sparseBoard.size,
    contributionCounts: slots * SLOT_COUNTER_BYTES,
    resultCounts: slots * SLOT_COUNTER_BYTES,
    contributions: slots * 2 * messageBytes,
    results: hasBothRoles ? slots * 2 * messageBytes : 'contributions',
  });
  return { ...layout, messageBytes };
}
