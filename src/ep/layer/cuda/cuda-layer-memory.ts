// The windows of an all-to-all layer on GPUs: one with barrier cells and the count exchange, one with the output.
import { EP_SYNC_BYTES } from '../../../abi/ep.ts';
import { LAYER_SECTION_BYTES, layerRecordWords } from '../../../abi/ep-layer.ts';
import { type CallWait, remaining } from '../../../core/deadline.ts';
import type { CudaDevice } from '../../../device/cuda/cuda-device.ts';
import { Tensor } from '../../../device/tensor.ts';
import { PlacedRegions } from '../../../windows/region-layout.ts';
import { CudaWindow } from '../../../windows/cuda-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { EXCHANGE_HEADER_WORDS, exchangeRecordBytes, exchangeRegionBytes } from '../../../abi/exchange-record.ts';
import { requireCudaLimits } from '../../../group/cuda-calls.ts';
import { requireNetworkLimits } from '../../across-hosts/cuda-host-network.ts';
import { countedHosts } from '../../across-hosts/network-size.ts';
import type { GatheredCounts } from '../expert-plan.ts';
import type { EPConfig } from '../ep-config.ts';
import { LayerMemory } from '../layer-memory.ts';
import { type OutputRegion, type OutputSize, outputSize } from '../output-size.ts';

interface Output {
  readonly window: CudaWindow;
  readonly size: OutputSize;
  readonly regions: PlacedRegions<OutputRegion>;
}

export class CudaLayerMemory extends LayerMemory<Output> {
  readonly kind = 'cuda';
  readonly device: CudaDevice;
  /** EP_SYNC_BYTES for barriers, then the words of sections, then the exchange records. */
  readonly control: CudaWindow;
  /** Memory of the caller for the network side. */
  readonly rdmaBuffer: Tensor<'u8'> | undefined;
  readonly #group: RankGroup;
  readonly #config: EPConfig;

  /** Collective; without an output yet. */
  static async create(
    group: RankGroup,
    device: CudaDevice,
    config: EPConfig,
    { rdmaBuffer, ...wait }: CallWait & { readonly rdmaBuffer?: Tensor<'u8'> | undefined },
  ): Promise<CudaLayerMemory> {
    requireCudaLimits('EPAll2AllLayer', group, config.numExperts);
    requireNetworkLimits('EPAll2AllLayer', group.topology);
    const bytes =
      EP_SYNC_BYTES +
      LAYER_SECTION_BYTES +
      exchangeRegionBytes({ ranks: group.size, experts: config.numExperts, hosts: countedHosts(group) });
    const control = await CudaWindow.create({ ...wait, group, device, name: 'a2a-control', bytes });
    return new CudaLayerMemory(control, { group, device, config, rdmaBuffer });
  }

  private constructor(
    control: CudaWindow,
    of: { group: RankGroup; device: CudaDevice; config: EPConfig; rdmaBuffer: Tensor<'u8'> | undefined },
  ) {
    super();
    this.rdmaBuffer = of.rdmaBuffer;
    this.control = control;
    this.device = of.device;
    this.#group = of.group;
    this.#config = of.config;
  }

  get windowBytes(): number {
    return this.control.bytes + this.size.bytes;
  }

  /** Start of the output at each rank, by scale-up index, as this process maps it. */
  get outputAddresses(): readonly number[] {
    return this.present().window.addresses;
  }

  async allocate(rows: number, wait: CallWait): Promise<void> {
    const [group, device] = [this.#group, this.device];
    if (this.output !== undefined) {
      // What was launched before may still use it; afterwards nobody may free what others have mapped.
      await device.drained(remaining(wait));
      const { window } = this.output;
      this.output = undefined;
      window.closePeers();
      await group.barrier('a2a-output unmapped', remaining(wait));
      window[Symbol.dispose]();
    }
    const size = outputSize(this.#config, rows);
    const window = await CudaWindow.create({ ...wait, group, device, name: 'a2a-output', bytes: size.bytes });
    this.output = { window, size, regions: new PlacedRegions(window, size.regions) };
  }

  /** What all ranks counted for the dispatch of that number, which is the last one or the one before. */
  async readCounts(sequence: number): Promise<GatheredCounts> {
    const { worldSize: ranks, numExperts: experts } = this.#config;
    const words = exchangeRecordBytes({ ranks, experts, hosts: countedHosts(this.#group) }) / 4;
    const offset = EP_SYNC_BYTES + LAYER_SECTION_BYTES + (sequence & 1) * ranks * words * 4;
    const records = await new Tensor(this.control.storage, 'i32', [ranks, words], offset).toHost();
    const numTokens = new Int32Array(ranks);
    const perExpert = new Int32Array(ranks * experts);
    for (let source = 0; source < ranks; source++) {
      const record = records.subarray(source * words, (source + 1) * words);
      numTokens[source] = record[layerRecordWords.numTokens]!;
      // Counts per expert stand behind the header and the counts per rank.
      const first = EXCHANGE_HEADER_WORDS + ranks;
      perExpert.set(record.subarray(first, first + experts), source * experts);
    }
    return { numTokens, perExpert };
  }

  async close(): Promise<void> {
    if (this.control.storage.disposed) return;
    // Kernels that still run use the windows; a lost device runs none.
    await this.device.drained().catch(() => {});
    this.output?.window[Symbol.dispose]();
    this.output = undefined;
    this.control[Symbol.dispose]();
  }
}
