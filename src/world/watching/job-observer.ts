// Asks the members of a job, through its store, what they wait for: connects, asks, collects answers for a while.
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import type { PresentWait } from '../../core/waits.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import { credentialsOf } from '../../meeting/credentials.ts';
import { call } from '../../meeting/dial.ts';
import { decodeRefusal, type Frame, FrameSocket } from '../../meeting/frames.ts';
import type { RankEnvironment } from '../environment.ts';
import { observerBody, type Question, storeHello } from '../store-request.ts';
import { type ProcessFacts, readProcessFacts } from './process-facts.ts';
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

/** One question to the members of a job: collects what the store and the members answer, for a while. */
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

export type JobAddress = Pick<RankEnvironment, 'host' | 'port' | 'token' | 'scope'>;

/** A job of a thousand ranks tells so much. */
const limits = { headerBytes: 1 << 20, payloadBytes: 1 << 26 };

export class JobObserver {
  readonly #frames: FrameSocket;
  #inquiry: Inquiry | undefined;
  #end: WeftlineError | undefined;

  /** Fails with WL_PEER_LOST if nobody listens there, WL_TIMEOUT if who listens does not answer, WL_UNAUTHORIZED. */
  static async connect({ host, port, token, scope }: JobAddress, timeoutMs: number): Promise<JobObserver> {
    const { channel } = await call(
      { host, port },
      {
        deadline: new Deadline(timeoutMs),
        hello: storeHello(credentialsOf(token, scope)),
        body: observerBody,
        who: 'store of the job',
        retry: false,
      },
    );
    return new JobObserver(channel);
  }

  private constructor(channel: ControlChannel) {
    this.#frames = new FrameSocket(channel.detach(), limits, {
      onFrame: (frame) => {
        const { refused } = frame.header;
        if (refused !== undefined) throw decodeRefusal(refused, 'The store of the job');
        this.#inquiry?.take(frame);
      },
      onError: (error) => {
        this.#fail(asWeftlineError(error));
        this.close();
      },
      onClose: () => this.#fail(new WeftlineError('WL_PEER_LOST', 'The store of the job was lost: it has ended')),
    });
    this.#frames.start();
  }

  /**
   * Asks all members, and resolves when `isEnough` says so of what has come, or after `patienceMs`. Fails with WL_PEER_LOST
   * when the store ends, WL_TIMEOUT if the store itself does not answer.
   */
  async ask(
    patienceMs: number,
    isEnough: (answers: JobAnswers) => boolean,
    question: Question = 'state',
  ): Promise<JobAnswers> {
    if (this.#end !== undefined) throw this.#end;
    const inquiry = new Inquiry({ question, patienceMs, isEnough });
    this.#inquiry = inquiry;
    this.#frames.send({ ask: question });
    return inquiry.answers;
  }

  close(): void {
    this.#frames.socket.destroy();
  }

  #fail(error: WeftlineError): void {
    this.#end ??= error;
    this.#inquiry?.fail(this.#end);
  }
}

export interface JobMetrics {
  readonly jobId: string;
  readonly size: number;
  /** Answers by rank. */
  readonly ranks: ReadonlyMap<number, MetricsAnswer>;
  /** Ranks that have joined and not left, and have not answered. */
  readonly silent: readonly number[];
}

/** Fails as JobObserver.connect() and ask() do. */
export async function readJobMetrics(
  { address }: { readonly address: JobAddress },
  patienceMs: number,
): Promise<JobMetrics> {
  const observer = await JobObserver.connect(address, patienceMs);
  try {
    const answers = await observer.ask(patienceMs, (known) => silentOf(known).length === 0, 'metrics');
    const ranks = new Map([...answers.metrics].toSorted(([left], [right]) => left - right));
    return { jobId: answers.jobId, size: answers.size, ranks, silent: silentOf(answers) };
  } finally {
    observer.close();
  }
}

function silentOf({ members, metrics }: JobAnswers): number[] {
  const present = [...members.values()].filter(({ left }) => left === undefined);
  return present.map(({ rank }) => rank).filter((rank) => !metrics.has(rank));
}
