// The ranks of a job and the groups that are made of them, over the one store of the job.
import { createHash } from 'node:crypto';
import { checkOptions } from '../core/check-options.ts';
import { callWaitNames, startCall, type WaitOptions, waitOptionNames } from '../core/deadline.ts';
import { blamedRanks, type ErrorDetails, invalidArgument, WeftlineError } from '../core/errors.ts';
import { log } from '../core/log.ts';
import { whileWaiting } from '../core/waits.ts';
import type { Settings } from '../settings/settings.ts';
import { shareOutcome } from './outcomes.ts';
import type { PeerWatch } from './peer-watch.ts';
import { type FirstCauseOptions, type RankGroup, type SplitOptions, Topology } from './rank-group.ts';
import { decodeJson, encodeJson, LinkedStore, type StoreLink } from './store.ts';
import { type Cause, causesBehind } from './watching/conclusion.ts';
import { isEnough, viewOfAnswers } from './watching/job-view.ts';

/** What the groups of one rank share. */
export interface GroupContext {
  readonly worldRank: number;
  /** Hosts by world rank, equal for ranks of one host. */
  readonly hosts: readonly string[];
  readonly machineRank: number;
  readonly filePrefix: string;
  readonly settings: Settings;
  /** Names of this rank's rails, in order. */
  readonly rails: readonly string[];
  readonly link: StoreLink;
  readonly peers: PeerWatch;
  /** Calls of split() and group() of this rank so far, see nameOf(). */
  groupCalls: number;
}

/** Names of groups begin the keys of their store. */
const MAX_NAME_LENGTH = 64;
const DIGEST_LENGTH = 32;

export class JobGroup implements RankGroup {
  readonly rank: number;
  readonly size: number;
  readonly ranks: readonly number[];
  readonly worldRank: number;
  readonly machineRank: number;
  readonly topology: Topology;
  readonly store: LinkedStore;
  readonly settings: Settings;
  readonly peerLost: AbortSignal;
  readonly filePrefix: string;
  readonly #job: GroupContext;
  /** World ranks of the group that were lost since it was made. */
  readonly #lost = new Set<number>();

  /** Local. `name`: of a group, see StoreLinkOptions; without one, these are all ranks of the job. */
  constructor(job: GroupContext, ranks: readonly number[], name?: string) {
    const { settings } = job;
    this.rank = ranks.indexOf(job.worldRank);
    this.size = ranks.length;
    this.ranks = Object.freeze([...ranks]);
    this.worldRank = job.worldRank;
    this.machineRank = job.machineRank;
    this.topology = new Topology(
      this.rank,
      ranks.map((rank) => job.hosts[rank]!),
      job.rails,
    );
    this.settings = settings;
    this.filePrefix = job.filePrefix;
    this.peerLost = job.peers.watch(ranks, this.#lost);
    this.store = new LinkedStore(job.link, {
      timeoutMs: settings.timeoutMs,
      maxValueBytes: settings.storeMaxValueBytes,
      ...(name === undefined ? {} : { group: { name, ranks } }),
    });
    this.#job = job;
  }

  firstCause(error: unknown, options?: FirstCauseOptions): Promise<unknown> {
    return firstCause(this.#job.link, error, { worldRank: this.worldRank, ...options });
  }

  barrier(name: string, options?: WaitOptions): Promise<void> {
    return this.store.barrier(name, options);
  }

  async allGather<T>(name: string, value: T, options?: WaitOptions): Promise<T[]> {
    const parts = await this.store.allGather(name, encodeJson(value), options);
    return parts.map((part) => decodeJson(part) as T);
  }

  split(options: SplitOptions & { readonly color: string | number }, wait?: WaitOptions): Promise<RankGroup>;
  split(options: SplitOptions, wait?: WaitOptions): Promise<RankGroup | undefined>;
  async split(options: SplitOptions, wait: WaitOptions = {}): Promise<RankGroup | undefined> {
    checkOptions(wait, callWaitNames, 'options of the wait of split');
    const call = startCall(wait, this.settings.timeoutMs);
    // Checked on every rank before any of them goes on: a rank that threw alone would keep the others waiting.
    const facts = this.#nextCall();
    const step = { name: 'weftline/split', facts, work: () => checkSplit(options, this.rank) };
    const { facts: calls, values, failure } = await shareOutcome(this, step, call);
    if (failure !== undefined) throw failure;
    const { color } = options;
    if (color === undefined) return undefined;
    const members = membersOf(values as readonly SplitChoice[], color);
    const ranks = members.map((rank) => this.ranks[rank]!);
    const name = nameOf(
      ranks,
      members.map((rank) => calls[rank]!),
    );
    return new JobGroup(this.#job, ranks, name);
  }

  async group(ranks: readonly number[], wait: WaitOptions = {}): Promise<RankGroup> {
    checkOptions(wait, callWaitNames, 'options of the wait of group');
    const call = startCall(wait, this.settings.timeoutMs);
    checkRanks(ranks, this);
    const members = ranks.map((rank) => this.ranks[rank]!);
    const meeting = new JobGroup(this.#job, members, `group ${rangesOf(members)}`);
    const step = { name: 'weftline/group', facts: { members, call: this.#nextCall() }, work: () => null };
    const { facts } = await shareOutcome(meeting, step, call);
    const other = facts.findIndex((fact) => fact.members.join() !== members.join());
    if (other === -1) {
      const name = nameOf(
        members,
        facts.map((fact) => fact.call),
      );
      return new JobGroup(this.#job, members, name);
    }
    throw new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `The ranks make a group in different orders: [${members.join(', ')}] on rank ${this.worldRank}, [${facts[other]!.members.join(', ')}] on rank ${members[other]}; all must pass the same list`,
      { details: { ranks: members, rank: members[other], otherRanks: facts[other]!.members } },
    );
  }

  async shrink(wait: WaitOptions = {}): Promise<RankGroup> {
    checkOptions(wait, waitOptionNames, 'options of shrink');
    const { ranks, number, left } = await this.store.shrink([...this.#lost], wait);
    for (const { rank, why } of left) log('world', 'warn', `rank ${rank} is not in the new group: ${why}`);
    // In the order of this group.
    const members = this.ranks.filter((rank) => ranks.includes(rank));
    return new JobGroup(this.#job, members, `group ${rangesOf(members)} shrunk ${number}`);
  }

  #nextCall(): number {
    this.#job.groupCalls += 1;
    return this.#job.groupCalls;
  }
}

interface SplitChoice {
  /** null: none. A number and the string of it are two colors. */
  readonly color: string | number | null;
  readonly key: number;
}

function checkSplit(options: SplitOptions, rank: number): SplitChoice {
  checkOptions(options, { color: true, key: true }, 'options of split');
  const { color, key = rank } = options;
  const isColor = color === undefined || typeof color === 'string' || Number.isSafeInteger(color);
  if (!isColor) throw invalidArgument('color', color, 'a string, a whole number, or undefined for no group');
  if (!Number.isFinite(key)) throw invalidArgument('key', key, 'a finite number');
  return { color: color ?? null, key };
}

/**
 * A name that the members agree on and that no other group of the job has: each member gives the number of its own call,
 * which it uses once, so that calls may fail on some ranks alone, and several may run at a time.
 */
function nameOf(ranks: readonly number[], calls: readonly number[]): string {
  const [first = 0] = calls;
  const number = calls.every((call) => call === first) ? String(first) : digestOf(calls.join());
  return `group ${rangesOf(ranks)} #${number}`;
}

/** Ranks of the group that is split, in the order of the new one. */
export function membersOf(choices: readonly SplitChoice[], color: string | number): readonly number[] {
  return choices
    .flatMap((choice, rank) => (choice.color === color ? [{ rank, key: choice.key }] : []))
    .toSorted((left, right) => left.key - right.key || left.rank - right.rank)
    .map(({ rank }) => rank);
}

function checkRanks(ranks: readonly number[], { size, rank: self }: RankGroup): void {
  const isRank = (rank: unknown): boolean => Number.isInteger(rank) && Number(rank) >= 0 && Number(rank) < size;
  const isList = Array.isArray(ranks) && ranks.every(isRank) && new Set(ranks).size === ranks.length;
  if (isList && ranks.includes(self)) return;
  throw invalidArgument('ranks', ranks, `ranks from 0 to ${size - 1}, each once, this one (${self}) among them`);
}

/** The ranks in ascending order, as "0-3,8"; long lists are a digest. */
function rangesOf(ranks: readonly number[]): string {
  const sorted = ranks.toSorted((left, right) => left - right);
  const ranges: string[] = [];
  for (let from = 0, to = 0; from < sorted.length; from = to) {
    do to += 1;
    while (sorted[to] === sorted[to - 1]! + 1);
    ranges.push(to - from === 1 ? `${sorted[from]}` : `${sorted[from]}-${sorted[to - 1]}`);
  }
  const text = ranges.join();
  if (text.length <= MAX_NAME_LENGTH) return text;
  return `of ${sorted.length} ranks ${digestOf(text)}`;
}

function digestOf(text: string): string {
  return createHash('sha256').update(text).digest('hex').slice(0, DIGEST_LENGTH);
}

/** How long ranks have to say whom they wait for; one that the system shows as stopped is not waited for. */
const PATIENCE_MS = 2_000;

/**
 * Makes of a WL_TIMEOUT that names ranks which wait for others themselves the same error, naming those at the end of that, or what another rank has told meanwhile. Any other error, and one that names the right ranks, is returned as it is. Never fails.
 */
async function firstCause(
  link: StoreLink,
  error: unknown,
  { worldRank, told, patienceMs = PATIENCE_MS }: FirstCauseOptions & { readonly worldRank: number },
): Promise<unknown> {
  const named = blamedRanks(error);
  if (!(error instanceof WeftlineError) || error.code !== 'WL_TIMEOUT' || named.length === 0) return error;
  if (link.ask === undefined) return error;
  // Others that ask at the same time must see that this rank still waits.
  const describe = () => ({ operation: 'why ranks that it needs did not come', ranks: named });
  let causes: readonly Cause[];
  try {
    const answers = await whileWaiting(link.ask(Math.min(patienceMs, PATIENCE_MS), isEnough), describe);
    causes = causesBehind(viewOfAnswers(answers), worldRank, named);
  } catch (silence) {
    // It is rank 0 which does not answer, where that rank holds the store.
    const { message } = silence as Error;
    causes = blamedRanks(silence).map((rank) => ({ rank, sentence: message }));
  }
  return told?.() ?? naming(error, causes);
}

function naming(error: WeftlineError, causes: readonly Cause[]): WeftlineError {
  const named = blamedRanks(error);
  if (causes.every(({ rank }) => named.includes(rank))) return error;
  const message = [error.message, ...causes.map(({ sentence }) => sentence)].join('. ');
  const details: ErrorDetails = { ...error.details, ranks: causes.map(({ rank }) => rank) };
  return new WeftlineError(error.code, message, { details, cause: error });
}
