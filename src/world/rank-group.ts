// Ranks that work together: those of a world, or some of them.
import type { WaitOptions } from '../core/deadline.ts';
import { invalidArgument, type WeftlineError } from '../core/errors.ts';
import type { Settings } from '../settings/settings.ts';
import type { Store } from './store.ts';

/** Ranks here are ranks of the group, not of the world. Hosts are numbered by their lowest rank. */
export class Topology {
  /** The ranks of each host, ascending. Those of one host share memory: they are a scale-up domain. */
  readonly hosts: readonly (readonly number[])[];
  /** Number of this rank's host. */
  readonly hostIndex: number;
  /** This rank's position among the ranks of its host. */
  readonly scaleUpIndex: number;
  /** Names of the network interfaces that the setting transportRails gives this rank, in order. */
  readonly rails: readonly string[];
  readonly #places: readonly { readonly host: number; readonly index: number }[];

  /** `identities`: by rank, equal for ranks of one host. `rails`: of this rank. */
  constructor(rank: number, identities: readonly string[], rails: readonly string[] = []) {
    this.rails = Object.freeze([...rails]);
    const byHost = new Map<string, number[]>();
    this.#places = identities.map((identity, other) => {
      const ranks = byHost.get(identity) ?? [];
      byHost.set(identity, ranks);
      return { host: [...byHost.keys()].indexOf(identity), index: ranks.push(other) - 1 };
    });
    this.hosts = Object.freeze([...byHost.values()].map((ranks) => Object.freeze(ranks)));
    ({ host: this.hostIndex, index: this.scaleUpIndex } = this.#place(rank));
  }

  /** The ranks that share this rank's memory, itself among them: position i is scale-up index i. */
  get scaleUpRanks(): readonly number[] {
    return this.hosts[this.hostIndex]!;
  }

  /** Ranks of every host, if all have as many. */
  get ranksPerHost(): number | undefined {
    const { length } = this.scaleUpRanks;
    return this.hosts.every((ranks) => ranks.length === length) ? length : undefined;
  }

  /** Number of a rank's host. */
  hostOf(rank: number): number {
    return this.#place(rank).host;
  }

  /** A rank's position among the ranks of its host. */
  scaleUpIndexOf(rank: number): number {
    return this.#place(rank).index;
  }

  /**
   * The rank on the host of `rank` to which this rank sends what is meant for that host: the one of this rank's scale-up
   * index, modulo the host's ranks where it has fewer. For a rank of this host it is this rank itself.
   */
  forwarderOf(rank: number): number {
    const ranks = this.hosts[this.hostOf(rank)]!;
    return ranks[this.scaleUpIndex % ranks.length]!;
  }

  #place(rank: number): { readonly host: number; readonly index: number } {
    const place = typeof rank === 'number' ? this.#places[rank] : undefined;
    if (place !== undefined) return place;
    throw invalidArgument('rank', rank, `a rank of the group, 0 to ${this.#places.length - 1}`);
  }
}

/** The group of a split that this rank joins, and its place there. */
export interface SplitOptions {
  /** Ranks of one color form a group: a string or a whole number. Without one, this rank is in none. */
  readonly color: string | number | undefined;
  /** The ranks of a group are ordered by key, then by their rank in the group that is split; that rank by default. */
  readonly key?: number;
}

/** @internal How a rank whose time is over learns why. */
export interface FirstCauseOptions {
  /** What another rank has told, perhaps meanwhile: that is then the reason. */
  readonly told?: () => WeftlineError | undefined;
  readonly patienceMs?: number;
}

/**
 * What collective objects, such as an EpBuffer, are made over, and what openDevice() takes; a World is one. Ranks of a group are
 * numbered from 0; errors name world ranks. Groups of one job may be used at the same time, also by the same rank, and a
 * rank may be in any number of them. A group needs no closing: it lives as long as its world.
 *
 * When a rank of the group is lost, waits in the group fail at once, naming it. The loss of another rank of the world
 * does not disturb the group, except that of the process that serves the store of all groups: the launcher, or world rank 0.
 */
export interface RankGroup {
  /** This process's number in the group, 0 to size - 1. */
  readonly rank: number;
  readonly size: number;
  /** World ranks of the group's ranks: ranks[r] is the world rank of rank r. */
  readonly ranks: readonly number[];
  /** ranks[rank]. */
  readonly worldRank: number;
  /** This rank's position among all ranks of the world on this machine, whatever the setting `hosts` says: which GPU it takes. */
  readonly machineRank: number;
  /** Tells which ranks of the group share a host. */
  readonly topology: Topology;
  /** Keys and names of the group's own: those of other groups, and of the world, are others. */
  readonly store: Store;
  readonly settings: Settings;
  /** Aborted, with WL_PEER_LOST or WL_PEER_FAILED as reason, once a rank of the group is gone that did not close its world, or the process that serves the store. */
  readonly peerLost: AbortSignal;
  /** @internal What names of this job's files in /dev/shm begin with, on this host. It tells nothing of the job. */
  readonly filePrefix: string;
  /**
   * @internal Of a WL_TIMEOUT that names ranks which wait for others themselves: the same, naming those that did not come. Any other
   * error as it is. Never fails; takes two seconds at most.
   */
  firstCause(error: unknown, options?: FirstCauseOptions): Promise<unknown>;
  /** Collective: returns once every rank of the group has called it with this name; a name may be used again and again. */
  barrier(name: string, options?: WaitOptions): Promise<void>;
  /** Collective: result[r] is the value of rank r. Values are JSON and fit `storeMaxValueBytes` together. */
  allGather<T>(name: string, value: T, options?: WaitOptions): Promise<T[]>;
  /**
   * Collective over this group: the group of the ranks that gave the same color as this one, undefined without a color.
   * Every rank fails with the same WL_INVALID_ARGUMENT for a color or key of another type.
   */
  split(options: SplitOptions & { readonly color: string | number }, wait?: WaitOptions): Promise<RankGroup>;
  split(options: SplitOptions, wait?: WaitOptions): Promise<RankGroup | undefined>;
  /**
   * The group of these ranks of this group, in this order. Collective over them: all of them call it with the same list,
   * and groups of the same ranks in the same order; the others do not call. Fails with WL_INVALID_ARGUMENT for a list
   * that is empty, names a rank twice or beyond `size`, or lacks this rank, and with WL_CONFIG_MISMATCH when the ranks
   * give different orders.
   */
  group(ranks: readonly number[], wait?: WaitOptions): Promise<RankGroup>;
  /**
   * The group of the ranks of this group that live, in the same order. Collective over those: each calls it after a failure, as
   * often as there are failures. It returns when all that live have come, or `timeoutMs` after one of them came: who lives and
   * has not come by then is left out, if at least half of those that live have come. The store decides, so all ranks of the
   * new group have the same one. Fails with WL_INACTIVE on a rank that was left out, then and ever after; with WL_TIMEOUT, naming
   * the ranks, where fewer than half came; with WL_PEER_LOST when the process that serves the store is gone.
   */
  shrink(wait?: WaitOptions): Promise<RankGroup>;
}
