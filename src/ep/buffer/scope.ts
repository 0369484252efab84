// What belongs together for all parts of one buffer; handles name it as their owner.
import type { Device } from '../../device/device.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { EpBufferConfig, EpBufferSize } from './buffer-size.ts';

export interface EpScope<D extends Device = Device> {
  readonly group: RankGroup;
  readonly device: D;
  readonly config: Readonly<Required<EpBufferConfig>>;
  readonly size: EpBufferSize;
}
