// The shapes of a bare copy kernel that are worth trying: blocks, warps, and how each warp stages rows in shared memory.
import { alignUp } from '../../../../abi/layout.ts';

export interface CopyShape {
  /** Each on an SM of its own; at most the SMs that the case has. */
  readonly blocks: number;
  /** Of a block. */
  readonly warps: number;
  /** Parts that one warp has in shared memory at once. */
  readonly slots: number;
  /** A row moves in equal parts of so many bytes. */
  readonly partBytes: number;
}

export interface CopyOf {
  readonly direction: 'push' | 'pull';
  readonly numSms: number;
  readonly ranks: number;
  readonly rowBytes: number;
  /** Shared memory of a block for staging. */
  readonly room: number;
}

/** The kernels take at most 32 warps and 4 slots. */
const warpCounts = [2, 3, 4, 6, 8, 12, 16, 24, 32] as const;
const slotCounts = [1, 2, 4] as const;
/** Most bytes of a part, before it is made an equal part of the row. */
const partLimits = [16_384, 8192, 4096, 2048, 1024] as const;

/**
 * At least one. Fewer bytes under way than fit are often faster: ranks that all send at once get into each other's way,
 * which is also why some of the SMs are better left idle.
 */
export function copyShapes(of: CopyOf): CopyShape[] {
  const parts = new Set(partLimits.map((limit) => equalPart(of.rowBytes, limit)));
  const blockCounts = countsTo(of.numSms);
  const shapes: CopyShape[] = [];
  for (const partBytes of parts) {
    for (const slots of slotCounts) {
      for (const warps of warpCounts) {
        for (const blocks of blockCounts) shapes.push({ blocks, warps, slots, partBytes });
      }
    }
  }
  return shapes.filter((shape) => stagedBytes(of, shape) <= of.room);
}

/** One that is never far from the fastest, for runs that do not seek it. */
export function usualCopyShape(of: CopyOf): CopyShape {
  const shapes = copyShapes(of);
  return shapes.find(({ blocks, warps, slots }) => blocks === of.numSms && warps === 8 && slots === 2) ?? shapes[0]!;
}

/** From half of the SMs to all of them, at most 9 counts. */
function countsTo(sms: number): number[] {
  const least = Math.ceil(sms / 2);
  const step = Math.max(1, Math.ceil((sms - least) / 8));
  return Array.from({ length: Math.floor((sms - least) / step) + 1 }, (_, index) => sms - index * step);
}

/** Bytes of shared memory that the warps of a block stage in. */
export function stagedBytes(of: CopyOf, { warps, slots, partBytes }: Omit<CopyShape, 'blocks'>): number {
  return warps * slots * partBytes * (of.direction === 'pull' ? of.ranks : 1);
}

/** Whole lines of 128 bytes, where a row has several parts. */
function equalPart(rowBytes: number, limit: number): number {
  const parts = Math.ceil(rowBytes / limit);
  return alignUp(Math.ceil(rowBytes / parts), parts === 1 ? 16 : 128);
}
