// The shapes that `bench ep --shapes` tries.
import type { TriedShapes } from '../../../../collective/tried-shapes.ts';

const SENDING_BLOCKS = [8, 10, 12, 14, 16, 20, 24] as const;
const SENDING_WARPS = [1, 2, 3, 4, 6, 8, 12] as const;
/** Whole rows of 7168 bf16 elements and parts of them, of which a warp may have several at once. */
const SENDING_PARTS = [
  { mostPartBytes: 16_384, stages: 1 },
  { mostPartBytes: 8192, stages: 1 },
  { mostPartBytes: 8192, stages: 2 },
  { mostPartBytes: 4096, stages: 1 },
  { mostPartBytes: 4096, stages: 2 },
  { mostPartBytes: 2048, stages: 4 },
] as const;
const GATHER_BLOCKS = [8, 12, 14, 16, 20, 24] as const;
/** The kernel takes at most 8. */
const GATHER_WARPS = [3, 4, 5, 6, 7, 8] as const;
const GATHER_STAGES = [2, 3, 4] as const;

/** Those of the rules first; then each with at most so many blocks. */
export function sweptShapes(numSms: number): TriedShapes[] {
  const fits = (blocks: number): boolean => blocks <= numSms;
  const sending = SENDING_PARTS.flatMap((parts) =>
    SENDING_WARPS.flatMap((warps) =>
      SENDING_BLOCKS.filter(fits).map((blocks) => ({ sending: { blocks, warps, ...parts } })),
    ),
  );
  const gather = GATHER_STAGES.flatMap((stages) =>
    GATHER_WARPS.flatMap((warps) =>
      GATHER_BLOCKS.filter(fits).map((blocks) => ({ gather: { blocks, warps, stages } })),
    ),
  );
  return [{}, ...sending, ...gather];
}
