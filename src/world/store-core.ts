// The rendezvous store itself, without any I/O: values, waits and collectives of one job, and what fails when a rank leaves.
import { copyOf } from '../core/bytes.ts';
import { WeftlineError } from '../core/errors.ts';
import { quote, quoteList } from '../core/quote.ts';
import type { PresentWait } from '../core/waits.ts';
import { protocolError } from '../meeting/frames.ts';
import { type Departure, type MemberIdentity, Membership, type VainWait } from './membership.ts';
import { SHRINK, type StoreReply, type StoreRequest } from './store-request.ts';
import { SurvivorAgreement } from './survivor-agreement.ts';

export interface StoreCoreOptions {
  readonly size: number;
  readonly maxValueBytes: number;
  /** Ranks that have left may join again. */
  readonly elastic?: boolean | undefined;
  /** Hears of ranks that live and were left out of a group for not having come. */
  readonly onLeftOut?: ((ranks: readonly number[]) => void) | undefined;
}

/** One request that waits for other ranks. */
interface Wait {
  readonly rank: number;
  /** Begin of the wait on the clock of performance.now(), as `endsAt`. */
  readonly since: number;
  readonly endsAt: number;
  readonly waitingFor: string;
  /** The ranks whose departure ends the wait. */
  readonly awaited: () => readonly number[];
  /** A collective needs every awaited rank; a key may still be set while one of them is there. */
  readonly needsAll: boolean;
  readonly fail: (error: unknown) => void;
  readonly finish: (reply: StoreReply) => void;
}

/** A member's wait, as others are told of it. */
interface StoreWait extends PresentWait {
  readonly rank: number;
}

interface KeyWait extends Wait {
  readonly keys: readonly string[];
  readonly read: boolean;
}

/** One round of a collective. */
interface Round {
  /** Rank to what it brought. */
  readonly arrivals: Map<number, { readonly wait: Wait; readonly part: Uint8Array | undefined }>;
  /** Ranks that came, waited in vain and left again: they are not who the others miss. */
  readonly gaveUp: Set<number>;
}

const decimal = /^-?[0-9]{1,16}$/;

export class StoreCore {
  readonly members: Membership;
  readonly #options: StoreCoreOptions;
  readonly #values = new Map<string, Uint8Array>();
  readonly #waits = new Set<Wait>();
  /** Rounds of one collective in order: a rank that comes again before a round is complete opens the next. */
  readonly #rounds = new Map<string, Round[]>();
  /** The last collective of each rank, if it was in vain: a rank that leaves then has left because of the missing ones. */
  readonly #vainWaits = new Map<number, VainWait>();
  /** By name and members of the group. */
  readonly #agreements = new Map<string, SurvivorAgreement<Wait>>();
  #decisions = 0;

  constructor(options: StoreCoreOptions) {
    this.#options = options;
    this.members = new Membership(options.size, options.elastic);
  }

  /** Returns how often the rank has joined before. */
  join(rank: number, identity: MemberIdentity): number {
    this.#vainWaits.delete(rank);
    return this.members.join(rank, identity);
  }

  /** Fails, now, every wait that needs this rank. */
  leave(rank: number, departure: Departure): void {
    const { how } = departure;
    this.members.leave(rank, how === 'failed' ? departure : { how, after: this.#vainWaits.get(rank) });
    const closed = new WeftlineError('WL_CLOSED', `Rank ${rank} left the job`);
    // The rank's own waits fail first: that takes back what it brought to collectives, so that the others see that it is missing.
    for (const wait of this.#waits) if (wait.rank === rank) wait.fail(closed);
    for (const wait of this.#waits) this.#failIfHopeless(wait);
    for (const agreement of this.#agreements.values()) this.#decideIfComplete(agreement);
  }

  /** What members wait for now. */
  presentWaits(now: number = performance.now()): StoreWait[] {
    return [...this.#waits].map(({ rank, since, endsAt, waitingFor, awaited }) => ({
      rank,
      operation: waitingFor,
      ranks: awaited(),
      ageMs: now - since,
      leftMs: endsAt - now,
    }));
  }

  /** Answers one request of a rank; rejects with a WeftlineError, or with the signal's reason. */
  async request(
    rank: number,
    request: StoreRequest,
    parts: readonly Uint8Array[],
    signal?: AbortSignal,
  ): Promise<StoreReply> {
    for (const part of parts) this.#checkSize(part.byteLength, this.#options.maxValueBytes);
    switch (request.op) {
      case 'set':
        this.#store(request.key, parts[0] ?? new Uint8Array());
        return { parts: [] };
      case 'delete':
        return { done: this.#values.delete(request.key), parts: [] };
      case 'add':
        return { sum: this.#add(request.key, request.delta), parts: [] };
      case 'compareAndSet':
        return this.#compareAndSet(request.key, parts);
      case 'wait':
        return this.#waitForKeys(rank, request, signal);
      case 'gather':
      case 'barrier':
        return this.#collect(rank, request, parts[0], signal);
      case 'shrink':
        return this.#shrink(rank, request, signal);
      default:
        return request satisfies never;
    }
  }

  #store(key: string, value: Uint8Array): void {
    // A copy: the argument may be a view into a larger network buffer, or the caller's to change.
    this.#values.set(key, copyOf(value));
    for (const wait of this.#waits) {
      if ('keys' in wait) this.#finishIfThere(wait as KeyWait);
    }
  }

  #add(key: string, delta: number): number {
    const text = Buffer.from(this.#values.get(key) ?? Buffer.from('0')).toString('latin1');
    const sum = decimal.test(text) ? Number(text) + delta : Number.NaN;
    if (!Number.isSafeInteger(sum)) {
      throw new WeftlineError(
        'WL_INVALID_ARGUMENT',
        `Cannot add ${delta} to key ${quote(key)}: it holds ${quote(text, 32)}, and value and sum must be integers below 2^53`,
        { details: { key, delta } },
      );
    }
    this.#store(key, Buffer.from(String(sum)));
    return sum;
  }

  #compareAndSet(key: string, parts: readonly Uint8Array[]): StoreReply {
    const expected = parts.length > 1 ? parts[0] : undefined;
    const desired = parts.at(-1) ?? new Uint8Array();
    const current = this.#values.get(key);
    const done =
      expected === undefined || current === undefined ? expected === current : Buffer.compare(expected, current) === 0;
    if (done) this.#store(key, desired);
    const now = this.#values.get(key);
    return { done, parts: now === undefined ? [] : [now] };
  }

  #waitForKeys(
    rank: number,
    request: StoreRequest & { readonly op: 'wait' },
    signal: AbortSignal | undefined,
  ): Promise<StoreReply> {
    const { keys, read, timeoutMs } = request;
    const from = request.from ?? this.#others(rank, this.#members(rank, request.members));
    const names = quoteList(keys);
    return this.#wait({
      rank,
      waitingFor: `waiting for ${keys.length === 1 ? 'key' : 'keys'} ${names}`,
      awaited: () => from,
      needsAll: false,
      timeoutMs,
      signal,
      start: (wait) => this.#finishIfThere(Object.assign(wait, { keys, read })),
      drop: () => {},
      missing: () => ({
        keys: keys.filter((key) => !this.#values.has(key)),
        // Any rank might have set it if the caller names none; the ones that never joined are the suspects.
        ranks: request.from ?? from.filter((other) => !this.members.joined(other)),
      }),
    });
  }

  #finishIfThere(wait: KeyWait): void {
    const values = wait.keys.map((key) => this.#values.get(key));
    if (values.every((value) => value !== undefined)) wait.finish({ parts: wait.read ? values : [] });
  }

  #collect(
    rank: number,
    request: StoreRequest & { readonly op: 'gather' | 'barrier' },
    part: Uint8Array | undefined,
    signal: AbortSignal | undefined,
  ): Promise<StoreReply> {
    const members = this.#members(rank, request.members);
    const size = members.length;
    if (request.op === 'gather') {
      // The others would otherwise take the values of later ranks for those of earlier ones.
      if (part === undefined) throw protocolError('a gather without its value');
      this.#checkSize((part?.byteLength ?? 0) * size, this.#options.maxValueBytes, ` from ${size} ranks together`);
    }
    // Ranks that disagree on who takes part wait for each other in vain, instead of mixing their values.
    const name = `${request.op} ${request.members?.join() ?? 'all'} ${request.name}`;
    const rounds = this.#rounds.get(name) ?? [];
    this.#rounds.set(name, rounds);
    let round = rounds.find((candidate) => !candidate.arrivals.has(rank));
    if (round === undefined) rounds.push((round = { arrivals: new Map(), gaveUp: new Set() }));
    const current = round;
    const { arrivals, gaveUp } = current;
    const others = this.#others(rank, members);
    const missing = () => others.filter((other) => !arrivals.has(other));
    return this.#wait({
      rank,
      waitingFor: `${request.op} ${quote(request.name)}`,
      awaited: missing,
      needsAll: true,
      timeoutMs: request.timeoutMs,
      signal,
      start: (wait) => {
        gaveUp.delete(rank);
        arrivals.set(rank, { wait, part: part === undefined ? undefined : copyOf(part) });
        if (arrivals.size === size) this.#finishRound(name, rounds, current);
      },
      drop: () => {
        arrivals.delete(rank);
        gaveUp.add(rank);
        if (arrivals.size === 0) this.#forgetRound(name, rounds, current);
      },
      missing: () => {
        const neverCame = missing().filter((other) => !gaveUp.has(other));
        return { ranks: neverCame.length > 0 ? neverCame : missing() };
      },
    });
  }

  #finishRound(name: string, rounds: Round[], round: Round): void {
    this.#forgetRound(name, rounds, round);
    const arrivals = [...round.arrivals].toSorted(([left], [right]) => left - right).map(([, arrival]) => arrival);
    const parts = arrivals.map(({ part }) => part).filter((part) => part !== undefined);
    for (const { wait } of arrivals) wait.finish({ parts });
  }

  #forgetRound(name: string, rounds: Round[], round: Round): void {
    const at = rounds.indexOf(round);
    if (at >= 0) rounds.splice(at, 1);
    if (rounds.length === 0) this.#rounds.delete(name);
  }

  /** Ends when every rank of the group that lives has come, or when the time of one that has come is over. */
  #shrink(
    rank: number,
    request: StoreRequest & { readonly op: 'shrink' },
    signal: AbortSignal | undefined,
  ): Promise<StoreReply> {
    const { lost = [], timeoutMs } = request;
    const members = this.#members(rank, request.members);
    if (!lost.every((one) => members.includes(one))) throw protocolError('lost ranks that are of no group');
    const name = `${members.join()} ${request.name}`;
    const agreement = this.#agreements.get(name) ?? new SurvivorAgreement<Wait>(members, this.members);
    this.#agreements.set(name, agreement);
    for (const wait of agreement.exclude(lost)) wait.fail(agreement.refusal(wait.rank));
    this.#decideIfComplete(agreement);
    const refusal = agreement.refusal(rank);
    if (refusal !== undefined) throw refusal;
    return this.#wait({
      rank,
      waitingFor: SHRINK,
      awaited: () => agreement.missing,
      needsAll: true,
      timeoutMs,
      signal,
      start: (wait) => {
        agreement.arrive(rank, wait);
        this.#decideIfComplete(agreement);
      },
      drop: (wait) => agreement.withdraw(rank, wait),
      late: () => {
        if (agreement.isQuorate) this.#decide(agreement, timeoutMs);
      },
      missing: () => ({
        ranks: agreement.missing,
        hint: 'those that came are fewer than half of the ranks that live, and cannot go on without the others',
      }),
    });
  }

  #decideIfComplete(agreement: SurvivorAgreement<Wait>): void {
    while (agreement.isComplete) this.#decide(agreement, 0);
  }

  #decide(agreement: SurvivorAgreement<Wait>, timeoutMs: number): void {
    this.#decisions += 1;
    const { survivors, waits, late } = agreement.decide(this.#decisions, timeoutMs);
    if (late.length > 0) this.#options.onLeftOut?.(late);
    const parts = [Buffer.from(JSON.stringify(survivors))];
    for (const wait of waits) wait.finish({ parts });
  }

  #wait(request: WaitRequest): Promise<StoreReply> {
    const { signal, timeoutMs, start, drop, missing, late, ...facts } = request;
    const since = performance.now();
    return new Promise((resolve, reject) => {
      const end = () => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', abort);
        this.#waits.delete(wait);
      };
      const wait: Wait = {
        ...facts,
        since,
        endsAt: since + timeoutMs,
        finish: (reply) => {
          end();
          this.#vainWaits.delete(request.rank);
          resolve(reply);
        },
        fail: (error) => {
          end();
          drop(wait);
          reject(error);
        },
      };
      const abort = () => wait.fail(signal?.reason);
      const timer = setTimeout(() => {
        late?.();
        if (!this.#waits.has(wait)) return;
        const found = missing();
        const { rank, waitingFor, needsAll } = request;
        if (needsAll) this.#vainWaits.set(rank, { waitingFor, missing: found.ranks });
        wait.fail(this.#timeout(request, found));
      }, timeoutMs);
      if (signal?.aborted === true) return abort();
      signal?.addEventListener('abort', abort);
      this.#waits.add(wait);
      start(wait);
      if (this.#waits.has(wait)) this.#failIfHopeless(wait);
    });
  }

  #failIfHopeless(wait: Wait): void {
    const awaited = wait.awaited();
    // The first to leave is the one to name: others may have left because of it.
    const left = this.members.departed(awaited);
    const culprit = left.find((rank) => this.members.departure(rank)?.how !== 'closed');
    if (culprit !== undefined) return wait.fail(this.members.failure(culprit, wait.waitingFor));
    const first = left[0];
    if (first !== undefined && (wait.needsAll || left.length === awaited.length)) {
      wait.fail(this.members.failure(first, wait.waitingFor));
    }
  }

  #timeout(request: WaitRequest, missing: Missing): WeftlineError {
    const { keys, ranks, hint } = missing;
    // The stage of a call whose earlier stages took all of its time.
    const when = request.timeoutMs === 0 ? 'at once, with no time left' : `after ${Math.round(request.timeoutMs)} ms`;
    const unset = keys === undefined ? '' : `: nobody set ${quoteList(keys)}`;
    const absent = ranks.length === 0 ? '' : `: ${this.members.describe(ranks)}`;
    return new WeftlineError(
      'WL_TIMEOUT',
      `Rank ${request.rank} gave up ${request.waitingFor} ${when}${unset}${absent}${hint === undefined ? '' : `; ${hint}`}`,
      {
        details: {
          rank: request.rank,
          waitingFor: request.waitingFor,
          timeoutMs: request.timeoutMs,
          missing: ranks,
          ...(keys === undefined ? {} : { keys }),
        },
      },
    );
  }

  /** The ranks that take part. Fails with WL_PROTOCOL when they are no ranks of this job, or not the caller's. */
  #members(rank: number, members: readonly number[] | undefined): readonly number[] {
    const { size } = this.#options;
    if (members === undefined) return Array.from({ length: size }, (_, other) => other);
    if (members.includes(rank) && members.every((member) => member < size)) return members;
    throw protocolError(
      `a request of rank ${rank} for a group that it is no member of, or of ranks beyond ${size - 1}`,
    );
  }

  #others(rank: number, members: readonly number[]): readonly number[] {
    return members.filter((other) => other !== rank);
  }

  #checkSize(bytes: number, allowed: number, together = ''): void {
    if (bytes <= allowed) return;
    throw new WeftlineError(
      'WL_CAPACITY',
      `A value of ${bytes} bytes${together} does not fit the rendezvous store: at most ${allowed} (setting storeMaxValueBytes, WEFTLINE_STORE_MAX_VALUE on rank 0)`,
      { details: { bytes, allowed } },
    );
  }
}

interface Missing {
  readonly ranks: readonly number[];
  readonly keys?: readonly string[];
  readonly hint?: string;
}

interface WaitRequest extends Omit<Wait, 'fail' | 'finish' | 'since' | 'endsAt'> {
  readonly timeoutMs: number;
  readonly signal: AbortSignal | undefined;
  /** Called once registered: may finish it at once. */
  readonly start: (wait: Wait) => void;
  /** Called when it failed: takes back what `start` registered. */
  readonly drop: (wait: Wait) => void;
  readonly missing: () => Missing;
  /** Called when its time is over; may finish it even then. */
  readonly late?: () => void;
}
