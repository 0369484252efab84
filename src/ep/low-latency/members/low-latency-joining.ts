// How ranks of an elastic EpLowLatency come and go on CPU ranks: requests of active ranks, and the wait of one that joins.
import { setTimeout as sleep } from 'node:timers/promises';
import { LOW_LATENCY_STATE_BITS } from '../../../abi/low-latency.ts';
import { type CallWait, type Deadline, remaining } from '../../../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../../../core/errors.ts';
import type { WaitFacts } from '../../../core/waits.ts';
import type {
  LowLatencyHandle,
  LowLatencyMembership,
  LowLatencyShortfall,
  LowLatencyView,
  MembershipWait,
} from '../low-latency-results.ts';
import type { LowLatencyConfig } from '../low-latency-size.ts';
import { COMBINES_PER_DISPATCH, type LowLatencyCells } from './low-latency-cells.ts';
import type { LowLatencyMembers } from './low-latency-members.ts';
import type { MemberExchange, RankFacts } from './member-exchange.ts';
import type { SharedMemoryName } from '../../../windows/shared-memory.ts';
import { SymmetricWindow, type SymmetricWindowOptions } from '../../../windows/symmetric-window.ts';
import { waitForWord } from '../../../windows/wait.ts';
import { decodeJson, encodeJson } from '../../../world/store.ts';
import { rankList } from '../../../world/membership.ts';
import type { RankGroup } from '../../../world/rank-group.ts';

/** How often a request looks by itself; each dispatch looks too, also in programs that never let timers run. */
const LOOK_MS = 5;

/** What joining needs of the engine. */
interface JoiningEngine {
  /** Number of the last dispatch that was begun here. */
  readonly dispatch: () => number;
  /** Makes this rank ready to be waited for; `peer`: an active rank, if there is one. */
  readonly prepare: (peer: number | undefined) => Promise<void>;
  /** Whether the rank and those that take part can reach each other's memory; they can where all have one file. */
  readonly isMapped?: (rank: number) => boolean;
  /** This rank begins anew: its next dispatch has that number. */
  readonly beginAt: (dispatch: number) => void;
  readonly shortfall: (handle: LowLatencyHandle) => LowLatencyShortfall;
  /** There where a group is on several hosts. */
  readonly exchange?: MemberExchange | undefined;
  /** This rank offers itself anew: resolves when the others can find it. */
  readonly announce?: () => Promise<void>;
  /** Does for other hosts what can be done now. */
  readonly work?: () => void;
}

interface JoiningParts {
  readonly group: Pick<RankGroup, 'rank' | 'ranks'>;
  readonly window: SymmetricWindow;
  readonly cells: LowLatencyCells;
  readonly members: LowLatencyMembers;
  readonly engine: JoiningEngine;
}

/** A call of connectRanks() that waits. */
interface Request {
  readonly ranks: readonly number[];
  readonly activate: boolean;
  readonly wait: MembershipWait;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
  readonly timer: NodeJS.Timeout;
}

export class LowLatencyJoining implements LowLatencyMembership {
  readonly #parts: JoiningParts;
  readonly #requests = new Set<Request>();

  constructor(parts: JoiningParts) {
    this.#parts = parts;
  }

  view(next: number): LowLatencyView {
    const { members, engine } = this.#parts;
    // A program may look for ranks of other hosts between its calls.
    engine.work?.();
    const ranks = Array.from({ length: members.size }, (_, rank) => rank);
    return {
      epoch: members.epoch,
      active: ranks.map((rank) => members.isActive(rank, next)),
      connected: ranks.map((rank) => members.isConnected(rank)),
    };
  }

  shortfall(handle: LowLatencyHandle): LowLatencyShortfall {
    return this.#parts.engine.shortfall(handle);
  }

  mask(rank: number): void {
    this.#parts.members.mask(rank);
  }

  connect(ranks: readonly number[], activate: boolean, wait: MembershipWait): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setInterval(() => this.#look(request), LOOK_MS);
      const request: Request = { ranks, activate, wait, resolve, reject, timer };
      this.#requests.add(request);
      this.#look(request);
    });
  }

  disconnect(ranks: readonly number[], next: number): void {
    for (const rank of ranks) this.#parts.members.deactivate(rank, next);
  }

  commit(next: number): void {
    const { members } = this.#parts;
    for (let rank = 0; rank < members.size; rank++) if (this.#isReady(rank)) this.#admit(rank, next);
  }

  async rejoin({ deadline, signal }: MembershipWait): Promise<number> {
    const { members, cells, window, engine } = this.#parts;
    const { exchange, work } = engine;
    const peer = this.view(engine.dispatch()).active.indexOf(true);
    // This comes before anybody waits for this rank.
    await engine.prepare(peer === -1 ? undefined : peer);
    await engine.announce?.();
    // A process that died asleep has left its mark.
    Atomics.store(cells.bells.own.waiters, 0, 0);
    cells.catchUp(COMBINES_PER_DISPATCH, this.#lastDispatch);
    members.offer();
    let founded: number | undefined;
    const check = (): void => {
      exchange?.retry();
      // What another host said of this rank's life before may be later than the offer.
      if (members.activeFrom() === undefined && !members.isConnected(this.#me)) members.offer();
      // The others go on, and it may be long until one of them makes this rank active.
      cells.catchUp(COMBINES_PER_DISPATCH, this.#lastDispatch);
      const reason = window.barrier.failure.reason() ?? (signal?.aborted === true ? signal.reason : undefined);
      if (reason !== undefined) throw reason;
      // Where nobody is left to connect the ranks that wait, they must not wait for each other.
      if (exchange?.hasLookedEverywhere !== false) founded ??= members.found(this.#lastDispatch);
      if (deadline.isOver && founded === undefined) throw this.#notAdmitted(deadline.timeoutMs);
    };
    const source = {
      waitFacts: (): WaitFacts => ({ operation: 'joining an EpLowLatency: no active rank connects it' }),
    };
    // This is the word as it was seen: another rank may mask this one at once.
    let from: number | undefined;
    const ready = (): boolean => (from = members.activeFrom()) !== undefined;
    try {
      await waitForWord(cells.bells.own, { ready, check, work, source, endsAt: deadline.endsAt });
    } catch (error) {
      members.mask(this.#me);
      throw error;
    }
    const dispatch = founded ?? this.#full(from!);
    engine.beginAt(dispatch);
    return dispatch;
  }

  /** Hot path. To be called at the begin of each dispatch. */
  progress(): void {
    this.#admitWished();
    if (this.#requests.size > 0) for (const request of this.#requests) this.#look(request);
  }

  /** Nobody will look any more. */
  close(error: unknown): void {
    for (const request of this.#requests) this.#end(request).reject(error);
  }

  #look(request: Request): void {
    const { members, engine } = this.#parts;
    const { ranks, activate, wait } = request;
    const next = engine.dispatch() + 1;
    const { exchange, work } = engine;
    // While no call is under way.
    work?.();
    exchange?.retry();
    this.#admitWished();
    const missing = ranks.filter((rank) => !this.#isReady(rank) && !members.isAdmitted(rank));
    const inactive = members.inactive(engine.dispatch());
    if (inactive !== undefined) this.#end(request).reject(inactive);
    else if (wait.signal?.aborted === true) this.#end(request).reject(wait.signal.reason);
    else if (missing.length === 0) {
      // One that is admitted now is one more that the next one must have linked to.
      if (activate) for (const rank of ranks) if (this.#isReady(rank)) this.#admit(rank, next);
      if (!activate || ranks.every((rank) => members.isAdmitted(rank))) this.#end(request).resolve();
    } else if (wait.deadline.isOver) {
      const worldRanks = missing.map((rank) => this.#parts.group.ranks[rank]!);
      const { timeoutMs } = wait.deadline;
      const message = `${rankList(worldRanks, 'Rank')} did not connect within ${timeoutMs} ms: its process must be started, and create its EpLowLatency or call connectRanks() with its own number`;
      this.#end(request).reject(
        new WeftlineError('WL_TIMEOUT', message, { details: { ranks: worldRanks, timeoutMs } }),
      );
    }
  }

  /** The rank is connected: it joins, or the host that decides hears that it is to. */
  #admit(rank: number, next: number): void {
    const { members, engine } = this.#parts;
    if (members.mayDecide(next)) members.activate(rank, next);
    else if (members.isConnected(rank)) engine.exchange?.wish(rank);
  }

  /** Hot path. What other hosts wish, if this one decides. */
  #admitWished(): void {
    const { members, engine } = this.#parts;
    const { exchange } = engine;
    if (exchange === undefined) return;
    const next = engine.dispatch() + 1;
    for (let rank = 0; rank < members.size; rank++) {
      if (members.isConnected(rank) && exchange.isWished(rank) && members.mayDecide(next) && this.#isReady(rank))
        members.activate(rank, next);
    }
  }

  get #me(): number {
    return this.#parts.group.rank;
  }

  get #lastDispatch(): number {
    const { cells, engine } = this.#parts;
    return Math.max(cells.lastDispatch, engine.exchange?.lastDispatch ?? 0);
  }

  #end(request: Request): Request {
    clearInterval(request.timer);
    this.#requests.delete(request);
    return request;
  }

  /** Connected, not dead since, and in reach. */
  #isReady(rank: number): boolean {
    const { members, engine } = this.#parts;
    if (!members.isConnected(rank)) return false;
    if (members.isAlive(rank)) return engine.isMapped?.(rank) ?? true;
    // It may live, and be about to link to this rank.
    if (engine.exchange !== undefined) return false;
    members.mask(rank);
    return false;
  }

  #notAdmitted(timeoutMs: number): WeftlineError {
    const { group } = this.#parts;
    const { rank } = group;
    return new WeftlineError(
      'WL_TIMEOUT',
      `Rank ${group.ranks[rank]} was not connected within ${timeoutMs} ms: an active rank must call connectRanks([${rank}])`,
      { details: { rank: group.ranks[rank], timeoutMs } },
    );
  }

  /** Words of members keep 30 bits of a number. It is near the dispatches that ranks have begun. */
  #full(dispatch: number): number {
    const near = this.#lastDispatch;
    return near + (((dispatch - near) << LOW_LATENCY_STATE_BITS) >> LOW_LATENCY_STATE_BITS);
  }
}

// The ranks of an elastic EpLowLatency tell, in the store, how a restarted process of one of them finds the window.

interface Announcement {
  /** Absent where a rank has its memory for itself alone. */
  readonly memory?: SharedMemoryName | undefined;
  readonly config: Required<LowLatencyConfig>;
  /** There where a group is on several hosts. */
  readonly facts?: RankFacts | undefined;
}

/** Numbers of the elastic objects of this process over a group: a restarted process makes them in the same order. */
const taken = new WeakMap<RankGroup, Set<number>>();

export class AnnouncementBoard {
  readonly #group: RankGroup;
  readonly #number: number;

  constructor(group: RankGroup) {
    const numbers = taken.get(group) ?? new Set();
    let number = 1;
    while (numbers.has(number)) number += 1;
    taken.set(group, numbers.add(number));
    this.#group = group;
    this.#number = number;
  }

  /** The object was not made: the next attempt is one at the same object. */
  giveUp(): void {
    taken.get(this.#group)?.delete(this.#number);
  }

  /** True if a former process of this rank has made the object, which it may not have lived to announce: then others have. */
  async isKnown(): Promise<boolean> {
    const nothing = new Uint8Array();
    const { store, size } = this.#group;
    // Changes nothing: no announcement is empty.
    const ask = (rank: number) => store.compareAndSet(this.#key(rank), nothing, nothing);
    const answers = await Promise.all(Array.from({ length: size }, (_, rank) => ask(rank)));
    return answers.some(({ value }) => value !== undefined);
  }

  async announce({ shared }: SymmetricWindow, config: Required<LowLatencyConfig>, facts?: RankFacts): Promise<void> {
    const announcement: Announcement = { memory: shared, config, facts };
    await this.#group.store.setJson(this.#key(this.#group.rank), announcement);
  }

  /** Where a rank of another host is found. */
  async factsOf(rank: number): Promise<RankFacts> {
    const { facts } = await this.#group.store.getJson<Announcement>(this.#key(rank), { timeoutMs: FACTS_MS });
    return facts as RankFacts;
  }

  /** The life of this rank's former process; 0 if there was none. */
  async lastLife(): Promise<number> {
    const nothing = new Uint8Array();
    const { value } = await this.#group.store.compareAndSet(this.#key(this.#group.rank), nothing, nothing);
    return value === undefined ? 0 : ((decodeJson(value) as Announcement).facts?.life ?? 0);
  }

  /**
   * The memory of this rank's host where no process has what there was: what another rank of the host has made meanwhile, or what `make` makes.
   * `attach` fails with WL_PEER_LOST where the memory is gone.
   */
  async shareMemory<T extends { readonly shared: SharedMemoryName | undefined } & Disposable>(ways: {
    readonly attach: (memory: SharedMemoryName) => Promise<T>;
    readonly make: () => T;
  }): Promise<T> {
    const { store, topology } = this.#group;
    const key = `${this.#key(topology.scaleUpRanks[0]!)}/memory`;
    const nothing = new Uint8Array();
    let { value } = await store.compareAndSet(key, nothing, nothing);
    for (;;) {
      if (value !== undefined) {
        try {
          return await ways.attach(decodeJson(value) as SharedMemoryName);
        } catch (error) {
          if (asWeftlineError(error).code !== 'WL_PEER_LOST') throw error;
        }
      }
      const made = ways.make();
      const reply = await store.compareAndSet(key, value, encodeJson(made.shared));
      if (reply.swapped) return made;
      made[Symbol.dispose]();
      ({ value } = reply);
    }
  }

  /** The memory as the other ranks of this host have it. Fails with WL_CONFIG_MISMATCH if they made the object otherwise. */
  async peers(config: Required<LowLatencyConfig>, wait: CallWait): Promise<SharedMemoryName[]> {
    const { store, size, rank, ranks } = this.#group;
    const others = Array.from({ length: size }, (_, other) => other).filter((other) => other !== rank);
    const read = (other: number): Promise<Announcement> => store.getJson(this.#key(other), remaining(wait));
    const found = await Promise.all(others.map(read));
    for (const [at, there] of found.entries()) {
      const names = Object.keys(config) as (keyof LowLatencyConfig)[];
      const field = names.find((name) => there.config[name] !== config[name]);
      if (field === undefined) continue;
      const other = ranks[others[at]!];
      throw new WeftlineError(
        'WL_CONFIG_MISMATCH',
        `Rank ${this.#group.worldRank} joins an EpLowLatency with another ${field}: ${String(config[field])} here, ${String(there.config[field])} on rank ${other}`,
        { details: { field, rank: other, here: config[field], there: there.config[field] } },
      );
    }
    const { topology } = this.#group;
    return found.flatMap(({ memory }, at) =>
      memory !== undefined && topology.hostOf(others[at]!) === topology.hostIndex ? [memory] : [],
    );
  }

  #key(rank: number): string {
    return `weftline/low-latency/${this.#number}/${rank}`;
  }
}

// How an elastic EpLowLatency comes to be on a rank: all make it together, or a process takes the place of its rank's former one.

interface WaysToBegin<T> {
  /** Collective. */
  create(board: AnnouncementBoard): Promise<T>;
  /** Takes the place of this rank's former process; not collective. */
  join(board: AnnouncementBoard): Promise<T>;
}

export async function joinOrCreate<T>(group: RankGroup, ways: WaysToBegin<T>): Promise<T> {
  const board = new AnnouncementBoard(group);
  try {
    return await ((await board.isKnown()) ? ways.join(board) : ways.create(board));
  } catch (error) {
    board.giveUp();
    throw error;
  }
}

/** The window that the others have. The former process may still be ending. */
export async function attachWindow(
  of: SymmetricWindowOptions,
  peers: readonly SharedMemoryName[],
  deadline: Deadline,
): Promise<SymmetricWindow> {
  for (;;) {
    try {
      return SymmetricWindow.attach(of, peers);
    } catch (error) {
      if (asWeftlineError(error).code !== 'WL_RANK_TAKEN' || deadline.isOver) throw error;
    }
    await sleep(ATTACH_PAUSE_MS);
  }
}

const ATTACH_PAUSE_MS = 20;
/** What is there comes at once. */
const FACTS_MS = 5_000;
