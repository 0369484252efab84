// What belongs together for all parts of one buffer; handles name it as their owner.
import type { Device } from '../../device/device.ts';
import type { World } from '../../world/world.ts';
import type { EpBufferConfig, EpBufferSize } from './buffer-size.ts';

export interface EpScope<D extends Device = Device> {
  readonly world: World;
  readonly device: D;
  readonly config: Readonly<Required<EpBufferConfig>>;
  readonly size: EpBufferSize;
}
