// A transfer on a lane: copies its pieces between memory of this side and the ring. Hot path: no allocation.
import type { WeftlineError } from '../../core/errors.ts';
import { traceBegin, traceEnd } from '../../core/trace.ts';
import type { TransferOperation } from '../backend.ts';
import type { CopyRun, DeviceCopies } from './device-copies.ts';
import { Job } from './job.ts';
import type { StagedMemory } from './memory-table.ts';
import type { PiecePlan } from './piece-plan.ts';
import type { RingMemory } from './ring-memory.ts';
import type { SendLane } from './send-lane.ts';

export interface PlannedJobParts {
  /** Of the board. */
  readonly transfer: number;
  readonly operation: TransferOperation;
  readonly plan: PiecePlan;
  readonly locals: readonly StagedMemory[];
  readonly ring: RingMemory;
  /** Of the thread. */
  readonly run: CopyRun;
  readonly onEnd: (error: WeftlineError | undefined) => void;
}

/** A transfer that the agent has prepared. */
export interface Prepared {
  readonly lane: SendLane;
  readonly job: PlannedJob;
}

export abstract class PlannedJob extends Job {
  protected readonly plan: PiecePlan;
  protected readonly isRead: boolean;
  readonly locals: readonly StagedMemory[];
  readonly #transfer: number;
  readonly #ring: RingMemory;
  readonly #run: CopyRun;
  readonly #onEnd: (error: WeftlineError | undefined) => void;

  constructor({ transfer, operation, plan, locals, ring, run, onEnd }: PlannedJobParts) {
    super();
    this.#transfer = transfer;
    this.pieces = plan.count;
    this.plan = plan;
    this.isRead = operation === 'read';
    this.locals = locals;
    this.#ring = ring;
    this.#run = run;
    this.#onEnd = onEnd;
  }

  override begin(): void {
    traceBegin('staging.transfer', this.#transfer);
    super.begin();
  }

  isFilled(piece: number, ticket: number): boolean {
    return this.isRead || this.#copies(piece).isDone('out', ticket);
  }

  isLanded(piece: number, ticket: number): boolean {
    return !this.isRead || this.#copies(piece).isDone('in', ticket);
  }

  /** What devices of this side still do for it is done. */
  *devices(): Generator<DeviceCopies> {
    for (const { copies } of this.locals) yield copies;
  }

  protected ended(error: WeftlineError | undefined): void {
    traceEnd('staging.transfer', this.#transfer);
    this.#onEnd(error);
  }

  /** `dataOffset`: where in the slot the bytes begin. */
  protected fillSlot(piece: number, slot: number, dataOffset: number): number {
    if (this.isRead) return 0;
    const base = this.#ring.address + this.#ring.slotOffset(slot) + dataOffset;
    const { plan } = this;
    const run = this.#run;
    run.clear();
    for (let at = plan.first[piece]!; at < plan.first[piece + 1]!; at++) {
      run.add(base + plan.slotOffset[at]!, this.#address(at), plan.bytes[at]!);
    }
    return this.#copies(piece).copy('out', run);
  }

  protected emptySlot(piece: number, slot: number, dataOffset: number): number {
    if (!this.isRead) return 0;
    const base = this.#ring.address + this.#ring.slotOffset(slot) + dataOffset;
    const { plan } = this;
    const run = this.#run;
    run.clear();
    for (let at = plan.first[piece]!; at < plan.first[piece + 1]!; at++) {
      run.add(this.#address(at), base + plan.slotOffset[at]!, plan.bytes[at]!);
    }
    return this.#copies(piece).copy('in', run);
  }

  #address(fragment: number): number {
    return (this.locals[this.plan.local[fragment]!] as StagedMemory).address + this.plan.localOffset[fragment]!;
  }

  /** All fragments of a piece belong to one device. */
  #copies(piece: number): DeviceCopies {
    return (this.locals[this.plan.local[this.plan.first[piece]!]!] as StagedMemory).copies;
  }
}
