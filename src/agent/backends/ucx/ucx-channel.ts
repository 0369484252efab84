// Ordered puts and signals over UCX, as the agent posts them; after one fails, nothing follows. Hot path: no allocation.
import { WeftlineError } from '../../../core/errors.ts';
import type { BackendChannel, BackendRemoteRegion, PutPlace } from '../../backend.ts';
import { failures } from './failure.ts';
import type { LinkOperations } from './link-operations.ts';
import { emptyMark, hasReturned, sendMark } from './memory-use.ts';
import { operationKinds } from './operation-kinds.ts';
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
  /** Of which puts were made. */
  readonly #regions = new Set<UcxRegion>();
  #error: WeftlineError | undefined;
  #closing: Promise<void> | undefined;

  /** The caller holds the lock. */
  constructor(link: LinkOperations, number: number, onClose: () => void) {
    const { tables } = link.driver;
    this.#link = link;
    this.#number = number;
    this.#onClose = onClose;
    this.#operation = tables.newOperation();
    tables.channelSendsAfter[number] = emptyMark(link.block);
    tables.delivered[number] = 0;
    tables.channelFailure[number] = failures.none;
  }

  put({ local, localOffset, remote, remoteOffset, bytes }: PutPlace): boolean {
    this.#check();
    if (bytes === 0) return true;
    const { block } = this.#link;
    const region = local as UcxRegion;
    const from = region.address + localOffset;
    region.users.add(this);
    this.#regions.add(region);
    const entry = this.#begin(operationKinds.put, remote as UcxRemoteRegion, remoteOffset);
    if (entry < 0) return false;
    block.local[entry] = from;
    block.memory[entry] = this.#link.driver.tables.regionMemory[region.number]!;
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

  get needsCalls(): boolean {
    return !this.#link.driver.hasThread && this.delivered < this.posted;
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
    const { driver, block, outgoing, isDrained } = this.#link;
    if (isDrained) return true;
    return !outgoing.hasChannel(this.#number) && hasReturned(block, driver.tables.channelSendsAfter[this.#number]!);
  }

  /** Of memory that puts send from: they end, as the peer's agent answers them. Later ones, of other memory, are not awaited. */
  async endUse(): Promise<void> {
    const link = this.#link;
    const { posted } = this;
    let mark: number | undefined;
    await link.settle(() => {
      if (link.isDrained) return true;
      if (this.delivered < posted && link.outgoing.hasChannel(this.#number)) return false;
      mark ??= sendMark(link.block);
      return hasReturned(link.block, mark);
    });
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
    const { number: region, key, place } = remote;
    driver.enter();
    const entry = link.outgoing.begin(kind, this.#number, this.#operation);
    if (entry < 0) {
      driver.leave();
      return -1;
    }
    link.block.region[entry] = region;
    link.block.key[entry] = key;
    link.block.remote[entry] = place;
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
    const { driver, outgoing } = this.#link;
    if (driver.failure === undefined) {
      driver.enter();
      outgoing.stopChannel(this.#number, failures.channelClosed);
      driver.leave();
    }
    await this.#link.settle(() => this.isQuiet);
    for (const region of this.#regions) region.users.delete(this);
    driver.channels.push(this.#number);
  }
}
