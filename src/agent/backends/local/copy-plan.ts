// The copies of one prepared transfer, and how far they have come. Hot path after construction: no allocation.
import { WeftlineError } from '../../../core/errors.ts';
import { copyError, whyCopyFailed } from '../../../native/process-memory.ts';
import type { CopyList } from './copy-list.ts';
import { CopyTable, CUT_SHORT } from './copy-table.ts';

export interface CopyPlan {
  readonly bytes: number;
  /** So little that `post` copies it itself. */
  readonly isShort: boolean;
  /** From the beginning again. */
  begin(): void;
  /** Copies up to about `budget` bytes more. True when all are where they belong. Throws when that cannot be. */
  advance(budget: number): boolean;
  /** True if nothing works on copies of earlier posts any more. A GPU may, even after a post has failed or was cancelled. */
  isOver(): boolean;
  /** Resolves when that is so. Fails with WL_TIMEOUT. */
  over(): Promise<void>;
}

/** Up to this much is copied at once, within `post`: less than a millisecond. */
export const INLINE_BYTES: number = 4 << 20;
/** What a thread copies of a larger transfer before it looks up; threads share it in steps of this. */
export const STEP_BYTES: number = 256 << 10;
/** Small pieces cost by their number. Maximum pieces that are copied within `post`, and in one step of a larger transfer. */
const INLINE_PIECES = 16_384;
const STEP_PIECES = 4096;

interface HostCopiesOptions {
  readonly mapped: CopyList;
  readonly process: CopyList;
  readonly pid: number;
  readonly isRead: boolean;
  readonly peer: string;
}

/** From memory of hosts to memory of hosts. */
export class HostCopies implements CopyPlan {
  readonly bytes: number;
  readonly isShort: boolean;
  readonly table: CopyTable;
  readonly #options: Omit<HostCopiesOptions, 'mapped' | 'process'>;
  #at = 0;

  constructor({ mapped, process, pid, isRead, peer }: HostCopiesOptions) {
    this.bytes = mapped.totalBytes + process.totalBytes;
    this.isShort = this.bytes <= INLINE_BYTES && mapped.count + process.count <= INLINE_PIECES;
    const stepBytes = this.isShort ? INLINE_BYTES : STEP_BYTES;
    const stepPieces = this.isShort ? INLINE_PIECES : STEP_PIECES;
    this.table = CopyTable.of({ mapped, process, pid, isRead, stepBytes, stepPieces });
    this.#options = { pid, isRead, peer };
  }

  begin(): void {
    this.#at = 0;
  }

  advance(budget: number): boolean {
    const { table } = this;
    for (let left = budget; this.#at < table.steps && left > 0;) {
      const step = this.#at;
      const failure = table.copy(step);
      if (failure !== 0) throw this.failure(failure);
      this.#at = step + 1;
      // Nothing is left to spend the rest on, and most transfers have one step.
      if (step + 1 < table.steps) left -= table.costOf(step);
    }
    return this.#at === table.steps;
  }

  isOver(): boolean {
    return true;
  }

  over(): Promise<void> {
    return Promise.resolve();
  }

  /** `code`: as CopyTable.copy says it. */
  failure(code: number): WeftlineError {
    const { peer, pid, isRead } = this.#options;
    const details = { peer, pid, bytes: this.bytes };
    const cause = code === CUT_SHORT ? undefined : copyError(isRead, code);
    if (code !== CUT_SHORT && whyCopyFailed(code) === 'gone') {
      return new WeftlineError('WL_PEER_LOST', `${peer} is gone: its process ended`, { details, cause });
    }
    return new WeftlineError(
      'WL_SHARED_MEMORY',
      `Copying ${this.bytes} bytes ${isRead ? 'from' : 'to'} memory of ${peer} failed: ${cause?.message ?? 'part of its region is no longer mapped there'}`,
      { details, cause },
    );
  }
}

/** Several plans as one. */
export class JoinedCopies implements CopyPlan {
  readonly bytes: number;
  readonly isShort: boolean;
  readonly #plans: readonly CopyPlan[];
  #at = 0;

  constructor(plans: readonly CopyPlan[]) {
    this.#plans = plans;
    this.bytes = plans.reduce((sum, plan) => sum + plan.bytes, 0);
    this.isShort = this.bytes <= INLINE_BYTES && plans.every((plan) => plan.isShort);
  }

  begin(): void {
    this.#at = 0;
    for (let index = 0; index < this.#plans.length; index += 1) (this.#plans[index] as CopyPlan).begin();
  }

  advance(budget: number): boolean {
    while (this.#at < this.#plans.length) {
      if (!(this.#plans[this.#at] as CopyPlan).advance(budget)) return false;
      this.#at += 1;
    }
    return true;
  }

  isOver(): boolean {
    let areOver = true;
    for (const plan of this.#plans) areOver = plan.isOver() && areOver;
    return areOver;
  }

  async over(): Promise<void> {
    await Promise.all(this.#plans.map((plan) => plan.over()));
  }
}
