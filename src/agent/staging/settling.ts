// Failed posts of transfers whose memory devices of this side may still touch: they are told of when that is over.
import type { WeftlineError } from '../../core/errors.ts';

interface Entry {
  readonly transfer: number;
  readonly error: WeftlineError;
  readonly isOver: () => boolean;
}

export class Settling {
  readonly #onOver: (transfer: number, error: WeftlineError) => void;
  #entries: Entry[] = [];

  constructor(onOver: (transfer: number, error: WeftlineError) => void) {
    this.#onOver = onOver;
  }

  /** `isOver` tells when devices have done what they had to do at the time of the call. */
  add(entry: Entry): void {
    this.#entries.push(entry);
    this.look();
  }

  has(transfer: number): boolean {
    return this.#entries.some((entry) => entry.transfer === transfer);
  }

  look(): void {
    if (this.#entries.length === 0) return;
    const over = this.#entries.filter((entry) => entry.isOver());
    if (over.length === 0) return;
    this.#entries = this.#entries.filter((entry) => !over.includes(entry));
    for (const { transfer, error } of over) this.#onOver(transfer, error);
  }
}
