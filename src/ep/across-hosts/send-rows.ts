// Queues what a dispatch sends to other hosts: first what travels beside the rows, to the forwarder; then each row once,
// straight to its first place there, in chunks that the forwarder is told of.
import { networkCells } from '../../abi/network.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import { type HostExchange, NETWORK_WINDOW, ROW_WINDOW } from './host-exchange.ts';
import type { SlotArray } from './network-size.ts';
import type { HostTokens, RoutedTokens } from './routed-tokens.ts';

/** An array of this rank with an entry per token. */
export interface BesideRows {
  readonly array: Extract<SlotArray, 'topkIdx' | 'topkWeights' | 'scales'>;
  readonly address: number;
  /** Per token. */
  readonly bytes: number;
}

export interface OutgoingRows {
  readonly address: number;
  readonly rowBytes: number;
  /** Of row 0 in the part of every rank. */
  readonly offset: number;
  readonly beside: readonly BesideRows[];
  /** Also says which tokens these are and where they belong; a cached dispatch leaves that out, since it is known. */
  readonly withPlaces: boolean;
}

/** True if a forwarder hears something besides the rows of so many tokens; `choices`: that come with them. */
export function hasMetadata(
  { beside, withPlaces }: Pick<OutgoingRows, 'beside' | 'withPlaces'>,
  { count }: Pick<HostTokens, 'count'>,
  choices: Tensor<'i32'> | undefined,
): boolean {
  return (count > 0 && (withPlaces || beside.length > 0)) || (choices !== undefined && choices.bytes > 0);
}

export function queueRows(device: CpuDevice, exchange: HostExchange, routed: RoutedTokens, rows: OutgoingRows): void {
  for (const [way, list] of routed.sent.entries()) {
    const choices = exchange.ways[way]!.hasSamePlace ? routed.choices?.own : undefined;
    if (hasMetadata(rows, list, choices)) queueMetadata({ device, exchange, way }, list, { ...rows, choices });
    queueChunks(exchange, way, list, rows);
  }
}

function queueMetadata(
  { device, exchange, way }: { device: CpuDevice; exchange: HostExchange; way: number },
  { count, tokens, places, ranks }: HostTokens,
  { beside, withPlaces, choices }: OutgoingRows & { readonly choices: Tensor<'i32'> | undefined },
): void {
  const { network, size } = exchange;
  const { forwarder, slot } = exchange.ways[way]!;
  const queue = network.link(forwarder).queues[0]!;
  const target = exchange.slotAt(forwarder, 'landed', slot);
  if (withPlaces) {
    queue.put(tokens.address, NETWORK_WINDOW, target + size.slot.tokens.offset, tokens.bytes);
    queue.put(places.address, NETWORK_WINDOW, target + size.slot.places.offset, places.bytes);
    if (ranks) queue.put(ranks.address, NETWORK_WINDOW, target + size.slot.ranks.offset, ranks.bytes);
  }
  if (choices) queue.put(choices.address, NETWORK_WINDOW, target + size.slot.topkIdx.offset, choices.bytes);
  const packed = exchange.slotAddress('packed', way);
  for (const { array, address, bytes } of beside) {
    const { offset } = size.slot[array];
    device.kernels.gatherRows(packed + offset, address, bytes, tokens.address, count);
    queue.put(packed + offset, NETWORK_WINDOW, target + offset, count * bytes);
  }
  queue.signal(NETWORK_WINDOW, network.cellAt(forwarder, networkCells.metadata));
}

function queueChunks(exchange: HostExchange, way: number, list: HostTokens, rows: OutgoingRows): void {
  const { network } = exchange;
  const { forwarder, ranks: there } = exchange.ways[way]!;
  const { queues } = network.link(forwarder);
  const { address, rowBytes, offset } = rows;
  const rowAt = there.map((rank) => network.offsetAt(rank, ROW_WINDOW, offset));
  const tokens = list.tokens.view();
  const places = list.places.view();
  const ranks = list.ranks?.view();
  const { count, columns } = list;
  const chunk = exchange.chunkTokens(rowBytes, count);
  for (let first = 0, number = 0; first < count; first += chunk, number++) {
    const channel = number % queues.length;
    const queue = queues[channel]!;
    for (let i = first; i < Math.min(count, first + chunk); i++) {
      let column = 0;
      while (places[i * columns + column]! < 0) column++;
      const rank = ranks ? ranks[i * columns + column]! : column;
      const from = address + tokens[i]! * rowBytes;
      const to = rowAt[rank]! + places[i * columns + column]! * rowBytes;
      queue.putRow(from, to, rowBytes);
    }
    queue.signal(NETWORK_WINDOW, network.cellAt(forwarder, networkCells.rows + channel));
  }
}
