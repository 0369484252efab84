// The words that ranks of a host sleep on, one each: whoever changes what another rank may wait for rings its bell.
import { Futex } from '../native/libc.ts';
import type { SharedWord } from './wait.ts';

interface RankBellsOptions {
  /** Memory that all ranks of the host map. */
  readonly words: Int32Array;
  /** By rank of the window: where its bell is in `words`, and where it says that it sleeps. */
  readonly bells: Int32Array;
  readonly sleepers: Int32Array;
  /** This rank. */
  readonly me: number;
}

export class RankBells {
  /** What this rank sleeps on. */
  readonly own: SharedWord;
  readonly #options: RankBellsOptions;
  readonly #futexes: readonly Futex[];

  constructor(options: RankBellsOptions) {
    const { words, bells, sleepers, me } = options;
    const word = (index: number): Int32Array => words.subarray(index, index + 1);
    this.#options = options;
    this.#futexes = Array.from(bells, (bell) => new Futex(word(bell)));
    this.own = { value: word(bells[me]!), waiters: word(sleepers[me]!), futex: this.#futexes[me]! };
  }

  /** Hot path. Something that the rank may wait for has changed, by a sequentially consistent store, and can be seen by now. */
  ring(rank: number): void {
    const { words, bells, sleepers } = this.#options;
    if (Atomics.load(words, sleepers[rank]!) === 0) return;
    Atomics.add(words, bells[rank]!, 1);
    this.#futexes[rank]!.wakeAll();
  }

  /** Hot path. The same for all other ranks. */
  ringAll(): void {
    const { bells, me } = this.#options;
    for (let rank = 0; rank < bells.length; rank++) if (rank !== me) this.ring(rank);
  }
}
