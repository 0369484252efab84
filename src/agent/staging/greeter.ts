// Meets other staging threads: says hello for a lane and hears the welcome, tells goodbyes, hands on those of others.
import { z } from '#zod';
import type { Deadline } from '../../core/deadline.ts';
import { decodeError, type EncodedError, encodeError, WeftlineError } from '../../core/errors.ts';
import type { Backend, BackendLink, BackendPeer, ConnectOptions } from '../backend.ts';
import type { RingShape } from './ring.ts';

const LOOK_MS = 1;
const EAGER_TURNS = 64;

/** Fails with WL_TIMEOUT, or with what `isSo` throws. */
export async function untilTrue(isSo: () => boolean, deadline: Deadline, what: string): Promise<void> {
  for (let turn = 0; !isSo(); turn++) {
    if (deadline.isOver) {
      const { timeoutMs } = deadline;
      throw new WeftlineError('WL_TIMEOUT', `${what} did not end within ${timeoutMs} ms`, { details: { timeoutMs } });
    }
    await new Promise((resolve) => (turn < EAGER_TURNS ? setImmediate(resolve) : setTimeout(resolve, LOOK_MS)));
  }
}

/** Has it done as soon as there is room. Fails with WL_TIMEOUT, or what `attempt` throws but WL_BUSY. */
async function patiently(attempt: () => void, deadline: Deadline, what: string): Promise<void> {
  const isDone = (): boolean => {
    try {
      attempt();
      return true;
    } catch (error) {
      if (error instanceof WeftlineError && error.code === 'WL_BUSY') return false;
      throw error;
    }
  };
  await untilTrue(isDone, deadline, what);
}

const whole = z.number().int().nonnegative().max(Number.MAX_SAFE_INTEGER);
const bytes = z.base64().transform((text): Uint8Array => new Uint8Array(Buffer.from(text, 'base64')));

/** Words of the side that sends pieces: its ring, to which answers go, and how it is reached. */
const hello = z.object({
  is: z.literal('hello'),
  lane: whole,
  incarnation: z.string(),
  host: z.string(),
  process: whole,
  connectionInfo: bytes,
  ring: bytes,
  slots: whole,
  /** Between which the slots are dealt out. */
  channels: whole,
  pieceBytes: whole,
  /** How long the sender waits for the welcome. */
  timeoutMs: whole,
});
/** Words of the side that takes pieces: its ring. */
const welcome = z.object({ is: z.literal('welcome'), lane: whole, ring: bytes });
/** `lane` is the number of the side that sends pieces; `from` says whose it is: of who says goodbye, or of who hears it. */
const goodbye = z.object({
  is: z.literal('goodbye'),
  lane: whole,
  from: z.enum(['sender', 'receiver']),
  code: z.string(),
  message: z.string(),
});

const greeting = z.discriminatedUnion('is', [hello, welcome, goodbye]);

type Greeting = z.infer<typeof greeting>;
export type Hello = Extract<Greeting, { is: 'hello' }>;
type Side = 'sender' | 'receiver';

function encodeGreeting(words: Greeting): Uint8Array {
  const plain = Object.entries(words).map(([name, value]) => [
    name,
    value instanceof Uint8Array ? Buffer.from(value).toString('base64') : value,
  ]);
  return Buffer.from(JSON.stringify(Object.fromEntries(plain)));
}

/** Greetings that make no sense are none: nothing was promised to who sends them. */
function decodeGreeting(message: Uint8Array): Greeting | undefined {
  try {
    return greeting.parse(JSON.parse(Buffer.from(message).toString('utf8')));
  } catch {
    return undefined;
  }
}

interface GreeterOptions {
  /** How peers reach this thread. */
  readonly self: Pick<Hello, 'incarnation' | 'host' | 'process' | 'connectionInfo'>;
  /** A peer wants to send pieces. */
  readonly onHello: (peer: string, hello: Hello) => void;
  /** The peer has left: the side that sends pieces on its lane of that number, or takes those of this side's lane. */
  readonly onLeft: (peer: string, from: Side, lane: number, why: WeftlineError) => void;
}

interface Expected {
  readonly peer: string;
  answer: Uint8Array | WeftlineError | undefined;
}

export class Greeter {
  readonly #options: GreeterOptions;
  readonly #expected = new Map<number, Expected>();

  constructor(options: GreeterOptions) {
    this.#options = options;
  }

  /** Says hello for a lane over the link to the peer's staging thread. Returns how the backend names the peer's ring. */
  async meet(
    lane: Pick<Hello, 'lane' | 'ring' | 'channels' | keyof RingShape>,
    peer: string,
    link: BackendLink,
    { deadline, signal }: { readonly deadline: Deadline; readonly signal: AbortSignal },
  ): Promise<Uint8Array> {
    const expected: Expected = { peer, answer: undefined };
    this.#expected.set(lane.lane, expected);
    const timeoutMs = Math.ceil(deadline.leftMs);
    const words = encodeGreeting({ is: 'hello', timeoutMs, ...lane, ...this.#options.self });
    const what = `The greeting of the staging thread of ${peer}`;
    try {
      await patiently(() => link.notify(words), deadline, what);
      const isAnswered = (): boolean => {
        signal.throwIfAborted();
        if (link.error !== undefined) throw link.error;
        return expected.answer !== undefined;
      };
      await untilTrue(isAnswered, deadline, what);
    } finally {
      this.#expected.delete(lane.lane);
    }
    const { answer } = expected;
    if (answer instanceof WeftlineError) throw answer;
    return answer as Uint8Array;
  }

  /** Answers the peer that said hello for that lane. */
  welcome(link: BackendLink, lane: number, ring: Uint8Array, deadline: Deadline): Promise<void> {
    const message = encodeGreeting({ is: 'welcome', lane, ring });
    return patiently(() => link.notify(message), deadline, 'The welcome of a staging thread');
  }

  /** A peer that cannot hear it notices the end of the link. */
  sayGoodbye(link: BackendLink, from: Side, lane: number, error: unknown): void {
    const { code, message } = encodeError(error);
    try {
      link.notify(encodeGreeting({ is: 'goodbye', lane, from, code, message }));
    } catch {
      // It is gone, or takes no messages.
    }
  }

  /** Inside `poll`. */
  hear(peer: string, message: Uint8Array): void {
    const words = decodeGreeting(message);
    if (words === undefined) return;
    if (words.is === 'hello') {
      this.#options.onHello(peer, words);
      return;
    }
    const expected = this.#expected.get(words.lane);
    const isExpected = expected?.peer === peer;
    if (words.is === 'welcome') {
      if (isExpected) expected.answer = words.ring;
      return;
    }
    const why = decodeError({ code: words.code, message: words.message, details: {} } as EncodedError);
    if (words.from === 'receiver' && isExpected) expected.answer = why;
    else this.#options.onLeft(peer, words.from, words.lane, why);
  }
}

interface Entry {
  readonly link: Promise<BackendLink>;
  users: number;
}

export interface LinkUse {
  readonly link: BackendLink;
  /** Closed when nobody uses it any more. */
  giveBack(): Promise<void>;
}

/** The links of the thread's backend: one per backend of a peer, shared by all that use it. */
export class InnerLinks {
  readonly #backend: Backend;
  readonly #entries = new Map<string, Entry>();

  constructor(backend: Backend) {
    this.#backend = backend;
  }

  async use(peer: BackendPeer, options: ConnectOptions): Promise<LinkUse> {
    const key = `${peer.incarnation} ${Buffer.from(peer.connectionInfo).toString('base64')}`;
    const forget = (entry: Entry): void => void (this.#entries.get(key) === entry && this.#entries.delete(key));
    let entry = this.#entries.get(key);
    if (entry !== undefined) {
      // Counted before the wait, in which others may give the link back.
      entry.users++;
      if (await isOver(entry.link)) {
        entry.users--;
        forget(entry);
        entry = this.#entries.get(key);
        if (entry !== undefined) entry.users++;
      }
    }
    if (entry === undefined) {
      entry = { link: this.#backend.connect(peer, options), users: 1 };
      this.#entries.set(key, entry);
    }
    const mine = entry;
    let isGivenBack = false;
    const giveBack = async (): Promise<void> => {
      if (isGivenBack) return;
      isGivenBack = true;
      if (--mine.users > 0) return;
      forget(mine);
      await (await mine.link).close();
    };
    try {
      return { link: await mine.link, giveBack };
    } catch (error) {
      forget(mine);
      throw error;
    }
  }
}

async function isOver(link: Promise<BackendLink>): Promise<boolean> {
  return link.then(
    ({ error }) => error !== undefined,
    () => true,
  );
}
