// Combine across hosts: a rank sums its host's rows of the tokens that came through it and sends one row per token back;
// the source adds those rows to its own host's. Hot path.
import { networkCells } from '../../abi/network-cells.ts';
import { ChunkArrivals } from '../../collective/network/chunk-arrivals.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import { type HostExchange, NETWORK_WINDOW } from './host-exchange.ts';
import type { HostTokens } from './routed-tokens.ts';

/** Bytes of what one combine brings back per token. */
export interface SumShape {
  readonly rowBytes: number;
  /** 0 if no weights travel. */
  readonly weightBytes: number;
}

/** Puts the sums of tokens [first, first + count) of a list to an address. */
export type SumTokens = (list: HostTokens, first: number, count: number, out: number) => void;

export interface ReturnedCall extends SumShape {
  readonly list: HostTokens;
  readonly sumRows: SumTokens;
  readonly sumWeights: SumTokens;
  /** True when the source has begun the same call, so that its memory may be written. */
  hasEntered(): boolean;
}

/** The rows that go back to one source. */
export class SumSender {
  readonly #exchange: HostExchange;
  readonly #slot: number;
  #call: ReturnedCall | undefined;
  #summed = 0;
  #queued = 0;
  #owesWeights = false;

  constructor(exchange: HostExchange, slot: number) {
    this.#exchange = exchange;
    this.#slot = slot;
  }

  begin(call: ReturnedCall): void {
    this.#call = call;
    this.#summed = 0;
    this.#queued = 0;
    this.#owesWeights = call.weightBytes > 0 && call.list.count > 0;
  }

  /** Everything is queued, and the source is known to be in the call. */
  get isDone(): boolean {
    const call = this.#call;
    return call === undefined || (call.hasEntered() && !this.#owesWeights && this.#queued === call.list.count);
  }

  /** Sums one more chunk, and queues what may go. True while there is more to sum. */
  step(): boolean {
    const call = this.#call;
    if (call === undefined) return false;
    const { list, rowBytes } = call;
    const chunk = this.#exchange.chunkTokens(rowBytes);
    if (this.#summed < list.count) {
      const count = Math.min(chunk, list.count - this.#summed);
      const out = this.#exchange.slotAddress('sums', this.#slot) + this.#summed * rowBytes;
      traceBegin('ep.combine.host-sums');
      call.sumRows(list, this.#summed, count, out);
      traceEnd('ep.combine.host-sums');
      this.#summed += count;
    }
    if (call.hasEntered()) this.#queue(call, chunk);
    return this.#summed < list.count;
  }

  #queue(call: ReturnedCall, chunk: number): void {
    const exchange = this.#exchange;
    const { network } = exchange;
    const { rank: source, way } = exchange.served[this.#slot]!;
    const { queues } = network.link(source);
    const { list, rowBytes, weightBytes } = call;
    if (this.#owesWeights) {
      const from = exchange.slotAddress('sumWeights', this.#slot);
      call.sumWeights(list, 0, list.count, from);
      const to = exchange.slotAt(source, 'hostWeights', way);
      queues[0]!.put(from, NETWORK_WINDOW, to, list.count * weightBytes);
      queues[0]!.signal(NETWORK_WINDOW, network.cellAt(source, networkCells.weights));
      this.#owesWeights = false;
    }
    const rows = exchange.slotAddress('sums', this.#slot);
    const target = exchange.slotAt(source, 'hostRows', way);
    while (this.#queued < this.#summed) {
      const channel = (this.#queued / chunk) % queues.length;
      const bytes = Math.min(chunk, list.count - this.#queued) * rowBytes;
      const at = this.#queued * rowBytes;
      queues[channel]!.put(rows + at, NETWORK_WINDOW, target + at, bytes);
      queues[channel]!.signal(NETWORK_WINDOW, network.cellAt(source, networkCells.sums + channel));
      this.#queued += bytes / rowBytes;
    }
  }
}

/** What comes back from one host. */
export class SumReceiver {
  readonly #exchange: HostExchange;
  readonly #way: number;
  readonly #rows: ChunkArrivals;
  readonly #weights: ChunkArrivals;
  #list: HostTokens | undefined;
  #awaitsWeights = false;
  #chunk = 1;

  constructor(exchange: HostExchange, way: number) {
    const { network } = exchange;
    const { forwarder } = exchange.ways[way]!;
    this.#exchange = exchange;
    this.#way = way;
    this.#rows = new ChunkArrivals(network, forwarder, networkCells.sums);
    this.#weights = new ChunkArrivals(network, forwarder, networkCells.weights, 1);
  }

  begin(list: HostTokens, { rowBytes, weightBytes }: SumShape): void {
    this.#list = list;
    this.#chunk = this.#exchange.chunkTokens(rowBytes);
    this.#rows.begin();
    this.#weights.begin();
    this.#awaitsWeights = weightBytes > 0 && list.count > 0;
  }

  /** Takes in what has come; returns the first token whose row is missing, `tokens` if none is. */
  step(tokens: number): number {
    const list = this.#list;
    if (list === undefined) return tokens;
    if (this.#awaitsWeights) this.#awaitsWeights = !this.#weights.take();
    while (this.#rows.taken * this.#chunk < list.count && this.#rows.take());
    const next = this.#rows.taken * this.#chunk;
    return next >= list.count ? tokens : list.tokens.view()[next]!;
  }

  get hasWeights(): boolean {
    return !this.#awaitsWeights;
  }

  get isDone(): boolean {
    return this.#list === undefined || (this.hasWeights && this.#rows.taken * this.#chunk >= this.#list.count);
  }

  /** For the error of a wait; undefined if all is here. */
  describe(): string | undefined {
    const list = this.#list;
    if (list === undefined || this.isDone) return undefined;
    const { forwarder } = this.#exchange.ways[this.#way]!;
    const came = Math.min(list.count, this.#rows.taken * this.#chunk);
    return `${list.count} sums of rank ${this.#exchange.network.group.ranks[forwarder]}, of which ${came} came`;
  }
}
