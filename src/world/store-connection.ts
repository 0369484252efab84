// One rank that the store has let in: its requests, and how it left.
import { type EncodedError, encodeError, WeftlineError } from '../core/errors.ts';
import {
  decodePeerError,
  type Frame,
  FrameSocket,
  memberLimits,
  type OpenConnection,
  protocolError,
} from '../meeting/frames.ts';
import type { Departure, MembershipView } from './membership.ts';
import { StoreCore, type StoreCoreOptions } from './store-core.ts';
import { type Asker, isQuestion, parseRequest, type Question } from './store-request.ts';

// A group takes part in collectives together, and hears of each other's departure: the ranks of a world, or launchers.

export class StoreGroup {
  readonly jobId: string;
  readonly core: StoreCore;
  readonly members = new Set<StoreConnection>();
  /**
   * Resolves when all have joined and left without an error, in an elastic world however they left. Rejects when that cannot
   * come to be any more.
   */
  readonly over: Promise<void>;
  #finish: () => void = () => {};
  #fail: (reason: unknown) => void = () => {};

  readonly #isElastic: boolean;

  constructor({ jobId, ...options }: StoreCoreOptions & { readonly jobId: string }) {
    this.jobId = jobId;
    this.#isElastic = options.elastic === true;
    this.core = new StoreCore(options);
    this.over = new Promise((resolve, reject) => {
      this.#finish = resolve;
      this.#fail = reject;
    });
    this.over.catch(() => {});
  }

  /** Tells the others, unless the member closed its world in order. */
  departed(member: StoreConnection, departure: Departure): void {
    const { rank } = member;
    const { members } = this.core;
    this.core.leave(rank, departure);
    this.tellView();
    if (this.#isElastic && members.isDeserted) this.#finish();
    if (departure.how === 'closed') {
      if (members.allClosed) this.#finish();
      return;
    }
    const { message, details } = members.failure(rank, 'joining again');
    // The error has a code that callers take for final.
    if (!this.#isElastic) this.stop(new WeftlineError('WL_PEER_FAILED', message, { details, rank }));
    const { stack: _hidden, ...error } = encodeError(members.failure(rank, 'the job'));
    for (const other of this.members) if (other !== member) other.announce(rank, error);
  }

  /** Tells who is there now, in an elastic world; must be called after every change. */
  tellView(): void {
    if (!this.#isElastic) return;
    const { view } = this.core.members;
    for (const member of this.members) member.tellView(view);
  }

  /** Waits until all have left fail. */
  stop(reason: WeftlineError): void {
    this.#fail(reason);
  }
}

interface StoreConnectionOptions {
  readonly rank: number;
  readonly core: StoreCore;
  readonly maxValueBytes: number;
  /** The rank asks what the others wait for. */
  readonly onQuestion: (question: Question, asker: Asker) => void;
  /** Called once, at a rank's goodbye or when its connection broke. */
  readonly onDeparture: (connection: StoreConnection, departure: Departure) => void;
  /** Called once, when the socket is gone. */
  readonly onEnd: (connection: StoreConnection) => void;
}

/** A client that does not read its last replies for so long misses them. */
const FLUSH_MS = 500;
/** Longest text of the error that ended a rank. */
const MAX_TEXT = 2000;

export class StoreConnection {
  readonly rank: number;
  readonly #frames: FrameSocket;
  readonly #options: StoreConnectionOptions;
  readonly #running = new Map<number, AbortController>();
  /** Askers that wait for this member's answer to a question. It is asked again only after it has answered, however often others ask. */
  readonly #askers: Readonly<Record<Question, Map<object, (answer: Uint8Array) => void>>> = {
    state: new Map(),
    metrics: new Map(),
  };
  #heardAt = performance.now();
  #departed = false;

  /** `connection` leads to a rank that the store has let in. */
  constructor(connection: OpenConnection, options: StoreConnectionOptions) {
    this.rank = options.rank;
    this.#options = options;
    this.#frames = new FrameSocket(connection, memberLimits(options.maxValueBytes), {
      onFrame: (frame) => this.#handle(frame),
      // A rank that breaks the protocol hears why, then it is dropped.
      onError: (error) => this.#frames.refuse(error),
      onClose: () => this.#ended(),
    });
    const { socket } = this.#frames;
    socket.on('data', () => (this.#heardAt = performance.now()));
    // A broken connection also ends with 'close'; a half-closed one is of no use to a client that waits for replies.
    socket.on('end', () => socket.destroy());
  }

  /** Must be called once the store knows it. */
  start(): void {
    this.#frames.start();
  }

  /** Tells a rank about another one that left. */
  announce(rank: number, error: EncodedError): void {
    this.#frames.send({ event: 'left', rank, error });
  }

  /** Tells a rank who is there. */
  tellView(view: MembershipView): void {
    this.#frames.send({ event: 'view', view });
  }

  /** How long ago it last said something, in ms. */
  get silentMs(): number {
    return performance.now() - this.#heardAt;
  }

  /** Asks the member something; the answer may never come. An asker that asks again replaces its former question. */
  ask(question: Question, asker: object, onAnswer: (answer: Uint8Array) => void): void {
    const askers = this.#askers[question];
    const isAsked = askers.size > 0;
    askers.set(asker, onAnswer);
    if (!isAsked) this.#frames.send({ event: 'ask', question });
  }

  destroy(): void {
    this.#frames.socket.destroy();
  }

  /** Ends the connection once what was said to the client is on its way. */
  end(): void {
    this.#frames.socket.destroySoon();
    setTimeout(() => this.#frames.socket.destroy(), FLUSH_MS).unref();
  }

  #handle(frame: Frame): void {
    if (this.#frames.socket.destroyed || this.#frames.socket.writableEnded) return;
    if (frame.header['goodbye'] === true) this.#leave(frame.header['error']);
    else if (isQuestion(frame.header['ask']))
      this.#options.onQuestion(frame.header['ask'], { asker: this, send: (...said) => this.#frames.send(...said) });
    else if (isQuestion(frame.header['answer'])) this.#answered(frame.header['answer'], frame.parts[0]);
    else if (frame.header['cancel'] !== undefined) this.#running.get(Number(frame.header['cancel']))?.abort();
    else this.#answer(this.rank, frame);
  }

  #answer(rank: number, frame: Frame): void {
    const { id } = frame.header;
    if (typeof id !== 'number' || !Number.isSafeInteger(id) || this.#running.has(id)) {
      throw protocolError('a request without a new id');
    }
    const request = parseRequest(frame.header);
    const cancel = new AbortController();
    this.#running.set(id, cancel);
    void this.#options.core
      .request(rank, request, frame.parts, cancel.signal)
      .then(({ parts, ...result }) => this.#frames.send({ id, ...result }, parts))
      .catch((error: unknown) => this.#frames.send({ id, error: encodeError(error) }))
      .finally(() => this.#running.delete(id));
  }

  #answered(question: Question, answer: Uint8Array | undefined): void {
    const askers = [...this.#askers[question].values()];
    this.#askers[question].clear();
    if (answer !== undefined) for (const onAnswer of askers) onAnswer(answer);
  }

  #leave(error: unknown): void {
    const reason = error === undefined ? undefined : encodeError(decodePeerError(error, '', MAX_TEXT));
    // First: the client takes the end of the connection for the sign that the others have been told.
    this.#depart(reason === undefined ? { how: 'closed' } : { how: 'failed', error: reason });
    this.#frames.socket.end();
  }

  #depart(departure: Departure): void {
    if (this.#departed) return;
    this.#departed = true;
    this.#options.onDeparture(this, departure);
  }

  #ended(): void {
    for (const cancel of this.#running.values()) cancel.abort();
    this.#depart({ how: 'lost' });
    this.#options.onEnd(this);
  }
}
