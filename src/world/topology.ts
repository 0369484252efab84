// On which host each rank of a group lives, and which rank there stands for a rank of another host.
import { invalidArgument } from '../core/errors.ts';

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
