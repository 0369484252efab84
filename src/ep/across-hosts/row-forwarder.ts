// What a rank does for one source of another host in a dispatch: puts what came beside the rows to the ranks of its host,
// and copies each row from its first place to the others. Hot path.
import { networkCells } from '../../abi/network.ts';
import { ChunkArrivals } from '../../group/network/chunk-arrivals.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { HostExchange } from './host-exchange.ts';
import type { SlotArray } from './network-size.ts';
import type { HostTokens } from './routed-tokens.ts';

/** One dispatch. */
export interface ForwardedCall {
  readonly list: HostTokens;
  /** i32 [T of the source, K], to be filled in; of a layer. */
  readonly choices: Tensor<'i32'> | undefined;
  readonly rowBytes: number;
  readonly hasMetadata: boolean;
  readonly withPlaces: boolean;
  /** i32 [ranks of this host]: addresses of row 0 of the received rows. */
  readonly rowBases: number;
  /** Brings what landed beside the rows to where it belongs; `at` tells the address of an array. */
  readonly spread: (list: HostTokens, at: (array: SlotArray) => number) => void;
}

export class RowForwarder {
  readonly #device: CpuDevice;
  readonly #exchange: HostExchange;
  readonly #slot: number;
  readonly #metadata: ChunkArrivals;
  readonly #rows: ChunkArrivals;
  #call: ForwardedCall | undefined;
  #awaitsMetadata = false;
  #done = 0;

  constructor(device: CpuDevice, exchange: HostExchange, slot: number) {
    const { network } = exchange;
    const { rank } = exchange.served[slot]!;
    this.#device = device;
    this.#exchange = exchange;
    this.#slot = slot;
    this.#metadata = new ChunkArrivals(network, rank, networkCells.metadata, 1);
    this.#rows = new ChunkArrivals(network, rank, networkCells.rows);
  }

  begin(call: ForwardedCall): void {
    this.#call = call;
    this.#metadata.begin();
    this.#rows.begin();
    this.#done = 0;
    this.#awaitsMetadata = call.hasMetadata;
  }

  get isDone(): boolean {
    return this.#call === undefined || (!this.#awaitsMetadata && this.#done === this.#call.list.count);
  }

  /** Does what the arrivals allow. */
  step(): void {
    const call = this.#call;
    if (call === undefined || this.isDone) return;
    if (this.#awaitsMetadata) {
      if (!this.#metadata.take()) return;
      this.#land(call);
      this.#awaitsMetadata = false;
    }
    const { list, rowBytes, rowBases } = call;
    const chunk = this.#exchange.chunkTokens(rowBytes, list.count);
    while (this.#done < list.count && this.#rows.take()) {
      const count = Math.min(chunk, list.count - this.#done);
      const cell = this.#done * list.columns * 4;
      const ranks = list.ranks ? list.ranks.address + cell : 0;
      traceBegin('ep.dispatch.forward');
      this.#device.kernels.spreadRows(rowBytes, count, list.columns, list.places.address + cell, ranks, rowBases);
      traceEnd('ep.dispatch.forward');
      this.#done += count;
    }
  }

  /** For the error of a wait: what is here and what is not; undefined if all is. */
  describe(): string | undefined {
    const call = this.#call;
    if (call === undefined || this.isDone) return undefined;
    const { rank } = this.#exchange.served[this.#slot]!;
    const source = `rank ${this.#exchange.network.group.ranks[rank]}`;
    if (this.#awaitsMetadata) return `the list of ${call.list.count} tokens of ${source}`;
    return `${call.list.count} rows of ${source}, of which ${this.#done} came`;
  }

  #land({ list, choices, withPlaces, spread }: ForwardedCall): void {
    const { kernels } = this.#device;
    const { slot } = this.#exchange.size;
    const landed = this.#exchange.slotAddress('landed', this.#slot);
    if (withPlaces) {
      kernels.copyBytes(list.tokens.address, landed + slot.tokens.offset, list.tokens.bytes);
      kernels.copyBytes(list.places.address, landed + slot.places.offset, list.places.bytes);
      if (list.ranks) kernels.copyBytes(list.ranks.address, landed + slot.ranks.offset, list.ranks.bytes);
    }
    if (choices) kernels.copyBytes(choices.address, landed + slot.topkIdx.offset, choices.bytes);
    spread(list, (array) => landed + slot[array].offset);
  }
}
