// Low-latency calls across hosts on a CPU rank. A dispatch sends each other host one message, to the rank there that stands for
// this one (see HostRoutes): it puts the rows to the ranks of its host and tells them what this rank would. Of a combine it
// sums the rows that its host has of each token, and sends one message of sums back. Whoever waits for anything does this work
// for others meanwhile. Hot path.
import { LOW_LATENCY_RESULTS } from '../../../abi/low-latency.ts';
import { networkCells } from '../../../abi/network.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { TensorSet } from '../../../device/device.ts';
import type { Tensor } from '../../../device/tensor.ts';
import type { HostNetwork } from '../../../group/network/host-network.ts';
import { directRoutes, hostRoutes, type HostRoutes } from '../../../group/network/host-routes.ts';
import type { HostsFailure } from '../../../group/network/hosts-failure.ts';
import type { OutQueue } from '../../../group/network/out-queue.ts';
import type { Steps } from '../../../group/steps.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import { RowSums } from '../../across-hosts/host-calls.ts';
import { choiceAt, emptyLayout } from '../../buffer/dispatch-layout.ts';
import { isRefused, readDispatchWord } from '../call-words.ts';
import { scaleWords } from '../low-latency-arguments.ts';
import {
  LOW_LATENCY_MESSAGE_HEADER,
  type LowLatencyConfig,
  lowLatencyMessage,
  type LowLatencyMessage,
  type LowLatencyRegion,
  type LowLatencyScope,
  lowLatencySumsBytes,
  travelsByChoice,
} from '../low-latency-size.ts';
import { ChoiceSums, makeChoiceTables } from './choice-sums.ts';
import { LowLatencyCells, type Progress } from '../members/low-latency-cells.ts';
import type { LowLatencyMembers } from '../members/low-latency-members.ts';

export type ForwardingTables = ReturnType<typeof makeForwardingTables>;

/** Where ranks come and go, none may depend on a third one. */
export function lowLatencyRoutes(
  { topology, rank }: Pick<RankGroup, 'topology' | 'rank'>,
  { elastic }: Pick<Required<LowLatencyConfig>, 'elastic'>,
): HostRoutes {
  return elastic ? directRoutes(topology.hosts, rank) : hostRoutes(topology.hosts, rank);
}

/** Fails with WL_MEMORY. */
export function makeForwardingTables(group: RankGroup, device: CpuDevice, config: Required<LowLatencyConfig>) {
  const { maxTokensPerRank: most, numExperts, hidden, combinePrecision: precision } = config;
  const routes = lowLatencyRoutes(group, config);
  const { length: here } = routes.here;
  const { length: ownColumns } = group.topology.scaleUpRanks;
  const columns = ownColumns + routes.ways.length;
  return TensorSet.together(device, (tensors) => ({
    layout: emptyLayout(tensors, most, { ranks: group.size, experts: numExperts }),
    /** Numbers in the group of the ranks of this host that this one forwards to. */
    ranks: tensors.empty('i32', [here]),
    /** u8 [M, those ranks]: which of them gets which token of a message. */
    marks: tensors.empty('u8', [most, here]),
    next: tensors.empty('i32', [here]),
    /** Addresses by those ranks, for one kernel at a time, and by column of a sum. */
    bases: tensors.empty('i32', [here]),
    sumBases: tensors.empty('i32', [columns]),
    sums: new RowSums(device, tensors, { routes, ownColumns, hidden, dtype: 'bf16', precision }),
    /** One for each result: the columns of this rank's sums, hosts in order, of its own host a column per rank. */
    sumTables: Array.from({ length: LOW_LATENCY_RESULTS }, () => tensors.empty('i32', [most, columns])),
    choices: travelsByChoice(config) ? makeChoiceTables(tensors, { group, config, routes }) : undefined,
    /** One for each source that is served and each result: the rows of its tokens at the ranks of this host. */
    places: routes.served.map(() =>
      Array.from({ length: LOW_LATENCY_RESULTS }, () => tensors.empty('i32', [most, here])),
    ),
  }));
}

/** What this rank sends to one other host. */
export interface HostMessage {
  /** The rank that takes it, by which tables name the host. */
  readonly forwarder: number;
  readonly ranks: readonly number[];
  /** The message of the dispatch that is being sent. */
  address: number;
  count: number;
  at: LowLatencyMessage;
  /** The last dispatch that was sent there, by result. */
  readonly sentIn: Int32Array;
  /** Sums that are due from there, as the cell counts them; and when those of the last combine of each result have come. */
  due: number;
  readonly dueIn: Int32Array;
  /** What the cell of releases has to be raised by to be the number of a dispatch; undefined until the first one is sent. */
  released: number | undefined;
}

/** A rank of another host for which this one stands here. */
interface Source {
  readonly rank: number;
  readonly slot: number;
  /** The number of this host among the ways of the source. */
  readonly way: number;
  readonly cells: LowLatencyCells;
  readonly channel: number;
  /** Dispatches that were forwarded, and dispatches of which it was told that they are released. They do not wrap as the words do. */
  forwarded: number;
  released: number;
  /** What the cell of rows has to be raised by to be the number of a dispatch; undefined until this rank begins the first one. */
  arrived: number | undefined;
  /** What cells held when this rank linked to the source: of rows, weights, and ends of combines by result. */
  readonly before: { rows: number; metadata: number; readonly ended: Int32Array };
  /** Combines whose sums are due, in order, and the dispatches that they are of. */
  readonly due: { readonly number: Int32Array; readonly sequence: Float64Array; next: number; end: number };
  /** Sums that were sent. */
  summed: number;
  /** The tokens of the last dispatch of each result, their choices, and how many combines of each result have had their sums sent. */
  readonly counts: Int32Array;
  readonly choices: { topk: number; k: number; indexBytes: number }[];
  readonly sent: Int32Array;
}

/** Addresses of the choices of this rank's tokens and of their weights. */
interface OwnChoices {
  readonly topk: number;
  readonly indexBytes: number;
  readonly k: number;
  readonly weights: number;
  readonly added: Int32Array | undefined;
}

interface HostForwardingParts {
  readonly window: SymmetricWindow;
  readonly network: HostNetwork;
  readonly failure: HostsFailure;
  readonly tables: ForwardingTables;
  readonly cells: LowLatencyCells;
  /** Where ranks come and go. */
  readonly members: LowLatencyMembers | undefined;
}

/** What goes beside the rows of a dispatch, alike for all hosts. */
interface Beside {
  readonly word: number;
  readonly k: number;
  readonly indexBytes: number;
  readonly hasWeights: boolean;
  readonly rowBytes: number;
  readonly words: number;
}

export class HostForwarding {
  readonly messages: readonly HostMessage[];
  readonly network: HostNetwork;
  /** The sums of combines by choice, where those are what travels. */
  readonly choices: ChoiceSums | undefined;
  readonly #scope: LowLatencyScope<CpuDevice>;
  readonly #window: SymmetricWindow;
  readonly #failure: HostsFailure;
  readonly #tables: ForwardingTables;
  readonly #cells: LowLatencyCells;
  readonly #members: LowLatencyMembers | undefined;
  #also: (() => void) | undefined;
  readonly #routes: HostRoutes;
  /** Begins of the parts of the ranks that this one forwards to. */
  readonly #addresses: readonly number[];
  /** Number of the last combine of each result. */
  readonly #combines = new Int32Array(LOW_LATENCY_RESULTS);
  /** The dispatch of which it was. */
  readonly #sequences = new Float64Array(LOW_LATENCY_RESULTS);
  /** The last dispatch that was begun here. */
  #sequence = 0;
  readonly #sources: readonly Source[];
  /** The way to the host of each rank that stands for this one elsewhere. */
  readonly #wayOf = new Map<number, number>();
  /** 32-bit words of the window, from its own begin. */
  readonly #words: Int32Array;

  constructor(
    scope: LowLatencyScope<CpuDevice>,
    { window, network, failure, tables, cells, members }: HostForwardingParts,
  ) {
    const { group, device, size } = scope;
    const { routes, channels } = network;
    const { topology } = group;
    const hearers = routes.here.map((rank) => topology.scaleUpIndexOf(rank));
    this.#members = members;
    this.#addresses = hearers.map((index) => window.addresses[index]!);
    this.#scope = scope;
    this.#window = window;
    this.#failure = failure;
    this.#tables = tables;
    this.#cells = cells;
    this.#routes = routes;
    this.network = network;
    this.#words = device.hostView('i32', window.storage.address, window.storage.bytes / 4);
    tables.ranks.view().set(routes.here);
    this.choices = tables.choices && new ChoiceSums(scope, window, tables.choices, routes);
    const nothing = lowLatencyMessage(scope.config, 0, NOTHING);
    this.messages = routes.ways.map(({ forwarder, ranks }, way) => {
      this.#wayOf.set(forwarder, way);
      const [sentIn, dueIn] = [new Int32Array(LOW_LATENCY_RESULTS), new Int32Array(LOW_LATENCY_RESULTS)];
      return { forwarder, ranks, address: 0, count: 0, at: nothing, sentIn, due: 0, dueIn, released: undefined };
    });
    this.#sources = routes.served.map(({ rank, way }, slot) => ({
      rank,
      slot,
      way,
      channel: slot % channels,
      cells: new LowLatencyCells(device, window, size, { source: rank, ranks: group.size, hearers }),
      forwarded: 0,
      released: 0,
      arrived: undefined,
      before: { rows: 0, metadata: 0, ended: new Int32Array(LOW_LATENCY_RESULTS) },
      due: { number: new Int32Array(MOST_DUE), sequence: new Float64Array(MOST_DUE), next: 0, end: 0 },
      summed: 0,
      counts: new Int32Array(LOW_LATENCY_RESULTS),
      choices: Array.from({ length: LOW_LATENCY_RESULTS }, () => ({ topk: 0, k: 0, indexBytes: 0 })),
      sent: new Int32Array(LOW_LATENCY_RESULTS),
    }));
    // Ranks that stay begin with the first dispatch.
    if (members === undefined) this.begin(1);
  }

  /** This rank has linked to another one: what that has counted here so far is of the past. */
  linkedTo(rank: number): void {
    const { words } = this.network;
    const message = this.messages.find(({ forwarder }) => forwarder === rank)!;
    message.due = words.count(rank, networkCells.sums);
    message.released = undefined;
    message.sentIn.fill(0);
    const source = this.#sources.find((one) => one.rank === rank)!;
    source.arrived = undefined;
    source.before.rows = words.count(rank, networkCells.rows);
    source.before.metadata = words.count(rank, networkCells.metadata);
    for (const result of source.before.ended.keys())
      source.before.ended[result] = words.count(rank, networkCells.ended + result);
    source.due.next = source.due.end;
    source.summed = 0;
    source.sent.fill(0);
  }

  /** A dispatch begins: it is the first one with ranks that take part since. Both sides see it alike, and count from there. */
  begin(sequence: number): void {
    const { words } = this.network;
    this.#sequence = sequence;
    for (const message of this.messages) {
      if (message.released !== undefined || !this.#isActive(message.forwarder, sequence)) continue;
      message.released = sequence - 1 - words.count(message.forwarder, networkCells.released);
    }
    for (const source of this.#sources) {
      if (source.arrived !== undefined || !this.#isActive(source.rank, sequence)) continue;
      source.arrived = sequence - 1 - source.before.rows;
      source.forwarded = sequence - 1;
      source.released = sequence - 1;
    }
  }

  #isActive(rank: number, sequence: number): boolean {
    return this.#members === undefined || this.#members.isActive(rank, sequence);
  }

  // The side of the source.

  /** Whether that rank has reached a call, or another one tells it of all ranks of that host. */
  // oxlint-disable-next-line max-params -- hot path: as those of LowLatencyCells
  hasReached(rank: number, word: Progress, call: number, result = 0): boolean {
    const way = this.#wayTo(rank, word);
    if (way === undefined) return this.#cells.hasReached(rank, word, call, result);
    // One rank of a host tells of all.
    if (way < 0) return true;
    const message = this.messages[way]!;
    const { words } = this.network;
    if (word === 'released')
      return (
        message.released !== undefined &&
        ((words.count(rank, networkCells.released) + message.released - call) | 0) >= 0
      );
    const of = this.#combines.indexOf(call);
    return this.#isAwaited(message, of) && ((words.count(rank, networkCells.sums) - message.dueIn[of]!) | 0) >= 0;
  }

  /** How far it is, for errors; of sums, how many have come. */
  reached(rank: number, word: Progress, result = 0): number {
    const way = this.#wayTo(rank, word);
    if (way === undefined) return this.#cells.reached(rank, word, result);
    if (way < 0) return 0;
    const { words } = this.network;
    if (word !== 'released') return words.count(rank, networkCells.sums);
    return words.count(rank, networkCells.released) + (this.messages[way]!.released ?? 0);
  }

  /** The way by which a rank of another host tells that word; -1 if another rank tells it, undefined if it is told here. */
  #wayTo(rank: number, word: Progress): number | undefined {
    const { topology } = this.#scope.group;
    if (topology.hostOf(rank) === topology.hostIndex || word === 'dispatched' || word === 'taken') return undefined;
    return this.#wayOf.get(rank) ?? -1;
  }

  /** Whether sums come from there in the last combine of that result. */
  #isAwaited({ sentIn }: HostMessage, result: number): boolean {
    return this.#members === undefined || sentIn[result] === (this.#sequences[result]! | 0);
  }

  /**
   * Names the ranks that a wait for the rows of these waits for. Those of another host come through a rank of this one, which alone is to
   * blame if it has them already, has gone, or is not in the dispatch itself.
   */
  behindRows(missing: readonly number[], call: number): readonly number[] {
    const blamed = missing.map((rank) => {
      const told = this.#failure.toldBy(rank);
      if (told === undefined || told.forwarder === this.#scope.group.rank) return rank;
      const { forwarder, words } = told;
      const hasRows = ((words.count(rank, networkCells.rows) - call) | 0) >= 0;
      const isThere = this.#window.isAlive(this.#scope.group.topology.scaleUpIndexOf(forwarder));
      return hasRows || !isThere || !this.#cells.hasReached(forwarder, 'dispatched', call) ? forwarder : rank;
    });
    return [...new Set(blamed)];
  }

  /** Whether that rank sends sums to this one. */
  sendsSums(rank: number): boolean {
    return this.#wayOf.has(rank);
  }

  /** In place of the ranks of another host its forwarder gets each token. u8 [tokens, ranks]. */
  fold(isTokenInRank: Tensor<'u8'>, tokens: number): void {
    const marks = isTokenInRank.view();
    const { size } = this.#scope.group;
    for (const { forwarder, ranks } of this.messages) {
      for (let first = 0; first < tokens * size; first += size) {
        let mark = 0;
        for (const rank of ranks) {
          mark |= marks[first + rank]!;
          marks[first + rank] = 0;
        }
        marks[first + forwarder] = mark;
      }
    }
  }

  /** Places the arrays of a dispatch's messages. `counts`: tokens by rank, which stand for hosts at forwarders. */
  open(sequence: number, counts: Int32Array, beside: Beside): void {
    const { config, size } = this.#scope;
    for (const [way, message] of this.messages.entries()) {
      message.count = counts[message.forwarder]!;
      message.sentIn[sequence % LOW_LATENCY_RESULTS] = this.#sends(message, sequence) ? sequence | 0 : 0;
      message.at = lowLatencyMessage(config, message.count, beside);
      message.address = this.#own('sent', way * size.receiveSlots + (sequence % size.receiveSlots));
      this.#head(message.address, message.count, beside.word);
    }
  }

  /** Sends the messages of a dispatch, whose arrays are filled in. */
  send(sequence: number): void {
    for (const [way, message] of this.messages.entries()) {
      if (this.#isSent(message, sequence)) this.#sendTo(way, message.address, message.at.bytes, sequence);
    }
  }

  #sends({ forwarder, released }: HostMessage, sequence: number): boolean {
    return released !== undefined && this.#isActive(forwarder, sequence);
  }

  #isSent({ sentIn }: HostMessage, sequence: number): boolean {
    return sentIn[sequence % LOW_LATENCY_RESULTS] === (sequence | 0);
  }

  /** Tells the other hosts that this rank sends nothing, and why. */
  refuse(sequence: number, status: number, word: number): void {
    const { receiveSlots } = this.#scope.size;
    for (const [way, message] of this.messages.entries()) {
      message.sentIn[sequence % LOW_LATENCY_RESULTS] = 0;
      if (!this.#sends(message, sequence)) continue;
      const address = this.#own('sent', way * receiveSlots + (sequence % receiveSlots));
      this.#head(address, status, word);
      this.#sendTo(way, address, LOW_LATENCY_MESSAGE_HEADER, sequence);
    }
  }

  #sendTo(way: number, from: number, bytes: number, sequence: number): void {
    const { network } = this;
    const { forwarder, slot } = this.#routes.ways[way]!;
    const { regions, receiveSlots } = this.#scope.size;
    const { offset, stride } = regions.landed;
    const place = offset + (slot * receiveSlots + (sequence % receiveSlots)) * stride;
    const queue = network.link(forwarder).queues[slot % network.channels]!;
    queue.put(from, 0, network.offsetAt(forwarder, 0, place), bytes);
    queue.signal(0, network.cellAt(forwarder, networkCells.rows));
  }

  /** The word of the combine of that result whose sums have come from that rank. */
  combineCall(rank: number, result: number): number {
    return this.#words[this.#wordAt(this.#returned(this.#wayOf.get(rank)!, result)) + 1]!;
  }

  /** Lists where the rows of this rank's tokens are that combine adds up. i32 [tokens, ranks]. */
  listSums(sequence: number, sentRows: Tensor<'i32'>, tokens: number): void {
    const { hosts, host, ways } = this.#routes;
    const table = this.#sumTable(sequence).view();
    const rows = sentRows.view();
    const { size } = this.#scope.group;
    let column = 0;
    const columns = this.#sumColumns;
    for (const [there, ranks] of hosts.entries()) {
      if (there === host && this.choices !== undefined) {
        for (let token = 0; token < tokens; token++) {
          const isHere = ranks.some((rank) => rows[token * size + rank]! >= 0);
          table[token * columns + column] = isHere ? token : -1;
        }
        column++;
        continue;
      }
      const from = there === host ? ranks : [ways.find((way) => way.host === there)!.forwarder];
      for (const rank of from) {
        for (let token = 0; token < tokens; token++) table[token * columns + column] = rows[token * size + rank]!;
        column++;
      }
    }
  }

  /** Columns of the sums of this rank's tokens. */
  get #sumColumns(): number {
    return this.choices === undefined ? this.#tables.sumBases.shape[0]! : this.#routes.hosts.length;
  }

  /** Adds up this rank's tokens, which have come from all hosts. `own`: addresses of its rows at the ranks of this host. */
  addUp(of: { sequence: number; tokens: number; own: Int32Array; out: number }): void {
    const { hosts, host } = this.#routes;
    const { sumBases, sums } = this.#tables;
    const bases = sumBases.view();
    let column = 0;
    for (const there of hosts.keys()) {
      if (there === host) {
        bases.set(of.own, column);
        column += of.own.length;
        continue;
      }
      bases[column++] = this.#sumsOf(there, of.sequence);
    }
    const sumTable = this.#sumTable(of.sequence);
    const part = { first: 0, count: of.tokens, out: of.out, bases: sumBases.address, onePerRank: false };
    sums.addUp({ sumTable, sumRanks: undefined, sumColumns: column }, part);
  }

  /** The same of choices: `topk` [tokens, k] and `weights` are this rank's. */
  addUpChoices({
    sequence,
    tokens,
    out,
    ...of
  }: OwnChoices & { readonly sequence: number; readonly tokens: number; readonly out: number }): void {
    const { hosts, host } = this.#routes;
    const { sumBases } = this.#tables;
    const bases = sumBases.view();
    for (const there of hosts.keys()) if (there !== host) bases[there] = this.#sumsOf(there, sequence);
    const result = sequence % LOW_LATENCY_RESULTS;
    const choices = this.choices as ChoiceSums;
    const firstRows = choices.firstRowsOf(this.#scope.group.rank, result);
    const sumTable = this.#sumTable(sequence).address;
    choices.addUp({ ...of, count: tokens, firstRows, result }, { sumTable, bases, basesAt: sumBases.address, out });
  }

  /** A combine begins here, for which the ranks that stand for this one weight the rows of its tokens. */
  sendWeights(sequence: number, weights: Tensor<'f32'>): void {
    const { config, size } = this.#scope;
    const { offset, stride } = size.regions.landedWeights;
    const result = sequence % LOW_LATENCY_RESULTS;
    const width = weights.shape[1]! * 4;
    for (const [way, { forwarder, slot }] of this.#routes.ways.entries()) {
      if (!this.#isSent(this.messages[way]!, sequence)) continue;
      // What this rank sent in that dispatch, with the tokens that went there.
      const message = this.#own('sent', way * size.receiveSlots + (sequence % size.receiveSlots));
      const count = Math.min(this.#words[this.#wordAt(message)]!, config.maxTokensPerRank);
      const list = message + lowLatencyMessage(config, count, NOTHING).sourceToken;
      const from = this.#own('sentWeights', way * LOW_LATENCY_RESULTS + result);
      this.#scope.device.kernels.gatherRows(from, weights.address, width, list, count);
      const queue = this.network.link(forwarder).queues[slot % this.network.channels]!;
      const place = offset + (slot * LOW_LATENCY_RESULTS + result) * stride;
      queue.put(from, 0, this.network.offsetAt(forwarder, 0, place), count * width);
      queue.signal(0, this.network.cellAt(forwarder, networkCells.metadata));
    }
  }

  /**
   * A combine begins, of that dispatch: sums of it are due to the ranks whose rows have come (`received`, by rank, where ranks come and
   * go), and from those to which this one sent.
   */
  beginCombine(number: number, sequence: number, received: Int32Array): void {
    const result = sequence % LOW_LATENCY_RESULTS;
    this.#combines[result] = number;
    this.#sequences[result] = sequence;
    for (const message of this.messages) {
      if (!this.#isAwaited(message, result)) continue;
      message.due = (message.due + 1) | 0;
      message.dueIn[result] = message.due;
    }
    for (const { rank, due } of this.#sources) {
      if (this.#members !== undefined && received[rank] !== 1) continue;
      due.number[due.end % MOST_DUE] = number;
      due.sequence[due.end % MOST_DUE] = sequence;
      due.end += 1;
    }
  }

  /** A combine of that result has ended here: its sums may be written over. */
  freeSums(result: number): void {
    this.#tellForwarders(networkCells.ended + result, (message) => this.#isAwaited(message, result));
  }

  #tellForwarders(cell: number, hears: (message: HostMessage) => boolean = () => true): void {
    for (const [way, { forwarder, slot }] of this.#routes.ways.entries()) {
      if (!hears(this.messages[way]!)) continue;
      const queue = this.network.link(forwarder).queues[slot % this.network.channels]!;
      queue.signal(0, this.network.cellAt(forwarder, cell));
    }
  }

  // The side of the forwarder.

  /** Where ranks come and go: what advance() is to do besides, before rows are taken in. */
  alsoAdvance(work: () => void): void {
    this.#also = work;
  }

  /** Takes in what has come, does for others what can be done, posts what there is room for. */
  advance(): void {
    this.network.advance();
    this.#also?.();
    for (const source of this.#sources) {
      const { words } = this.network;
      const { arrived } = source;
      if (arrived === undefined) continue;
      while (((words.count(source.rank, networkCells.rows) + arrived - source.forwarded) | 0) > 0)
        this.#forward(source);
      this.#tellReleased(source);
      while (this.#sendSums(source));
    }
    this.network.advance();
  }

  /** Hot path. Whether the sums of that combine have been sent for all ranks for which this one stands. */
  hasSummed(number: number): boolean {
    for (const source of this.#sources) if (!this.#isSummed(source, number)) return false;
    return true;
  }

  #isSummed({ rank, due }: Source, number: number): boolean {
    for (let at = due.next; at < due.end; at++) {
      const isOwed = ((due.number[at % MOST_DUE]! - number) | 0) <= 0;
      if (isOwed && this.#isActive(rank, due.sequence[at % MOST_DUE]!)) return false;
    }
    return true;
  }

  /** Ranks for which this one stands that have not let it send them the sums of that combine. */
  unsummed(number: number): number[] {
    return this.#sources.flatMap((source) => (this.#isSummed(source, number) ? [] : [source.rank]));
  }

  /** Ends when all ranks for which this one stands have come to the barrier with that number; `run` carries out steps. */
  async meet(number: number, run: (steps: Steps) => Promise<void> | undefined): Promise<void> {
    const { words } = this.network;
    this.#tellForwarders(networkCells.calls);
    const missing = (): number[] =>
      this.#sources.flatMap(({ rank }) => (((words.count(rank, networkCells.calls) - number) | 0) < 0 ? [rank] : []));
    await run({ progress: 0, name: 'a barrier', missing, advance: () => missing().length === 0 });
  }

  get isPosted(): boolean {
    for (const peer of this.#routes.peers) if (!this.#isPostedTo(peer)) return false;
    return true;
  }

  #isPostedTo(peer: number): boolean {
    if (this.#members !== undefined && !(this.network.isLinked(peer) && this.#members.isActive(peer, this.#sequence)))
      return true;
    const link = this.network.link(peer);
    if (link.isClosed) return true;
    for (const queue of link.queues) if (!queue.isPosted) return false;
    return true;
  }

  /** What the ranks of this host do rings as well. */
  isRung(): boolean {
    return this.network.isRung();
  }

  /** Ranks to which something waits to be posted. */
  unposted(): number[] {
    return this.#routes.peers.filter((peer) => !this.#isPostedTo(peer));
  }

  /** The next dispatch of a source, which has come. */
  #forward(source: Source): void {
    const { cells, slot } = source;
    const { receiveSlots } = this.#scope.size;
    source.forwarded += 1;
    const sequence = source.forwarded;
    const at = sequence % receiveSlots;
    const address = this.#own('landed', slot * receiveSlots + at);
    const head = this.#wordAt(address);
    const [count, word] = [this.#words[head]!, this.#words[head + 1]!];
    const { next } = this.#tables;
    if (isRefused(word)) next.view().fill(count);
    else {
      try {
        this.#putRows(source, { address, count, word, at, result: sequence % LOW_LATENCY_RESULTS });
      } catch (error) {
        if (this.#members === undefined) throw error;
        // Nobody waits for it any more.
        this.#members.mask(source.rank);
        return;
      }
    }
    const counts = next.view();
    for (let index = 0; index < counts.length; index++) {
      cells.write(index, 'rows', sequence, counts[index]!);
      cells.write(index, 'dispatchCall', sequence, word);
    }
    cells.publish('dispatched', sequence);
  }

  /** Puts the rows of a message to the slots of the ranks of this host, as their source would. */
  #putRows(source: Source, of: { address: number; count: number; word: number; at: number; result: number }): void {
    const { address, count, word, at: slot, result } = of;
    const { config, group, device } = this.#scope;
    const { kernels } = device;
    const { layout, marks, next, ranks, places } = this.#tables;
    const { hidden, maxTokensPerRank: most, maxTopk } = config;
    if (count < 0 || count > most) throw this.#noMessage(source, `${count} tokens, expected 0 to ${most}`);
    const { k, scales, isWide, hasWeights } = readDispatchWord(word);
    if (k > maxTopk) throw this.#noMessage(source, `${k} choices for each token, expected 1 to ${maxTopk}`);
    const indexBytes = isWide ? 8 : 4;
    const words = scales === undefined ? 0 : scaleWords(hidden, scales);
    const rowBytes = scales === undefined ? hidden * 2 : hidden;
    const at = lowLatencyMessage(config, count, { k, indexBytes, hasWeights, rowBytes, words });
    const topk = address + at.topkIdx;
    const { isTokenInRank, numTokensPerRank, numTokensPerExpert } = layout;
    const [perRank, perExpert] = [numTokensPerRank.address, numTokensPerExpert.address];
    const { numExperts } = config;
    // oxfmt-ignore
    const bad = kernels.countChoices(topk, indexBytes, count, k, group.size, numExperts, -1, isTokenInRank.address, perRank, perExpert);
    if (bad >= 0) {
      const { place, range } = choiceAt({ name: 'topkIdx', experts: numExperts, dropped: -1 }, k, bad);
      throw this.#noMessage(source, `a choice at ${place}, expected ${range}`);
    }
    this.#pickHere(count);
    const here = ranks.shape[0]!;
    const table = (places[source.slot]![result] as Tensor<'i32'>).address;
    source.counts[result] = count;
    const chosen = source.choices[result]!;
    chosen.topk = topk;
    chosen.k = k;
    chosen.indexBytes = indexBytes;
    kernels.fillBytes(next.address, 0, next.bytes);
    kernels.compactRows(marks.address, count, here, next.address, table);
    const scatter = (region: LowLatencyRegion, from: number, bytes: number): void =>
      kernels.scatterRows(address + from, bytes, count, here, table, 0, this.#bases(region, slot, source.rank, bytes));
    scatter('rows', at.rows, rowBytes);
    scatter('sourceToken', at.sourceToken, 4);
    if (words > 0 && config.layout === 'expert-major') scatter('scales', at.scales, words * 4);
    else
      for (let column = 0; column < words; column++) {
        // The scales of a source stand column by column, of as many rows as it may send.
        const own = source.rank * most * words * 4 + column * most * 4;
        const bases = this.#bases('scales', slot, 0, 0, own);
        kernels.scatterRows(address + at.scales + column * most * 4, 4, count, here, table, 0, bases);
      }
    const expertsOf = numExperts / group.size;
    const to = this.#bases('topkIdx', slot, source.rank, k * indexBytes);
    kernels.scatterTopkIndex(topk, indexBytes, count, k, here, expertsOf, table, to, ranks.address);
    if (!hasWeights) return;
    const weights = address + at.topkWeights;
    const weightsTo = this.#bases('topkWeights', slot, source.rank, k * 4);
    kernels.scatterTopkWeight(topk, indexBytes, weights, count, k, here, expertsOf, table, weightsTo, ranks.address);
  }

  /** The error of a message whose rows nobody could place. The source has checked what its caller gave. */
  #noMessage({ rank, forwarded }: Source, what: string): WeftlineError {
    const worldRank = this.#scope.group.ranks[rank]!;
    return new WeftlineError(
      'WL_PROTOCOL',
      `Dispatch ${forwarded} of rank ${worldRank}, on another host, came with ${what}: that rank is at fault, or its memory was written over`,
      { details: { rank: worldRank, dispatch: forwarded }, rank: worldRank },
    );
  }

  /** Keeps the marks of the ranks of this host. */
  #pickHere(count: number): void {
    const { layout, marks } = this.#tables;
    const [all, here] = [layout.isTokenInRank.view(), marks.view()];
    const { size } = this.#scope.group;
    const ranks = this.#routes.here;
    let cell = 0;
    for (let token = 0; token < count; token++) {
      for (const rank of ranks) here[cell++] = all[token * size + rank]!;
    }
  }

  /** A source may send what goes to slots that all ranks of this host have let go. */
  #tellReleased(source: Source): void {
    let least = source.forwarded;
    for (const rank of this.#routes.here) {
      const released = this.#cells.reached(rank, 'released');
      if (((released - least) | 0) < 0) least = released;
    }
    for (; ((least - source.released) | 0) > 0; source.released += 1) {
      this.#queueTo(source).signal(0, this.network.cellAt(source.rank, networkCells.released));
    }
  }

  /** Sends the sums of the next combine, if all ranks of this host have its rows and the source has room. True if it did. */
  #sendSums(source: Source): boolean {
    const { due, before } = source;
    if (due.next === due.end) return false;
    const number = due.number[due.next % MOST_DUE]!;
    const sequence = due.sequence[due.next % MOST_DUE]!;
    const { network } = this;
    if (!this.#isActive(source.rank, sequence)) {
      due.next += 1;
      return true;
    }
    for (const rank of this.#routes.here) if (!this.#cells.hasReached(rank, 'combined', number)) return false;
    const weighted = network.words.count(source.rank, networkCells.metadata) - before.metadata;
    if (this.choices !== undefined && ((weighted - source.summed) | 0) <= 0) return false;
    const result = sequence % LOW_LATENCY_RESULTS;
    // The sums of the last combine of this result may not be added up yet.
    const ended = network.words.count(source.rank, networkCells.ended + result) - before.ended[result]!;
    if ((ended | 0) !== source.sent[result]) return false;
    const { config, size } = this.#scope;
    const { sums, places } = this.#tables;
    const count = source.counts[result]!;
    const from = this.#own('sums', source.slot * LOW_LATENCY_RESULTS + result);
    this.#head(from, count, this.#cells.read(this.#scope.group.rank, 'combineCall', result));
    const out = from + LOW_LATENCY_MESSAGE_HEADER;
    if (this.choices === undefined) {
      const bases = this.#bases('combineRows', result, source.rank, config.hidden * 2);
      const rows = places[source.slot]![result] as Tensor<'i32'>;
      const list = { places: rows, ranks: undefined, columns: rows.shape[1]! };
      sums.sumHere(list, { first: 0, count, out, bases, onePerRank: false });
    } else {
      const weights = this.#own('landedWeights', source.slot * LOW_LATENCY_RESULTS + result);
      const firstRows = this.choices.firstRowsOf(source.rank, result);
      this.choices.sumHere({ ...source.choices[result]!, count, weights, firstRows, result }, out);
    }
    const { offset, stride } = size.regions.returned;
    const place = offset + (source.way * LOW_LATENCY_RESULTS + result) * stride;
    const queue = this.#queueTo(source);
    queue.put(from, 0, network.offsetAt(source.rank, 0, place), lowLatencySumsBytes(config, count));
    queue.signal(0, network.cellAt(source.rank, networkCells.sums));
    due.next += 1;
    source.summed = (source.summed + 1) | 0;
    source.sent[result]++;
    source.cells.publish('taken', number, result);
    return true;
  }

  #queueTo({ rank, channel }: Source): OutQueue {
    return this.network.link(rank).queues[channel]!;
  }

  #sumTable(sequence: number): Tensor<'i32'> {
    return this.#tables.sumTables[sequence % LOW_LATENCY_RESULTS] as Tensor<'i32'>;
  }

  /** The address of the rows that the combine of that dispatch has brought from another host. */
  #sumsOf(host: number, sequence: number): number {
    const way = this.#routes.ways.findIndex((one) => one.host === host);
    return (this.#returned(way, sequence % LOW_LATENCY_RESULTS) + LOW_LATENCY_MESSAGE_HEADER) | 0;
  }

  /** Where what a combine of that result brings back from a host lies here. */
  #returned(way: number, result: number): number {
    return this.#own('returned', way * LOW_LATENCY_RESULTS + result);
  }

  #own(region: LowLatencyRegion, slot: number): number {
    const { offset, stride } = this.#scope.size.regions[region];
    return this.#window.address + offset + slot * stride;
  }

  #head(address: number, count: number, word: number): void {
    const at = this.#wordAt(address);
    this.#words[at] = count;
    this.#words[at + 1] = word;
  }

  #wordAt(address: number): number {
    return (address - this.#window.storage.address) / 4;
  }

  /** The address of a table: where the rows of that source begin at each rank of this host, or `own` bytes into the slot. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per kernel
  #bases(
    region: LowLatencyRegion,
    slot: number,
    source: number,
    width: number,
    own = source * this.#most * width,
  ): number {
    const { bases } = this.#tables;
    const { offset, stride } = this.#scope.size.regions[region];
    const view = bases.view();
    for (let index = 0; index < view.length; index++)
      view[index] = (this.#addresses[index]! + offset + slot * stride + own) | 0;
    return bases.address;
  }

  get #most(): number {
    return this.#scope.config.maxTokensPerRank;
  }
}

/** Combines of which sums may be due at once: one for each result, and those that hooks have not ended. */
const MOST_DUE = 2 * LOW_LATENCY_RESULTS;

const NOTHING = { k: 1, indexBytes: 4, hasWeights: false, rowBytes: 0, words: 0 };
