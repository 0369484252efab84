// Meets other staging threads: says hello for a lane and hears the welcome, tells goodbyes, hands on those of others.
import type { Deadline } from '../../core/deadline.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { BackendLink } from '../backend.ts';
import { decodeGreeting, encodeGreeting, goodbyeOf, type Hello, reasonOf } from './greeting.ts';
import { patiently, untilTrue } from './patience.ts';
import type { RingShape } from './ring-memory.ts';

interface GreeterOptions {
  /** How peers reach this thread; it is asked for at each hello. */
  readonly self: () => Pick<Hello, 'incarnation' | 'host' | 'process' | 'connectionInfo'>;
  /** A peer wants to send pieces. */
  readonly onHello: (peer: string, hello: Hello) => void;
  /** The peer that sends pieces on its lane of that number has left. */
  readonly onSenderLeft: (peer: string, lane: number, why: WeftlineError) => void;
  /** The peer that takes pieces of this side's lane has left. */
  readonly onReceiverLeft: (peer: string, lane: number, why: WeftlineError) => void;
}

interface MeetOptions {
  readonly peer: string;
  readonly lane: number;
  /** How the backend names this side's ring. */
  readonly ring: Uint8Array;
  readonly shape: RingShape;
  readonly channels: number;
  /** To the peer's staging thread. */
  readonly link: BackendLink;
  readonly deadline: Deadline;
  readonly signal: AbortSignal;
}

interface Expected {
  readonly peer: string;
  answer: Uint8Array | WeftlineError | undefined;
}

interface Goodbye {
  readonly lane: number;
  readonly from: 'sender' | 'receiver';
  readonly error: unknown;
}

export class Greeter {
  readonly #options: GreeterOptions;
  readonly #expected = new Map<number, Expected>();

  constructor(options: GreeterOptions) {
    this.#options = options;
  }

  /** Returns how the backend names the peer's ring. */
  async meet({ peer, lane, ring, shape, channels, link, deadline, signal }: MeetOptions): Promise<Uint8Array> {
    const expected: Expected = { peer, answer: undefined };
    this.#expected.set(lane, expected);
    const timeoutMs = Math.ceil(deadline.leftMs);
    const hello = encodeGreeting({ is: 'hello', lane, ring, timeoutMs, channels, ...shape, ...this.#options.self() });
    const what = `The greeting of the staging thread of ${peer}`;
    try {
      await patiently(() => link.notify(hello), deadline, what);
      const isAnswered = (): boolean => {
        signal.throwIfAborted();
        if (link.error !== undefined) throw link.error;
        return expected.answer !== undefined;
      };
      await untilTrue(isAnswered, deadline, what);
    } finally {
      this.#expected.delete(lane);
    }
    const { answer } = expected;
    if (answer instanceof WeftlineError) throw answer;
    return answer as Uint8Array;
  }

  /** To the peer that said hello for that lane. */
  welcome(link: BackendLink, lane: number, ring: Uint8Array, deadline: Deadline): Promise<void> {
    const message = encodeGreeting({ is: 'welcome', lane, ring });
    return patiently(() => link.notify(message), deadline, 'The welcome of a staging thread');
  }

  /** A peer that cannot hear it notices the end of the link. */
  sayGoodbye(link: BackendLink, { lane, from, error }: Goodbye): void {
    try {
      link.notify(encodeGreeting(goodbyeOf(lane, from, error)));
    } catch {
      // It is gone, or takes no messages.
    }
  }

  forget(lane: number): void {
    this.#expected.delete(lane);
  }

  /** Inside `poll`. Greetings that make no sense are ignored: nothing was promised to who sends them. */
  hear(peer: string, message: Uint8Array): void {
    const { onHello, onSenderLeft, onReceiverLeft } = this.#options;
    let words;
    try {
      words = decodeGreeting(message, peer);
    } catch {
      return;
    }
    if (words.is === 'hello') {
      onHello(peer, words);
      return;
    }
    const expected = this.#expected.get(words.lane);
    const isExpected = expected?.peer === peer;
    if (words.is === 'welcome') {
      if (isExpected) expected.answer = words.ring;
    } else if (words.from === 'sender') onSenderLeft(peer, words.lane, reasonOf(words));
    else if (isExpected) expected.answer = reasonOf(words);
    else onReceiverLeft(peer, words.lane, reasonOf(words));
  }
}
