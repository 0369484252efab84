// Ordered puts and signals over UCX, as the agent posts them; after one fails, nothing follows. Hot path: no allocation.
import { WeftlineError } from '../../../core/errors.ts';
import type { BackendChannel, BackendRemoteRegion, PutPlace } from '../../backend.ts';
import { failures } from './failure.ts';
import type { LinkOperations } from './link-operations.ts';
import { operationKinds } from './outgoing.ts';
import type { RegionUser, UcxRegion, UcxRemoteRegion } from './ucx-region.ts';

/** Operations under way; of more, `put` and `signal` say false. */
const MAX_PENDING = 1024;

export class UcxChannel implements BackendChannel, RegionUser {
  posted = 0;
  readonly #link: LinkOperations;
  readonly #number: number;
  /** For the peer all operations of the channel are one. */
  readonly #operation: number;
  readonly #onClose: () => void;
  #error: WeftlineError | undefined;
  #closing: Promise<void> | undefined;

  /** The caller holds the lock. */
  constructor(link: LinkOperations, number: number, onClose: () => void) {
    const { tables } = link.driver;
    this.#link = link;
    this.#number = number;
    this.#onClose = onClose;
    this.#operation = tables.newOperation();
    tables.delivered[number] = 0;
    tables.channelFailure[number] = failures.none;
  }

  put({ local, localOffset, remote, remoteOffset, bytes }: PutPlace): boolean {
    this.#check();
    if (bytes === 0) return true;
    const { block } = this.#link;
    const { address, users } = local as UcxRegion;
    const from = address + localOffset;
    users.add(this);
    const entry = this.#begin(operationKinds.put, remote as UcxRemoteRegion, remoteOffset);
    if (entry < 0) return false;
    block.local[entry] = from;
    block.size[entry] = bytes;
    this.#commit();
    return true;
  }

  signal(remote: BackendRemoteRegion, offset: number, add: number): boolean {
    this.#check();
    const { block } = this.#link;
    const entry = this.#begin(operationKinds.signal, remote as UcxRemoteRegion, offset);
    if (entry < 0) return false;
    block.size[entry] = add;
    this.#commit();
    return true;
  }

  get delivered(): number {
    const known = Atomics.load(this.#link.driver.tables.delivered, this.#number);
    // The word wraps; fewer are under way than half of it counts.
    return this.posted - ((this.posted - known) >>> 0);
  }

  get error(): WeftlineError | undefined {
    const { tables } = this.#link.driver;
    const failure = Atomics.load(tables.channelFailure, this.#number);
    if (failure !== failures.none && this.#closing === undefined) {
      this.#error ??= this.#link.errorOf(failure, tables.channelDetail[this.#number]!);
    }
    this.#error ??= this.#link.error;
    return this.#error;
  }

  get isQuiet(): boolean {
    return this.#link.error !== undefined || !this.#link.outgoing.hasChannel(this.#number);
  }

  /** Of memory that puts send from: they end, as the peer's agent answers them. */
  async endUse(): Promise<void> {
    await this.#link.settle(() => this.isQuiet);
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  #check(): void {
    const { error } = this;
    if (error !== undefined) throw error;
    if (this.#closing !== undefined) throw new WeftlineError('WL_CLOSED', 'The channel was closed');
  }

  /** With the lock, unless there is no room: then -1, without. */
  #begin(kind: number, remote: UcxRemoteRegion, offset: number): number {
    const link = this.#link;
    const { driver } = link;
    if (this.posted - this.delivered >= MAX_PENDING) return -1;
    const { number: region, key } = remote;
    driver.enter();
    const entry = link.outgoing.begin(kind, this.#number, this.#operation);
    if (entry < 0) {
      driver.leave();
      return -1;
    }
    link.block.region[entry] = region;
    link.block.key[entry] = key;
    link.block.remoteOffset[entry] = offset;
    return entry;
  }

  #commit(): void {
    try {
      this.#link.commit();
      this.posted += 1;
    } finally {
      this.#link.driver.leave();
    }
  }

  async #close(): Promise<void> {
    // Its outcome can still be asked for afterwards.
    this.#error = this.error;
    this.#onClose();
    const { driver } = this.#link;
    const { outgoing } = this.#link;
    if (driver.failure !== undefined) return;
    driver.enter();
    outgoing.stopChannel(this.#number, failures.channelClosed);
    driver.leave();
    await this.#link.settle(() => !outgoing.hasChannel(this.#number));
    this.#link.driver.channels.push(this.#number);
  }
}
