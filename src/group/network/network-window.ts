// Memory that ranks of other hosts write to: a window that the ranks of this host share, or memory of this rank alone.
import type { MemoryRange } from '../../device/tensor.ts';

export interface NetworkWindow {
  /** Address of this rank's part. */
  readonly address: number;
  /** What peers may write to: the parts of all ranks that share it. */
  readonly parts: MemoryRange;
  /** Offset within `parts` of the part of the rank of that scale-up index, the same on every host. */
  offsetOf(index: number): number;
}

/** Memory of this rank alone, which the ranks of its host do not map. */
export function privateWindow(parts: MemoryRange): NetworkWindow {
  return { address: parts.address, parts, offsetOf: () => 0 };
}
