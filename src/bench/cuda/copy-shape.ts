// The shapes of a bare copy kernel that are worth trying: warps, and how each stages rows in shared memory.
import { alignUp } from '../../abi/layout.ts';

export interface CopyShape {
  readonly warps: number;
  /** Parts that one warp has in shared memory at once. */
  readonly slots: number;
  /** A row moves in equal parts of so many bytes. */
  readonly partBytes: number;
  /** Whether the bulk copy engine moves side rows (scales) too, or the lanes do. */
  readonly sidesByEngine: boolean;
}

export interface CopyOf {
  readonly direction: 'push' | 'pull';
  readonly ranks: number;
  readonly rowBytes: number;
  readonly sideBytes: number;
  /** Shared memory of a block for staging. */
  readonly room: number;
}

/** The kernels' own limits. */
const MOST_WARPS = 32;
const warpCounts = [4, 6, 7, 8, 12, 16, 24, MOST_WARPS] as const;
const slotCounts = [1, 2, 4] as const;
/** Most bytes of a part, before it is made an equal part of the row. */
const partLimits = [16_384, 8192, 4096, 2048] as const;

/** At least one. */
export function copyShapes(of: CopyOf): CopyShape[] {
  const parts = new Set(partLimits.map((limit) => equalPart(of.rowBytes, limit)));
  const byEngine = of.sideBytes > 0 && of.sideBytes % 16 === 0 ? [false, true] : [false];
  const shapes: CopyShape[] = [];
  for (const partBytes of parts) {
    for (const slots of slotCounts) {
      for (const warps of warpCounts) {
        for (const sidesByEngine of byEngine) shapes.push({ warps, slots, partBytes, sidesByEngine });
      }
    }
  }
  return shapes.filter((shape) => stagedBytes(of, shape) <= of.room);
}

/** Shared memory that all warps of a block stage in. */
export function stagedBytes(of: CopyOf, { warps, slots, partBytes, sidesByEngine }: CopyShape): number {
  const slot = of.direction === 'pull' ? of.ranks * partBytes : partBytes + (sidesByEngine ? of.sideBytes : 0);
  return warps * slots * slot;
}

/** Whole lines of 128 bytes, where a row has several parts. */
function equalPart(rowBytes: number, limit: number): number {
  const parts = Math.ceil(rowBytes / limit);
  return alignUp(Math.ceil(rowBytes / parts), parts === 1 ? 16 : 128);
}
