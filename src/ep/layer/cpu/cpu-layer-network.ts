// What the calls of an all-to-all layer do across hosts on CPU ranks: one row per (token, host) on the network, copied at the
// far side to the token's other experts there, and one sum per (token, host) back.
import type { Call } from '../../../group/calls.ts';
import type { CountExchange, ExchangeResult } from '../../../group/exchange.ts';
import type { CallWait } from '../../../core/deadline.ts';
import { dtypes } from '../../../core/dtype.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { type Tensor } from '../../../device/tensor.ts';
import { TensorSet } from '../../../device/device.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import {
  type ForwardedCall,
  HostCalls,
  makeRowSumTables,
  RowSums,
  type RowSumsShape,
  type RowSumTables,
} from '../../across-hosts/host-calls.ts';
import { HostExchange, ROW_WINDOW } from '../../across-hosts/host-exchange.ts';
import { type RoutedTokens, routeTokens } from '../../across-hosts/routed-tokens.ts';
import type { LayoutTensors } from '../../buffer/dispatch-layout.ts';
import type { EPConfig } from '../ep-config.ts';
import { HostLayout, type LayoutTables, sendRequests } from '../layout-desc.ts';
import { layerNetworkShape, type OutputRegion, type OutputSize } from '../output-size.ts';
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

interface Bases extends Disposable, Readonly<Record<(typeof regions)[number], Tensor<'i32'>>> {
  /** i32 [ranks + other hosts]: of expert rows by rank, then of the sums that come back, by way. */
  readonly sums: Tensor<'i32'>;
  readonly rowSums: RowSumTables;
}

export class CpuLayerNetwork {
  readonly exchange: HostExchange;
  readonly #group: RankGroup;
  readonly #device: CpuDevice;
  readonly #config: EPConfig;
  readonly #bases: Bases;
  readonly #sums: RowSums;
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
    const { hidden, maxTopk: ownColumns, tokenDtype: dtype, combinePrecision: precision } = config;
    const shape = { routes: exchange.network.routes, ownColumns, hidden, dtype, precision };
    this.#bases = makeBases(device, { local: control.ranks.length, ways: exchange.ways.length, config, shape });
    this.#sums = new RowSums(device, shape, this.#bases.rowSums);
    this.#calls = new HostCalls(device, exchange);
  }

  /** Before the output's window goes: peers can write to it no more. */
  releaseOutput(): Promise<void> {
    return this.exchange.network.releaseWindow(ROW_WINDOW);
  }

  /** Collective: the output is now this. */
  async replaceOutput(output: Output, wait: CallWait): Promise<void> {
    await this.exchange.network.replaceWindow(ROW_WINDOW, output.window, wait);
    this.#use(output);
  }

  /** How many tokens go to each host. */
  countHosts({ isTokenInRank }: LayoutTensors, tokens: number): Int32Array {
    return this.exchange.countHosts(this.#device, isTokenInRank, tokens);
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

  /** Behind it, and behind a local barrier, all ranks of all hosts have come to this point. */
  async meet(
    counts: CountExchange,
    call: Call,
    { withCounts, ...wait }: CallWait & { withCounts: boolean },
  ): Promise<void> {
    this.exchange.announce(counts, call, withCounts);
    await this.exchange.meet(counts, wait);
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
    const rowBases = this.#bases.rows.address;
    return this.#calls.dispatch({ routed, rows, rowBases, spread, numTokens, moveLocal }, wait);
  }

  combine(
    { out, routed, counts }: { readonly out: Tensor; readonly routed: RoutedTokens; readonly counts: CountExchange },
    { localCombine, ...wait }: CallWait & { readonly localCombine: boolean },
  ): Promise<void> {
    const sums = this.#sums;
    const { expertRows, sums: allRows } = this.#bases;
    const [from, sumsFrom, result] = [expertRows.address, allRows.address, out.address];
    return this.#calls.combine(
      {
        routed,
        numTokens: out.shape[0]!,
        counts,
        rowBytes: sums.sumBytes,
        weightBytes: 0,
        sumRows: (list, first, count, to) =>
          sums.sumHere(list, { first, count, out: to, bases: from, onePerRank: localCombine }),
        sumWeights: () => {},
        addUp: (first, count) =>
          sums.addUp(routed, { first, count, out: result, bases: sumsFrom, onePerRank: localCombine }),
      },
      wait,
    );
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
    const bases = this.#bases;
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
    const at = (region: OutputRegion): number[] =>
      window.addresses.map((address) => (address + size.regions[region].offset) | 0);
    for (const region of regions) this.#bases[region].view().set(at(region));
    const { exchange } = this;
    const { scaleUpRanks } = this.#group.topology;
    const sums = this.#bases.sums.view().fill(0);
    const rows = at('expertRows');
    for (const [index, rank] of scaleUpRanks.entries()) sums[rank] = rows[index]!;
    for (const way of exchange.ways.keys()) sums[this.#group.size + way] = exchange.slotAddress('hostRows', way) | 0;
  }
}

/** Fails with WL_MEMORY. */
function makeBases(
  device: CpuDevice,
  of: { local: number; ways: number; config: EPConfig; shape: RowSumsShape },
): Bases {
  const { local, ways, config, shape } = of;
  const { set, made } = TensorSet.make(device, (tensors) => ({
    rows: tensors.empty('i32', [local]),
    weights: tensors.empty('i32', [local]),
    sourceToken: tensors.empty('i32', [local]),
    firstRow: tensors.empty('i32', [local]),
    duplicates: tensors.empty('i32', [local]),
    expertRows: tensors.empty('i32', [local]),
    sums: tensors.empty('i32', [config.worldSize + ways]),
    rowSums: makeRowSumTables(tensors, shape),
  }));
  return { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
}
