// What combine and cached dispatches need: which tokens of a dispatch cross to which host, and where they belong there.
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { TensorSet } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { HostExchange } from './host-exchange.ts';

/** The tokens that one rank sends to one host, in token order. */
export interface HostTokens {
  readonly count: number;
  /** i32 [count]: of the source. */
  readonly tokens: Tensor<'i32'>;
  /** i32 [count, columns]: the row at each rank of the host, or of each choice; -1 for none. */
  readonly places: Tensor<'i32'>;
  /** i32 [count, columns]: position of each choice's rank on the host; only with a column per choice. */
  readonly ranks: Tensor<'i32'> | undefined;
  readonly columns: number;
}

/** What crosses in one dispatch on one rank; its memory belongs to the handle. */
export interface RoutedTokens extends Disposable {
  /** What this rank sends, one list for each way. */
  readonly sent: readonly HostTokens[];
  /** What sources of other hosts send through this rank, one list for each slot. They are filled in when it arrives. */
  readonly served: readonly HostTokens[];
  /**
   * What combine adds, in this order: hosts ascending; of this host a column per rank or choice, of each other host one,
   * which holds the place of the token among those sent there.
   */
  readonly sumTable: Tensor<'i32'>;
  /** i32 as sumTable: whose rows each column's places are; only with a column per choice. */
  readonly sumRanks: Tensor<'i32'> | undefined;
  readonly sumColumns: number;
  /** What the tokens chose; only of a layer. */
  readonly choices: TokenChoices | undefined;
}

/** Expert ids of all tokens, as their callers gave them. */
export interface TokenChoices {
  /** i32 [T, K]: of this rank. */
  readonly own: Tensor<'i32'>;
  /** The same by slot, i32 [T of the source, K], of sources whose place on their host is that of this rank; filled in when they arrive. */
  readonly served: readonly (Tensor<'i32'> | undefined)[];
}

/** Tokens and columns of the expert ids. */
interface ChoicesShape {
  readonly own: number;
  /** Tokens of each slot; undefined where none come. */
  readonly served: readonly (number | undefined)[];
  readonly topk: number;
}

interface RoutedShape {
  readonly sent: readonly { readonly count: number; readonly columns: number }[];
  readonly served: readonly { readonly count: number; readonly columns: number }[];
  readonly hasRanks: boolean;
  readonly tokens: number;
  readonly sumColumns: number;
  readonly choices: ChoicesShape | undefined;
}

/** Fails with WL_MEMORY, having taken nothing. */
function makeRoutedTokens(device: CpuDevice, shape: RoutedShape): RoutedTokens {
  return TensorSet.together(device, (tensors) => {
    const table = ({ count, columns }: RoutedShape['sent'][number]): HostTokens => ({
      count,
      columns,
      tokens: tensors.empty('i32', [count]),
      places: tensors.empty('i32', [count, columns]),
      ranks: shape.hasRanks ? tensors.empty('i32', [count, columns]) : undefined,
    });
    const { tokens, sumColumns, choices } = shape;
    return {
      sent: shape.sent.map(table),
      served: shape.served.map(table),
      sumTable: tensors.empty('i32', [tokens, sumColumns]),
      sumRanks: shape.hasRanks ? tensors.empty('i32', [tokens, sumColumns]) : undefined,
      sumColumns,
      choices: choices && {
        own: tensors.empty('i32', [choices.own, choices.topk]),
        served: choices.served.map((count) =>
          count === undefined ? undefined : tensors.empty('i32', [count, choices.topk]),
        ),
      },
    };
  });
}

// Lists which tokens of a dispatch go to which host, and the table by which combine adds what comes back.

interface RouteTables {
  readonly numTokens: number;
  /** i32 [T, ranks], or [T, K] with `rankTable`. */
  readonly rowTable: Tensor<'i32'>;
  /** i32 [T, K]: the rank of each choice; absent with a column per rank. */
  readonly rankTable: Tensor<'i32'> | undefined;
  /** [rank * hosts + host]: tokens of every rank that go to every host. */
  readonly perHost: Int32Array;
  /** The expert ids [T, K] of a layer, and how many tokens every rank has. */
  readonly choices?: { readonly ids: Tensor<'i32' | 'i64'>; readonly numTokens: Int32Array };
}

/** Fails with WL_MEMORY. The served lists are filled in when they arrive. */
export function routeTokens(device: CpuDevice, exchange: HostExchange, tables: RouteTables): RoutedTokens {
  const { ways, served, network } = exchange;
  const { hosts, host } = network.routes;
  const { numTokens, rowTable, rankTable, perHost, choices } = tables;
  const columns = rowTable.shape.at(-1)!;
  const columnsOf = (there: number): number => (rankTable ? columns : hosts[there]!.length);
  const countOf = (rank: number, there: number): number => perHost[rank * hosts.length + there]!;
  const routed = makeRoutedTokens(device, {
    sent: ways.map((way) => ({ count: countOf(network.group.rank, way.host), columns: columnsOf(way.host) })),
    served: served.map((source) => ({ count: countOf(source.rank, host), columns: columnsOf(host) })),
    hasRanks: rankTable !== undefined,
    tokens: numTokens,
    sumColumns: columnsOf(host) + ways.length,
    choices: choices && {
      own: numTokens,
      served: served.map(({ rank, hasSamePlace }) => (hasSamePlace ? choices.numTokens[rank]! : undefined)),
      topk: columns,
    },
  });
  if (choices) copyIds(choices.ids, routed.choices!.own);
  for (const [at, list] of routed.sent.entries()) {
    device.kernels.listHostTokens(
      rowTable.address,
      rankTable?.address ?? 0,
      numTokens,
      columns,
      exchange.tables.localIndex[at]!.address,
      list.columns,
      list.tokens.address,
      list.places.address,
      list.ranks?.address ?? 0,
    );
  }
  fillSumTable(exchange, tables, routed);
  return routed;
}

/** Peers take 32 bits, whatever the caller has; it may change its tensor when the call has returned. */
function copyIds(ids: Tensor<'i32' | 'i64'>, own: Tensor<'i32'>): void {
  const [from, to] = [ids.view(), own.view()];
  if (from instanceof BigInt64Array) for (let at = 0; at < to.length; at++) to[at] = Number(from[at]);
  else to.set(from);
}

/** Columns by ascending host: this host's ranks or choices, one of each other host. */
function fillSumTable(exchange: HostExchange, tables: RouteTables, routed: RoutedTokens): void {
  const { hosts, host } = exchange.network.routes;
  routed.sumTable.view().fill(-1);
  routed.sumRanks?.view().fill(-1);
  let column = 0;
  for (let there = 0; there < hosts.length; there++) {
    if (there === host) column += fillOwnColumns(exchange, tables, { routed, column });
    else fillColumnOf(exchange, there, { routed, column: column++ });
  }
}

interface SumPlace {
  readonly routed: RoutedTokens;
  readonly column: number;
}

/** The place of each token among those sent to the host; places of sums are used in turn. */
function fillColumnOf(
  { ways, network, sumRing }: HostExchange,
  there: number,
  { routed: { sent, sumTable, sumRanks, sumColumns }, column }: SumPlace,
): void {
  const way = ways.findIndex(({ host }) => host === there);
  const { count, tokens } = sent[way]!;
  const table = sumTable.view();
  const ranks = sumRanks?.view();
  const list = tokens.view();
  const places = sumRing.chunk * sumRing.chunks;
  for (let i = 0; i < count; i++) {
    const cell = list[i]! * sumColumns + column;
    table[cell] = i % places;
    // Sums of other hosts have numbers behind the ranks of the group.
    if (ranks) ranks[cell] = network.group.size + way;
  }
}

/** Rows at this host's ranks, or of its choices. Returns how many columns they take. */
function fillOwnColumns(
  { network, tables: { hostOf } }: HostExchange,
  { numTokens, rowTable, rankTable }: RouteTables,
  { routed: { sumTable, sumRanks, sumColumns }, column }: SumPlace,
): number {
  const { hosts, host } = network.routes;
  const own = hosts[host]!;
  const table = sumTable.view();
  const rows = rowTable.view();
  const columns = rowTable.shape.at(-1)!;
  const width = rankTable ? columns : own.length;
  const choices = rankTable?.view();
  const ranks = sumRanks?.view();
  const hostOfRank = hostOf.view();
  for (let t = 0; t < numTokens; t++) {
    const cell = t * sumColumns + column;
    for (let c = 0; c < width; c++) {
      const from = t * columns + (choices ? c : own[c]!);
      const rank = choices ? choices[from]! : own[c]!;
      if (rank < 0 || hostOfRank[rank] !== host) continue;
      table[cell + c] = rows[from]!;
      if (ranks) ranks[cell + c] = rank;
    }
  }
  return width;
}
