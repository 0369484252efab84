// The CPU's way of a low-latency call: rows go once to each rank, into a slot that is known without a word of anybody else;
// the receiver gives them their places. Combine pulls. Ranks wait for each other's words alone, never for a barrier.
import { availableParallelism } from 'node:os';
import { setImmediate as turn } from 'node:timers/promises';
import { LOW_LATENCY_RESULTS } from '../../../abi/low-latency.ts';
import { callWord } from '../../../group/calls.ts';
import { type StepFailure, StepRunner, type Steps } from '../../../group/steps.ts';
import { asWeftlineError, type ErrorDetails, WeftlineError } from '../../../core/errors.ts';
import { traceBegin, traceEnd } from '../../../core/trace.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { MemoryRange, Tensor } from '../../../device/tensor.ts';
import { HostsFailure } from '../../../group/network/hosts-failure.ts';
import type { HostNetwork } from '../../../group/network/host-network.ts';
import { isCrowded as hasFewCores } from '../../../transport/host/rank-cores.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { Missing } from '../../../windows/abort-record.ts';
import { computeLayout, type Refusal, refusedThere } from '../../buffer/dispatch-layout.ts';
import {
  combineCall,
  compareDispatch,
  dispatchWord,
  isRefused,
  otherCombine,
  readDispatchWord,
  REFUSED,
} from '../call-words.ts';
import type {
  CheckedLowLatencyCombine,
  CheckedLowLatencyDispatch,
  LowLatencyEngine,
  LowLatencyWait,
  SentCombine,
} from '../low-latency-arguments.ts';
import {
  type LowLatencyDispatchResult,
  LowLatencyHandle,
  type LowLatencyMembership,
  type LowLatencyShortfall,
} from '../low-latency-results.ts';
import type { LowLatencyScope } from '../low-latency-size.ts';
import { CombineNumbers, LowLatencyCells, type Progress } from '../members/low-latency-cells.ts';
import { type AnnouncementBoard, LowLatencyJoining } from '../members/low-latency-joining.ts';
import { LowLatencyMembers } from '../members/low-latency-members.ts';
import { MemberExchange, type RankFacts } from '../members/member-exchange.ts';
import { type ForwardingTables, HostForwarding } from './host-forwarding.ts';
import { CallRows, type LowLatencyTables } from './low-latency-rows.ts';

// The one kind of wait of low-latency mode on CPU ranks: each rank in turn reaches a call, and something is done with what it sent.

interface RankWait {
  readonly word: Progress;
  /** The result whose memory is taken; for 'taken' alone. */
  readonly result?: number;
  /** The call that all ranks must have reached. */
  readonly call: number;
  /** The dispatch that says who takes part, where ranks come and go. */
  readonly at: number;
  /** "dispatch 17, for its rows", for errors. */
  readonly name: string;
  /** Called for each rank in order, when it has reached the call and those before it were visited. */
  readonly visit?: ((rank: number) => void) | undefined;
  /** Called in place of `visit` for a rank that takes no part. */
  readonly skip?: ((rank: number) => void) | undefined;
  /** Nanoseconds by rank are added to it: from the begin of the wait until the rank was seen to have come. */
  readonly stats?: BigInt64Array | undefined;
}

/** Made once; begin() starts the next wait. */
class RanksInOrder implements Steps {
  progress = 0;
  /** How far ranks are. */
  readonly #cells: Pick<LowLatencyCells, 'hasReached' | 'reached'>;
  readonly #worldRanks: readonly number[];
  readonly #network: HostForwarding | undefined;
  readonly #members: LowLatencyMembers | undefined;
  #wait: RankWait = { word: 'dispatched', call: 0, at: 0, name: 'nothing' };
  #next = 0;
  #began = 0;
  /** 1 for each rank whose time was added to the statistics. */
  readonly #noted: Uint8Array;

  /** `network`: of a group on several hosts; `members`: where ranks come and go. */
  constructor(
    cells: LowLatencyCells,
    worldRanks: readonly number[],
    {
      network,
      members,
    }: { readonly network: HostForwarding | undefined; readonly members: LowLatencyMembers | undefined },
  ) {
    this.#cells = network ?? cells;
    this.#network = network;
    this.#members = members;
    this.#worldRanks = worldRanks;
    this.#noted = new Uint8Array(worldRanks.length);
  }

  get name(): string {
    return this.#wait.name;
  }

  begin(wait: RankWait): this {
    this.#wait = wait;
    this.#next = 0;
    if (wait.stats === undefined) return this;
    this.#noted.fill(0);
    this.#began = performance.now();
    return this;
  }

  advance(): boolean {
    const { at, visit, skip, stats } = this.#wait;
    const members = this.#members;
    if (stats !== undefined) this.#note(stats);
    while (this.#next < this.#worldRanks.length) {
      if (this.#hasCome(this.#next)) visit?.(this.#next);
      else if (members === undefined || members.isActive(this.#next, at)) return false;
      else skip?.(this.#next);
      this.#next += 1;
      this.progress += 1;
      if (stats !== undefined) this.#note(stats);
    }
    // Nobody does the work for ranks of other hosts once the calls are over.
    return !this.#mustSum || this.#network!.hasSummed(this.#wait.call);
  }

  missing(): readonly number[] {
    const { at, word, call } = this.#wait;
    const members = this.#members;
    const missing = this.#worldRanks.flatMap((_, rank) =>
      this.#hasCome(rank) || members?.isActive(rank, at) === false ? [] : [rank],
    );
    if (this.#mustSum && missing.length === 0) return this.#network!.unsummed(call);
    return word === 'dispatched' && this.#network !== undefined ? this.#network.behindRows(missing, call) : missing;
  }

  details(): ErrorDetails {
    const { word, result, call } = this.#wait;
    const seen = this.missing().map((rank) => this.#cells.reached(rank, word, result));
    return { phase: word, expected: call, seen };
  }

  get #mustSum(): boolean {
    return this.#network !== undefined && this.#wait.word === 'combined';
  }

  #hasCome(rank: number): boolean {
    const { word, result, call, at } = this.#wait;
    return this.#cells.hasReached(rank, word, call, result) && this.#members?.mayRead(rank, at) !== false;
  }

  /** Looks at all ranks, not only at the one whose turn it is: none of them may pay for those before it. */
  #note(stats: BigInt64Array): void {
    for (let rank = 0; rank < this.#noted.length; rank++) {
      if (this.#noted[rank] === 1 || !this.#hasCome(rank)) continue;
      this.#noted[rank] = 1;
      stats[rank]! += BigInt(Math.round((performance.now() - this.#began) * 1e6));
    }
  }
}

// What ends a wait of an elastic EpLowLatency: not a rank that is lost or late, which is masked, but this rank's own state.

class ElasticFailure implements StepFailure {
  /** That of ranks which stay: what it finds is the end of the object. */
  readonly #failure: StepFailure;
  readonly #me: number;
  readonly #members: LowLatencyMembers;
  /** The view that the present wait has seen, and until when it has patience with it. */
  #epoch = 0;
  #patientUntil = 0;
  /** This rank's last dispatch. */
  #dispatch = 0;

  constructor(failure: StepFailure, me: number, members: LowLatencyMembers) {
    this.#failure = failure;
    this.#me = me;
    this.#members = members;
  }

  /** Hot path. A wait begins, in which this rank takes part as of that dispatch. */
  begin(dispatch: number): void {
    this.#dispatch = dispatch;
    this.#epoch = this.#members.epoch;
    this.#patientUntil = 0;
  }

  rankOf(index: number): number {
    return this.#failure.rankOf(index);
  }

  reason(): WeftlineError | undefined {
    return this.#failure.reason();
  }

  /** Ranks whose process has ended are masked at once. */
  reasonToGiveUp(missing: Missing, signal: AbortSignal | undefined): unknown {
    const reason = this.reason();
    if (reason !== undefined) return reason;
    if (signal?.aborted) return signal.reason;
    for (const rank of missing()) if (!this.#members.isAlive(rank)) this.#members.mask(rank);
    return this.#members.inactive(this.#dispatch);
  }

  /** At the deadline the missing ranks are masked. If others were meanwhile, the missing ones may have waited for those. */
  excuse(missing: Missing, timeoutMs: number): boolean {
    const { epoch } = this.#members;
    const now = performance.now();
    if (epoch !== this.#epoch) {
      this.#epoch = epoch;
      this.#patientUntil = now + timeoutMs;
    }
    if (now < this.#patientUntil) return true;
    for (const rank of missing()) this.#members.mask(rank);
    return true;
  }

  timeout(...args: Parameters<StepFailure['timeout']>): WeftlineError {
    return this.#failure.timeout(...args);
  }

  /** Ranks in different calls have no way on together; any other failure is this rank's own, and the others go on. */
  raise(error: unknown): void {
    if (asWeftlineError(error).code === 'WL_CONFIG_MISMATCH') this.#failure.raise(error);
    else this.#members.mask(this.#me);
  }
}

/** What an engine is made of, and owns. */
interface CpuLowLatencyParts {
  readonly window: SymmetricWindow;
  readonly tables: LowLatencyTables;
  /** The network side of a group on several hosts. */
  readonly across?: { readonly network: HostNetwork; readonly tables: ForwardingTables } | undefined;
  /** Where ranks come and go: what they tell in the store, and which life of this rank it is; see MemberExchange. */
  readonly board?: AnnouncementBoard | undefined;
  readonly life?: number;
}

/** The memory of a host was made anew, while the others went on. */
export function forgetMembers(
  { group, device, size }: Pick<LowLatencyScope<CpuDevice>, 'group' | 'device' | 'size'>,
  window: SymmetricWindow,
): void {
  const cells = new LowLatencyCells(device, window, size, { source: group.rank, ranks: group.size });
  const far = { topology: group.topology, ranks: group.ranks, region: size.regions.farMembers, isAlive: () => false };
  new LowLatencyMembers(device, window, { ...size, far }, cells).forgetAll();
}

export class CpuLowLatencyEngine implements LowLatencyEngine {
  readonly #scope: LowLatencyScope<CpuDevice>;
  readonly #window: SymmetricWindow;
  readonly #tables: LowLatencyTables;
  readonly #cells: LowLatencyCells;
  readonly #across: (NonNullable<CpuLowLatencyParts['across']> & { readonly forwarding: HostForwarding }) | undefined;
  readonly #failure: StepFailure;
  readonly #rows: CallRows;
  readonly #inOrder: RanksInOrder;
  readonly #runner: StepRunner;
  readonly #isRankMajor: boolean;
  /** The parts of an elastic object. */
  readonly #elastic: ElasticParts | undefined;
  /** Dispatches that were received, also where a later one was before an earlier one. */
  readonly #received = new FinishedCalls();
  readonly #combines: CombineNumbers;
  /** Barriers so far. */
  #barriers = 0;
  /** Number of the last dispatch that was begun. */
  #dispatch = 0;
  /** Why this rank refuses the choices of the dispatch that begins. */
  #refusal: Refusal | undefined;

  constructor(scope: LowLatencyScope<CpuDevice>, { window, tables, across, board, life = 0 }: CpuLowLatencyParts) {
    const { group, device, size, config } = scope;
    this.#scope = scope;
    this.#window = window;
    this.#tables = tables;
    this.#isRankMajor = config.layout === 'rank-major';
    this.#combines = new CombineNumbers(config.elastic);
    this.#cells = new LowLatencyCells(device, window, size, { source: group.rank, ranks: group.size });
    let failure: HostsFailure | undefined;
    const members = config.elastic ? this.#membersOf(across?.network) : undefined;
    if (across !== undefined) {
      const { networkCells: words, aborts } = size.regions;
      const places = { cells: words.offset, aborts: aborts.offset };
      failure = new HostsFailure({ group, device, window, network: across.network, ...places });
      across.network.ring(this.#cells.bells.own);
      const forwarding = new HostForwarding(scope, { window, cells: this.#cells, failure, members, ...across });
      this.#across = { ...across, forwarding };
    }
    const network = this.#across?.forwarding;
    this.#rows = new CallRows(scope, window, tables, network);
    this.#elastic = members && this.#makeElastic(members, failure ?? window.barrier.failure, { board, life });
    this.#inOrder = new RanksInOrder(this.#cells, group.ranks, { network, members: this.#elastic?.members });
    this.#failure = this.#elastic?.failure ?? failure ?? window.barrier.failure;
    const { timeoutMs, collectiveSpinUs: spinUs } = group.settings;
    const isCrowded =
      window.ranks.length > availableParallelism() || (network !== undefined && hasFewCores(group.settings));
    const firstCause: typeof group.firstCause = (...cause) => group.firstCause(...cause);
    const options = { failure: this.#failure, firstCause, network, timeoutMs, spinUs, isCrowded };
    this.#runner = new StepRunner(this.#cells.bells, options);
  }

  get membership(): LowLatencyMembership | undefined {
    return this.#elastic?.joining;
  }

  /** Where ranks of other hosts find an elastic one. */
  get facts(): RankFacts | undefined {
    const exchange = this.#elastic?.exchange;
    return exchange && { life: exchange.life, network: this.#across!.network.facts };
  }

  get mapped(): MemoryRange {
    return this.#window.storage;
  }

  throwIfUnusable(): void {
    this.#window.barrier.throwIfUnusable(this.#across?.network);
    const reason = this.#across && this.#failure.reason();
    if (reason !== undefined) throw reason;
    this.#elastic?.members.requireActive(this.#dispatch);
  }

  prepareDispatch(input: CheckedLowLatencyDispatch, sequence: number): Promise<void> | void {
    this.#elastic?.members.requireActive(sequence);
    this.#refusal = computeLayout(input.topkIdx, this.#tables.layout, this.#tables.shape);
    if (this.#isRankMajor || input.out !== undefined) return;
    return this.#rows.reserve(input.scales, sequence);
  }

  async dispatch(
    input: CheckedLowLatencyDispatch,
    sequence: number,
    wait: LowLatencyWait,
  ): Promise<LowLatencyDispatchResult> {
    await this.sendDispatch(input, sequence, wait);
    return this.receiveDispatch(input, sequence, wait);
  }

  async sendDispatch(input: CheckedLowLatencyDispatch, sequence: number, wait: LowLatencyWait): Promise<void> {
    // Links to ranks that come are made by the event loop, which a program of quick calls may not let turn.
    if (this.#elastic?.exchange?.isLinking === true) await turn();
    this.#dispatch = sequence;
    this.#combines.beginDispatch(sequence);
    const forwarding = this.#elastic && this.#across?.forwarding;
    this.#elastic?.exchange?.advance();
    forwarding?.begin(sequence);
    this.#elastic?.members.refresh(sequence);
    this.#elastic?.joining.progress();
    // Rows by rank stay where they came until now; see receiveSlots.
    if (this.#isRankMajor) this.#cells.publish('released', sequence - LOW_LATENCY_RESULTS);
    const free = sequence - this.#scope.size.receiveSlots;
    const name = `dispatch ${sequence}, for free slots`;
    const waiting = this.#until({ word: 'released', call: free, at: free, name }, wait);
    if (waiting !== undefined) await waiting;
    forwarding?.begin(sequence);
    // ORDER: behind the wait, also for a rank that joins now and has waited for no dispatch before: by then all that
    // concerns this one is decided.
    if (this.#elastic !== undefined) this.#leaveOut(sequence, input.x.shape[0]!, this.#elastic.members);
    if (this.#refusal !== undefined) return this.#refuse(this.#refusal, sequence, wait);
    const word = dispatchWord(input);
    traceBegin('ep.dispatch.rows');
    this.#orGiveUp(() => {
      const { layout } = this.#tables;
      this.#across?.forwarding.fold(layout.isTokenInRank, input.x.shape[0]!);
      this.#rows.send(input, sequence);
      const perRank = layout.numTokensPerRank.view();
      for (const [index, rank] of this.#here.entries()) {
        this.#cells.write(index, 'rows', sequence, perRank[rank]!);
        this.#cells.write(index, 'dispatchCall', sequence, word);
      }
    });
    this.#cells.publish('dispatched', sequence);
    traceEnd('ep.dispatch.rows');
    const posting = this.#postAll(wait);
    if (posting !== undefined) await posting;
  }

  async receiveDispatch(
    input: CheckedLowLatencyDispatch,
    sequence: number,
    wait: LowLatencyWait,
  ): Promise<LowLatencyDispatchResult> {
    const here = dispatchWord(input);
    const target = this.#rows.beginReceive(input, sequence);
    const { received } = target.tables;
    let refusedBy = -1;
    const visit = (rank: number): void => {
      if (this.#elastic !== undefined) {
        this.#checkSource(rank, sequence, this.#elastic.members);
        received.view()[rank] = 1;
      }
      const there = this.#cells.read(rank, 'dispatchCall', sequence);
      const count = this.#cells.read(rank, 'rows', sequence);
      // ORDER: others write over words of a rank that was masked; read while it was active, they are of this call.
      this.#elastic?.members.requireActive(sequence);
      if (isRefused(there)) {
        if (refusedBy < 0) refusedBy = rank;
        return;
      }
      compareDispatch(here, there, this.#worldRank(rank));
      this.#rows.receive(target, rank, count);
    };
    const skip = (rank: number): void => {
      received.view()[rank] = 0;
      this.#rows.receive(target, rank, 0);
    };
    const name = `dispatch ${sequence}, for rows`;
    const stats = input.waitStats?.view();
    const waiting = this.#until({ word: 'dispatched', call: sequence, at: sequence, name, visit, skip, stats }, wait);
    if (waiting !== undefined) await waiting;
    this.#elastic?.members.requireActive(sequence);
    const refused = refusedBy < 0 ? undefined : this.#refusedThere(refusedBy, sequence, target.k);
    if (refused === undefined) this.#orGiveUp(() => this.#rows.endReceive(target, sequence));
    if (!this.#isRankMajor) this.#cells.publish('released', this.#received.finish(sequence));
    if (refused !== undefined) throw refused;
    const { recvSrcIdx, recvRange, ...result } = this.#rows.result(target);
    const [numTokens, topk] = input.topkIdx.shape as [number, number];
    const parts = { owner: this.#scope, sequence, numTokens, topk, recvSrcIdx, recvRange };
    const handle = new LowLatencyHandle(parts);
    return this.#elastic === undefined ? { ...result, handle } : { ...result, handle, activeMask: received };
  }

  combineBufferAddress(handle: LowLatencyHandle): number {
    return this.#rows.bufferAddress(handle.sequence);
  }

  async combineBuffer(handle: LowLatencyHandle, wait: LowLatencyWait): Promise<Tensor<'bf16'>> {
    await this.#untilCombineSlotIsFree(handle, wait);
    return this.#rows.buffer(handle.sequence);
  }

  async combine(input: CheckedLowLatencyCombine, wait: LowLatencyWait): Promise<Tensor<'bf16'>> {
    return this.receiveCombine(await this.sendCombine(input, wait), wait);
  }

  async sendCombine(input: CheckedLowLatencyCombine, wait: LowLatencyWait): Promise<SentCombine> {
    const { handle } = input;
    const { device, config } = this.#scope;
    // Before anything moves: a rank without memory for the result has not begun the call.
    const making = device.allocating(() => input.out ?? device.empty('bf16', [handle.numTokens, config.hidden]));
    const out = making instanceof Promise ? await making : making;
    await this.#untilCombineSlotIsFree(handle, wait);
    const number = this.#combines.next(handle.sequence);
    const call = combineCall(number, handle.sequence);
    this.#orGiveUp(() => {
      this.#rows.stage(input);
      if (input.topkWeights !== undefined) this.#across?.forwarding.sendWeights(handle.sequence, input.topkWeights);
      for (const index of this.#here.keys()) {
        this.#cells.write(index, 'combineCall', handle.sequence % LOW_LATENCY_RESULTS, call);
      }
    });
    this.#combines.use(handle.sequence, number);
    const { received } = this.#tables.results[handle.sequence % LOW_LATENCY_RESULTS]!;
    this.#across?.forwarding.beginCombine(number, handle.sequence, received.view());
    this.#cells.publish('combined', number);
    const posting = input.topkWeights && this.#postAll(wait);
    if (posting !== undefined) await posting;
    return { input, number, out };
  }

  async receiveCombine({ input, number, out }: SentCombine, wait: LowLatencyWait): Promise<Tensor<'bf16'>> {
    const { handle } = input;
    const result = handle.sequence % LOW_LATENCY_RESULTS;
    const { added } = this.#tables.results[result]!;
    const at = handle.sequence;
    const forwarding = this.#across?.forwarding;
    let without = 0;
    const visit = (rank: number): void => {
      if (this.#elastic !== undefined) added.view()[rank] = 1;
      const isHere = forwarding === undefined || this.#isHere(rank);
      // One rank alone of another host sends sums, and tells of which combine they are.
      if (!isHere && !forwarding.sendsSums(rank)) return;
      const callOf = (of: number): number =>
        isHere ? this.#cells.read(rank, 'combineCall', of) : forwarding.combineCall(rank, of);
      const isSame = callOf(result) === combineCall(number, at);
      // ORDER: as in receiveDispatch().
      this.#elastic?.members.requireActive(at);
      if (!isSame) throw otherCombine(at, combineResults.map(callOf), this.#worldRank(rank));
    };
    const skip = (rank: number): void => {
      added.view()[rank] = 0;
      without += 1;
    };
    const name = `combine of dispatch ${at}, for rows`;
    const stats = input.waitStats?.view();
    const waiting = this.#until({ word: 'combined', call: number, at, name, visit, skip, stats }, wait);
    if (waiting !== undefined) await waiting;
    this.#elastic?.members.requireActive(at);
    traceBegin('ep.combine.rows');
    this.#orGiveUp(() => this.#rows.add(input, out, without > 0));
    // ORDER: behind the reading; for a rank that was masked meanwhile nobody has left the rows as they were.
    this.#elastic?.members.requireActive(at);
    if (this.#elastic !== undefined) this.#rows.countDropped(handle);
    traceEnd('ep.combine.rows');
    // Combines of one result end in their order.
    this.#cells.publish('taken', number, result);
    if (forwarding === undefined) return out;
    this.#orGiveUp(() => {
      forwarding.freeSums(result);
      forwarding.advance();
    });
    return out;
  }

  async barrier(wait: LowLatencyWait): Promise<void> {
    const { barrier } = this.#window;
    const call = callWord({ kind: 'barrier' }, 'opening');
    if (this.#across === undefined) return barrier.wait(call, wait);
    await barrier.wait(call, wait);
    this.#barriers = (this.#barriers + 1) | 0;
    await this.#across.forwarding.meet(this.#barriers, (meeting) => this.#runner.run(meeting, wait));
    // Behind it every rank of this host has heard of its sources, and so of all ranks.
    await barrier.wait(call, wait);
  }

  /** The window is unmapped: tensors over it become invalid. */
  async close(): Promise<void> {
    this.#elastic?.joining.close(new WeftlineError('WL_CLOSED', 'This EpLowLatency was closed'));
    this.#elastic?.members.mask(this.#scope.group.rank);
    this.#elastic?.exchange?.advance();
    await this.#across?.network.close();
    this.#window[Symbol.dispose]();
    this.#rows[Symbol.dispose]();
    this.#tables[Symbol.dispose]();
    this.#across?.tables[Symbol.dispose]();
  }

  /** Ranks of this host, by their numbers in the group. */
  get #here(): readonly number[] {
    return this.#scope.group.topology.scaleUpRanks;
  }

  #isHere(rank: number): boolean {
    const { topology } = this.#scope.group;
    return topology.hostOf(rank) === topology.hostIndex;
  }

  #worldRank(rank: number): number {
    return this.#scope.group.ranks[rank]!;
  }

  async #untilCombineSlotIsFree({ sequence }: LowLatencyHandle, wait: LowLatencyWait): Promise<void> {
    const { number: call, dispatch: at } = this.#combines.before(sequence);
    if (call === 0) return;
    const name = `combine of dispatch ${sequence}, until its memory is read`;
    const waiting = this.#until({ word: 'taken', result: sequence % LOW_LATENCY_RESULTS, call, at, name }, wait);
    if (waiting !== undefined) await waiting;
  }

  /** A part of a call in which only this rank can fail: the others hear the reason instead of waiting for it. */
  #orGiveUp(work: () => void): void {
    try {
      work();
    } catch (error) {
      this.#failure.raise(error);
      this.#cells.bells.ringAll();
      throw error;
    }
  }

  #refusedThere(rank: number, sequence: number, k: number): WeftlineError {
    const status = this.#cells.read(rank, 'rows', sequence);
    return refusedThere(this.#tables.shape, { status, rank: this.#worldRank(rank), k });
  }

  /** What goes to other hosts is with the carrier: this rank may do something else now. */
  #postAll(wait: LowLatencyWait): Promise<void> | undefined {
    return this.#across && this.#runner.run(nothingMore, wait);
  }

  /** Tells the others why no rows come: their dispatch ends with this reason too, and all can begin the next one. */
  async #refuse({ error, status }: Refusal, sequence: number, wait: LowLatencyWait): Promise<never> {
    for (const index of this.#here.keys()) {
      this.#cells.write(index, 'rows', sequence, status);
      this.#cells.write(index, 'dispatchCall', sequence, REFUSED);
    }
    this.#across?.forwarding.refuse(sequence, status, REFUSED);
    this.#cells.publish('dispatched', sequence);
    // Nobody reads what the others send.
    if (!this.#isRankMajor) this.#cells.publish('released', this.#received.finish(sequence));
    await this.#postAll(wait);
    throw error;
  }

  #membersOf(network: HostNetwork | undefined): LowLatencyMembers {
    const { device, size, group } = this.#scope;
    const { topology, ranks } = group;
    const isAlive = (rank: number): boolean => network?.isLinked(rank) === true;
    const far = network && { topology, ranks, region: size.regions.farMembers, isAlive };
    return new LowLatencyMembers(device, this.#window, { ...size, far }, this.#cells);
  }

  #makeElastic(members: LowLatencyMembers, failure: StepFailure, { board, life }: BoardOfLife): ElasticParts {
    const { group, config } = this.#scope;
    const [window, cells, rows] = [this.#window, this.#cells, this.#rows];
    const dispatch = (): number => this.#dispatch;
    const exchange = board && this.#makeExchange(members, board, life);
    if (life === 1) exchange?.beginTogether();
    let hasOffered = false;
    const engine = {
      dispatch,
      prepare: (peer: number | undefined): Promise<void> => this.#prepareToJoin(peer),
      beginAt: (to: number): void => this.#beginAt(to),
      shortfall: (handle: LowLatencyHandle): LowLatencyShortfall => rows.shortfall(handle),
      exchange,
      ...(exchange && {
        isMapped: (rank: number): boolean => exchange.isMapped(rank),
        announce: async (): Promise<void> => {
          const isNewProcess = life > 1 && !hasOffered;
          hasOffered = true;
          exchange.beginLife(isNewProcess ? life : exchange.life + 1, isNewProcess);
          await board.announce(window, config, this.facts);
        },
        work: (): void => this.#across!.forwarding.advance(),
      }),
    };
    const joining = new LowLatencyJoining({ group, window, cells, members, engine });
    this.#across?.forwarding.alsoAdvance(() => exchange?.advance());
    return { members, failure: new ElasticFailure(failure, group.rank, members), joining, exchange };
  }

  #makeExchange(members: LowLatencyMembers, board: AnnouncementBoard, life: number): MemberExchange | undefined {
    if (this.#across === undefined) return undefined;
    const { device, size } = this.#scope;
    const { forwarding, network } = this.#across;
    return new MemberExchange({
      device,
      window: this.#window,
      network,
      members,
      regions: size.regions,
      life,
      factsOf: (rank) => board.factsOf(rank),
      dispatch: () => this.#dispatch,
      onLinked: (rank) => forwarding.linkedTo(rank),
    });
  }

  async #prepareToJoin(peer: number | undefined): Promise<void> {
    if (peer === undefined) return;
    const { topology } = this.#scope.group;
    if (topology.hostOf(peer) !== topology.hostIndex) return;
    const last = this.#cells.reached(peer, 'dispatched');
    const word = this.#cells.read(peer, 'dispatchCall', last);
    if (last !== 0) {
      const { scales, k } = readDispatchWord(word);
      await this.#rows.touch(scales, k);
    }
  }

  /** This rank takes part again, or for the first time. Its handles and what it waited for are of the past. */
  #beginAt(dispatch: number): void {
    this.#dispatch = dispatch;
    this.#received.beginBehind(dispatch - 1);
    this.#combines.beginAnew();
  }

  /** Nothing goes to ranks that take no part. */
  #leaveOut(sequence: number, tokens: number, members: LowLatencyMembers): void {
    const { isTokenInRank, numTokensPerRank } = this.#tables.layout;
    const ranks = members.size;
    for (let rank = 0; rank < ranks; rank++) {
      if (members.isActive(rank, sequence)) continue;
      const marks = isTokenInRank.view();
      for (let token = 0; token < tokens; token++) marks[token * ranks + rank] = 0;
      numTokensPerRank.view()[rank] = 0;
    }
  }

  /** A rank whose rows have come. One that is further ahead than this rank allows goes on without this rank. */
  #checkSource(rank: number, sequence: number, members: LowLatencyMembers): void {
    const ahead = (this.#cells.reached(rank, 'dispatched') - sequence) | 0;
    if (ahead < this.#scope.size.receiveSlots) return;
    members.mask(this.#window.index);
    members.requireActive(sequence);
  }

  #until(what: RankWait, wait: LowLatencyWait): Promise<void> | undefined {
    this.#elastic?.failure.begin(this.#dispatch);
    return this.#runner.run(this.#inOrder.begin(what), wait);
  }
}

const nothingMore: Steps = {
  progress: 0,
  name: 'a dispatch, for room to send',
  advance: () => true,
  missing: () => [],
};

/** Numbers of the results that are alive at once. */
const combineResults = [...Array.from({ length: LOW_LATENCY_RESULTS }).keys()];

interface ElasticParts {
  readonly members: LowLatencyMembers;
  readonly failure: ElasticFailure;
  readonly joining: LowLatencyJoining;
  /** There where a group is on several hosts. */
  readonly exchange: MemberExchange | undefined;
}

interface BoardOfLife {
  readonly board: AnnouncementBoard | undefined;
  readonly life: number;
}

/** Calls that may end in another order than they began: how far all of them have. */
class FinishedCalls {
  #all = 0;
  readonly #early = new Set<number>();

  /** All calls up to this one are others' affair. */
  beginBehind(call: number): void {
    this.#all = call;
    this.#early.clear();
  }

  /** The last call up to which all have ended, now that this one has. */
  finish(call: number): number {
    if (call !== this.#all + 1) {
      this.#early.add(call);
      return this.#all;
    }
    this.#all = call;
    while (this.#early.delete(this.#all + 1)) this.#all += 1;
    return this.#all;
  }
}
