// A prepared transfer over UCX, as the agent has it.
import { ucxTransferStates } from '../../../abi/ucx-words.ts';
import { WeftlineError, invalidArgument } from '../../../core/errors.ts';
import type { NativeBlock } from '../../../native/native-block.ts';
import type { BackendTransfer, TransferOperation, TransferState } from '../../backend.ts';
import { failures } from './failure.ts';
import type { LinkOperations } from './link-operations.ts';
import { emptyMark, hasReturned } from './memory-use.ts';
import { operationKinds } from './operation-kinds.ts';
import type { RegionUser, UcxRegion } from './ucx-region.ts';

const stateNames: readonly TransferState[] = Object.entries(ucxTransferStates)
  .toSorted(([, a], [, b]) => a - b)
  .map(([name]) => name as TransferState);

export class UcxTransfer implements BackendTransfer, RegionUser {
  readonly #link: LinkOperations;
  readonly #slot: number;
  readonly #kind: number;
  /** Of its parts. The table names its address. */
  readonly #records: NativeBlock;
  readonly #locals: readonly UcxRegion[];
  #release: Promise<void> | undefined;

  /** `records`: the fields of `partField` for each of `count` parts. The caller holds the lock. */
  constructor(
    link: LinkOperations,
    slot: number,
    plan: {
      readonly operation: TransferOperation;
      readonly records: NativeBlock;
      readonly count: number;
      readonly locals: readonly UcxRegion[];
    },
  ) {
    this.#link = link;
    this.#slot = slot;
    this.#kind = operationKinds[plan.operation];
    this.#records = plan.records;
    this.#locals = plan.locals;
    for (const region of plan.locals) region.users.add(this);
    const { tables } = link.driver;
    tables.state[slot] = ucxTransferStates.idle;
    tables.generation[slot] = (tables.generation[slot]! + 1) | 0;
    tables.partCount[slot] = plan.count;
    tables.partAddress[slot] = this.#records.address;
    tables.sendsAfter[slot] = emptyMark(link.block);
  }

  post(message?: Uint8Array): void {
    const link = this.#link;
    const { driver } = link;
    const { tables } = driver;
    const slot = this.#slot;
    if (link.error !== undefined) throw link.error;
    if (this.#release !== undefined) throw new WeftlineError('WL_CLOSED', 'The transfer was released');
    if (Atomics.load(tables.state, slot) === ucxTransferStates.pending) {
      throw invalidArgument('transfer', 'pending', 'one that is not under way');
    }
    driver.enter();
    try {
      tables.entry[slot] = link.begin(this.#kind, slot, tables.newOperation(), message);
      tables.state[slot] = ucxTransferStates.pending;
      link.commit();
    } finally {
      driver.leave();
    }
  }

  get state(): TransferState {
    return stateNames[Atomics.load(this.#link.driver.tables.state, this.#slot)] as TransferState;
  }

  get error(): WeftlineError | undefined {
    if (this.state !== 'failed') return undefined;
    const { tables } = this.#link.driver;
    return this.#link.errorOf(tables.failure[this.#slot]!, tables.failureDetail[this.#slot]!);
  }

  cancel(): void {
    if (this.#release === undefined) this.#stop(failures.cancelled);
  }

  release(): Promise<void> {
    this.#release ??= this.#forget();
    return this.#release;
  }

  async endUse(): Promise<void> {
    this.#stop(failures.cancelled);
    await this.#link.settle(() => this.#isDone());
  }

  #stop(failure: number): void {
    const { driver } = this.#link;
    const { tables } = driver;
    if (driver.failure !== undefined) return;
    driver.enter();
    try {
      if (tables.state[this.#slot] !== ucxTransferStates.pending) return;
      this.#link.outgoing.stop(tables.entry[this.#slot]!, failure, 0);
    } finally {
      driver.leave();
    }
  }

  async #forget(): Promise<void> {
    this.#stop(failures.released);
    await this.#link.settle(() => this.#isDone());
    for (const region of this.#locals) region.users.delete(this);
    this.#link.driver.slots.push(this.#slot);
  }

  /** UCX does not use its memory any more. */
  #isDone(): boolean {
    const { tables } = this.#link.driver;
    if (tables.state[this.#slot] === ucxTransferStates.pending) return false;
    return this.#link.isDrained || hasReturned(this.#link.block, tables.sendsAfter[this.#slot]!);
  }
}
