// What a descriptor of a layer on several hosts tells by node, as Triton-distributed lays it out. Made when it is asked for: the
// layer itself works with shorter tables.
import type { HostRoutes } from '../../group/network/host-routes.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { HostTokens, RoutedTokens, TokenChoices } from '../across-hosts/routed-tokens.ts';
import type { EPConfig } from './ep-config.ts';
import { fillSendRequests } from './send-requests.ts';

interface HostLayoutParts {
  readonly device: CpuDevice;
  readonly config: EPConfig;
  readonly routes: HostRoutes;
  readonly routed: RoutedTokens;
  /** i32 [1, maxTokensPerRank, K] and [T, K]. */
  readonly rowTable: Tensor<'i32'>;
  readonly rankTable: Tensor<'i32'>;
  /** Of the caller's choices. */
  readonly indexDtype: 'i32' | 'i64';
}

/** Of one node: tokens of the rank there whose place is that of this rank. */
interface NodeTokens {
  /** Those with an expert on this host, and the rows of their choices here; absent for this rank's own. */
  readonly list: HostTokens | undefined;
  /** i32 [T, K] */
  readonly choices: Tensor<'i32'>;
}

export class HostLayout implements Disposable {
  readonly #parts: HostLayoutParts;
  /** What callers see, and what owns it. */
  readonly #made = new Map<string, Tensor<'i32' | 'i64'>>();
  readonly #owned: Tensor[] = [];
  #disposed = false;

  constructor(parts: HostLayoutParts) {
    this.#parts = parts;
  }

  /** [nodes, 2, maxTokensPerRank], of offsetDtype. May fail with WL_MEMORY, as the others. */
  get sendReqs(): Tensor<'i32' | 'i64'> {
    const { config } = this.#parts;
    return this.#make(
      'sendReqsRecvTensor',
      [2, config.maxTokensPerRank],
      config.offsetDtype,
      (cells, _node, tokens) => {
        if (tokens.list !== undefined) fillSendRequests(cells, tokens.list.tokens.view());
      },
    );
  }

  /** [nodes, maxTokensPerRank, K], of the dtype of the caller's choices. */
  get topkIndices(): Tensor<'i32' | 'i64'> {
    const { config, indexDtype } = this.#parts;
    return this.#make(
      'topkIndicesTensor',
      [config.maxTokensPerRank, config.maxTopk],
      indexDtype,
      (cells, _node, { choices }) => cells.set(choices.view()),
    );
  }

  /** [nodes, maxTokensPerRank, K], of offsetDtype. */
  get dstScatterIdx(): Tensor<'i32' | 'i64'> {
    const { config } = this.#parts;
    const { maxTokensPerRank, maxTopk: topk, offsetDtype } = config;
    return this.#make('tokenDstScatterIdx', [maxTokensPerRank, topk], offsetDtype, (cells, _node, { list }) => {
      if (list === undefined) return this.#fillOwnRows(cells);
      const [tokens, places] = [list.tokens.view(), list.places.view()];
      for (let i = 0; i < list.count; i++) cells.set(places.subarray(i * topk, (i + 1) * topk), tokens[i]! * topk);
    });
  }

  /** Idempotent. */
  [Symbol.dispose](): void {
    this.#disposed = true;
    for (const tensor of this.#owned) tensor.dispose();
  }

  /** This rank's own choices of experts on this host. */
  #fillOwnRows(cells: Int32Array): void {
    const { routes, rowTable, rankTable } = this.#parts;
    const here = new Set(routes.hosts[routes.host]);
    const rows = rowTable.view();
    for (const [cell, rank] of rankTable.view().entries()) if (here.has(rank)) cells[cell] = rows[cell]!;
  }

  #make(
    name: string,
    shape: readonly number[],
    dtype: 'i32' | 'i64',
    fill: (cells: Int32Array, node: number, tokens: NodeTokens) => void,
  ): Tensor<'i32' | 'i64'> {
    const before = this.#made.get(name);
    if (before !== undefined) return before;
    if (this.#disposed) throw new WeftlineError('WL_CLOSED', `Cannot make ${name} of a disposed descriptor`);
    const { device, routes } = this.#parts;
    const perNode = shape.reduce((product, extent) => product * extent, 1);
    const values = new Int32Array(routes.hosts.length * perNode).fill(-1);
    for (const node of routes.hosts.keys()) {
      const tokens = this.#tokensOf(node);
      if (tokens !== undefined) fill(values.subarray(node * perNode, (node + 1) * perNode), node, tokens);
    }
    const tensor: Tensor<'i32' | 'i64'> = device.empty(dtype, [routes.hosts.length, ...shape]);
    const view = tensor.view();
    if (view instanceof BigInt64Array) view.set(BigInt64Array.from(values, BigInt));
    else view.set(values);
    this.#owned.push(tensor);
    const shown = tensor.reshape(tensor.shape);
    this.#made.set(name, shown);
    return shown;
  }

  /** Undefined for a host that has fewer ranks than this rank's place. */
  #tokensOf(node: number): NodeTokens | undefined {
    const { routes, routed } = this.#parts;
    const { own, served } = routed.choices as TokenChoices;
    if (node === routes.host) return { list: undefined, choices: own };
    const slot = routes.served.findIndex((source) => source.host === node && source.hasSamePlace);
    return slot === -1 ? undefined : { list: routed.served[slot], choices: served[slot]! };
  }
}
