// What the calls of an EpBuffer do across hosts on CPU ranks: which arrays travel, where they belong, who sums what.
import { dtypes } from '../../../core/dtype.ts';
import type { CallWait } from '../../../core/deadline.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { type Tensor } from '../../../device/tensor.ts';
import { TensorSet } from '../../../device/device.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import { HostExchange } from '../../across-hosts/host-exchange.ts';
import { type BesideRows, type ForwardedCall, HostCalls, RowSums } from '../../across-hosts/host-calls.ts';
import { type HostTokens, type RoutedTokens, routeTokens } from '../../across-hosts/routed-tokens.ts';
import type { CountExchange } from '../../../group/exchange.ts';
import { bufferNetworkShape, type EpRegion } from '../buffer-size.ts';
import type { CheckedCombine, DispatchPlanInput, EpScope } from '../call-arguments.ts';
import type { DispatchHandle } from '../dispatch-handle.ts';
import { fillLocalTables, makeAddressTables } from '../../../group/address-table.ts';

const localRegions = [
  'rows',
  'scales',
  'topkIdx',
  'topkWeights',
  'sourceToken',
  'combineRows',
  'combineWeights',
] as const satisfies readonly EpRegion[];

export class CpuBufferNetwork {
  readonly exchange: HostExchange;
  readonly #scope: EpScope<CpuDevice>;
  readonly #bases: ReturnType<typeof makeBases>;
  readonly #calls: HostCalls;

  /** Collective; fails alike on all ranks. */
  static async create(
    scope: EpScope<CpuDevice>,
    window: SymmetricWindow,
    wait: CallWait & { readonly memory: Tensor<'u8'> | undefined },
  ): Promise<CpuBufferNetwork> {
    const { group, device, config } = scope;
    const shape = bufferNetworkShape(config, group.topology.hosts);
    const options = { ...wait, group, device, name: 'ep', shape, calls: window, rows: window };
    const exchange = await HostExchange.create(options);
    try {
      return new CpuBufferNetwork(scope, window, exchange);
    } catch (error) {
      await exchange.close();
      throw error;
    }
  }

  private constructor(scope: EpScope<CpuDevice>, window: SymmetricWindow, exchange: HostExchange) {
    const { device } = scope;
    this.exchange = exchange;
    this.#scope = scope;
    this.#bases = makeBases(scope, window, exchange);
    this.#calls = new HostCalls(device, exchange, this.#bases.sums);
  }

  route(rowTable: Tensor<'i32'>, numTokens: number, perHost: Int32Array): RoutedTokens {
    return routeTokens(this.#scope.device, this.exchange, { numTokens, rowTable, rankTable: undefined, perHost });
  }

  /** `moveLocal` moves the rows of some tokens to the ranks of this host. */
  dispatch(
    { input, handle, isCached }: { input: DispatchPlanInput; handle: DispatchHandle; isCached: boolean },
    moveLocal: (first: number, count: number) => void,
    wait: CallWait,
  ): Promise<void> {
    const { size, config } = this.#scope;
    const { data, numTokens } = input;
    const rows = {
      address: data.address,
      rowBytes: config.hidden * dtypes[data.dtype].bytes,
      offset: size.regions.rows.offset,
      beside: besideRows(input),
      withPlaces: !isCached,
    };
    const spread: ForwardedCall['spread'] = (list, at) => this.#spread(input, list, at, isCached);
    const routed = handle.routed as RoutedTokens;
    return this.#calls.dispatch(
      { routed, rows, rowBases: this.#bases.local.rows.address, spread, numTokens, moveLocal },
      wait,
    );
  }

  combine(
    { handle, weights, biases }: CheckedCombine,
    out: { readonly rows: Tensor<'bf16'>; readonly weights: Tensor<'f32'> | undefined },
    { counts, ...wait }: CallWait & { readonly counts: CountExchange },
  ): Promise<void> {
    const { kernels } = this.#scope.device;
    const { local, sumRows, sumWeights } = this.#bases;
    const routed = handle.routed as RoutedTokens;
    const { sumTable, sumColumns } = routed;
    const k = weights?.shape[1] ?? 0;
    const summed = out.weights && {
      bytes: k * 4,
      sumHere: ({ places, columns }: HostTokens, first: number, count: number, to: number): void => {
        const table = places.address + first * columns * 4;
        kernels.gatherTopkWeight(to, count, k, columns, table, local.combineWeights.address);
      },
      addUp: (first: number, count: number): void => {
        const [to, table] = [out.weights!.address + first * k * 4, sumTable.address + first * sumColumns * 4];
        kernels.gatherTopkWeight(to, count, k, sumColumns, table, sumWeights.address);
      },
    };
    const call = { routed, numTokens: handle.numTokens, counts, out: out.rows.address, onePerRank: false };
    const bases = { bases: local.combineRows.address, sumBases: sumRows.address };
    const added = { biases: biases.map(({ address }) => address), weights: summed };
    return this.#calls.combine({ ...call, ...bases, ...added }, wait);
  }

  async close(): Promise<void> {
    await this.exchange.close();
    this.#bases[Symbol.dispose]();
  }

  /** What came beside the rows of one source goes to the ranks of this host. */
  #spread(
    input: DispatchPlanInput,
    { count, places, tokens, columns }: HostTokens,
    at: (array: BesideRows['array']) => number,
    isCached: boolean,
  ): void {
    const { group, device, config } = this.#scope;
    const { kernels } = device;
    const bases = this.#bases.local;
    const table = places.address;
    if (input.scales) {
      const bytes = input.scales.shape[1]! * 4;
      kernels.scatterRows(at('scales'), bytes, count, columns, table, 0, bases.scales.address);
    }
    if (isCached) return;
    kernels.scatterRows(tokens.address, 4, count, columns, table, 0, bases.sourceToken.address);
    const { topkIdx, topkWeights } = input;
    if (!topkIdx) return;
    const k = topkIdx.shape[1]!;
    const indexBytes = dtypes[topkIdx.dtype].bytes;
    const perRank = config.numExperts / group.size;
    const ranks = this.exchange.tables.localRanks.address;
    const idx = at('topkIdx');
    kernels.scatterTopkIndex(idx, indexBytes, count, k, columns, perRank, table, bases.topkIdx.address, ranks);
    if (!topkWeights) return;
    const from = at('topkWeights');
    const to = bases.topkWeights.address;
    kernels.scatterTopkWeight(idx, indexBytes, from, count, k, columns, perRank, table, to, ranks);
  }
}

/** Empty tensors have no bytes per token. */
function besideRows({ topkIdx, topkWeights, scales }: DispatchPlanInput): BesideRows[] {
  const arrays = Object.entries({ topkIdx, topkWeights, scales }) as [BesideRows['array'], Tensor | undefined][];
  return arrays.flatMap(([array, tensor]) => {
    if (tensor === undefined) return [];
    return [{ array, address: tensor.address, bytes: tensor.shape[1]! * dtypes[tensor.dtype].bytes }];
  });
}

/** Tables of addresses by rank of this host, or by column of a sum. Fails with WL_MEMORY. */
function makeBases({ device, size, config }: EpScope<CpuDevice>, window: SymmetricWindow, exchange: HostExchange) {
  const { ways, network } = exchange;
  const { routes } = network;
  const { hosts, host } = routes;
  const ownColumns = hosts[host]!.length;
  const { hidden, combinePrecision: precision } = config;
  const made = TensorSet.together(device, (tensors) => ({
    local: makeAddressTables(tensors, localRegions, window.addresses.length),
    sumRows: tensors.empty('i32', [ownColumns + ways.length]),
    sumWeights: tensors.empty('i32', [ownColumns + ways.length]),
    sums: new RowSums(device, tensors, { routes, ownColumns, hidden, dtype: 'bf16', precision }),
  }));
  fillLocalTables(made.local, window, size.regions);
  const byHost = (own: Tensor<'i32'>, theirs: 'hostRows' | 'hostWeights'): number[] =>
    hosts.flatMap((_, there) => {
      if (there === host) return [...own.view()];
      const way = ways.findIndex((one) => one.host === there);
      return [exchange.slotAddress(theirs, way) | 0];
    });
  made.sumRows.view().set(byHost(made.local.combineRows, 'hostRows'));
  made.sumWeights.view().set(byHost(made.local.combineWeights, 'hostWeights'));
  return made;
}
