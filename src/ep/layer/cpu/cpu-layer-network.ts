// What the calls of an all-to-all layer do across hosts on CPU ranks: one row per (token, host) on the network, copied at the
// far side to the token's other experts there, and one sum per (token, host) back.
import type { CountExchange, ExchangeResult } from '../../../group/exchange.ts';
import type { CallWait } from '../../../core/deadline.ts';
import { dtypes } from '../../../core/dtype.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { TensorSet } from '../../../device/device.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { type ForwardedCall, HostCalls, RowSums } from '../../across-hosts/host-calls.ts';
import { HostExchange, ROW_WINDOW } from '../../across-hosts/host-exchange.ts';
import { type RoutedTokens, routeTokens } from '../../across-hosts/routed-tokens.ts';
import { fillLocalTables, makeAddressTables } from '../../../group/address-table.ts';
import type { EPConfig } from '../ep-config.ts';
import { HostLayout, type LayoutTables, sendRequests } from '../layout-desc.ts';
import { layerNetworkShape, type OutputSize } from '../output-size.ts';
import type { LayerInput } from '../layer-arguments.ts';

/** What a layer's windows are on several hosts: the control window with the exchange, and the output, which grows. */
interface LayerNetworkOptions extends CallWait {
  readonly group: RankGroup;
  readonly device: CpuDevice;
  readonly config: EPConfig;
  readonly control: SymmetricWindow;
  readonly output: SymmetricWindow;
  /** The caller's, for the network side. */
  readonly memory: Tensor<'u8'> | undefined;
}

/** The output as it is now. */
interface Output {
  readonly window: SymmetricWindow;
  readonly size: OutputSize;
}

/** Regions that a forwarder writes; `expertRows` is what it sums. */
const regions = ['rows', 'weights', 'sourceToken', 'firstRow', 'duplicates', 'expertRows'] as const;

export class CpuLayerNetwork {
  readonly exchange: HostExchange;
  readonly #group: RankGroup;
  readonly #device: CpuDevice;
  readonly #config: EPConfig;
  readonly #bases: ReturnType<typeof makeBases>;
  readonly #calls: HostCalls;
  #output: OutputSize | undefined;

  /** Collective over a group on several hosts; fails alike on all ranks. */
  static async create(options: LayerNetworkOptions, size: OutputSize): Promise<CpuLayerNetwork> {
    const { group, config, control, output } = options;
    const shape = layerNetworkShape(config, group.topology.hosts);
    const exchange = await HostExchange.create({ ...options, name: 'a2a', shape, calls: control, rows: output });
    try {
      const network = new CpuLayerNetwork(options, exchange);
      network.#use({ window: output, size });
      return network;
    } catch (error) {
      await exchange.close();
      throw error;
    }
  }

  private constructor({ group, device, config, control }: LayerNetworkOptions, exchange: HostExchange) {
    this.exchange = exchange;
    this.#group = group;
    this.#device = device;
    this.#config = config;
    this.#bases = makeBases(device, exchange, { config, local: control.ranks.length });
    this.#calls = new HostCalls(device, exchange, this.#bases.rowSums);
  }

  /** Lets peers write to the output's window no more, before it goes. */
  releaseOutput(): Promise<void> {
    return this.exchange.network.releaseWindow(ROW_WINDOW);
  }

  /** Collective: the output is now this. */
  async replaceOutput(output: Output, wait: CallWait): Promise<void> {
    await this.exchange.network.replaceWindow(ROW_WINDOW, output.window, wait);
    this.#use(output);
  }

  route(
    { numTokens, topkIdx: ids }: LayerInput,
    tables: Pick<LayoutTables, 'rowTable' | 'rankTable'>,
    counts: Pick<ExchangeResult, 'perHost' | 'numTokens'>,
  ): RoutedTokens {
    const choices = { ids, numTokens: counts.numTokens };
    return routeTokens(this.#device, this.exchange, { ...tables, numTokens, perHost: counts.perHost, choices });
  }

  /** What this rank asks other nodes to take. */
  requests({ topkIdx }: LayerInput): Int32Array {
    const { numExperts, numExpertsPerRank, maxTopk: topk, maxTokensPerRank } = this.#config;
    const { hosts, host } = this.exchange.network.routes;
    const hostOfRank = this.exchange.tables.hostOf.view();
    const hostOf = Array.from(
      { length: numExperts },
      (_, expert) => hostOfRank[Math.floor(expert / numExpertsPerRank)]!,
    );
    return sendRequests(topkIdx.view(), hostOf, { host, hosts: hosts.length, maxTopk: topk, maxTokensPerRank });
  }

  /** What a descriptor of the dispatch tells by node; it goes with its tables. */
  describe(
    { topkIdx: { dtype: indexDtype } }: LayerInput,
    { routed, rowTable, rankTable }: Pick<LayoutTables, 'routed' | 'rowTable' | 'rankTable'>,
  ): HostLayout {
    if (routed === undefined) throw new WeftlineError('WL_INTERNAL', 'A dispatch was described before it was routed');
    const { routes } = this.exchange.network;
    const [device, config] = [this.#device, this.#config];
    return new HostLayout({ device, config, routes, routed, rowTable, rankTable, indexDtype });
  }

  dispatch(
    { input, routed }: { readonly input: LayerInput; readonly routed: RoutedTokens },
    moveLocal: (first: number, count: number) => void,
    wait: CallWait,
  ): Promise<void> {
    const { rowBytes } = this.#config;
    const { topkWeights, numTokens } = input;
    const weightBytes = topkWeights ? this.#config.maxTopk * dtypes[topkWeights.dtype].bytes : 0;
    const rows = {
      address: input.x.address,
      rowBytes,
      offset: this.#output!.regions.rows.offset,
      beside: topkWeights ? [{ array: 'topkWeights', address: topkWeights.address, bytes: weightBytes } as const] : [],
      withPlaces: true,
    };
    const spread: ForwardedCall['spread'] = (list, at) => this.#spread(input, list, at('topkWeights'));
    const rowBases = this.#bases.local.rows.address;
    return this.#calls.dispatch({ routed, rows, rowBases, spread, numTokens, moveLocal }, wait);
  }

  combine(
    { out, routed, counts }: { readonly out: Tensor; readonly routed: RoutedTokens; readonly counts: CountExchange },
    { localCombine, ...wait }: CallWait & { readonly localCombine: boolean },
  ): Promise<void> {
    const { local, sums } = this.#bases;
    const call = { routed, numTokens: out.shape[0]!, counts, out: out.address, onePerRank: localCombine };
    return this.#calls.combine({ ...call, bases: local.expertRows.address, sumBases: sums.address }, wait);
  }

  async close(): Promise<void> {
    await this.exchange.close();
    this.#bases[Symbol.dispose]();
  }

  /** What came beside the rows of one source goes to the ranks of this host. */
  #spread(
    { topkWeights, fullScatterIndices }: LayerInput,
    list: Parameters<ForwardedCall['spread']>[0],
    weights: number,
  ): void {
    const { kernels } = this.#device;
    const bases = this.#bases.local;
    const { maxTopk: topk } = this.#config;
    const { count, places, ranks, tokens } = list;
    const [table, ranksOf] = [places.address, ranks!.address];
    if (fullScatterIndices) {
      kernels.scatterRows(tokens.address, 4, count, topk, table, ranksOf, bases.sourceToken.address);
    }
    if (topkWeights) {
      const { bytes } = dtypes[topkWeights.dtype];
      kernels.scatterWeight(weights, bytes, count, topk, table, ranksOf, bases.weights.address);
    }
    kernels.scatterDuplicates(count, topk, table, ranksOf, bases.firstRow.address, bases.duplicates.address);
  }

  #use({ window, size }: Output): void {
    this.#output = size;
    const { exchange } = this;
    const { local, sums } = this.#bases;
    fillLocalTables(local, window, size.regions);
    const [bySum, rows] = [sums.view().fill(0), local.expertRows.view()];
    for (const [index, rank] of this.#group.topology.scaleUpRanks.entries()) bySum[rank] = rows[index]!;
    for (const way of exchange.ways.keys()) bySum[this.#group.size + way] = exchange.slotAddress('hostRows', way) | 0;
  }
}

/** Fails with WL_MEMORY. */
function makeBases(device: CpuDevice, { ways, network }: HostExchange, of: { config: EPConfig; local: number }) {
  const { hidden, maxTopk, tokenDtype: dtype, combinePrecision: precision, worldSize } = of.config;
  const shape = { routes: network.routes, ownColumns: maxTopk, hidden, dtype, precision };
  return TensorSet.together(device, (tensors) => ({
    local: makeAddressTables(tensors, regions, of.local),
    /** Addresses of expert rows by rank, then of the sums that come back, by way. */
    sums: tensors.empty('i32', [worldSize + ways.length]),
    rowSums: new RowSums(device, tensors, shape),
  }));
}
