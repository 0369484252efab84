// Ordered puts and signals over RDMA; after one fails, nothing follows. Hot path: no allocation.
import { invalidArgument, WeftlineError } from '../../core/errors.ts';
import type { BackendChannel, BackendRemoteRegion, PutPlace } from '../backend.ts';
import { operationKinds, type OperationOwner, type RequestPlace } from './operation.ts';
import { own, type RegionUser, RdmaRegion, RdmaRemoteRegion, withdrawnError } from './rdma-region.ts';
import type { OperationLink } from './rdma-transfer.ts';

const TWO_32 = 2 ** 32;
const CELL_BYTES = 8;

interface RdmaChannelOptions {
  readonly hasAtomics: boolean;
  readonly onClose: () => void;
}

export class RdmaChannel implements BackendChannel, OperationOwner, RegionUser {
  posted = 0;
  delivered = 0;
  readonly #link: OperationLink;
  readonly #hasAtomics: boolean;
  readonly #onClose: () => void;
  /** Operations in the queue. */
  #inQueue = 0;
  #error: WeftlineError | undefined;
  /** Regions of which puts were made. */
  readonly #regions = new Set<RdmaRegion>();
  #closing: Promise<void> | undefined;
  /** What is entered. One object, so that nothing is made per post. */
  readonly #place: RequestPlace = {
    remote: undefined,
    remoteOffset: 0,
    localAddress: 0,
    localKey: 0,
    bytes: 0,
    low: 0,
    high: 0,
  };

  constructor(link: OperationLink, { hasAtomics, onClose }: RdmaChannelOptions) {
    this.#link = link;
    this.#hasAtomics = hasAtomics;
    this.#onClose = onClose;
  }

  get error(): WeftlineError | undefined {
    return this.#error ?? this.#link.error;
  }

  put({ local, localOffset, remote, remoteOffset, bytes }: PutPlace): boolean {
    const to = this.#begin(remote);
    if (bytes === 0) return true;
    if (this.#link.queue.isFull) return false;
    const from = own(RdmaRegion, local);
    if (from.isReleased) throw new WeftlineError('WL_CLOSED', 'The registration of the memory of a put was closed');
    if (!this.#regions.has(from)) {
      this.#regions.add(from);
      from.users.add(this);
    }
    const place = this.#place;
    place.localAddress = from.address + localOffset;
    place.localKey = from.localKey;
    place.bytes = bytes;
    return this.#enter(operationKinds.put, to, remoteOffset);
  }

  signal(remote: BackendRemoteRegion, offset: number, add: number, sum?: number): boolean {
    if (sum !== undefined) return this.store(remote, offset, sum % TWO_32, Math.floor(sum / TWO_32));
    const to = this.#begin(remote);
    requireCell(to, offset);
    if (!this.#hasAtomics) throw noAtomics();
    if (this.#link.queue.isFull) return false;
    this.#place.low = add % TWO_32;
    this.#place.high = Math.floor(add / TWO_32);
    return this.#enter(operationKinds.add, to, offset);
  }

  store(remote: BackendRemoteRegion, offset: number, low: number, high: number): boolean {
    const to = this.#begin(remote);
    requireCell(to, offset);
    if (this.#link.queue.isFull) return false;
    this.#place.low = low;
    this.#place.high = high;
    return this.#enter(operationKinds.store, to, offset);
  }

  send(): void {
    this.#link.flush();
  }

  get needsCalls(): boolean {
    return this.#link.queue.holdsBack;
  }

  get isQuiet(): boolean {
    return this.#inQueue === 0;
  }

  wants(): boolean {
    return this.#error === undefined;
  }

  ended(_post: number, error: WeftlineError | undefined): void {
    this.#inQueue--;
    if (this.#error !== undefined) return;
    if (error === undefined) this.delivered++;
    else this.#error = error;
  }

  /** Ends the use of memory that puts send from. They are not held back: the device is soon done with them. */
  async endUse(): Promise<void> {
    const { posted } = this;
    await this.#link.settle(() => this.delivered >= posted || this.isQuiet);
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#error ??= this.#link.error ?? new WeftlineError('WL_CLOSED', `A channel to ${this.#link.peer} was closed`);
    this.#onClose();
    await this.#link.settle(() => this.isQuiet);
    for (const region of this.#regions) region.users.delete(this);
  }

  #begin(remote: BackendRemoteRegion): RdmaRemoteRegion {
    const { error } = this;
    if (error !== undefined) throw error;
    const to = own(RdmaRemoteRegion, remote);
    if (to.isWithdrawn) throw withdrawnError(this.#link.peer);
    return to;
  }

  #enter(kind: number, remote: RdmaRemoteRegion, offset: number): boolean {
    const link = this.#link;
    this.#place.remote = remote;
    this.#place.remoteOffset = offset;
    this.posted++;
    this.#inQueue++;
    link.queue.enterPlace(this, this.posted, kind, this.#place);
    // Puts go together, up to the signal behind them.
    if (kind === operationKinds.put) link.hold();
    else link.flush();
    return true;
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
