// A prepared transfer over RDMA: all that its requests say stands ready, a post enters it into the queue of its link.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type {
  BackendRegion,
  BackendRemoteRegion,
  BackendTransfer,
  PlannedTransfer,
  TransferOperation,
  TransferState,
} from '../backend.ts';
import type { OperationOwner, RequestParts } from './operation.ts';
import type { OperationQueue } from './operation-queue.ts';
import { areWithdrawn, own, type RegionUser, RdmaRegion, RdmaRemoteRegion, withdrawnError } from './rdma-region.ts';

const NO_MESSAGE = -1;

/** What transfers and channels need of their link. */
export interface OperationLink {
  readonly peer: string;
  readonly error: WeftlineError | undefined;
  readonly queue: OperationQueue;
  /** Hot path. Copies a message. Returns its number. Fails with WL_BUSY, leaving everything as it was. */
  reserve(message: Uint8Array): number;
  /** Hot path. Hands over what was entered. */
  flush(): void;
  /** Hot path. Hands over what was entered with what follows, or at the next look, which is soon. */
  hold(): void;
  /** Resolves when the condition holds, which says that the device uses some memory no more; or the link is over. */
  settle(isSo: () => boolean): Promise<void>;
}

export class RdmaTransfer implements BackendTransfer, OperationOwner, RegionUser {
  state: TransferState = 'idle';
  error: WeftlineError | undefined;
  readonly #link: OperationLink;
  readonly #parts: RequestParts;
  readonly #isRead: boolean;
  readonly #locals: readonly RdmaRegion[];
  /** Counts posts; those that were cancelled may still be in the queue. */
  #posts = 0;
  #inQueue = 0;
  #release: Promise<void> | undefined;

  constructor(
    link: OperationLink,
    operation: TransferOperation,
    plan: PlannedTransfer<BackendRegion, BackendRemoteRegion>,
  ) {
    this.#link = link;
    this.#isRead = operation === 'read';
    this.#locals = plan.locals.map((region) => own(RdmaRegion, region));
    const remotes = plan.remotes.map((region) => own(RdmaRemoteRegion, region));
    this.#parts = { table: plan.parts, locals: this.#locals, remotes };
    for (const region of this.#locals) region.users.add(this);
  }

  post(message?: Uint8Array): void {
    const { error, queue, peer } = this.#link;
    if (error !== undefined) throw error;
    if (this.#release !== undefined) throw new WeftlineError('WL_CLOSED', 'The transfer was closed');
    if (this.state === 'pending') throw invalidArgument('transfer', 'pending', 'one that is not under way');
    if (areWithdrawn(this.#parts.remotes)) throw withdrawnError(peer);
    if (queue.isFull) throw new WeftlineError('WL_BUSY', 'Too many operations are under way: wait for earlier ones');
    const number = message === undefined ? NO_MESSAGE : this.#link.reserve(message);
    this.state = 'pending';
    this.error = undefined;
    this.#posts++;
    this.#inQueue++;
    queue.enterTransfer(this, this.#posts, this.#parts, this.#isRead, number);
    this.#link.flush();
  }

  cancel(): void {
    // A message that is on its way cannot be held back; its transfer ends by itself, and soon.
    if (this.state !== 'pending' || !this.#link.queue.canCancel(this, this.#posts)) return;
    this.#fail('The transfer was cancelled');
  }

  release(): Promise<void> {
    this.#release ??= this.#forget();
    return this.#release;
  }

  async endUse(): Promise<void> {
    this.cancel();
    await this.#link.settle(() => this.#inQueue === 0);
  }

  get holdsParts(): boolean {
    return this.#inQueue > 0;
  }

  wants(post: number): boolean {
    return this.state === 'pending' && post === this.#posts;
  }

  ended(post: number, error: WeftlineError | undefined): void {
    this.#inQueue--;
    if (!this.wants(post)) return;
    this.error = error;
    this.state = error === undefined ? 'done' : 'failed';
  }

  async #forget(): Promise<void> {
    this.cancel();
    await this.#link.settle(() => this.#inQueue === 0);
    for (const region of this.#locals) region.users.delete(this);
  }

  #fail(why: string): void {
    this.state = 'failed';
    this.error = new WeftlineError('WL_CLOSED', why);
  }
}
