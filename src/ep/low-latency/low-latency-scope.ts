// What belongs together for all parts of one EpLowLatency; handles name it as their owner.
import type { Device } from '../../device/device.ts';
import type { RankGroup } from '../../world/rank-group.ts';
import type { LowLatencyConfig, LowLatencySize } from './low-latency-size.ts';

export interface LowLatencyScope<D extends Device = Device> {
  readonly group: RankGroup;
  readonly device: D;
  readonly config: Readonly<Required<LowLatencyConfig>>;
  readonly size: LowLatencySize;
}
