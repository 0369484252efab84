// One link as the UCX thread sees it: both halves, its transfers and channels, its end.
import { encodeError, type EncodedError, WeftlineError } from '../../../core/errors.ts';
import { ucxStatusName } from '../../../native/ucx-status.ts';
import type { HostRegions } from './host-regions.ts';
import { Incoming } from './incoming.ts';
import type { Job } from './job.ts';
import { headerWord as at } from './message-header.ts';
import { type LinkFacts, Outgoing, type Told } from './outgoing.ts';
import type { ArrivingMessage } from './ucx-worker.ts';

/** Words that both threads of a process share about a link. */
export const linkWords = {
  /** Bytes of the peer's notifications that this agent has taken, see noticeBytes; wraps. Written by the agent's thread. */
  taken: 0,
  /** The same of this agent's notifications. Written by the UCX thread. */
  takenByPeer: 1,
  /** Bytes of the link's message ring that may be written again, wraps. Written by the UCX thread. */
  ringFree: 2,
} as const;
export const LINK_WORDS = 3;

export interface HostLinkOptions {
  readonly facts: LinkFacts;
  readonly mode: 'peer' | 'none';
  readonly words: Int32Array;
  readonly regions: HostRegions;
  readonly onJobEnd: (job: Job) => void;
  readonly onNotification: (message: Uint8Array) => void;
  readonly onEnd: (error: EncodedError) => void;
}

export class HostLink {
  readonly facts: LinkFacts;
  readonly mode: 'peer' | 'none';
  readonly outgoing: Outgoing;
  readonly incoming: Incoming;
  /** Why it cannot be used any more. */
  error: WeftlineError | undefined;
  readonly #words: Int32Array;
  readonly #told: Told = { watermark: 0, told: 0, taken: 0, toldTaken: 0 };
  readonly #onEnd: (error: EncodedError) => void;

  constructor({ facts, mode, words, regions, onJobEnd, onNotification, onEnd }: HostLinkOptions) {
    this.facts = facts;
    this.mode = mode;
    this.#words = words;
    this.#onEnd = onEnd;
    this.outgoing = new Outgoing(facts, this.#told, onJobEnd);
    this.incoming = new Incoming({ facts, told: this.#told, regions, outgoing: this.outgoing, onNotification });
  }

  /** A message with this link's number. Returns true if UCX is to fetch the bytes of a rendezvous. */
  take(words: Uint32Array, message: ArrivingMessage): boolean {
    const { secretLow, secretHigh } = this.facts;
    if (words[at.secretLow] !== secretLow || words[at.secretHigh] !== secretHigh || this.error !== undefined)
      return false;
    Atomics.store(this.#words, linkWords.takenByPeer, words[at.taken] as number);
    return this.incoming.take(words, message);
  }

  /** False if nothing happened. */
  step(): boolean {
    this.#told.taken = Atomics.load(this.#words, linkWords.taken) >>> 0;
    const hasReceived = this.incoming.step();
    const hasSent = this.outgoing.step();
    const status = this.outgoing.status || this.incoming.status;
    if (status !== 0 && this.error === undefined) this.break(status);
    return hasReceived || hasSent;
  }

  /** UCX says that the peer cannot be reached any more. */
  break(status: number): void {
    const { peer } = this.facts;
    this.end(
      new WeftlineError('WL_PEER_LOST', `${peer} is gone: UCX says ${ucxStatusName(status)}`, {
        details: { peer, status },
      }),
    );
  }

  /** All that is pending fails. Idempotent. */
  end(error: WeftlineError): void {
    if (this.error !== undefined) return;
    this.error = error;
    this.#onEnd(encodeError(error));
    this.outgoing.fail(error);
  }
}
