// An unpack whose descriptors were checked and written once, so that the kernel alone is measured.
import type { CudaDevice } from '../../../../device/cuda/cuda-device.ts';
import { LaunchedFragments, type WarpsPerSm } from '../../../../unpack/cuda/launched-fragments.ts';
import type { FragmentRun } from '../../../../unpack/fragment-engine.ts';
import type { DescriptorBlock } from '../../../../unpack/index.ts';
import { checkConfig, type DescriptorPool } from '../../../../unpack/launcher-config.ts';
import { RingWriter } from '../../../../unpack/ring-writer.ts';

export interface PreparedOptions {
  readonly numSms: number;
  readonly smallKernel: boolean;
  readonly warpsPerSm: WarpsPerSm;
  readonly memory: Required<DescriptorPool>['memory'];
}

export class PreparedUnpack {
  readonly #engine: LaunchedFragments;
  readonly #run: FragmentRun;

  static async create(
    device: CudaDevice,
    blocks: readonly DescriptorBlock[],
    { numSms, smallKernel, warpsPerSm, memory }: PreparedOptions,
  ): Promise<PreparedUnpack> {
    const pool = { slots: blocks.length, memory };
    const config = checkConfig({ numSms, smallKernel, pool }, device.properties.multiprocessors);
    const engine = await LaunchedFragments.create(device, config, 'unpack', warpsPerSm);
    const writer = new RingWriter('unpack', blocks.length);
    writer.take(blocks);
    writer.shareAmong(engine.warps, smallKernel);
    for (let block = 0; block < blocks.length; block++) writer.writeBlock(block, engine.slotWords(block));
    const { mostDescriptors, waits } = writer;
    const run = { ticket: 0, firstSlot: 0, blocks: blocks.length, mostDescriptors, isSmall: smallKernel, waits };
    return new PreparedUnpack(engine, run);
  }

  private constructor(engine: LaunchedFragments, run: FragmentRun) {
    this.#engine = engine;
    this.#run = run;
  }

  launch(): void {
    this.#engine.submit(this.#run);
  }

  close(): Promise<void> {
    return this.#engine.close();
  }
}
