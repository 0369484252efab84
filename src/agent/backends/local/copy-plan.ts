// The copies of one prepared transfer, and how far they have come. Hot path after construction: no allocation.
import { WeftlineError } from '../../../core/errors.ts';
import { copyMemory } from '../../../native/libc.ts';
import { copyError, MAX_RANGES, RangeList, whyCopyFailed } from '../../../native/process-memory.ts';

export interface CopyPlan {
  readonly bytes: number;
  /** From the beginning again. */
  begin(): void;
  /** Copies up to about `budget` bytes more. True when all are where they belong. Throws when that cannot be. */
  advance(budget: number): boolean;
}

/** One piece of a transfer: where it is here, where it is there. */
export interface CopyPart {
  readonly local: number;
  readonly remote: number;
  readonly bytes: number;
}

/** Both sides are mapped in this process. */
export class MappedCopies implements CopyPlan {
  readonly bytes: number;
  /** To, from, bytes. */
  readonly #copies: Float64Array;
  #at = 0;
  #offset = 0;

  constructor(parts: readonly CopyPart[], isRead: boolean) {
    this.bytes = totalBytes(parts);
    this.#copies = new Float64Array(parts.length * 3);
    for (const [index, { local, remote, bytes }] of parts.entries()) {
      this.#copies.set(isRead ? [local, remote, bytes] : [remote, local, bytes], index * 3);
    }
  }

  begin(): void {
    this.#at = 0;
    this.#offset = 0;
  }

  advance(budget: number): boolean {
    const copies = this.#copies;
    let left = budget;
    while (this.#at < copies.length && left > 0) {
      const offset = this.#offset;
      const rest = (copies[this.#at + 2] as number) - offset;
      const bytes = Math.min(rest, left);
      copyMemory((copies[this.#at] as number) + offset, (copies[this.#at + 1] as number) + offset, bytes);
      left -= bytes;
      this.#offset = bytes === rest ? 0 : offset + bytes;
      if (bytes === rest) this.#at += 3;
    }
    return this.#at === copies.length;
  }
}

/** Longest range, so that a call of the kernel stays short. */
const RANGE_BYTES = 4 << 20;

/** The far side is memory of another process. */
export class ProcessCopies implements CopyPlan {
  readonly bytes: number;
  readonly #pid: number;
  readonly #isRead: boolean;
  readonly #peer: string;
  readonly #ranges: RangeList;
  /** First range, count and bytes of each call. */
  readonly #calls: readonly number[];
  #at = 0;

  constructor(parts: readonly CopyPart[], { pid, isRead, peer }: { pid: number; isRead: boolean; peer: string }) {
    this.bytes = totalBytes(parts);
    this.#pid = pid;
    this.#isRead = isRead;
    this.#peer = peer;
    const cut = parts.flatMap(cutPart);
    this.#ranges = new RangeList(cut.length);
    const calls: number[] = [];
    let [first, bytes] = [0, 0];
    for (const [index, part] of cut.entries()) {
      this.#ranges.set(index, part);
      const isFull = index - first === MAX_RANGES || bytes + part.bytes > RANGE_BYTES;
      if (isFull && index > first) {
        calls.push(first, index - first, bytes);
        [first, bytes] = [index, 0];
      }
      bytes += part.bytes;
    }
    calls.push(first, cut.length - first, bytes);
    this.#calls = calls;
  }

  begin(): void {
    this.#at = 0;
  }

  advance(budget: number): boolean {
    let left = budget;
    while (this.#at < this.#calls.length && left > 0) {
      const [first, count, bytes] = [this.#calls[this.#at], this.#calls[this.#at + 1], this.#calls[this.#at + 2]];
      const copied = this.#ranges.copy(this.#pid, this.#isRead, first as number, count as number);
      if (copied !== bytes) throw this.#failure(copied, bytes as number);
      this.#at += 3;
      left -= copied;
    }
    return this.#at === this.#calls.length;
  }

  #failure(copied: number, bytes: number): WeftlineError {
    const details = { peer: this.#peer, pid: this.#pid, bytes };
    const cause = copied < 0 ? copyError(this.#isRead, -copied) : undefined;
    if (copied < 0 && whyCopyFailed(-copied) === 'gone') {
      return new WeftlineError('WL_PEER_LOST', `${this.#peer} is gone: its process ended`, { details, cause });
    }
    return new WeftlineError(
      'WL_SHARED_MEMORY',
      `Copying ${bytes} bytes ${this.#isRead ? 'from' : 'to'} memory of ${this.#peer} failed: ${cause?.message ?? 'part of its region is no longer mapped there'}`,
      { details, cause },
    );
  }
}

/** Several plans as one. */
export class JoinedCopies implements CopyPlan {
  readonly bytes: number;
  readonly #plans: readonly CopyPlan[];
  #at = 0;

  constructor(plans: readonly CopyPlan[]) {
    this.#plans = plans;
    this.bytes = plans.reduce((sum, plan) => sum + plan.bytes, 0);
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
}

function totalBytes(parts: readonly CopyPart[]): number {
  return parts.reduce((sum, { bytes }) => sum + bytes, 0);
}

function cutPart({ local, remote, bytes }: CopyPart): CopyPart[] {
  const cut: CopyPart[] = [];
  for (let at = 0; at < bytes; at += RANGE_BYTES) {
    cut.push({ local: local + at, remote: remote + at, bytes: Math.min(RANGE_BYTES, bytes - at) });
  }
  return cut;
}
