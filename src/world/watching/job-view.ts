// A job as it is seen from outside at one moment: what each rank says, or what the system shows of one that says nothing.
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { asWeftlineError } from '../../core/errors.ts';
import { type ObjectState, type PresentWait, STORE_WAIT } from '../../core/waits.ts';
import type { Meters } from '../../core/metric-table.ts';
import { type JobAddress, type JobAnswers, JobObserver } from './job-observer.ts';
import type { RankAnswer } from './rank-answer.ts';
import { isStopped, type ProcessFacts, processFacts } from './process-facts.ts';

/** A job that can be looked at. */
export interface WatchedJob {
  /** The id of the job begins with it where the launcher of this host made it. */
  readonly prefix: string;
  /** Address of its store. */
  readonly address: JobAddress;
  readonly size: number;
  /** Process ids of its ranks on this host, by rank. */
  readonly pids: ReadonlyMap<number, number>;
  /** Process ids of weftline's launchers on this host. */
  readonly launchers: readonly number[];
}

/** How a rank was found: it answered, said nothing, has not joined, has left; `unknown` where the store could not be asked. */
type RankState = 'answers' | 'silent' | 'absent' | 'left' | 'unknown';

export interface RankView {
  readonly rank: number;
  readonly state: RankState;
  readonly host: string;
  readonly pid: number | undefined;
  /** Longest first. */
  readonly waits: readonly PresentWait[];
  readonly objects: readonly ObjectState[];
  readonly names: readonly string[];
  /** What the system shows; only of ranks of this host, and of hosts whose launcher answers. */
  readonly process: ProcessFacts | undefined;
  /** Share of one processor that its main thread used while it was asked; undefined if that is not known. */
  readonly cpuShare: number | undefined;
  readonly rssBytes: number | undefined;
  readonly meters: Meters | undefined;
  /** How long ago the store last heard of it, in ms. */
  readonly heardMs: number | undefined;
}

interface LauncherView {
  readonly pid: number;
  readonly process: ProcessFacts | undefined;
}

export interface JobView {
  readonly jobId: string;
  readonly size: number;
  readonly ranks: readonly RankView[];
  /** weftline's launchers on this host. */
  readonly launchers: readonly LauncherView[];
  /** Why the store could not be asked. */
  readonly storeError: string | undefined;
  /** It answers, but too many ask it already. */
  readonly isStoreBusy: boolean;
}

/** A rank whose share of a processor is to be told is watched for so long at least. */
const MIN_SAMPLE_MS = 50;

/** Asks one job again and again over one connection. */
export class JobWatcher {
  #job: WatchedJob;
  #observer: JobObserver | undefined;

  constructor(job: WatchedJob) {
    this.#job = job;
  }

  /** The same job as it was found anew: ranks may have been started again. */
  update(job: WatchedJob): void {
    this.#job = job;
  }

  /**
   * Never fails. Returns as soon as all ranks have answered that can: a rank that the system shows as stopped is not waited
   * for. The others have `patienceMs`.
   */
  async look(patienceMs: number): Promise<JobView> {
    const started = performance.now();
    const before = new Map([...this.#job.pids].map(([rank, pid]) => [rank, processFacts(pid)]));
    let answers: JobAnswers | undefined;
    let storeError: string | undefined;
    let isStoreBusy = false;
    if (this.#job.size === 1) storeError = 'a job of one rank has no store to be asked';
    else {
      try {
        this.#observer ??= await JobObserver.connect(this.#job.address, patienceMs);
        const left = Math.max(1, Math.ceil(patienceMs - (performance.now() - started)));
        answers = await this.#observer.ask(left, isEnough);
      } catch (error) {
        this.close();
        const { code, message } = asWeftlineError(error);
        storeError = message;
        isStoreBusy = code === 'WL_BUSY';
      }
    }
    const sampled = performance.now() - started;
    const anySilent = answers === undefined || answers.ranks.size < answers.members.size;
    if (anySilent && sampled < MIN_SAMPLE_MS) await sleep(MIN_SAMPLE_MS - sampled);
    return viewOf(this.#job, { answers, before, elapsedMs: performance.now() - started, storeError, isStoreBusy });
  }

  close(): void {
    this.#observer?.close();
    this.#observer = undefined;
  }
}

/** Whether all ranks have answered that can. */
export function isEnough({ members, ranks, processes }: JobAnswers): boolean {
  for (const [rank, { left, pid, host }] of members) {
    if (left !== undefined || ranks.has(rank)) continue;
    const facts = processes.get(rank) ?? (host === hostname() ? processFacts(pid) : undefined);
    if (facts === undefined || !isStopped(facts)) return false;
  }
  return true;
}

/** The job as a rank of it sees it by what the members have answered. */
export function viewOfAnswers(answers: JobAnswers): JobView {
  const here = [...answers.members].filter(([, { host }]) => host === hostname());
  const job = {
    prefix: '',
    size: answers.size,
    pids: new Map(here.map(([rank, { pid }]) => [rank, pid])),
    launchers: [],
  };
  return viewOf(job, { answers, before: new Map(), elapsedMs: 0, storeError: undefined, isStoreBusy: false });
}

interface Seen {
  readonly answers: JobAnswers | undefined;
  readonly before: ReadonlyMap<number, ProcessFacts | undefined>;
  readonly elapsedMs: number;
  readonly storeError: string | undefined;
  readonly isStoreBusy: boolean;
}

/** What is known of a job without asking. */
type KnownJob = Omit<WatchedJob, 'address'>;

function viewOf(job: KnownJob, seen: Seen): JobView {
  const { answers, storeError, isStoreBusy } = seen;
  const size = answers?.size ?? job.size;
  return {
    jobId: answers?.jobId ?? job.prefix,
    size,
    ranks: Array.from({ length: size }, (_, rank) => rankView(rank, job, seen)),
    launchers: job.launchers.map((pid) => ({ pid, process: processFacts(pid) })),
    storeError,
    isStoreBusy,
  };
}

function rankView(rank: number, job: KnownJob, seen: Seen): RankView {
  const { answers, before, elapsedMs } = seen;
  const member = answers?.members.get(rank);
  const answer = answers?.ranks.get(rank);
  const facts = processOf(rank, job, answers);
  return {
    rank,
    state: stateOf(answers, member?.left, { joined: member !== undefined, answered: answer !== undefined }),
    host: member?.host ?? (job.pids.has(rank) ? hostname() : ''),
    pid: member?.pid ?? job.pids.get(rank),
    waits: waitsOf(answer?.waits ?? [], answers?.storeWaits.get(rank)),
    ...answeredFacts(answer),
    process: facts,
    cpuShare: cpuShareOf(before.get(rank), facts, elapsedMs),
    rssBytes: answer?.rssBytes ?? facts?.rssBytes,
    heardMs: member?.heardMs,
  };
}

function answeredFacts(answer: RankAnswer | undefined): Pick<RankView, 'objects' | 'names' | 'meters'> {
  if (answer === undefined) return { objects: [], names: [], meters: undefined };
  const { objects, names, meters } = answer;
  return { objects, names, meters };
}

/** A member of another host or container is shown by that node's launcher: its number is another process here. */
function processOf(rank: number, job: KnownJob, answers: JobAnswers | undefined): ProcessFacts | undefined {
  const pid = job.pids.get(rank);
  const member = answers?.members.get(rank);
  const isHere = pid !== undefined && (member === undefined || member.host === hostname());
  return isHere ? processFacts(member?.pid ?? pid) : answers?.processes.get(rank);
}

/** What the store says of its waits says more than what the rank says of them. */
function waitsOf(own: readonly PresentWait[], stored: readonly PresentWait[] | undefined): PresentWait[] {
  const others = own.filter(({ operation }) => stored === undefined || !operation.startsWith(STORE_WAIT));
  return [...others, ...(stored ?? [])].toSorted((left, right) => right.ageMs - left.ageMs);
}

function cpuShareOf(
  before: ProcessFacts | undefined,
  after: ProcessFacts | undefined,
  elapsedMs: number,
): number | undefined {
  if (before === undefined || before.pid !== after?.pid) return undefined;
  return Math.max(0, (after.mainCpuMs - before.mainCpuMs) / elapsedMs);
}

function stateOf(
  answers: JobAnswers | undefined,
  left: string | undefined,
  { joined, answered }: { readonly joined: boolean; readonly answered: boolean },
): RankState {
  if (answers === undefined) return 'unknown';
  if (left !== undefined) return 'left';
  if (answered) return 'answers';
  return joined ? 'silent' : 'absent';
}
