// The windows of an all-to-all layer on CPU ranks: one with the count exchange and the barrier, one with the output.
import type { CallWait } from '../../../core/deadline.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { TensorSet } from '../../../device/device.ts';
import { checkMemoryBudget } from '../../../windows/memory-budget.ts';
import { PlacedRegions } from '../../../windows/region-layout.ts';
import { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { type AddressTables, fillAddressTables, makeAddressTables } from '../../../group/address-table.ts';
import { exchangeRegionBytes } from '../../../abi/exchange-record.ts';
import { describeCall } from '../../../group/calls.ts';
import { CountExchange } from '../../../group/exchange.ts';
import type { EPConfig } from '../ep-config.ts';
import { countedHosts, ranksOfHosts } from '../../across-hosts/network-size.ts';
import type { CpuLayerNetwork } from './cpu-layer-network.ts';
import { LayerMemory } from '../layer-memory.ts';
import { type OutputRegion, type OutputSize, outputSize } from '../output-size.ts';

interface Output {
  readonly window: SymmetricWindow;
  readonly size: OutputSize;
  readonly regions: PlacedRegions<OutputRegion>;
  readonly bases: AddressTables<OutputRegion>;
  readonly set: TensorSet;
}

export class CpuLayerMemory extends LayerMemory<Output> {
  readonly kind = 'cpu';
  /** The window whose barrier orders the layer's calls; it holds the exchange records. */
  readonly control: SymmetricWindow;
  readonly exchange: CountExchange;
  readonly #group: RankGroup;
  readonly #device: CpuDevice;
  readonly #config: EPConfig;
  readonly #rdmaBuffer: Tensor<'u8'> | undefined;
  /** The way to the other hosts of a group on several, once there is an output. */
  network: CpuLayerNetwork | undefined;

  /** Collective; without an output yet. */
  static async create(
    group: RankGroup,
    device: CpuDevice,
    config: EPConfig,
    { rdmaBuffer, ...wait }: CallWait & { readonly rdmaBuffer?: Tensor<'u8'> | undefined },
  ): Promise<CpuLayerMemory> {
    const bytes = exchangeRegionBytes({ ranks: group.size, experts: config.numExperts, hosts: countedHosts(group) });
    const of = { group, device, name: 'a2a-control', bytes, describeCall };
    return new CpuLayerMemory(await SymmetricWindow.create({ ...wait, ...of }), { group, device, config, rdmaBuffer });
  }

  private constructor(
    control: SymmetricWindow,
    of: { group: RankGroup; device: CpuDevice; config: EPConfig; rdmaBuffer: Tensor<'u8'> | undefined },
  ) {
    super();
    this.control = control;
    this.exchange = new CountExchange(of.device, control, {
      offset: 0,
      group: of.group,
      ranks: of.group.size,
      experts: of.config.numExperts,
      hosts: countedHosts(of.group),
    });
    this.#group = of.group;
    this.#device = of.device;
    this.#config = of.config;
    this.#rdmaBuffer = of.rdmaBuffer;
  }

  get windowBytes(): number {
    return this.control.bytes + this.size.bytes + (this.size.network?.bytes ?? 0);
  }

  /** Every rank fails alike, also when only one of them has no memory for its tables. */
  async allocate(rows: number, wait: CallWait): Promise<void> {
    await this.network?.releaseOutput();
    this.#releaseOutput();
    const [group, device] = [this.#group, this.#device];
    const size = outputSize(this.#config, rows, ranksOfHosts(group));
    const tables: { set?: TensorSet; bases?: AddressTables<OutputRegion> } = {};
    const parts = [{ name: 'windows for the output', bytes: size.bytes, isShared: true }];
    const prepare = (): void => {
      checkMemoryBudget(`EPAll2AllLayer with ${rows} rows per rank`, parts, { group, device });
      const names = Object.keys(size.regions) as OutputRegion[];
      const { set, made } = TensorSet.make(device, (tensors) => makeAddressTables(tensors, names, group.size));
      tables.set = set;
      tables.bases = made;
    };
    try {
      const of = { group, device, name: 'a2a-output', bytes: size.bytes, describeCall, prepare };
      const window = await SymmetricWindow.create({ ...wait, ...of });
      const { set, bases } = tables as Required<typeof tables>;
      fillAddressTables(bases, { window, group }, size.regions);
      this.output = { window, size, regions: new PlacedRegions(window, size.regions), bases, set };
      await this.#connect({ window, size }, wait);
    } catch (error) {
      if (this.output === undefined) tables.set?.[Symbol.dispose]();
      else this.#releaseOutput();
      throw error;
    }
  }

  /** Table of the addresses of a region at all ranks, for kernels. */
  bases(region: OutputRegion): number {
    return this.present().bases[region].address;
  }

  async close(): Promise<void> {
    // Its engines write into the windows.
    await this.network?.close();
    this.#releaseOutput();
    this.control[Symbol.dispose]();
  }

  async #connect({ window, size }: Pick<Output, 'window' | 'size'>, wait: CallWait): Promise<void> {
    const { control } = this;
    const [group, device, config] = [this.#group, this.#device, this.#config];
    if (countedHosts(group) === 0) return;
    if (this.network !== undefined) return this.network.replaceOutput({ window, size }, wait);
    const of = { group, device, config, control, output: window, memory: this.#rdmaBuffer };
    // Loaded here, so that ranks of one host never load what links to others need.
    const { CpuLayerNetwork: Network } = await import('./cpu-layer-network.ts');
    this.network = await Network.create({ ...wait, ...of }, size);
  }

  #releaseOutput(): void {
    this.output?.window[Symbol.dispose]();
    this.output?.set[Symbol.dispose]();
    this.output = undefined;
  }
}
