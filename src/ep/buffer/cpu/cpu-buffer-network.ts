// What the calls of an EpBuffer do across hosts on CPU ranks: which arrays travel, where they belong, who sums what.
import { dtypes } from '../../../core/dtype.ts';
import type { CallWait } from '../../../core/deadline.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { type Tensor } from '../../../device/tensor.ts';
import { TensorSet } from '../../../device/device.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import { HostExchange } from '../../across-hosts/host-exchange.ts';
import {
  type BesideRows,
  type ForwardedCall,
  HostCalls,
  makeRowSumTables,
  RowSums,
  type RowSumsShape,
  type RowSumTables,
} from '../../across-hosts/host-calls.ts';
import { type HostTokens, type RoutedTokens, routeTokens } from '../../across-hosts/routed-tokens.ts';
import type { CountExchange } from '../../../group/exchange.ts';
import { bufferNetworkShape, type EpRegion } from '../buffer-size.ts';
import type { CheckedCombine, DispatchPlanInput, EpScope } from '../call-arguments.ts';
import type { DispatchHandle } from '../dispatch-handle.ts';
import type { LayoutTensors } from '../dispatch-layout.ts';

/** Tables of addresses by rank of this host, or by column of a sum. */
interface Bases extends Disposable {
  readonly rows: Tensor<'i32'>;
  readonly scales: Tensor<'i32'>;
  readonly topkIdx: Tensor<'i32'>;
  readonly topkWeights: Tensor<'i32'>;
  readonly sourceToken: Tensor<'i32'>;
  readonly combineRows: Tensor<'i32'>;
  readonly combineWeights: Tensor<'i32'>;
  readonly sumRows: Tensor<'i32'>;
  readonly sumWeights: Tensor<'i32'>;
  readonly sums: RowSumTables;
}

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
  readonly #bases: Bases;
  readonly #sums: RowSums;
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
    const sums = sumsShape(scope, exchange);
    this.#bases = makeBases(scope, window, { exchange, sums });
    this.#sums = new RowSums(device, sums, this.#bases.sums);
    this.#calls = new HostCalls(device, exchange);
  }

  /** How many tokens go to each host. */
  countHosts({ isTokenInRank }: LayoutTensors, tokens: number): Int32Array {
    return this.exchange.countHosts(this.#scope.device, isTokenInRank, tokens);
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
      { routed, rows, rowBases: this.#bases.rows.address, spread, numTokens, moveLocal },
      wait,
    );
  }

  async combine(
    { handle, weights, biases }: CheckedCombine,
    out: { readonly rows: Tensor<'bf16'>; readonly weights: Tensor<'f32'> | undefined },
    { counts, ...wait }: CallWait & { readonly counts: CountExchange },
  ): Promise<void> {
    const { kernels } = this.#scope.device;
    const routed = handle.routed as RoutedTokens;
    const { sumTable, sumColumns } = routed;
    const k = weights?.shape[1] ?? 0;
    const bases = this.#bases;
    const sums = this.#sums;
    const { numTokens } = handle;
    const [bias0, bias1] = [biases[0]?.address, biases[1]?.address];
    const [from, sumsFrom, result] = [bases.combineRows.address, bases.sumRows.address, out.rows.address];
    await this.#calls.combine(
      {
        routed,
        numTokens,
        counts,
        rowBytes: sums.sumBytes,
        weightBytes: k * 4,
        sumRows: (list, first, count, to) =>
          sums.sumHere(list, { first, count, out: to, bases: from, onePerRank: false }),
        sumWeights: ({ places, columns }, first, count, to) => {
          const table = places.address + first * columns * 4;
          kernels.gatherTopkWeight(to, count, k, columns, table, bases.combineWeights.address);
        },
        addUp: (first, count) => {
          sums.addUp(routed, { first, count, out: result, bases: sumsFrom, onePerRank: false }, bias0, bias1);
          if (!out.weights) return;
          const [to, table] = [out.weights.address + first * k * 4, sumTable.address + first * sumColumns * 4];
          kernels.gatherTopkWeight(to, count, k, sumColumns, table, bases.sumWeights.address);
        },
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
    input: DispatchPlanInput,
    { count, places, tokens, columns }: HostTokens,
    at: (array: BesideRows['array']) => number,
    isCached: boolean,
  ): void {
    const { group, device, config } = this.#scope;
    const { kernels } = device;
    const bases = this.#bases;
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
  const arrays = { topkIdx, topkWeights, scales };
  return Object.entries(arrays).flatMap(([array, tensor]) =>
    tensor === undefined
      ? []
      : [
          {
            array: array as BesideRows['array'],
            address: tensor.address,
            bytes: tensor.shape[1]! * dtypes[tensor.dtype].bytes,
          },
        ],
  );
}

/** A column per rank of this host. */
function sumsShape({ config }: EpScope, { network: { routes } }: HostExchange): RowSumsShape {
  const ownColumns = routes.hosts[routes.host]!.length;
  return { routes, ownColumns, hidden: config.hidden, dtype: 'bf16', precision: config.combinePrecision };
}

/** Fails with WL_MEMORY. */
function makeBases(
  { device, size }: EpScope<CpuDevice>,
  window: SymmetricWindow,
  { exchange, sums }: { readonly exchange: HostExchange; readonly sums: RowSumsShape },
): Bases {
  const { hosts, host } = exchange.network.routes;
  const { ways } = exchange;
  const local = window.addresses.length;
  const columns = local + ways.length;
  const { set, made } = TensorSet.make(device, (tensors) => ({
    rows: tensors.empty('i32', [local]),
    scales: tensors.empty('i32', [local]),
    topkIdx: tensors.empty('i32', [local]),
    topkWeights: tensors.empty('i32', [local]),
    sourceToken: tensors.empty('i32', [local]),
    combineRows: tensors.empty('i32', [local]),
    combineWeights: tensors.empty('i32', [local]),
    sumRows: tensors.empty('i32', [columns]),
    sumWeights: tensors.empty('i32', [columns]),
    sums: makeRowSumTables(tensors, sums),
  }));
  const at = (region: EpRegion): number[] =>
    window.addresses.map((address) => (address + size.regions[region].offset) | 0);
  for (const region of localRegions) made[region].view().set(at(region));
  const byHost = (own: EpRegion, theirs: 'hostRows' | 'hostWeights'): number[] =>
    hosts.flatMap((_, there) =>
      there === host
        ? at(own)
        : [
            exchange.slotAddress(
              theirs,
              ways.findIndex((way) => way.host === there),
            ) | 0,
          ],
    );
  made.sumRows.view().set(byHost('combineRows', 'hostRows'));
  made.sumWeights.view().set(byHost('combineWeights', 'hostWeights'));
  return { ...made, [Symbol.dispose]: () => set[Symbol.dispose]() };
}
