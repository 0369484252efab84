// What ranks whose GPUs reach each other tell of their calls and pieces, in the window of their host. Hot path.
import { wordOffsets } from '../../abi/layout.ts';
import { sparseBoard } from './message-view.ts';
import type { RankBells } from '../../windows/wait.ts';

const word = wordOffsets(sparseBoard);

export interface CallFacts {
  readonly count: number;
  readonly dtype: number;
}

export class DirectBoard {
  readonly ranks: number;
  readonly me: number;
  readonly #words: Int32Array;
  /** By rank: where its board begins in the words. */
  readonly #boards: Int32Array;
  readonly #bells: RankBells;

  constructor(
    words: Int32Array,
    boards: Int32Array,
    { me, bells }: { readonly me: number; readonly bells: RankBells },
  ) {
    this.ranks = boards.length;
    this.me = me;
    this.#words = words;
    this.#boards = boards;
    this.#bells = bells;
  }

  /** This rank is in the call of that number. Those of the call before may still be read. */
  announce(number: number, { count, dtype }: CallFacts): void {
    const at = this.#boards[this.me]! + (number & 1);
    this.#words[at + word.counts] = count;
    this.#words[at + word.dtypes] = dtype;
    // ORDER: behind what it is about.
    Atomics.store(this.#words, at + word.calls, number);
    this.#bells.ringAll();
  }

  /** What the rank calls by that number; undefined as long as it is not there. */
  factsOf(rank: number, number: number): CallFacts | undefined {
    const at = this.#boards[rank]! + (number & 1);
    if (Atomics.load(this.#words, at + word.calls) !== number) return undefined;
    return { count: this.#words[at + word.counts]! >>> 0, dtype: this.#words[at + word.dtypes]! };
  }

  /** Pieces over all calls. */
  post(what: 'ready' | 'taken', pieces: number): void {
    // ORDER: sequentially consistent, as are the stores of sleepers, so that a rank about to sleep sees this or is seen.
    Atomics.store(this.#words, this.#boards[this.me]! + word[what], pieces);
    this.#bells.ringAll();
  }

  /** How many more pieces the rank has than `base`; below 0 if it is behind. */
  piecesOf(rank: number, what: 'ready' | 'taken', base: number): number {
    return (Atomics.load(this.#words, this.#boards[rank]! + word[what]) - base) | 0;
  }
}
