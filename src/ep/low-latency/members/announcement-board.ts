// Where the ranks of an elastic EpLowLatency tell, in the store, how a restarted process of one of them finds the window.
import { setTimeout as sleep } from 'node:timers/promises';
import { type CallWait, type Deadline, remaining } from '../../../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../../../core/errors.ts';
import type { SharedMemoryName } from '../../../windows/shared-memory.ts';
import { SymmetricWindow, type SymmetricWindowOptions } from '../../../windows/symmetric-window.ts';
import type { RankGroup } from '../../../world/rank-group.ts';
import type { LowLatencyConfig } from '../low-latency-size.ts';

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
  /** Not collective: in the place of this rank's former process. */
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
