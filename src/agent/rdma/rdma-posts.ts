// What is posted on a link over RDMA: prepared transfers, and channels of ordered puts and signals. Hot paths: no allocation.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import {
  type BackendChannel,
  type BackendRegion,
  type BackendRemoteRegion,
  type BackendTransfer,
  type PlannedTransfer,
  type PutPlace,
  type TransferOperation,
  type TransferState,
  own,
} from '../backend.ts';
import type { OperationQueue } from './operation-queue.ts';
import { areWithdrawn, type RegionUser, RdmaRegion, RdmaRemoteRegion, withdrawnError } from './rdma-region.ts';
import {
  NO_MESSAGE,
  operationKinds,
  type OperationOwner,
  type QueuedOperation,
  type RequestParts,
} from './request-writer.ts';

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

/** Has operations in the queue of a link, and uses memory of this side until they are over. */
abstract class Poster implements OperationOwner, RegionUser {
  protected readonly link: OperationLink;
  /** Operations in the queue. */
  protected inQueue = 0;
  readonly #regions = new Set<RdmaRegion>();

  constructor(link: OperationLink) {
    this.link = link;
  }

  abstract readonly wants: boolean;
  abstract ended(error: WeftlineError | undefined): void;
  abstract endUse(): Promise<void>;

  protected use(region: RdmaRegion): void {
    if (this.#regions.has(region)) return;
    this.#regions.add(region);
    region.users.add(this);
  }

  /** Nothing is entered any more. Resolves when the device uses none of the memory. */
  protected async leave(): Promise<void> {
    await this.link.settle(() => this.inQueue === 0);
    for (const region of this.#regions) region.users.delete(this);
  }
}

export class RdmaTransfer extends Poster implements BackendTransfer {
  state: TransferState = 'idle';
  error: WeftlineError | undefined;
  readonly #parts: RequestParts;
  readonly #isRead: boolean;
  /** Why the post under way was cancelled: it has ended when the device is through with it. */
  #cancelled: WeftlineError | undefined;
  #release: Promise<void> | undefined;

  constructor(
    link: OperationLink,
    operation: TransferOperation,
    plan: PlannedTransfer<BackendRegion, BackendRemoteRegion>,
  ) {
    super(link);
    this.#isRead = operation === 'read';
    const locals = plan.locals.map((region) => own(RdmaRegion, region));
    const remotes = plan.remotes.map((region) => own(RdmaRemoteRegion, region));
    const flushed = (this.#isRead ? locals : remotes).filter(({ isFlushed }) => isFlushed);
    this.#parts = { table: plan.parts, locals, remotes, flushed };
    for (const region of locals) this.use(region);
  }

  post(message?: Uint8Array): void {
    const { error, queue, peer } = this.link;
    if (error !== undefined) throw error;
    if (this.#release !== undefined) throw new WeftlineError('WL_CLOSED', 'The transfer was closed');
    if (this.state === 'pending') throw invalidArgument('transfer', 'pending', 'one that is not under way');
    if (areWithdrawn(this.#parts.remotes)) throw withdrawnError(peer);
    queue.requireRoom();
    const number = message === undefined ? NO_MESSAGE : this.link.reserve(message);
    this.state = 'pending';
    this.error = undefined;
    this.#cancelled = undefined;
    this.inQueue++;
    queue.enterTransfer(this, this.#parts, this.#isRead, number);
    this.link.flush();
  }

  cancel(): void {
    if (this.state !== 'pending' || this.#cancelled !== undefined) return;
    const error = new WeftlineError('WL_CLOSED', 'The transfer was cancelled');
    if (this.link.queue.cancel(this, error)) this.#cancelled = error;
  }

  release(): Promise<void> {
    this.cancel();
    this.#release ??= this.leave();
    return this.#release;
  }

  async endUse(): Promise<void> {
    this.cancel();
    await this.link.settle(() => this.inQueue === 0);
  }

  get wants(): boolean {
    return this.#cancelled === undefined;
  }

  ended(error: WeftlineError | undefined): void {
    this.inQueue--;
    this.error = this.#cancelled ?? error;
    this.state = this.error === undefined ? 'done' : 'failed';
  }
}

const TWO_32 = 2 ** 32;
const CELL_BYTES = 8;

interface RdmaChannelOptions {
  readonly hasAtomics: boolean;
  readonly onClose: () => void;
}

/** After one of its operations fails, nothing follows. */
export class RdmaChannel extends Poster implements BackendChannel {
  posted = 0;
  delivered = 0;
  readonly #options: RdmaChannelOptions;
  #error: WeftlineError | undefined;
  #closing: Promise<void> | undefined;

  constructor(link: OperationLink, options: RdmaChannelOptions) {
    super(link);
    this.#options = options;
  }

  get error(): WeftlineError | undefined {
    return this.#error ?? this.link.error;
  }

  put({ local, localOffset, remote, remoteOffset, bytes }: PutPlace): boolean {
    const to = this.#begin(remote);
    if (bytes === 0) return true;
    if (this.link.queue.isFull) return false;
    const from = own(RdmaRegion, local);
    if (from.isReleased) throw new WeftlineError('WL_CLOSED', 'The registration of the memory of a put was closed');
    this.use(from);
    const operation = this.#enter(operationKinds.put);
    operation.region = to;
    operation.remoteAddress = to.address + remoteOffset;
    operation.localAddress = from.address + localOffset;
    operation.localKey = from.localKey;
    operation.bytes = bytes;
    // Puts go together, up to the signal behind them.
    this.link.hold();
    return true;
  }

  signal(remote: BackendRemoteRegion, offset: number, add: number, sum?: number): boolean {
    if (sum === undefined && !this.#options.hasAtomics) throw noAtomics();
    const number = sum ?? add;
    const kind = sum === undefined ? operationKinds.add : operationKinds.store;
    return this.#change(kind, remote, offset, number % TWO_32, Math.floor(number / TWO_32));
  }

  store(remote: BackendRemoteRegion, offset: number, low: number, high: number): boolean {
    return this.#change(operationKinds.store, remote, offset, low, high);
  }

  send(): void {
    this.link.flush();
  }

  get needsCalls(): boolean {
    return this.link.queue.holdsBack;
  }

  get isQuiet(): boolean {
    return this.inQueue === 0;
  }

  get wants(): boolean {
    return this.#error === undefined;
  }

  ended(error: WeftlineError | undefined): void {
    this.inQueue--;
    if (this.#error !== undefined) return;
    if (error === undefined) this.delivered++;
    else this.#error = error;
  }

  /** Ends the use of memory that puts send from. They are not held back: the device is soon done with them. */
  async endUse(): Promise<void> {
    const { posted } = this;
    await this.link.settle(() => this.delivered >= posted || this.isQuiet);
  }

  close(): Promise<void> {
    if (this.#closing === undefined) {
      this.#error ??= this.link.error ?? new WeftlineError('WL_CLOSED', `A channel to ${this.link.peer} was closed`);
      this.#options.onClose();
      this.#closing = this.leave();
    }
    return this.#closing;
  }

  /** Adds or stores a number of 64 bits. */
  // oxlint-disable-next-line max-params -- hot path: an object for them would be allocated per signal
  #change(kind: number, remote: BackendRemoteRegion, offset: number, low: number, high: number): boolean {
    const to = this.#begin(remote);
    requireCell(to, offset);
    if (this.link.queue.isFull) return false;
    const operation = this.#enter(kind);
    operation.region = to;
    operation.remoteAddress = to.address + offset;
    operation.low = low;
    operation.high = high;
    this.link.flush();
    return true;
  }

  #begin(remote: BackendRemoteRegion): RdmaRemoteRegion {
    const { error } = this;
    if (error !== undefined) throw error;
    const to = own(RdmaRemoteRegion, remote);
    if (to.isWithdrawn) throw withdrawnError(this.link.peer);
    return to;
  }

  #enter(kind: number): QueuedOperation {
    this.inQueue++;
    this.posted++;
    return this.link.queue.enter(this, kind);
  }
}

function requireCell({ bytes, address }: RdmaRemoteRegion, offset: number): void {
  const isInside = offset >= 0 && offset + CELL_BYTES <= bytes;
  if (isInside && (address + offset) % CELL_BYTES === 0) return;
  throw invalidArgument('offset of a signal', offset, `an aligned cell of 8 bytes within ${bytes} bytes`);
}

function noAtomics(): WeftlineError {
  return new WeftlineError(
    'WL_UNSUPPORTED',
    'The RDMA device has no atomic operations, which signals need whose sum is not known: use another backend',
  );
}
