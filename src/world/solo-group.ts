// This rank alone as a group, without a word to the others: for objects that only this process uses, and only for a while.
import { type RankGroup, type SplitOptions, Topology } from './rank-group.ts';
import type { Settings } from '../settings/settings.ts';
import type { Store } from './store.ts';

export class SoloGroup implements RankGroup {
  readonly rank = 0;
  readonly size = 1;
  readonly ranks: readonly number[];
  readonly worldRank: number;
  readonly machineRank: number;
  readonly topology: Topology = new Topology(0, ['here']);
  readonly settings: Settings;
  readonly peerLost: AbortSignal = new AbortController().signal;
  readonly filePrefix: string;
  readonly #of: RankGroup;

  /** `of`: a group that this rank is in. */
  constructor(of: RankGroup) {
    this.ranks = [of.worldRank];
    this.worldRank = of.worldRank;
    this.machineRank = of.machineRank;
    this.settings = of.settings;
    this.filePrefix = of.filePrefix;
    this.#of = of;
  }

  /** The larger group's: what is written there, the others see. */
  get store(): Store {
    return this.#of.store;
  }

  firstCause(error: unknown): Promise<unknown> {
    return Promise.resolve(error);
  }

  barrier(): Promise<void> {
    return Promise.resolve();
  }

  allGather<T>(_name: string, value: T): Promise<T[]> {
    return Promise.resolve([value]);
  }

  split(options: SplitOptions & { readonly color: string | number }): Promise<RankGroup>;
  split(options: SplitOptions): Promise<RankGroup | undefined>;
  split({ color }: SplitOptions): Promise<RankGroup | undefined> {
    return Promise.resolve(color === undefined ? undefined : this);
  }

  group(): Promise<RankGroup> {
    return Promise.resolve(this);
  }

  shrink(): Promise<RankGroup> {
    return Promise.resolve(this);
  }
}
