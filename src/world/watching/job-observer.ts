// Asks the members of a job, through its store, what they wait for: connects, asks, collects answers for a while.
import type { Socket } from 'node:net';
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import type { PresentWait } from '../../core/waits.ts';
import { credentialsOf } from '../../meeting/credentials.ts';
import { call } from '../../meeting/dial.ts';
import { encodeFrame, type Frame, type FrameReader } from '../../meeting/frames.ts';
import { decodeRefusal } from '../../meeting/refusal.ts';
import type { RankEnvironment } from '../environment.ts';
import { observerBody, storeHello } from '../store-hello.ts';
import { type ProcessFacts, readProcessFacts } from './process-facts.ts';
import { fields, list, number, type RankAnswer, readRankAnswer, readWait, text } from './rank-answer.ts';
import { type MetricsAnswer, readMetricsAnswer } from './metrics-answer.ts';
import type { Question } from './question.ts';
import type { MemberFacts } from './store-observer.ts';

/** What has come in until the asker was content. */
export interface JobAnswers {
  readonly jobId: string;
  readonly size: number;
  readonly members: ReadonlyMap<number, MemberFacts>;
  /** By rank, what it waits for in the store. */
  readonly storeWaits: ReadonlyMap<number, readonly PresentWait[]>;
  readonly ranks: ReadonlyMap<number, RankAnswer>;
  /** By rank, where they were asked for. */
  readonly metrics: ReadonlyMap<number, MetricsAnswer>;
  /** By rank, of those on hosts whose launcher has answered. */
  readonly processes: ReadonlyMap<number, ProcessFacts>;
}

export type JobAddress = Pick<RankEnvironment, 'host' | 'port' | 'token' | 'scope'>;

/** A job of a thousand ranks tells so much. */
const limits = { headerBytes: 1 << 20, payloadBytes: 1 << 26 };

export class JobObserver {
  readonly #socket: Socket;
  readonly #reader: FrameReader;
  #onFrame: ((frame: Frame) => void) | undefined;
  #onEnd: ((error: WeftlineError) => void) | undefined;
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
    const { socket, reader } = channel.detach();
    return new JobObserver(socket, reader);
  }

  private constructor(socket: Socket, reader: FrameReader) {
    this.#socket = socket;
    this.#reader = reader;
    reader.limits = limits;
    socket.on('data', (chunk) => this.#receive(chunk));
    socket.on('close', () =>
      this.#fail(new WeftlineError('WL_PEER_LOST', 'The store of the job was lost: it has ended')),
    );
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
    const collected = new Collected();
    return new Promise((resolve, reject) => {
      const settle = (act: () => void): void => {
        clearTimeout(timer);
        this.#onFrame = undefined;
        this.#onEnd = undefined;
        act();
      };
      const timer = setTimeout(() => {
        if (collected.isKnown) return settle(() => resolve(collected));
        const late = new WeftlineError('WL_TIMEOUT', `The store of the job did not answer within ${patienceMs} ms`);
        settle(() => reject(late));
      }, patienceMs);
      this.#onFrame = (frame) => {
        collected.take(frame, question);
        if (collected.isKnown && isEnough(collected)) settle(() => resolve(collected));
      };
      this.#onEnd = (error) => settle(() => reject(error));
      for (const piece of encodeFrame({ ask: question })) this.#socket.write(piece);
    });
  }

  close(): void {
    this.#socket.destroy();
  }

  #receive(chunk: Buffer): void {
    try {
      this.#reader.push(chunk);
      for (let frame = this.#reader.next(); frame !== undefined; frame = this.#reader.next()) {
        if (frame.header['refused'] !== undefined) throw decodeRefusal(frame.header['refused'], 'The store of the job');
        this.#onFrame?.(frame);
      }
    } catch (error) {
      this.#fail(asWeftlineError(error));
      this.#socket.destroy();
    }
  }

  #fail(error: WeftlineError): void {
    this.#end ??= error;
    this.#onEnd?.(this.#end);
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
      const { rank, pid, host, left, heardMs } = fields(value);
      this.members.set(number(rank), {
        rank: number(rank),
        pid: number(pid),
        host: text(host),
        ...(left === undefined ? {} : { left: text(left) }),
        ...(heardMs === undefined ? {} : { heardMs: number(heardMs) }),
      });
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
