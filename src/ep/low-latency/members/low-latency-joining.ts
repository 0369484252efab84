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
import type { SharedMemoryName } from '../../../windows/shared-memory.ts';
import { SymmetricWindow, type SymmetricWindowOptions } from '../../../windows/symmetric-window.ts';
import { waitForWord } from '../../../windows/wait.ts';
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
}

interface JoiningParts {
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
    const { members } = this.#parts;
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
    for (let rank = 0; rank < members.size; rank++) if (this.#isReady(rank)) members.activate(rank, next);
  }

  async rejoin({ deadline, signal }: MembershipWait): Promise<number> {
    const { members, cells, window, engine } = this.#parts;
    const peer = this.view(engine.dispatch()).active.indexOf(true);
    // This comes before anybody waits for this rank.
    await engine.prepare(peer === -1 ? undefined : peer);
    // A process that died asleep has left its mark.
    Atomics.store(cells.bells.own.waiters, 0, 0);
    cells.catchUp(COMBINES_PER_DISPATCH);
    members.offer();
    let founded: number | undefined;
    const check = (): void => {
      // The others go on, and it may be long until one of them makes this rank active.
      cells.catchUp(COMBINES_PER_DISPATCH);
      const reason = window.barrier.failure.reason() ?? (signal?.aborted === true ? signal.reason : undefined);
      if (reason !== undefined) throw reason;
      // Where nobody is left to connect the ranks that wait, they must not wait for each other.
      founded ??= members.found();
      if (deadline.isOver && founded === undefined) throw this.#notAdmitted(deadline.timeoutMs);
    };
    const source = {
      waitFacts: (): WaitFacts => ({ operation: 'joining an EpLowLatency: no active rank connects it' }),
    };
    // This is the word as it was seen: another rank may mask this one at once.
    let from: number | undefined;
    const ready = (): boolean => (from = members.activeFrom()) !== undefined;
    try {
      await waitForWord(cells.bells.own, { ready, check, source, endsAt: deadline.endsAt });
    } catch (error) {
      members.mask(window.index);
      throw error;
    }
    const dispatch = founded ?? this.#full(from!);
    engine.beginAt(dispatch);
    return dispatch;
  }

  /** Hot path. To be called at the begin of each dispatch. */
  progress(): void {
    if (this.#requests.size > 0) for (const request of this.#requests) this.#look(request);
  }

  /** Nobody will look any more. */
  close(error: unknown): void {
    for (const request of this.#requests) this.#end(request).reject(error);
  }

  #look(request: Request): void {
    const { members, engine, window } = this.#parts;
    const { ranks, activate, wait } = request;
    const next = engine.dispatch() + 1;
    const missing = ranks.filter((rank) => !this.#isReady(rank) && !members.isStaying(rank, next));
    const inactive = members.inactive(engine.dispatch());
    if (inactive !== undefined) this.#end(request).reject(inactive);
    else if (wait.signal?.aborted === true) this.#end(request).reject(wait.signal.reason);
    else if (missing.length === 0) {
      if (activate) for (const rank of ranks) members.activate(rank, next);
      this.#end(request).resolve();
    } else if (wait.deadline.isOver) {
      const worldRanks = missing.map((rank) => window.ranks[rank]!);
      const { timeoutMs } = wait.deadline;
      const message = `${rankList(worldRanks, 'Rank')} did not connect within ${timeoutMs} ms: its process must be started, and create its EpLowLatency or call connectRanks() with its own number`;
      this.#end(request).reject(
        new WeftlineError('WL_TIMEOUT', message, { details: { ranks: worldRanks, timeoutMs } }),
      );
    }
  }

  #end(request: Request): Request {
    clearInterval(request.timer);
    this.#requests.delete(request);
    return request;
  }

  /** Connected, not dead since, and in reach. */
  #isReady(rank: number): boolean {
    const { members, window, engine } = this.#parts;
    if (!members.isConnected(rank)) return false;
    if (window.isAlive(rank)) return engine.isMapped?.(rank) ?? true;
    members.mask(rank);
    return false;
  }

  #notAdmitted(timeoutMs: number): WeftlineError {
    const { window } = this.#parts;
    const rank = window.index;
    return new WeftlineError(
      'WL_TIMEOUT',
      `Rank ${window.ranks[rank]} was not connected within ${timeoutMs} ms: an active rank must call connectRanks([${rank}])`,
      { details: { rank: window.ranks[rank], timeoutMs } },
    );
  }

  /** Words of members keep 30 bits of a number. It is near the dispatches that ranks have begun. */
  #full(dispatch: number): number {
    const near = this.#parts.cells.lastDispatch;
    return near + (((dispatch - near) << LOW_LATENCY_STATE_BITS) >> LOW_LATENCY_STATE_BITS);
  }
}

// The ranks of an elastic EpLowLatency tell, in the store, how a restarted process of one of them finds the window.

interface Announcement {
  readonly memory: SharedMemoryName;
  readonly config: Required<LowLatencyConfig>;
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

  async announce({ shared }: SymmetricWindow, config: Required<LowLatencyConfig>): Promise<void> {
    await this.#group.store.setJson(this.#key(this.#group.rank), { memory: shared, config });
  }

  /** The memory as the other ranks have it. Fails with WL_CONFIG_MISMATCH if they made the object otherwise. */
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
    return found.map(({ memory }) => memory);
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
