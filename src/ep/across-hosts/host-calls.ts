// The two calls of a rank that has peers on other hosts, as they go over the network; what the rows are is the caller's.
import { elementFormats, FP8_SUM_FORMAT } from '../../abi/element-formats.ts';
import { networkCells } from '../../abi/network.ts';
import type { CallWait } from '../../core/deadline.ts';
import { dtypes } from '../../core/dtype.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { TensorSet } from '../../device/device.ts';
import type { Tensor } from '../../device/tensor.ts';
import { type HostExchange, NETWORK_WINDOW, ROW_WINDOW } from './host-exchange.ts';
import { bytesOfSum, type LowLatencyCombinePrecision, type SlotArray, sumFormat } from './network-size.ts';
import type { HostTokens, RoutedTokens } from './routed-tokens.ts';
import type { CountExchange } from '../../group/exchange.ts';
import { ChunkArrivals } from '../../group/network/peer-words.ts';
import type { HostRoutes } from '../../group/network/host-routes.ts';

// The sums of combine across hosts on a CPU rank: of the rows that this host has of a token, and of a token's rows here with
// what other hosts sent. Hot path.

interface RowSumsShape {
  readonly routes: Pick<HostRoutes, 'hosts' | 'host'>;
  /** Columns of this host's rows in a sum: its ranks, or the choices of a token. */
  readonly ownColumns: number;
  readonly hidden: number;
  readonly dtype: keyof typeof elementFormats;
  readonly precision: LowLatencyCombinePrecision;
}

/** Tokens [first, first + count) of a list; `bases` holds addresses by rank of this host, or by column of a sum. */
interface SumPart {
  readonly first: number;
  readonly count: number;
  readonly out: number;
  readonly bases: number;
  /** Take one row of each rank alone, the first. */
  readonly onePerRank: boolean;
}

export class RowSums {
  /** Bytes of a sum on the network. */
  readonly sumBytes: number;
  readonly #device: CpuDevice;
  readonly #rowBytes: number;
  readonly #format: number;
  /** What a sum is on the network. */
  readonly #sumFormat: number;
  /** Addresses of the rows of one sum, and whether they are f32. */
  readonly #scratch: Tensor<'i32'>;
  /** Format of the rows in each column of a sum. */
  readonly #columnFormats: Tensor<'i32'>;
  /** Sums as f32, one for each other host, before they become fp8 and after; none where they do not. */
  readonly #wide: Tensor<'f32'>;

  /** The tables belong to the set. Fails with WL_MEMORY. */
  constructor(device: CpuDevice, tensors: TensorSet, shape: RowSumsShape) {
    const { routes, ownColumns, hidden, dtype, precision } = shape;
    const others = routes.hosts.length - 1;
    this.sumBytes = bytesOfSum(hidden, dtype, precision);
    this.#device = device;
    this.#rowBytes = hidden * dtypes[dtype].bytes;
    this.#format = elementFormats[dtype];
    this.#sumFormat = sumFormat(dtype, precision);
    this.#scratch = tensors.empty('i32', [2 * (ownColumns + others + 2)]);
    this.#columnFormats = tensors.empty('i32', [ownColumns + others]);
    this.#columnFormats
      .view()
      .fill(this.#sumFormat)
      .fill(this.#format, routes.host, routes.host + ownColumns);
    this.#wide = tensors.empty('f32', [this.#sumFormat === FP8_SUM_FORMAT ? others : 0, hidden]);
  }

  /** Sums what this host has of tokens of another one, as it travels. `out`: of the first. */
  sumHere(
    { places, ranks, columns }: Pick<HostTokens, 'places' | 'ranks' | 'columns'>,
    { first, count, out, bases, onePerRank }: SumPart,
  ): void {
    const { kernels } = this.#device;
    const cell = first * columns * 4;
    const [rows, from] = [places.address + cell, ranks ? ranks.address + cell : 0];
    const one = onePerRank ? 1 : 0;
    const [rowBytes, scratch, format] = [this.#rowBytes, this.#scratch.address, this.#format];
    if (this.#sumFormat === format) {
      kernels.gatherSum(out, rowBytes, count, columns, rows, from, bases, one, 0, 0, scratch, format);
      return;
    }
    if (this.#sumFormat !== FP8_SUM_FORMAT) {
      kernels.gatherSumF32(out, rowBytes, count, columns, rows, from, bases, one, scratch, format);
      return;
    }
    const { address: wide, shape } = this.#wide;
    for (let token = 0; token < count; token++) {
      const skipped = token * columns * 4;
      const ranksAt = from === 0 ? 0 : from + skipped;
      kernels.gatherSumF32(wide, rowBytes, 1, columns, rows + skipped, ranksAt, bases, one, scratch, format);
      kernels.quantizeSum(out + token * this.sumBytes, wide, shape[1]!);
    }
  }

  /** Adds up this rank's tokens. `out` and the biases, 0 for none: addresses of token 0. */
  addUp(routed: Pick<RoutedTokens, 'sumTable' | 'sumRanks' | 'sumColumns'>, part: SumPart, bias0 = 0, bias1 = 0): void {
    const { kernels } = this.#device;
    const { sumTable, sumRanks, sumColumns: columns } = routed;
    const { first, count, bases, onePerRank } = part;
    const [rowBytes, scratch, format] = [this.#rowBytes, this.#scratch.address, this.#format];
    const at = first * rowBytes;
    const out = part.out + at;
    const cell = first * columns * 4;
    const [rows, from] = [sumTable.address + cell, sumRanks ? sumRanks.address + cell : 0];
    const one = onePerRank ? 1 : 0;
    const [b0, b1] = [bias0 === 0 ? 0 : bias0 + at, bias1 === 0 ? 0 : bias1 + at];
    if (this.#sumFormat === format) {
      kernels.gatherSum(out, rowBytes, count, columns, rows, from, bases, one, b0, b1, scratch, format);
      return;
    }
    const formats = this.#columnFormats.address;
    // oxfmt-ignore
    kernels.gatherSumMixed(
      out, rowBytes, count, columns, rows, from, bases, one, b0, b1, scratch, format, formats, this.#wide.address,
    );
  }
}

/** Tokens whose rows a rank moves within its host before it looks at the network again. */
const LOCAL_PIECE_TOKENS = 64;

interface HostDispatch extends Pick<ForwardedCall, 'rowBases' | 'spread'> {
  readonly routed: RoutedTokens;
  readonly rows: OutgoingRows;
  readonly numTokens: number;
  /** Moves the rows of these tokens to the ranks of this host. */
  readonly moveLocal: (first: number, count: number) => void;
}

interface HostCombine {
  readonly routed: RoutedTokens;
  readonly numTokens: number;
  /** The exchange that the call was announced with. */
  readonly counts: CountExchange;
  /** Address of the result. */
  readonly out: number;
  /** Tables of addresses of the rows that are summed, by rank of this host, and by column of a sum. */
  readonly bases: number;
  readonly sumBases: number;
  /** See SumPart. */
  readonly onePerRank: boolean;
  readonly biases?: readonly (number | undefined)[];
  /** What is summed beside the rows. */
  readonly weights?: SummedWeights | undefined;
}

interface SummedWeights {
  /** Bytes for a token. */
  readonly bytes: number;
  /** Sums those of this host for tokens that came through this rank. */
  readonly sumHere: SumTokens;
  /** Adds up those of this rank's own tokens [first, first + count). */
  readonly addUp: (first: number, count: number) => void;
}

export class HostCalls {
  readonly #device: CpuDevice;
  readonly #exchange: HostExchange;
  readonly #sums: RowSums;
  readonly #forwarders: readonly RowForwarder[];
  readonly #senders: readonly SumSender[];
  readonly #receivers: readonly SumReceiver[];

  constructor(device: CpuDevice, exchange: HostExchange, sums: RowSums) {
    this.#device = device;
    this.#exchange = exchange;
    this.#sums = sums;
    this.#forwarders = exchange.served.map((_, slot) => new RowForwarder(device, exchange, slot));
    this.#senders = exchange.served.map((_, slot) => new SumSender(exchange, slot));
    this.#receivers = exchange.ways.map((_, way) => new SumReceiver(exchange, way));
  }

  /**
   * Sends the rows that go to other hosts, moves those of this one slice by slice, and forwards what comes from others.
   * Returns when nothing of the call is under way to or from this rank.
   */
  async dispatch(
    { routed, rows, rowBases, spread, numTokens, moveLocal }: HostDispatch,
    wait: CallWait,
  ): Promise<void> {
    const exchange = this.#exchange;
    const forwarders = this.#forwarders;
    const { network, served } = exchange;
    if (!network.hasMemory(this.#device.memory.buffer.byteLength)) await this.#useMemory(wait);
    const { rowBytes, withPlaces } = rows;
    for (const [slot, forwarder] of forwarders.entries()) {
      const list = routed.served[slot]!;
      const choices = routed.choices?.served[slot];
      const about = { rowBytes, withPlaces, rowBases, spread, hasMetadata: hasMetadata(rows, list, choices) };
      forwarder.begin({ ...about, list, choices });
    }
    traceBegin('ep.dispatch.network');
    traceBegin('ep.dispatch.queue');
    queueRows(this.#device, exchange, routed, rows);
    traceEnd('ep.dispatch.queue');
    for (let first = 0; first < numTokens; first += LOCAL_PIECE_TOKENS) {
      network.advance();
      traceBegin('ep.dispatch.local');
      moveLocal(first, Math.min(LOCAL_PIECE_TOKENS, numTokens - first));
      traceEnd('ep.dispatch.local');
      for (const forwarder of forwarders) forwarder.step();
    }
    const isDone = (): boolean => {
      let all = true;
      for (const forwarder of forwarders) {
        forwarder.step();
        all &&= forwarder.isDone;
      }
      return all && network.isDelivered;
    };
    const awaits = (peer: number): boolean =>
      served.some(({ rank }, slot) => rank === peer && !forwarders[slot]!.isDone);
    await network.until({ isDone, awaits, describe: () => this.#describe(forwarders) }, wait);
    traceEnd('ep.dispatch.network');
  }

  /**
   * Behind the barrier that makes the rows of this host's ranks readable: sums those of tokens of other hosts and sends
   * them back, and has this rank's own tokens added up. Returns when nothing is under way to or from this rank.
   */
  async combine(call: HostCombine, wait: CallWait): Promise<void> {
    const exchange = this.#exchange;
    const receivers = this.#receivers;
    const { network, served, ways } = exchange;
    const { routed, numTokens, counts, out, bases, sumBases, onePerRank, biases = [], weights } = call;
    const sums = this.#sums;
    const rowBytes = sums.sumBytes;
    const weightBytes = weights?.bytes ?? 0;
    const sumRows: SumTokens = (list, first, count, to) =>
      sums.sumHere(list, { first, count, out: to, bases, onePerRank });
    const sumWeights = weights?.sumHere;
    if (!network.hasMemory(this.#device.memory.buffer.byteLength)) await this.#useMemory(wait);
    traceBegin('ep.combine.network');
    for (const [slot, sender] of this.#senders.entries()) {
      const hasEntered = (): boolean => exchange.hasEntered(counts, slot);
      sender.begin({ rowBytes, weightBytes, list: routed.served[slot]!, hasEntered, sumRows, sumWeights });
    }
    for (const [way, receiver] of receivers.entries()) receiver.begin(routed.sent[way]!);
    let added = 0;
    const isDone = (): boolean => {
      let all = true;
      for (const sender of this.#senders) {
        while (sender.step()) network.advance();
        all &&= sender.isDone;
      }
      let ready = numTokens;
      for (const receiver of receivers) ready = Math.min(ready, receiver.step(numTokens));
      if (ready > added) {
        traceBegin('ep.combine.own-sums');
        const part = { first: added, count: ready - added, out, bases: sumBases, onePerRank };
        sums.addUp(routed, part, biases[0], biases[1]);
        weights?.addUp(added, ready - added);
        traceEnd('ep.combine.own-sums');
      }
      added = Math.max(added, ready);
      for (const receiver of receivers) {
        receiver.free(added);
        all &&= receiver.isDone;
      }
      return all && network.isDelivered;
    };
    const senders = this.#senders;
    const awaits = (peer: number): boolean =>
      served.some(({ rank }, slot) => rank === peer && !senders[slot]!.isDone) ||
      ways.some(({ forwarder }, way) => forwarder === peer && !receivers[way]!.isDone);
    await network.until({ isDone, awaits, describe: () => this.#describe([...receivers, ...senders]) }, wait);
    traceEnd('ep.combine.network');
  }

  /** The record of this call was put from the memory as it was registered before. */
  async #useMemory(wait: CallWait): Promise<void> {
    await this.#exchange.settle(wait);
    await this.#exchange.network.useMemory();
  }

  #describe(parts: readonly { describe(): string | undefined }[]): string {
    const missing = parts.flatMap((part) => part.describe() ?? []);
    if (missing.length === 0) return this.#exchange.describeUndelivered();
    return `Rank ${this.#exchange.network.group.worldRank} did not get ${missing.join('; ')} from other hosts`;
  }
}

// Combine across hosts: a rank sums its host's rows of the tokens that came through it and sends one row per token back;
// the source adds those rows to its own host's. Where not all of them fit, places are used again, and the source says when.
// Hot path.

/** Bytes of what one combine brings back per token. */
interface SumShape {
  readonly rowBytes: number;
  /** 0 if no weights travel. */
  readonly weightBytes: number;
}

/** Puts the sums of tokens [first, first + count) of a list to an address. */
type SumTokens = (list: HostTokens, first: number, count: number, out: number) => void;

interface ReturnedCall extends SumShape {
  readonly list: HostTokens;
  readonly sumRows: SumTokens;
  readonly sumWeights: SumTokens | undefined;
  /** True when the source has begun the same call, so that its memory may be written. */
  hasEntered(): boolean;
}

/** The rows that go back to one source. */
class SumSender {
  readonly #exchange: HostExchange;
  readonly #slot: number;
  readonly #credits: ChunkArrivals;
  #call: ReturnedCall | undefined;
  #summed = 0;
  #queued = 0;

  constructor(exchange: HostExchange, slot: number) {
    this.#exchange = exchange;
    this.#slot = slot;
    this.#credits = new ChunkArrivals(exchange.network.words, exchange.served[slot]!.rank, networkCells.credits, 1);
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
      if (weightBytes > 0) call.sumWeights?.(list, this.#summed, count, this.#weightsAt(this.#summed, call));
      traceEnd('ep.combine.host-sums');
      this.#summed += count;
    }
    if (call.hasEntered()) this.#queue(call);
    return this.#summed < end;
  }

  /** What is missing, for the error of a wait; undefined if nothing of the source is. */
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
class SumReceiver {
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
    this.#rows = new ChunkArrivals(network.words, forwarder, networkCells.sums, network.channels);
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

  /** What is missing, for the error of a wait; undefined if all is here. */
  describe(): string | undefined {
    const list = this.#list;
    if (list === undefined || this.isDone) return undefined;
    const { forwarder } = this.#exchange.ways[this.#way]!;
    const came = Math.min(list.count, this.#rows.taken * this.#exchange.sumRing.chunk);
    return `${list.count} sums of rank ${this.#exchange.network.group.ranks[forwarder]}, of which ${came} came`;
  }
}

// Queues what a dispatch sends to other hosts: first what travels beside the rows, to the forwarder; then each row once,
// straight to its first place there, in chunks that the forwarder is told of.

/** An array of this rank with an entry per token. */
export interface BesideRows {
  readonly array: Extract<SlotArray, 'topkIdx' | 'topkWeights' | 'scales'>;
  readonly address: number;
  /** Bytes of a token. */
  readonly bytes: number;
}

interface OutgoingRows {
  readonly address: number;
  readonly rowBytes: number;
  /** Offset of row 0 in the part of every rank. */
  readonly offset: number;
  readonly beside: readonly BesideRows[];
  /** True: the message says which tokens these are and where they belong; a cached dispatch leaves that out, since it is known. */
  readonly withPlaces: boolean;
}

/** True if a forwarder hears something besides the rows of so many tokens; `choices`: that come with them. */
function hasMetadata(
  { beside, withPlaces }: Pick<OutgoingRows, 'beside' | 'withPlaces'>,
  { count }: Pick<HostTokens, 'count'>,
  choices: Tensor<'i32'> | undefined,
): boolean {
  return (count > 0 && (withPlaces || beside.length > 0)) || (choices !== undefined && choices.bytes > 0);
}

function queueRows(device: CpuDevice, exchange: HostExchange, routed: RoutedTokens, rows: OutgoingRows): void {
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

// What a rank does for one source of another host in a dispatch: puts what came beside the rows to the ranks of its host,
// and copies each row from its first place to the others. Hot path.

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

class RowForwarder {
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
    this.#metadata = new ChunkArrivals(network.words, rank, networkCells.metadata, 1);
    this.#rows = new ChunkArrivals(network.words, rank, networkCells.rows, network.channels);
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

  /** What is here and what is not, for the error of a wait; undefined if all is. */
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
