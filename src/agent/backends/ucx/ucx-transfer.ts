// A prepared transfer over UCX, as the agent has it.
import { WeftlineError, invalidArgument } from '../../../core/errors.ts';
import { NativeBlock } from '../../../native/native-block.ts';
import type { BackendTransfer, TransferOperation, TransferState } from '../../backend.ts';
import { failures } from './failure.ts';
import { linkWord, SENDS } from './link-block.ts';
import { operationKinds } from './outgoing.ts';
import type { UcxLink } from './ucx-link.ts';
import { PART_FIELDS, transferStates } from './ucx-tables.ts';

const stateNames: readonly TransferState[] = Object.entries(transferStates)
  .toSorted(([, a], [, b]) => a - b)
  .map(([name]) => name as TransferState);

export class UcxTransfer implements BackendTransfer {
  readonly #link: UcxLink;
  readonly #slot: number;
  readonly #kind: number;
  /** The table names its address. */
  readonly #parts: NativeBlock;
  #release: Promise<void> | undefined;

  /** `parts`: PART_FIELDS numbers for each. The caller holds the lock. */
  constructor(link: UcxLink, slot: number, plan: { operation: TransferOperation; parts: Float64Array }) {
    this.#link = link;
    this.#slot = slot;
    this.#kind = operationKinds[plan.operation];
    this.#parts = new NativeBlock(plan.parts.byteLength);
    this.#parts.bytes.set(new Uint8Array(plan.parts.buffer, plan.parts.byteOffset, plan.parts.byteLength));
    const { tables } = link.driver;
    tables.state[slot] = transferStates.idle;
    tables.generation[slot] = ((tables.generation[slot] as number) + 1) | 0;
    tables.partCount[slot] = plan.parts.length / PART_FIELDS;
    tables.partAddress[slot] = this.#parts.address;
    tables.sendsAfter[slot] = link.block.words[linkWord.sendsPopped] as number;
  }

  post(message?: Uint8Array): void {
    const link = this.#link;
    const { driver } = link;
    const { tables } = driver;
    const slot = this.#slot;
    if (link.error !== undefined) throw link.error;
    if (this.#release !== undefined) throw new WeftlineError('WL_CLOSED', 'The transfer was released');
    if (Atomics.load(tables.state, slot) === transferStates.pending) {
      throw invalidArgument('transfer', 'pending', 'one that is not under way');
    }
    driver.enter();
    try {
      tables.entry[slot] = link.begin(this.#kind, slot, tables.newOperation(), message);
      tables.state[slot] = transferStates.pending;
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
    return this.#link.errorOf(tables.failure[this.#slot] as number, tables.failureDetail[this.#slot] as number);
  }

  cancel(): void {
    if (this.#release === undefined) this.#stop(failures.cancelled);
  }

  release(): Promise<void> {
    this.#release ??= this.#forget();
    return this.#release;
  }

  #stop(failure: number): void {
    const { driver } = this.#link;
    const { tables } = driver;
    if (driver.failure !== undefined) return;
    driver.enter();
    try {
      if (tables.state[this.#slot] !== transferStates.pending) return;
      this.#link.outgoing.stop(tables.entry[this.#slot] as number, failure, 0);
    } finally {
      driver.leave();
    }
  }

  async #forget(): Promise<void> {
    const { driver } = this.#link;
    this.#stop(failures.released);
    await driver.until(() => this.#isDone());
    this.#link.driver.slots.push(this.#slot);
  }

  /** UCX does not use its memory any more. */
  #isDone(): boolean {
    const { tables } = this.#link.driver;
    const { words } = this.#link.block;
    if (tables.state[this.#slot] === transferStates.pending) return false;
    if (this.#link.isDrained) return true;
    const sends = ((tables.sendsAfter[this.#slot] as number) - (words[linkWord.sendsPopped] as number)) | 0;
    // Of what was sent long ago the difference may have wrapped.
    return words[linkWord.failure] === failures.none && (sends <= 0 || sends > SENDS);
  }
}
