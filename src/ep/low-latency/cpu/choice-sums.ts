// Sums of combines by choice across hosts on a CPU rank: what this host has of a token, each choice's row with its weight, and
// what all hosts have of this rank's tokens. Hot path.
import { elementFormats, FP8_SUM_FORMAT } from '../../../abi/element-formats.ts';
import { LOW_LATENCY_RESULTS } from '../../../abi/low-latency.ts';
import type { TensorSet } from '../../../device/device.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { HostRoutes } from '../../../group/network/host-routes.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { bytesOfSum, sumFormat } from '../../across-hosts/network-size.ts';
import type { LowLatencyConfig, LowLatencyScope } from '../low-latency-size.ts';

/** Tables, which belong to the set. Fails with WL_MEMORY. */
export function makeChoiceTables(
  tensors: TensorSet,
  of: { readonly group: RankGroup; readonly config: Required<LowLatencyConfig>; readonly routes: HostRoutes },
) {
  const { maxTokensPerRank: most, maxTopk: k, hidden, numExperts, combinePrecision } = of.config;
  const { hosts, host } = of.routes;
  const columnFormats = tensors.empty('i32', [hosts.length]);
  const format = sumFormat('bf16', combinePrecision);
  columnFormats.view().fill(format);
  columnFormats.view()[host] = elementFormats.f32;
  return {
    next: tensors.empty('i32', [numExperts]),
    rowTable: tensors.empty('i32', [most, k]),
    rankTable: tensors.empty('i32', [most, k]),
    /** Addresses by rank, 0 for those of other hosts. */
    bases: tensors.empty('i32', [of.group.size]),
    /** What one sum adds up. */
    scratch: tensors.empty('u8', [8 * Math.max(k, hosts.length + 2)]),
    /** f32 [M, H]: what this host has of this rank's tokens. */
    own: tensors.empty('f32', [most, hidden]),
    columnFormats,
    /** Sums as f32, one for each other host, before they become fp8 and after; none where they do not. */
    wide: tensors.empty('f32', [format === FP8_SUM_FORMAT ? hosts.length - 1 : 0, hidden]),
  };
}

/** Tokens of one source, and where their choices are. */
interface ChosenTokens {
  readonly topk: number;
  readonly indexBytes: number;
  readonly count: number;
  readonly k: number;
  /** Address of f32 [count, K]. */
  readonly weights: number;
  /** Address of i32 [experts]: the row of each expert at which those of the source begin. */
  readonly firstRows: number;
  /** The result whose rows are summed. */
  readonly result: number;
  /** 0 for each rank whose rows do not count; absent where all do. */
  readonly added?: Int32Array | undefined;
}

export class ChoiceSums {
  readonly #scope: LowLatencyScope<CpuDevice>;
  readonly #routes: HostRoutes;
  readonly #window: SymmetricWindow;
  readonly #tables: ReturnType<typeof makeChoiceTables>;
  /** For each rank, the address of its first rows of result 0 on this host, and how far that of result 1 is from there. */
  readonly #firstRows: readonly { readonly address: number; readonly stride: number }[];

  // oxlint-disable-next-line max-params -- what it is made of
  constructor(
    scope: LowLatencyScope<CpuDevice>,
    window: SymmetricWindow,
    tables: ReturnType<typeof makeChoiceTables>,
    routes: HostRoutes,
  ) {
    this.#routes = routes;
    this.#scope = scope;
    this.#window = window;
    this.#tables = tables;
    const { topology, ranks } = scope.group;
    const { firstRows, servedFirstRows } = scope.size.regions;
    this.#firstRows = ranks.map((_, rank) => {
      const taker = routes.takers.get(rank);
      const [holder, { offset, stride }, slot] = taker
        ? [taker.forwarder, servedFirstRows, taker.slot * LOW_LATENCY_RESULTS]
        : [rank, firstRows, 0];
      const start = window.addresses[topology.scaleUpIndexOf(holder)]!;
      return { address: start + offset + slot * stride, stride };
    });
    // Experts of other hosts have no rows here, as those whose rows begin behind the last place.
    for (const region of [firstRows, servedFirstRows]) {
      const { offset, bytes } = region;
      scope.device.hostView('i32', window.address + offset, bytes / 4).fill(scope.config.maxTokensPerExpert);
    }
  }

  /** The address of i32 [experts] in which ranks of this host tell where the rows of that rank's tokens begin. */
  firstRowsOf(rank: number, result: number): number {
    const { address, stride } = this.#firstRows[rank]!;
    return address + result * stride;
  }

  /** Sums what this host has of each token, as it crosses the network. */
  sumHere(tokens: ChosenTokens, out: number): void {
    const { hidden, combinePrecision } = this.#scope.config;
    this.#list(tokens);
    if (combinePrecision !== 'fp8-lossy') {
      this.#sum(tokens, out, combinePrecision === 'f32');
      return;
    }
    const { address: wide } = this.#tables.wide;
    const sumBytes = bytesOfSum(hidden, 'bf16', combinePrecision);
    for (let first = 0; first < tokens.count; first++) {
      this.#sum(tokens, wide, true, first, 1);
      this.#scope.device.kernels.quantizeSum(out + first * sumBytes, wide, hidden);
    }
  }

  /**
   * Adds up this rank's tokens. `sumTable` i32 [T, hosts]: the row that each host has of a token, -1 for none; `bases`: address
   * of a table of addresses of rows by host, of which this fills in the own one.
   */
  addUp(tokens: ChosenTokens, of: { sumTable: number; bases: Int32Array; basesAt: number; out: number }): void {
    const { own, scratch, columnFormats, wide } = this.#tables;
    const { device, config } = this.#scope;
    const { hosts, host } = this.#routes;
    this.#list(tokens);
    this.#sum(tokens, own.address, true);
    of.bases[host] = own.address | 0;
    const [columns, rowBytes, format] = [hosts.length, config.hidden * 2, elementFormats.bf16];
    const { gatherSumMixed } = device.kernels;
    // oxfmt-ignore
    gatherSumMixed(
      of.out, rowBytes, tokens.count, columns, of.sumTable, 0, of.basesAt, 0, 0, 0, scratch.address, format, columnFormats.address, wide.address,
    );
  }

  /** Lists where the rows of all choices are. */
  #list({ topk, indexBytes, count, k, firstRows, result, added }: ChosenTokens): void {
    const { next, rowTable, rankTable, bases } = this.#tables;
    const { device, config, group, size } = this.#scope;
    const { kernels } = device;
    kernels.copyBytes(next.address, firstRows, next.bytes);
    const perRank = config.numExperts / group.size;
    const [table, from] = [rowTable.address, rankTable.address];
    kernels.choiceRows(topk, indexBytes, count, k, perRank, config.maxTokensPerExpert, next.address, table, from);
    if (added !== undefined) {
      const [rows, ranks] = [rowTable.view(), rankTable.view()];
      for (let cell = 0; cell < count * k; cell++) if (added[ranks[cell]!] === 0) rows[cell] = -1;
    }
    const { offset, stride } = size.regions.combineRows;
    const { addresses } = this.#window;
    const { scaleUpRanks } = group.topology;
    const view = bases.view();
    for (let index = 0; index < scaleUpRanks.length; index++) {
      view[scaleUpRanks[index]!] = (addresses[index]! + offset + result * stride) | 0;
    }
  }

  /** Sums the listed rows of tokens [first, first + count). */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per token
  #sum(tokens: ChosenTokens, out: number, isWide: boolean, first = 0, count = tokens.count): void {
    const { k, weights } = tokens;
    const { rowTable, rankTable, bases, scratch } = this.#tables;
    const { device, config } = this.#scope;
    const { kernels } = device;
    const skipped = first * k * 4;
    const [table, from, of] = [rowTable.address + skipped, rankTable.address + skipped, weights + skipped];
    const sum = isWide ? kernels.sumWeightedRowsF32 : kernels.sumWeightedRows;
    sum(out, config.hidden * 2, count, k, table, from, of, bases.address, scratch.address);
  }
}
