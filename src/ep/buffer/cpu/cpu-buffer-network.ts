// What the calls of an EpBuffer do across hosts on CPU ranks: which arrays travel, where they belong, who sums what.
import { elementFormats } from '../../../abi/element-formats.ts';
import { dtypes } from '../../../core/dtype.ts';
import type { CallWait } from '../../../core/deadline.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import { TensorSet } from '../../../device/tensor-set.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import { HostExchange } from '../../across-hosts/host-exchange.ts';
import { SumReceiver, SumSender } from '../../across-hosts/host-sums.ts';
import type { HostTokens, RoutedTokens } from '../../across-hosts/routed-tokens.ts';
import { RowForwarder } from '../../across-hosts/row-forwarder.ts';
import { type BesideRows, hasMetadata, queueRows } from '../../across-hosts/send-rows.ts';
import { routeTokens } from '../../across-hosts/token-routes.ts';
import type { CountExchange } from '../../../collective/exchange.ts';
import type { EpRegion } from '../buffer-size.ts';
import type { CheckedCombine } from '../combine-arguments.ts';
import type { DispatchPlanInput } from '../dispatch-arguments.ts';
import type { DispatchHandle } from '../dispatch-handle.ts';
import type { LayoutTensors } from '../dispatch-layout.ts';
import type { EpScope } from '../scope.ts';
import { bufferNetworkShape } from './buffer-network-shape.ts';

/** Tokens whose rows a rank moves within its host before it looks at the network again. */
const SLICE_TOKENS = 64;

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
  /** Scratch of sums: addresses of their rows. */
  readonly sources: Tensor<'i32'>;
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
  readonly #forwarders: readonly RowForwarder[];
  readonly #senders: readonly SumSender[];
  readonly #receivers: readonly SumReceiver[];

  /** Collective; fails alike on all ranks. */
  static async create(scope: EpScope<CpuDevice>, window: SymmetricWindow, wait: CallWait): Promise<CpuBufferNetwork> {
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
    this.#forwarders = exchange.served.map((_, slot) => new RowForwarder(device, exchange, slot));
    this.#senders = exchange.served.map((_, slot) => new SumSender(exchange, slot));
    this.#receivers = exchange.ways.map((_, way) => new SumReceiver(exchange, way));
  }

  /** How many tokens go to each host. */
  countHosts({ isTokenInRank }: LayoutTensors, tokens: number): Int32Array {
    const { group, device } = this.#scope;
    const { hostOf, perHost, lastToken } = this.exchange.tables;
    const hosts = group.topology.hosts.length;
    device.kernels.countHostTokens(
      isTokenInRank.address,
      tokens,
      group.size,
      hostOf.address,
      hosts,
      perHost.address,
      lastToken.address,
    );
    return perHost.view();
  }

  route(rowTable: Tensor<'i32'>, numTokens: number, perHost: Int32Array): RoutedTokens {
    return routeTokens(this.#scope.device, this.exchange, { numTokens, rowTable, rankTable: undefined, perHost });
  }

  /**
   * Sends the rows that go to other hosts, has `moveLocal` move those of this one, slice by slice, and forwards what comes
   * from others. Returns when nothing of the call is under way to or from this rank.
   */
  async dispatch(
    { input, handle, isCached }: { input: DispatchPlanInput; handle: DispatchHandle; isCached: boolean },
    moveLocal: (first: number, count: number) => void,
    wait: CallWait,
  ): Promise<void> {
    const { exchange } = this;
    const { device, size, config } = this.#scope;
    const { network } = exchange;
    const routed = handle.routed as RoutedTokens;
    const rowBytes = config.hidden * dtypes[input.data.dtype].bytes;
    const beside = besideRows(input);
    const about = { rowBytes, beside, withPlaces: !isCached };
    await network.useMemory(device.memory.buffer.byteLength);
    const rowBases = this.#bases.rows.address;
    for (const [slot, forwarder] of this.#forwarders.entries()) {
      const spread = (list: HostTokens, at: (array: BesideRows['array']) => number): void =>
        this.#spread(input, list, at, isCached);
      const list = routed.served[slot]!;
      forwarder.begin({ ...about, list, rowBases, hasMetadata: hasMetadata(about), spread });
    }
    queueRows(device, exchange, routed, { ...about, address: input.data.address, offset: size.regions.rows.offset });
    for (let first = 0; first < input.numTokens; first += SLICE_TOKENS) {
      network.advance();
      moveLocal(first, Math.min(SLICE_TOKENS, input.numTokens - first));
      for (const forwarder of this.#forwarders) forwarder.step();
    }
    await network.until(
      {
        isDone: () => {
          let all = true;
          for (const forwarder of this.#forwarders) {
            forwarder.step();
            all &&= forwarder.isDone;
          }
          return all && network.isDelivered;
        },
        awaits: (peer) => exchange.served.some(({ rank }, slot) => rank === peer && !this.#forwarders[slot]!.isDone),
        describe: () => this.#describe(this.#forwarders),
      },
      wait,
    );
  }

  /**
   * Behind the barrier that makes the rows of this host's ranks readable: sums those of tokens of other hosts and sends
   * them back, and adds up this rank's own tokens.
   */
  async combine(
    { handle, weights, biases }: CheckedCombine,
    out: { readonly rows: Tensor<'bf16'>; readonly weights: Tensor<'f32'> | undefined },
    { exchange: counts, ...wait }: CallWait & { readonly exchange: CountExchange },
  ): Promise<void> {
    const { exchange } = this;
    const { device, config } = this.#scope;
    const { kernels } = device;
    const { network } = exchange;
    const routed = handle.routed as RoutedTokens;
    const rowBytes = config.hidden * 2;
    const k = weights?.shape[1] ?? 0;
    const shape = { rowBytes, weightBytes: k * 4 };
    const bases = this.#bases;
    await network.useMemory(device.memory.buffer.byteLength);
    for (const [slot, sender] of this.#senders.entries()) {
      sender.begin({
        ...shape,
        list: routed.served[slot]!,
        hasEntered: () => exchange.hasEntered(counts, slot),
        sumRows: ({ places, columns }, first, count, to) => {
          const table = places.address + first * columns * 4;
          const sources = bases.sources.address;
          const from = bases.combineRows.address;
          kernels.gatherSum(to, rowBytes, count, columns, table, 0, from, 0, 0, 0, sources, elementFormats.bf16);
        },
        sumWeights: ({ places, columns }, _first, count, to) =>
          kernels.gatherTopkWeight(to, count, k, columns, places.address, bases.combineWeights.address),
      });
    }
    for (const [way, receiver] of this.#receivers.entries()) receiver.begin(routed.sent[way]!, shape);
    let summed = 0;
    const addUp = (): void => {
      let ready = handle.numTokens;
      for (const receiver of this.#receivers) ready = Math.min(ready, receiver.step(handle.numTokens));
      if (ready <= summed) return;
      const at = summed * rowBytes;
      kernels.gatherSum(
        out.rows.address + at,
        rowBytes,
        ready - summed,
        routed.sumColumns,
        routed.sumTable.address + summed * routed.sumColumns * 4,
        0,
        bases.sumRows.address,
        0,
        biases[0] ? biases[0].address + at : 0,
        biases[1] ? biases[1].address + at : 0,
        bases.sources.address,
        elementFormats.bf16,
      );
      summed = ready;
    };
    await network.until(
      {
        isDone: () => {
          let all = true;
          for (const sender of this.#senders) {
            while (sender.step()) network.advance();
            all &&= sender.isDone;
          }
          addUp();
          for (const receiver of this.#receivers) all &&= receiver.hasWeights;
          return all && summed === handle.numTokens && network.isDelivered;
        },
        awaits: (peer) =>
          exchange.served.some(({ rank }, slot) => rank === peer && !exchange.hasEntered(counts, slot)) ||
          exchange.ways.some(({ forwarder }, way) => forwarder === peer && !this.#receivers[way]!.isDone),
        describe: () => this.#describe(this.#receivers),
      },
      wait,
    );
    if (out.weights) {
      const { sumTable, sumColumns } = routed;
      const from = bases.sumWeights.address;
      kernels.gatherTopkWeight(out.weights.address, handle.numTokens, k, sumColumns, sumTable.address, from);
    }
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

  #describe(parts: readonly { describe(): string | undefined }[]): string {
    const missing = parts.flatMap((part) => part.describe() ?? []);
    if (missing.length === 0) return this.exchange.describeUndelivered();
    return `Rank ${this.#scope.group.worldRank} did not get ${missing.join('; ')} from other hosts`;
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

/** Fails with WL_MEMORY. */
function makeBases(
  { device, size, group }: EpScope<CpuDevice>,
  window: SymmetricWindow,
  exchange: HostExchange,
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
    sources: tensors.empty('i32', [Math.max(columns, group.size) + 2]),
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
