// The shapes that `bench ep --shapes` tries.
import type { TriedShapes } from '../../../../group/tried-shapes.ts';

const SENDING_BLOCKS = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24] as const;
const SENDING_WARPS = [1, 2, 3, 4, 5, 6, 8, 12] as const;
/** Of rows of 7168 elements. Larger ones would leave room for fewer warps than are asked for. */
const SENDING_PARTS = [8192, 4096, 2048] as const;
const GATHER_BLOCKS = [7, 8, 10, 12, 14, 16, 20, 24] as const;
/** The kernel takes at most 16. */
const GATHER_WARPS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16] as const;

/** Those of the rules first; then each with at most so many blocks. */
export function sweptShapes(numSms: number): TriedShapes[] {
  const fits = (blocks: number): boolean => blocks <= numSms;
  const sending = SENDING_PARTS.flatMap((mostPartBytes) =>
    SENDING_WARPS.flatMap((warps) =>
      SENDING_BLOCKS.filter(fits).map((blocks) => ({ sending: { blocks, warps, mostPartBytes } })),
    ),
  );
  const gather = GATHER_WARPS.flatMap((warps) =>
    GATHER_BLOCKS.filter(fits).map((blocks) => ({ gather: { blocks, warps } })),
  );
  return [{}, ...sending, ...gather];
}
