// Asks the members of a job, through its store, what they wait for: connects, asks, collects answers for a while.
import { Deadline } from '../../core/deadline.ts';
import { asWeftlineError, WeftlineError } from '../../core/errors.ts';
import { credentialsOf } from '../../meeting/credentials.ts';
import { call } from '../../meeting/dial.ts';
import { decodeRefusal, FrameSocket } from '../../meeting/frames.ts';
import type { ControlChannel } from '../../meeting/control-channel.ts';
import type { RankEnvironment } from '../environment.ts';
import { observerBody, type Question, storeHello } from '../store-request.ts';
import { Inquiry, type JobAnswers } from './inquiry.ts';
import type { MetricsAnswer } from './rank-answer.ts';

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
