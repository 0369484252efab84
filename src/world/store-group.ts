// Those who take part in collectives together, and hear of each other's departure: the ranks of a world, or launchers.
import { encodeError, WeftlineError } from '../core/errors.ts';
import type { Departure } from './membership.ts';
import type { StoreConnection } from './store-connection.ts';
import { StoreCore, type StoreCoreOptions } from './store-core.ts';

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
    // Of a code that callers take for final.
    if (!this.#isElastic) this.stop(new WeftlineError('WL_PEER_FAILED', message, { details, rank }));
    const { stack: _hidden, ...error } = encodeError(members.failure(rank, 'the job'));
    for (const other of this.members) if (other !== member) other.announce(rank, error);
  }

  /** Of an elastic world, to be called after every change: who is there now. */
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
