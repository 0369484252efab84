// Decides which ranks of a group live and come: once, in the store, so that no two ranks can come out with different members.
import { WeftlineError } from '../core/errors.ts';
import { type Membership, rankList } from './membership.ts';

/** What the ranks of a new group are told. */
export interface Survivors {
  /** World ranks, in the order of the request's members. */
  readonly ranks: readonly number[];
  /** Number of the decision, which no other one of the job has. */
  readonly number: number;
  /** Why each rank that this decision leaves out is not among them. */
  readonly left: readonly { readonly rank: number; readonly why: string }[];
}

interface Decision<Wait> {
  readonly survivors: Survivors;
  readonly waits: readonly Wait[];
  readonly late: readonly number[];
}

/** One for each group that was ever shrunk: who was left out of it once is left out for ever. `Wait`: what a rank waits with. */
export class SurvivorAgreement<Wait> {
  /** Waits of the ranks that have come; those behind the first one of a rank are for the next decisions. */
  readonly #arrivals = new Map<number, Wait[]>();
  readonly #members: readonly number[];
  readonly #present: Membership;
  /** Why each rank that was left out was. */
  readonly #left = new Map<number, string>();

  /** `members`: world ranks of the group; `present`: who of the world is there. */
  constructor(members: readonly number[], present: Membership) {
    this.#members = members;
    this.#present = present;
  }

  /**
   * Leaves ranks out that were lost since the group was made, even if another process has joined in their place. Returns the waits
   * of those, which must fail with refusal().
   */
  exclude(ranks: readonly number[]): readonly Wait[] {
    for (const rank of ranks) if (!this.#left.has(rank)) this.#left.set(rank, 'its process was lost');
    return ranks.flatMap((rank) => this.#arrivals.get(rank) ?? []);
  }

  /** WL_INACTIVE, with the reason, if the rank was left out. */
  refusal(rank: number): WeftlineError | undefined {
    const why = this.#left.get(rank);
    if (why === undefined) return undefined;
    const message = `Rank ${rank} was left out of its group, because ${why}: the others go on without it, and it cannot come back to what they made since; close what it made over that group`;
    return new WeftlineError('WL_INACTIVE', message, { details: { rank, why } });
  }

  arrive(rank: number, wait: Wait): void {
    this.#arrivals.set(rank, [...(this.#arrivals.get(rank) ?? []), wait]);
  }

  /** The wait has ended without a decision. */
  withdraw(rank: number, wait: Wait): void {
    const waits = this.#arrivals.get(rank)?.filter((other) => other !== wait) ?? [];
    if (waits.length > 0) this.#arrivals.set(rank, waits);
    else this.#arrivals.delete(rank);
  }

  /** The ranks that live and have not come. */
  get missing(): readonly number[] {
    return this.#living.filter((rank) => !this.#arrivals.has(rank));
  }

  /** True if all ranks that live have come. */
  get isComplete(): boolean {
    return this.#arrivals.size > 0 && this.missing.length === 0;
  }

  /** True if so many have come that they may leave out the rest: half of those that live. One hasty rank alone cannot go on without all others. */
  get isQuorate(): boolean {
    return 2 * this.#arrivals.size >= this.#living.length;
  }

  /** The ranks that have come are the group from now on. Returns what to tell them, their waits, and who lives and is left out now. */
  decide(number: number, timeoutMs: number): Decision<Wait> {
    const ranks = this.#members.filter((rank) => this.#arrivals.has(rank));
    const late = this.missing;
    const tooLate = `it did not come within the ${Math.round(timeoutMs)} ms of ${rankList(ranks)}`;
    const left = this.#members
      .filter((rank) => !this.#arrivals.has(rank))
      .map((rank) => ({ rank, why: this.#left.get(rank) ?? this.#whyGone(rank) ?? tooLate }));
    for (const { rank, why } of left) this.#left.set(rank, why);
    const waits = ranks.map((rank) => this.#arrivals.get(rank)![0]!);
    for (const [index, rank] of ranks.entries()) this.withdraw(rank, waits[index]!);
    return { survivors: { ranks, number, left }, waits, late };
  }

  get #living(): readonly number[] {
    return this.#members.filter((rank) => !this.#left.has(rank) && this.#present.departure(rank) === undefined);
  }

  #whyGone(rank: number): string | undefined {
    const departure = this.#present.departure(rank);
    if (departure === undefined) return undefined;
    if (departure.how === 'failed') return 'it failed';
    return departure.how === 'closed' ? 'it closed its world' : 'its process was lost';
  }
}
