// Where what elastic ranks on GPUs share in memory of the host lies; pure, as sizes are asked for without a GPU.
import { EP_MAX_RANKS } from '../../../abi/ep-arguments.ts';
import { lowLatencyBell, lowLatencyCell, lowLatencyMapping, lowLatencyMember } from '../../../abi/low-latency.ts';
import { layOutRegions } from '../../../windows/region-layout.ts';

/** Of one rank's part. */
export const memberBoardLayout = layOutRegions<'cells' | 'bell' | 'member' | 'mapping'>({
  cells: EP_MAX_RANKS * lowLatencyCell.size,
  bell: lowLatencyBell.size,
  member: lowLatencyMember.size,
  mapping: lowLatencyMapping.size,
});
