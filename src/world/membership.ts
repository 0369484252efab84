// Knows who takes part in a job, and how those who left did so: the store fails waits on ranks that will not come.
import { decodeError, type EncodedError, WeftlineError } from '../core/errors.ts';
import { printable } from '../core/quote.ts';

export interface MemberIdentity {
  readonly pid: number;
  readonly host: string;
}

/** A wait that a rank gave up, and the ranks that did not join it. */
export interface VainWait {
  readonly waitingFor: string;
  readonly missing: readonly number[];
}

/** How a rank left: its world was closed or its connection broke, perhaps behind a vain wait, or it reported an error. */
export type Departure =
  | { readonly how: 'closed' | 'lost'; readonly after?: VainWait | undefined }
  | { readonly how: 'failed'; readonly error: EncodedError };

interface Member extends MemberIdentity {
  departure?: Departure;
  /** How often the rank has joined before. */
  readonly life: number;
}

/** The ranks that were there at a time. */
export interface MembershipView {
  /** Grows with every rank that joins or leaves. */
  readonly epoch: number;
  /** Ranks, ascending. */
  readonly members: readonly number[];
}

export class Membership {
  readonly size: number;
  readonly #members = new Map<number, Member>();
  /** Ranks in the order they left. */
  readonly #departed: number[] = [];
  readonly #isElastic: boolean;
  #epoch = 0;

  /** `isElastic`: ranks that have left may join again. */
  constructor(size: number, isElastic = false) {
    this.size = size;
    this.#isElastic = isElastic;
  }

  /**
   * Returns how often the rank has joined before: 0 but in elastic worlds. Fails with WL_RANK_TAKEN naming the holder; in
   * other worlds a rank joins once.
   */
  join(rank: number, identity: MemberIdentity): number {
    const holder = this.#members.get(rank);
    const hasLeft = holder?.departure !== undefined;
    if (holder === undefined || (this.#isElastic && hasLeft)) {
      const life = holder === undefined ? 0 : holder.life + 1;
      if (hasLeft) this.#departed.splice(this.#departed.indexOf(rank), 1);
      this.#members.set(rank, { ...identity, life });
      this.#epoch += 1;
      return life;
    }
    const state = holder.departure === undefined ? 'is used by' : 'was used and left by';
    throw new WeftlineError(
      'WL_RANK_TAKEN',
      `Rank ${rank} of this job ${state} process ${holder.pid} on ${printable(holder.host)}: start each rank once, with its own number, and join() once`,
      { details: { rank, pid: holder.pid, host: holder.host, left: holder.departure !== undefined } },
    );
  }

  leave(rank: number, departure: Departure): void {
    const member = this.#members.get(rank);
    if (member === undefined || member.departure !== undefined) return;
    member.departure = departure;
    this.#epoch += 1;
    this.#departed.push(rank);
  }

  /** True once ranks have joined and all of those have left, however they did. */
  get isDeserted(): boolean {
    return this.#members.size > 0 && this.#departed.length === this.#members.size;
  }

  get view(): MembershipView {
    const present = [...this.#members].filter(([, { departure }]) => departure === undefined);
    return { epoch: this.#epoch, members: present.map(([rank]) => rank).toSorted((left, right) => left - right) };
  }

  departure(rank: number): Departure | undefined {
    return this.#members.get(rank)?.departure;
  }

  /** The ranks that have left, of those given: the first to leave comes first. */
  departed(ranks: readonly number[]): number[] {
    return this.#departed.filter((rank) => ranks.includes(rank));
  }

  /** True once all ranks have joined and closed their worlds without an error. */
  get allClosed(): boolean {
    if (this.#departed.length < this.size) return false;
    return this.#departed.every((rank) => this.departure(rank)?.how === 'closed');
  }

  /** Members that have joined, by rank. */
  get identities(): ReadonlyMap<number, MemberIdentity> {
    return this.#members;
  }

  joined(rank: number): boolean {
    return this.#members.has(rank);
  }

  /** "rank 2 did not come; rank 3 never joined", for a message on ranks that are missed. */
  describe(ranks: readonly number[]): string {
    const joined = ranks.filter((rank) => this.#members.has(rank));
    const absent = ranks.filter((rank) => !this.#members.has(rank));
    const sentences: string[] = [];
    if (joined.length > 0) sentences.push(`${rankList(joined)} did not come`);
    if (absent.length > 0) sentences.push(`${rankList(absent)} never joined`);
    return sentences.join('; ');
  }

  /** Why a wait that needs this departed rank fails. */
  failure(rank: number, waitingFor: string): WeftlineError {
    const member = this.#members.get(rank);
    const departure = member?.departure;
    const who =
      member === undefined ? `Rank ${rank}` : `Rank ${rank} (process ${member.pid} on ${printable(member.host)})`;
    const details = { rank, pid: member?.pid, host: member?.host, how: departure?.how, waitingFor };
    if (departure?.how === 'failed') {
      const cause = decodeError(departure.error);
      return new WeftlineError(
        'WL_PEER_FAILED',
        `${who} failed, ${waitingFor} cannot go on: ${cause.code}: ${cause.message}`,
        { details, cause, rank },
      );
    }
    const hasClosed = departure?.how === 'closed';
    if (departure?.after !== undefined) {
      const { missing, waitingFor: vain } = departure.after;
      // A process that does not catch the error of its wait ends without goodbye, but so does one that is killed later.
      const left = hasClosed ? 'left' : 'was lost (its connection broke without goodbye)';
      const blamed = hasClosed ? missing : [...missing, rank];
      return new WeftlineError(
        hasClosed ? 'WL_PEER_FAILED' : 'WL_PEER_LOST',
        `${who} ${left} after it had given up ${vain}, to which ${rankList(missing)} did not come; ${waitingFor} cannot go on`,
        { details: { ...details, blamed }, rank: missing[0] ?? rank },
      );
    }
    const how = hasClosed ? 'closed its world' : 'was lost: its connection broke without goodbye';
    return new WeftlineError('WL_PEER_LOST', `${who} ${how}; ${waitingFor} cannot go on`, { details, rank });
  }
}

// Ranks in messages.

/** "rank 3", "ranks 1, 2, 3", or "Rank 3" where a sentence begins; long lists are cut. */
export function rankList(ranks: readonly number[], word: 'rank' | 'Rank' = 'rank'): string {
  const shown = ranks.slice(0, 16).join(', ');
  const more = ranks.length > 16 ? ` and ${ranks.length - 16} more` : '';
  return `${word}${ranks.length === 1 ? '' : 's'} ${shown}${more}`;
}
