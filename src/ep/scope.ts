// What the argument checks need to know of a buffer; EpBuffer itself satisfies it.
import type { CpuDevice } from '../device/cpu/cpu-device.ts';
import type { World } from '../world/world.ts';
import type { EpBufferConfig, EpBufferSize } from './buffer-size.ts';

export interface EpScope {
  readonly world: World;
  readonly device: CpuDevice;
  readonly config: Readonly<Required<EpBufferConfig>>;
  readonly size: EpBufferSize;
}
