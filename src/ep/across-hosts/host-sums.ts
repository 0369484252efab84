// Combine across hosts: a rank sums its host's rows of the tokens that came through it and sends one row per token back;
// the source adds those rows to its own host's. Where not all of them fit, places are used again, and the source says when.
// Hot path.
import { networkCells } from '../../abi/network.ts';
import { ChunkArrivals } from '../../group/network/chunk-arrivals.ts';
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

interface ReturnedCall extends SumShape {
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
  readonly #credits: ChunkArrivals;
  #call: ReturnedCall | undefined;
  #summed = 0;
  #queued = 0;

  constructor(exchange: HostExchange, slot: number) {
    this.#exchange = exchange;
    this.#slot = slot;
    this.#credits = new ChunkArrivals(exchange.network, exchange.served[slot]!.rank, networkCells.credits, 1);
  }

  begin(call: ReturnedCall): void {
    this.#call = call;
    this.#summed = 0;
    this.#queued = 0;
    this.#credits.begin();
  }

  /** Everything is queued, and the source is known to be in the call. */
  get isDone(): boolean {
    const call = this.#call;
    return call === undefined || (call.hasEntered() && this.#queued === call.list.count);
  }

  /** Sums one more chunk, and queues what may go. True while there is more to sum now. */
  step(): boolean {
    const call = this.#call;
    if (call === undefined) return false;
    const { list, weightBytes } = call;
    const { chunk, chunks } = this.#exchange.sumRing;
    while (this.#credits.take());
    const end = Math.min(list.count, (chunks + this.#credits.taken) * chunk);
    if (this.#summed < end) {
      const count = Math.min(chunk, list.count - this.#summed);
      traceBegin('ep.combine.host-sums');
      call.sumRows(list, this.#summed, count, this.#rowsAt(this.#summed, call));
      if (weightBytes > 0) call.sumWeights(list, this.#summed, count, this.#weightsAt(this.#summed, call));
      traceEnd('ep.combine.host-sums');
      this.#summed += count;
    }
    if (call.hasEntered()) this.#queue(call);
    return this.#summed < end;
  }

  /** For the error of a wait; undefined if nothing of the source is missing. */
  describe(): string | undefined {
    const call = this.#call;
    if (call === undefined || this.isDone) return undefined;
    const { rank } = this.#exchange.served[this.#slot]!;
    const source = `rank ${this.#exchange.network.group.ranks[rank]}`;
    if (!call.hasEntered()) return `the begin of the call of ${source}`;
    return `room for ${call.list.count} sums at ${source}, which took ${this.#queued}`;
  }

  #rowsAt(first: number, { rowBytes }: SumShape): number {
    const { chunk, chunks } = this.#exchange.sumRing;
    return this.#exchange.slotAddress('sums', this.#slot) + (first % (chunk * chunks)) * rowBytes;
  }

  #weightsAt(first: number, { weightBytes }: SumShape): number {
    const { chunk, chunks } = this.#exchange.sumRing;
    return this.#exchange.slotAddress('sumWeights', this.#slot) + (first % (chunk * chunks)) * weightBytes;
  }

  #queue(call: ReturnedCall): void {
    const exchange = this.#exchange;
    const { network } = exchange;
    const { chunk, chunks } = exchange.sumRing;
    const { rank: source, way } = exchange.served[this.#slot]!;
    const { queues } = network.link(source);
    const { list, rowBytes, weightBytes } = call;
    const rowsTo = exchange.slotAt(source, 'hostRows', way);
    const weightsTo = exchange.slotAt(source, 'hostWeights', way);
    while (this.#queued < this.#summed) {
      const first = this.#queued;
      const place = first % (chunk * chunks);
      const count = Math.min(chunk, list.count - first);
      const channel = (first / chunk) % queues.length;
      const queue = queues[channel]!;
      if (weightBytes > 0) {
        const from = this.#weightsAt(first, call);
        queue.put(from, NETWORK_WINDOW, weightsTo + place * weightBytes, count * weightBytes);
      }
      queue.put(this.#rowsAt(first, call), NETWORK_WINDOW, rowsTo + place * rowBytes, count * rowBytes);
      queue.signal(NETWORK_WINDOW, network.cellAt(source, networkCells.sums + channel));
      this.#queued += count;
    }
  }
}

/** What comes back from one host. */
export class SumReceiver {
  readonly #exchange: HostExchange;
  readonly #way: number;
  readonly #rows: ChunkArrivals;
  #list: HostTokens | undefined;
  /** Chunks whose places the other side may use again. */
  #freed = 0;

  constructor(exchange: HostExchange, way: number) {
    const { network } = exchange;
    const { forwarder } = exchange.ways[way]!;
    this.#exchange = exchange;
    this.#way = way;
    this.#rows = new ChunkArrivals(network, forwarder, networkCells.sums);
  }

  begin(list: HostTokens): void {
    this.#list = list;
    this.#rows.begin();
    this.#freed = 0;
  }

  /** Takes in what has come; returns the first token whose row is missing, `tokens` if none is. */
  step(tokens: number): number {
    const list = this.#list;
    if (list === undefined) return tokens;
    const { chunk } = this.#exchange.sumRing;
    while (this.#rows.taken * chunk < list.count && this.#rows.take());
    const next = this.#rows.taken * chunk;
    return next >= list.count ? tokens : list.tokens.view()[next]!;
  }

  /** This rank's tokens below `end` are added up: tells the other side which places it may use for what is still to come. */
  free(end: number): void {
    const list = this.#list;
    const { chunk, chunks } = this.#exchange.sumRing;
    if (list === undefined || list.count <= chunk * chunks) return;
    const { network } = this.#exchange;
    const { forwarder } = this.#exchange.ways[this.#way]!;
    const tokens = list.tokens.view();
    const most = Math.min(this.#rows.taken, Math.ceil(list.count / chunk) - chunks);
    while (this.#freed < most && tokens[(this.#freed + 1) * chunk - 1]! < end) {
      network.link(forwarder).queues[0]!.signal(NETWORK_WINDOW, network.cellAt(forwarder, networkCells.credits));
      this.#freed++;
    }
  }

  get isDone(): boolean {
    return this.#list === undefined || this.#rows.taken * this.#exchange.sumRing.chunk >= this.#list.count;
  }

  /** For the error of a wait; undefined if all is here. */
  describe(): string | undefined {
    const list = this.#list;
    if (list === undefined || this.isDone) return undefined;
    const { forwarder } = this.#exchange.ways[this.#way]!;
    const came = Math.min(list.count, this.#rows.taken * this.#exchange.sumRing.chunk);
    return `${list.count} sums of rank ${this.#exchange.network.group.ranks[forwarder]}, of which ${came} came`;
  }
}
