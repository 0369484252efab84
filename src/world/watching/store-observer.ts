// Somebody who has proven that he belongs to the job and asks its members what they wait for: the store's end of his connection.
import { WeftlineError } from '../../core/errors.ts';
import { type Frame, FrameSocket, type OpenConnection, protocolError, strangerLimits } from '../../meeting/frames.ts';
import type { StoreConnection, StoreGroup } from '../store-connection.ts';
import { type Asker, isQuestion, type MemberKind, type Question } from '../store-request.ts';

/** How many may ask at the same time. */
export const MAX_OBSERVERS = 16;
/** Most questions of one of them; `weftline top --interval 50` asks 20. */
const MAX_QUESTIONS_PER_SECOND = 50;

/** What the store itself knows, as JSON in the first frame of each answer. */
interface StoreFacts {
  readonly jobId: string;
  /** How many ranks the job has. */
  readonly size: number;
  readonly members: readonly MemberFacts[];
  /** What ranks wait for in the store, see StoreWait. */
  readonly waits: readonly unknown[];
}

export interface MemberFacts {
  readonly rank: number;
  readonly pid: number;
  readonly host: string;
  /** How it left; absent while it is there. */
  readonly left?: string;
  /** How long ago it last said something to the store, in ms. */
  readonly heardMs?: number;
}

interface StoreObserverOptions {
  readonly groups: () => Readonly<Record<MemberKind, StoreGroup>>;
  readonly onEnd: (observer: StoreObserver) => void;
}

export class StoreObserver {
  readonly #frames: FrameSocket;
  readonly #options: StoreObserverOptions;
  #since = 0;
  #questions = 0;

  constructor(connection: OpenConnection, options: StoreObserverOptions) {
    this.#options = options;
    this.#frames = new FrameSocket(connection, strangerLimits, {
      onFrame: (frame) => this.#answer(frame),
      onError: (error) => this.#frames.refuse(error),
      onClose: () => options.onEnd(this),
    });
    const { socket } = this.#frames;
    socket.on('end', () => socket.destroy());
  }

  /** Must be called once the store knows it. */
  start(): void {
    this.#frames.start();
  }

  end(): void {
    this.#frames.socket.destroy();
  }

  #answer({ header: { ask: question } }: Frame): void {
    if (!isQuestion(question)) throw protocolError('a frame of an observer that is no question');
    this.#admit();
    askMembers(this.#options.groups(), question, { asker: this, send: (...said) => this.#frames.send(...said) });
  }

  /** Each question costs every rank an answer. */
  #admit(): void {
    const now = performance.now();
    if (now - this.#since > 1000) {
      this.#since = now;
      this.#questions = 0;
    }
    this.#questions += 1;
    if (this.#questions > MAX_QUESTIONS_PER_SECOND) {
      throw new WeftlineError('WL_BUSY', `More than ${MAX_QUESTIONS_PER_SECOND} questions in a second: ask less often`);
    }
  }
}

/** The store's own answer at once, then those of the members as they come. */
export function askMembers(
  groups: Readonly<Record<MemberKind, StoreGroup>>,
  question: Question,
  { asker, send }: Asker,
): void {
  send({ event: 'job' }, [Buffer.from(JSON.stringify(storeFacts(groups.rank)))]);
  // Launchers have no metrics.
  const kinds = question === 'metrics' ? (['rank'] as const) : (['rank', 'node'] as const);
  for (const kind of kinds) {
    for (const member of groups[kind].members) {
      member.ask(question, asker, (answer) => send({ event: 'answer', kind, rank: member.rank }, [answer]));
    }
  }
}

function storeFacts({ jobId, core, members: present }: StoreGroup): StoreFacts {
  const heard = new Map([...present].map((member: StoreConnection) => [member.rank, member.silentMs]));
  const members = [...core.members.identities].map(([rank, { pid, host }]): MemberFacts => {
    const departure = core.members.departure(rank);
    const heardMs = heard.get(rank);
    return {
      rank,
      pid,
      host,
      ...(departure === undefined ? {} : { left: departure.how }),
      ...(heardMs === undefined ? {} : { heardMs }),
    };
  });
  return { jobId, size: core.members.size, members, waits: core.presentWaits() };
}
