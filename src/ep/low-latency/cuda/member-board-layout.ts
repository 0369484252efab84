// Where what elastic ranks on GPUs share in memory of the host lies; pure, as sizes are asked for without a GPU.
import { EP_MAX_RANKS } from '../../../abi/ep.ts';
import { defineLayout } from '../../../abi/layout.ts';
import { lowLatencyMember } from '../../../abi/low-latency.ts';
import { lowLatencyBell, lowLatencyCell } from '../members/low-latency-cells.ts';
import { layOutRegions } from '../../../windows/region-layout.ts';

/** Of one rank, in its own part of what elastic ranks on GPUs share: how others map its window, and whose it has mapped. */
export const lowLatencyMapping = defineLayout(
  'LowLatencyMapping',
  {
    /** Of the window of `life`, which is stored behind it. */
    handle: { of: 'u8', count: 64 },
    /** By rank: the life of the window that this rank has mapped; 0 for none. */
    mapped: { of: 'i32', count: EP_MAX_RANKS },
  },
  64,
);

/** Of one rank's part. */
export const memberBoardLayout = layOutRegions<'cells' | 'bell' | 'member' | 'mapping'>({
  cells: EP_MAX_RANKS * lowLatencyCell.size,
  bell: lowLatencyBell.size,
  member: lowLatencyMember.size,
  mapping: lowLatencyMapping.size,
});
