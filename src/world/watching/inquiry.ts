// One question to the members of a job through its store: collects what the store and the members answer, for a while.
import { WeftlineError } from '../../core/errors.ts';
import type { PresentWait } from '../../core/waits.ts';
import type { Frame } from '../../meeting/frames.ts';
import {
  fields,
  list,
  type MetricsAnswer,
  number,
  optional,
  type RankAnswer,
  readMetricsAnswer,
  readRankAnswer,
  readWait,
  record,
  text,
} from './rank-answer.ts';
import { type ProcessFacts, readProcessFacts } from './process-facts.ts';
import type { Question } from '../store-request.ts';
import type { MemberFacts } from './store-observer.ts';

/** What has come in until the asker was content. */
export interface JobAnswers {
  readonly jobId: string;
  readonly size: number;
  readonly members: ReadonlyMap<number, MemberFacts>;
  /** What each rank waits for in the store. */
  readonly storeWaits: ReadonlyMap<number, readonly PresentWait[]>;
  readonly ranks: ReadonlyMap<number, RankAnswer>;
  /** Metrics by rank, if they were asked for. */
  readonly metrics: ReadonlyMap<number, MetricsAnswer>;
  /** Processes by rank, on hosts whose launcher has answered. */
  readonly processes: ReadonlyMap<number, ProcessFacts>;
}

interface InquiryOptions {
  readonly question: Question;
  readonly patienceMs: number;
  readonly isEnough: (answers: JobAnswers) => boolean;
}

export class Inquiry {
  /**
   * Resolves when `isEnough` says so of what has come, or after `patienceMs`. Fails with WL_TIMEOUT if the store itself does not
   * answer, and as fail() says.
   */
  readonly answers: Promise<JobAnswers>;
  readonly #options: InquiryOptions;
  readonly #collected = new Collected();
  readonly #timer: NodeJS.Timeout;
  #isOver = false;
  #resolve!: (answers: JobAnswers) => void;
  #reject!: (error: WeftlineError) => void;

  constructor(options: InquiryOptions) {
    const { patienceMs } = options;
    this.#options = options;
    this.answers = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#timer = setTimeout(() => {
      if (this.#collected.isKnown) return this.#settle(() => this.#resolve(this.#collected));
      this.fail(new WeftlineError('WL_TIMEOUT', `The store of the job did not answer within ${patienceMs} ms`));
    }, patienceMs);
  }

  /** A frame of the store; others than answers are ignored. */
  take(frame: Frame): void {
    const { question, isEnough } = this.#options;
    if (this.#isOver) return;
    this.#collected.take(frame, question);
    if (!this.#collected.isKnown || !isEnough(this.#collected)) return;
    this.#settle(() => this.#resolve(this.#collected));
  }

  fail(error: WeftlineError): void {
    this.#settle(() => this.#reject(error));
  }

  #settle(act: () => void): void {
    this.#isOver = true;
    clearTimeout(this.#timer);
    act();
  }
}

class Collected implements JobAnswers {
  jobId = '';
  size = 0;
  /** True once the store has said who the members are. */
  isKnown = false;
  readonly members = new Map<number, MemberFacts>();
  readonly storeWaits = new Map<number, PresentWait[]>();
  readonly ranks = new Map<number, RankAnswer>();
  readonly metrics = new Map<number, MetricsAnswer>();
  readonly processes = new Map<number, ProcessFacts>();

  take({ header, parts }: Frame, question: Question): void {
    const body: unknown = JSON.parse(Buffer.from(parts[0] ?? Buffer.from('{}')).toString('utf8'));
    if (header['event'] === 'job') this.#takeJob(fields(body));
    else if (header['event'] !== 'answer') return;
    else if (question === 'metrics') this.metrics.set(number(header['rank']), readMetricsAnswer(body));
    else if (header['kind'] === 'rank') this.ranks.set(number(header['rank']), readRankAnswer(body));
    else this.#takeProcesses(fields(body));
  }

  #takeJob(job: Readonly<Record<string, unknown>>): void {
    this.isKnown = true;
    this.jobId = text(job['jobId']);
    this.size = number(job['size']);
    for (const value of list(job['members'])) {
      const member = record<MemberFacts>(value, {
        rank: number,
        pid: number,
        host: text,
        left: optional(text),
        heardMs: optional(number),
      });
      this.members.set(member.rank, member);
    }
    for (const value of list(job['waits'])) {
      const rank = number(fields(value)['rank']);
      this.storeWaits.set(rank, [...(this.storeWaits.get(rank) ?? []), readWait(value)]);
    }
  }

  #takeProcesses(body: Readonly<Record<string, unknown>>): void {
    for (const value of list(body['processes'])) {
      this.processes.set(number(fields(value)['rank']), readProcessFacts(value));
    }
  }
}
