// How a process of a chaos run talks to the driver and, through it, to its peer.
import type { ProcessUsage } from '../../support/process-usage.ts';
import { encodeError, type EncodedError } from '#lib/core/errors.js';

export type PairKind = 'local' | 'multipath' | 'transport';

/** Words of the driver. `peer` carries words of the other process. */
export type DriverWords =
  | {
      readonly do: 'round';
      readonly kind: PairKind;
      readonly seed: number;
      readonly name: string;
      readonly peer: string;
    }
  | { readonly do: 'finish' }
  /** The peer has ended, or failed. */
  | { readonly do: 'gone' }
  | { readonly do: 'peer'; readonly words: unknown }
  | { readonly do: 'exit' };

/** To the driver. */
export type ProcessWords =
  | { readonly tell: 'running' }
  | { readonly tell: 'peer'; readonly words: unknown }
  /** The loop ended with an error, or was asked to. */
  | { readonly tell: 'ended'; readonly operations: number; readonly error?: EncodedError }
  /** Everything of the round is closed. */
  | { readonly tell: 'left'; readonly usage: ProcessUsage; readonly what: string; readonly wrong?: string };

export function say(words: ProcessWords): void {
  process.send?.(words);
}

/** What came for a round: words of the peer in order, and whether it is to finish. */
export class Round {
  isToFinish = false;
  #isAlone = false;
  readonly #words: unknown[] = [];
  #wake: (() => void) | undefined;

  take(words: DriverWords): void {
    if (words.do === 'finish') this.isToFinish = true;
    if (words.do === 'gone') this.#isAlone = true;
    if (words.do === 'peer') this.#words.push(words.words);
    this.#wake?.();
  }

  /** The peer's next words. Fails when the driver says that it is gone. */
  async next<T>(): Promise<T> {
    while (this.#words.length === 0) {
      if (this.#isAlone) throw new Error('the peer is gone');
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
    return this.#words.shift() as T;
  }

  tell(words: unknown): void {
    say({ tell: 'peer', words });
  }
}

/** Wrong bytes: never to be taken for an error that chaos explains. */
export class WrongBytes extends Error {}

export function ended(operations: number, error?: unknown): void {
  say({ tell: 'ended', operations, ...(error === undefined ? {} : { error: encodeError(error) }) });
}
