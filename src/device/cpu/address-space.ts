// Hands out ranges of one address space: first fit over a sorted list of gaps, neighbours merged on release.
import { alignUp } from '../../abi/layout.ts';
import { formatBytes } from '../../core/byte-size.ts';
import { WeftlineError } from '../../core/errors.ts';

interface Range {
  start: number;
  end: number;
}

export class AddressSpace {
  readonly #limit: number;
  readonly #gaps: Range[];
  readonly #taken = new Map<number, number>();
  #used = 0;

  /** Manages [start, limit). */
  constructor(start: number, limit: number) {
    this.#limit = limit;
    this.#gaps = [{ start, end: limit }];
  }

  /** Bytes handed out at the moment. */
  get used(): number {
    return this.#used;
  }

  get limit(): number {
    return this.#limit;
  }

  /** The largest single range that could be handed out. */
  get largestGap(): number {
    return this.#gaps.reduce((most, gap) => Math.max(most, gap.end - gap.start), 0);
  }

  /** Takes `bytes` at a multiple of `alignment`. Fails with WL_MEMORY. */
  take(bytes: number, alignment: number): number {
    const size = alignUp(Math.max(bytes, 1), alignment);
    for (let index = 0; index < this.#gaps.length; index++) {
      const gap = this.#gaps[index]!;
      const start = alignUp(gap.start, alignment);
      const end = start + size;
      if (end > gap.end) continue;
      const rest = end < gap.end ? { start: end, end: gap.end } : undefined;
      if (start > gap.start) {
        gap.end = start;
        if (rest !== undefined) this.#gaps.splice(index + 1, 0, rest);
      } else if (rest === undefined) this.#gaps.splice(index, 1);
      else gap.start = end;
      this.#taken.set(start, size);
      this.#used += size;
      return start;
    }
    throw new WeftlineError(
      'WL_MEMORY',
      `Cannot take ${formatBytes(bytes)} of this rank's address space: ${formatBytes(this.#used)} of ${formatBytes(this.#limit)} are in use and the largest gap is ${formatBytes(this.largestGap)}; dispose tensors and buffers, or use fewer tokens per rank`,
      { details: { bytes, used: this.#used, limit: this.#limit, largestGap: this.largestGap } },
    );
  }

  /** Gives a range back by its start. Returns its size. */
  release(start: number): number {
    const size = this.#taken.get(start);
    if (size === undefined) throw new WeftlineError('WL_INTERNAL', `Address ${start} is not in use`);
    this.#taken.delete(start);
    this.#used -= size;
    let index = this.#gaps.findIndex((gap) => gap.start > start);
    if (index === -1) index = this.#gaps.length;
    const before = this.#gaps[index - 1];
    const after = this.#gaps[index];
    const merged = { start, end: start + size };
    let from = index;
    let count = 0;
    if (before?.end === merged.start) {
      merged.start = before.start;
      from = index - 1;
      count += 1;
    }
    if (after?.start === merged.end) {
      merged.end = after.end;
      count += 1;
    }
    this.#gaps.splice(from, count, merged);
    return size;
  }
}
