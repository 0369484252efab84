// The connection of a rank, or of a node's launcher, to the store of the job: finds it, matches replies to requests.
import { hostname } from 'node:os';
import { deadlineOf, type Deadline, secondNet } from '../core/deadline.ts';
import { asWeftlineError, type EncodedError, encodeError, WeftlineError } from '../core/errors.ts';
import { quote, quoteList } from '../core/quote.ts';
import { beginWait, endWait, STORE_WAIT, type WaitFacts } from '../core/waits.ts';
import type { Credentials } from '../meeting/credentials.ts';
import type { ControlChannel } from '../meeting/control-channel.ts';
import { call } from '../meeting/dial.ts';
import { decodePeerError, decodeRefusal, type Frame, FrameSocket, protocolError } from '../meeting/frames.ts';
import type { MembershipView } from './membership.ts';
import { PeerWatch } from './peer-watch.ts';
import type { StoreLink } from './store.ts';
import {
  type MemberKind,
  parseReply,
  type Question,
  SHRINK,
  storeHello,
  type StoreReply,
  type StoreRequest,
  type WaitingRequest,
} from './store-request.ts';
import { Inquiry, type JobAnswers } from './watching/job-observer.ts';
import { metricsAnswer, rankAnswer } from './watching/rank-answer.ts';

interface StoreAddress {
  readonly host: string;
  readonly port: number;
}

/** Name of the server in messages. */
type StoreServerName = 'rank 0' | 'the launcher of node 0';

interface StoreClientOptions extends StoreAddress {
  readonly rank: number;
  readonly size: number;
  /** What `rank` and `size` count; ranks by default. */
  readonly kind?: MemberKind;
  /** The process that serves the store; rank 0 by default. */
  readonly server?: StoreServerName;
  readonly credentials: Credentials;
  readonly timeoutMs: number;
  /** Deadline of the call that this is a stage of, in place of `timeoutMs`. */
  readonly deadline?: Deadline;
  /** Rank 0 is lost when its system answers nothing for so long, at most 25 s, which is the default. */
  readonly silenceMs?: number;
  readonly signal?: AbortSignal;
  /** What this member says when somebody asks what it does; by default what a rank says. Must not fail. */
  readonly answer?: () => unknown;
}

interface Pending {
  readonly resolve: (reply: StoreReply) => void;
  readonly reject: (error: unknown) => void;
  readonly end: () => void;
}

interface StoreFacts {
  readonly jobId: string;
  readonly life: number | undefined;
  readonly address: StoreAddress;
  readonly calledAt: string;
  readonly server: StoreServerName;
  readonly answer: () => unknown;
}

const GOODBYE_MS = 2_000;
/** A thread that was busy finds its timers and its replies due together: read the replies first. */
const READ_FIRST_MS = 250;
/** Longest text of errors that ranks tell. */
const MAX_TEXT = 8192;
/** Replies come from a server that has shown the token, and hold what ranks were allowed to send. */
const serverLimits = { headerBytes: 1 << 24, payloadBytes: 2 ** 32 - 1 };

export class StoreClient implements StoreLink {
  readonly jobId: string;
  /** How often this rank has joined an elastic world before. */
  readonly life: number | undefined;
  /** The numeric address at which it has called the store. */
  readonly calledAt: string;
  /** Hears, with WL_PEER_LOST or WL_PEER_FAILED, of ranks that are gone and did not close their world. */
  readonly peers = new PeerWatch();
  readonly #frames: FrameSocket;
  readonly #address: StoreAddress;
  readonly #server: StoreServerName;
  readonly #answer: () => unknown;
  readonly #pending = new Map<number, Pending>();
  readonly #inquiries = new Set<Inquiry>();
  #nextId = 1;
  #end: WeftlineError | undefined;
  #saidGoodbye = false;

  /** Tries again, with growing pauses, until the deadline. */
  static async connect(options: StoreClientOptions): Promise<StoreClient> {
    const { host, port, rank, size, credentials, timeoutMs, signal, kind = 'rank', server = 'rank 0' } = options;
    try {
      const { channel, body } = await call(
        { host, port },
        {
          deadline: deadlineOf(options, timeoutMs),
          ...(signal === undefined ? {} : { signal }),
          ...(options.silenceMs === undefined ? {} : { silenceMs: options.silenceMs }),
          hello: storeHello(credentials),
          body: { kind, rank, size, pid: process.pid, host: hostname() },
          who: server,
          awaitsName: true,
        },
      );
      const { jobId, life } = body;
      if (typeof jobId !== 'string' || !/^[a-z0-9]{1,32}$/.test(jobId)) throw protocolError('a welcome without a job');
      const { answer = rankAnswer } = options;
      const facts = {
        jobId,
        life: typeof life === 'number' ? life : undefined,
        address: { host, port },
        calledAt: channel.remoteAddress,
        server,
        answer,
      };
      return new StoreClient(channel, facts);
    } catch (error) {
      if (!(error instanceof WeftlineError) || error.code !== 'WL_TIMEOUT') throw error;
      throw unreachable(options, (error.cause as Error | undefined) ?? error);
    }
  }

  constructor(channel: ControlChannel, facts: StoreFacts) {
    this.jobId = facts.jobId;
    this.life = facts.life;
    this.calledAt = facts.calledAt;
    this.#server = facts.server;
    this.#answer = facts.answer;
    this.#address = facts.address;
    this.#frames = new FrameSocket(channel.detach(), serverLimits, {
      onFrame: (frame) => this.#handle(frame),
      onError: (error) => {
        this.#fail(asWeftlineError(error));
        this.#frames.socket.destroy();
      },
      onClose: () => this.#ended(),
    });
    this.#frames.socket.unref();
    this.#frames.start();
  }

  request(request: StoreRequest, parts: readonly Uint8Array[], signal?: AbortSignal): Promise<StoreReply> {
    if (this.#end !== undefined) return Promise.reject(this.#end);
    if (signal?.aborted === true) return Promise.reject(signal.reason as Error);
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      const abort = () => {
        this.#frames.send({ cancel: id });
        this.#settle(id)?.reject(signal?.reason);
      };
      const timer =
        'timeoutMs' in request
          ? // The server enforces deadlines; later, the client gives up itself.
            setTimeout(() => this.#checkAgain(id, request), secondNet(request.timeoutMs))
          : undefined;
      signal?.addEventListener('abort', abort);
      const entry =
        'timeoutMs' in request
          ? beginWait({ waitFacts: () => storeWait(request) }, performance.now() + request.timeoutMs)
          : undefined;
      const end = () => {
        if (entry !== undefined) endWait(entry);
        clearTimeout(timer);
        signal?.removeEventListener('abort', abort);
      };
      if (this.#pending.size === 0) this.#frames.socket.ref();
      this.#pending.set(id, { resolve, reject, end });
      this.#frames.send({ ...request, id }, parts);
    });
  }

  async ask(patienceMs: number, isEnough: (answers: JobAnswers) => boolean): Promise<JobAnswers> {
    if (this.#end !== undefined) throw this.#end;
    const inquiry = new Inquiry({ question: 'state', patienceMs, isEnough });
    this.#inquiries.add(inquiry);
    try {
      this.#frames.send({ ask: 'state' });
      return await inquiry.answers;
    } catch (error) {
      if (asWeftlineError(error).code !== 'WL_TIMEOUT') throw error;
      throw this.#silent('what the ranks wait for', patienceMs);
    } finally {
      this.#inquiries.delete(inquiry);
    }
  }

  /** Says goodbye, with the error that ended this rank if there was one, and waits shortly for the connection to end. */
  async close(error?: unknown): Promise<void> {
    if (this.#end !== undefined) return;
    this.#saidGoodbye = true;
    const ended = new Promise((resolve) => this.#frames.socket.once('close', resolve));
    this.#frames.send({ goodbye: true, ...(error === undefined ? {} : { error: briefError(error) }) });
    this.#fail(new WeftlineError('WL_CLOSED', 'This rank has closed its world'));
    this.#frames.socket.ref();
    this.#frames.socket.setTimeout(GOODBYE_MS, () => this.#frames.socket.destroy());
    await ended;
  }

  /** Says goodbye while the process ends, when nothing can be waited for: the system takes so few bytes at once. */
  closeAtExit(): void {
    if (this.#end === undefined) this.#frames.send({ goodbye: true });
  }

  #handle({ header, parts }: Frame): void {
    if (header['event'] === 'left') {
      return this.peers.lose(Number(header['rank']), decodePeerError(header['error'], '', MAX_TEXT));
    }
    if (header['event'] === 'view') return this.peers.look(header['view'] as MembershipView);
    if (header['event'] === 'job' || header['event'] === 'answer') {
      for (const inquiry of this.#inquiries) inquiry.take({ header, parts });
      return;
    }
    if (header['event'] === 'ask') return void this.#tell(header['question']);
    if (header['refused'] !== undefined) throw decodeRefusal(header['refused'], `The store of ${this.#server}`);
    const pending = this.#settle(Number(header['id']));
    if (header['error'] === undefined) pending?.resolve(parseReply(header, parts));
    else pending?.reject(decodePeerError(header['error'], '', MAX_TEXT));
  }

  async #tell(asked: unknown): Promise<void> {
    const question: Question = asked === 'metrics' ? 'metrics' : 'state';
    const answer = await (question === 'metrics' ? metricsAnswer() : this.#answer());
    if (this.#end === undefined) this.#frames.send({ answer: question }, [Buffer.from(JSON.stringify(answer))]);
  }

  #settle(id: number): Pending | undefined {
    const pending = this.#pending.get(id);
    if (pending === undefined) return undefined;
    pending.end();
    this.#pending.delete(id);
    if (this.#pending.size === 0) this.#frames.socket.unref();
    return pending;
  }

  #checkAgain(id: number, request: WaitingRequest): void {
    setTimeout(
      () => this.#settle(id)?.reject(this.#silent(describeRequest(request), request.timeoutMs)),
      READ_FIRST_MS,
    );
  }

  #silent(what: string, timeoutMs: number): WeftlineError {
    const { host, port } = this.#address;
    const server = this.#server;
    return new WeftlineError(
      'WL_TIMEOUT',
      `The store of ${server} at ${host}:${port} did not answer on ${what} within ${timeoutMs} ms: ${server} is stopped or cut off`,
      { details: { missing: missingServer(server), host, port, timeoutMs } },
    );
  }

  #ended(): void {
    const { host, port } = this.#address;
    const lost = new WeftlineError(
      'WL_PEER_LOST',
      this.#server === 'rank 0'
        ? `Rank 0, which holds the rendezvous store at ${host}:${port}, was lost: its connection broke`
        : `The launcher of node 0, which holds the rendezvous store at ${host}:${port}, was lost: its connection broke`,
      this.#server === 'rank 0' ? { details: { rank: 0, host, port }, rank: 0 } : { details: { host, port } },
    );
    this.#fail(lost);
    if (!this.#saidGoodbye) this.peers.loseAll(this.#end);
  }

  /** Everything pending and later fails with this error; the first one stays. */
  #fail(error: WeftlineError): void {
    this.#end ??= error;
    for (const id of this.#pending.keys()) this.#settle(id)?.reject(this.#end);
    for (const inquiry of this.#inquiries) inquiry.fail(this.#end);
  }
}

function describeRequest(request: WaitingRequest): string {
  if (request.op === 'shrink') return SHRINK;
  return request.op === 'wait' ? `keys ${quoteList(request.keys)}` : `${request.op} ${quote(request.name)}`;
}

/** The store knows who is missing, and says so itself where it is asked. */
function storeWait(request: WaitingRequest): WaitFacts {
  return { operation: `${STORE_WAIT} ${describeRequest(request)}` };
}

function unreachable(options: StoreClientOptions, cause: Error): WeftlineError {
  const { host, port, rank, timeoutMs, kind = 'rank', server = 'rank 0' } = options;
  const who = kind === 'rank' ? `Rank ${rank}` : `The launcher of node ${rank}`;
  return new WeftlineError(
    'WL_TIMEOUT',
    `${who} could not reach ${server} at ${host}:${port} within ${timeoutMs} ms (${cause.message}): ${server} is missing, or the address or a firewall is wrong`,
    { details: { rank, missing: missingServer(server), host, port, timeoutMs }, cause },
  );
}

/** The ranks to blame if the store does not answer. */
function missingServer(server: StoreServerName): readonly number[] {
  return server === 'rank 0' ? [0] : [];
}

/** An error that fits any header. */
function briefError(error: unknown): EncodedError {
  const { code, message, rank } = encodeError(error);
  return { code, message: message.slice(0, 2000), details: {}, ...(rank === undefined ? {} : { rank }) };
}
