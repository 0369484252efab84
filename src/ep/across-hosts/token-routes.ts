// Lists which tokens of a dispatch go to which host, and the table by which combine adds what comes back.
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { HostExchange } from './host-exchange.ts';
import { makeRoutedTokens, type RoutedTokens } from './routed-tokens.ts';

interface RouteTables {
  readonly numTokens: number;
  /** i32 [T, ranks], or [T, K] with `rankTable`. */
  readonly rowTable: Tensor<'i32'>;
  /** i32 [T, K]: the rank of each choice; absent with a column per rank. */
  readonly rankTable: Tensor<'i32'> | undefined;
  /** [rank * hosts + host]: tokens of every rank that go to every host. */
  readonly perHost: Int32Array;
  /** Of a layer: the expert ids [T, K], and how many tokens every rank has. */
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
    // Behind the ranks of the group.
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
