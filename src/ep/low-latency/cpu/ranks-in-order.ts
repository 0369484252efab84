// The one kind of wait of low-latency mode on CPU ranks: each rank in turn reaches a call, and something is done with what it sent.
import type { Steps } from '../../../collective/steps.ts';
import type { ErrorDetails } from '../../../core/errors.ts';
import type { LowLatencyCells, Progress } from './low-latency-cells.ts';

export interface RankWait {
  readonly word: Progress;
  /** The call that all ranks must have reached. */
  readonly call: number;
  /** "dispatch 17, for its rows", for errors. */
  readonly name: string;
  /** Called for each rank in order, when it has reached the call and those before it were visited. */
  readonly visit?: ((rank: number) => void) | undefined;
  /** Nanoseconds by rank are added to it: from the begin of the wait until the rank was seen to have come. */
  readonly stats?: BigInt64Array | undefined;
}

/** Made once; begin() starts the next wait. */
export class RanksInOrder implements Steps {
  progress = 0;
  readonly #cells: LowLatencyCells;
  readonly #worldRanks: readonly number[];
  #wait: RankWait = { word: 'dispatched', call: 0, name: 'nothing' };
  #next = 0;
  #began = 0;
  /** By rank: its time was added to the statistics. */
  readonly #noted: Uint8Array;

  constructor(cells: LowLatencyCells, worldRanks: readonly number[]) {
    this.#cells = cells;
    this.#worldRanks = worldRanks;
    this.#noted = new Uint8Array(worldRanks.length);
  }

  get name(): string {
    return this.#wait.name;
  }

  begin(wait: RankWait): this {
    this.#wait = wait;
    this.#next = 0;
    if (wait.stats === undefined) return this;
    this.#noted.fill(0);
    this.#began = performance.now();
    return this;
  }

  advance(): boolean {
    const { word, call, visit, stats } = this.#wait;
    if (stats !== undefined) this.#note(stats);
    while (this.#next < this.#worldRanks.length) {
      if (!this.#cells.hasReached(this.#next, word, call)) return false;
      visit?.(this.#next);
      this.#next += 1;
      this.progress += 1;
      if (stats !== undefined) this.#note(stats);
    }
    return true;
  }

  missing(): readonly number[] {
    const { word, call } = this.#wait;
    return this.#worldRanks.flatMap((_, rank) => (this.#cells.hasReached(rank, word, call) ? [] : [rank]));
  }

  details(): ErrorDetails {
    const { word, call } = this.#wait;
    const seen = this.missing().map((rank) => this.#cells.reached(rank, word));
    return { phase: word, expected: call, seen };
  }

  /** Looks at all ranks, not only at the one whose turn it is: none of them may pay for those before it. */
  #note(stats: BigInt64Array): void {
    const { word, call } = this.#wait;
    for (let rank = 0; rank < this.#noted.length; rank++) {
      if (this.#noted[rank] === 1 || !this.#cells.hasReached(rank, word, call)) continue;
      this.#noted[rank] = 1;
      stats[rank]! += BigInt(Math.round((performance.now() - this.#began) * 1e6));
    }
  }
}
