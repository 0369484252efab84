// The one kind of wait of low-latency mode on CPU ranks: each rank in turn reaches a call, and something is done with what it sent.
import type { Steps } from '../../../collective/steps.ts';
import type { ErrorDetails } from '../../../core/errors.ts';
import type { LowLatencyCells, Progress } from '../members/low-latency-cells.ts';
import type { LowLatencyMembers } from '../members/low-latency-members.ts';

export interface RankWait {
  readonly word: Progress;
  /** Of 'taken': whose memory. */
  readonly result?: number;
  /** The call that all ranks must have reached. */
  readonly call: number;
  /** The dispatch that says who takes part, where ranks come and go. */
  readonly at: number;
  /** "dispatch 17, for its rows", for errors. */
  readonly name: string;
  /** Called for each rank in order, when it has reached the call and those before it were visited. */
  readonly visit?: ((rank: number) => void) | undefined;
  /** In place of `visit`, for a rank that takes no part. */
  readonly skip?: ((rank: number) => void) | undefined;
  /** Nanoseconds by rank are added to it: from the begin of the wait until the rank was seen to have come. */
  readonly stats?: BigInt64Array | undefined;
}

/** Made once; begin() starts the next wait. */
export class RanksInOrder implements Steps {
  progress = 0;
  readonly #cells: LowLatencyCells;
  readonly #worldRanks: readonly number[];
  readonly #members: LowLatencyMembers | undefined;
  #wait: RankWait = { word: 'dispatched', call: 0, at: 0, name: 'nothing' };
  #next = 0;
  #began = 0;
  /** By rank: its time was added to the statistics. */
  readonly #noted: Uint8Array;

  /** `members`: where ranks come and go. */
  constructor(cells: LowLatencyCells, worldRanks: readonly number[], members?: LowLatencyMembers) {
    this.#cells = cells;
    this.#members = members;
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
    const { at, visit, skip, stats } = this.#wait;
    const members = this.#members;
    if (stats !== undefined) this.#note(stats);
    while (this.#next < this.#worldRanks.length) {
      if (this.#hasCome(this.#next)) visit?.(this.#next);
      else if (members === undefined || members.isActive(this.#next, at)) return false;
      else skip?.(this.#next);
      this.#next += 1;
      this.progress += 1;
      if (stats !== undefined) this.#note(stats);
    }
    return true;
  }

  missing(): readonly number[] {
    const { at } = this.#wait;
    const members = this.#members;
    return this.#worldRanks.flatMap((_, rank) =>
      this.#hasCome(rank) || members?.isActive(rank, at) === false ? [] : [rank],
    );
  }

  details(): ErrorDetails {
    const { word, result, call } = this.#wait;
    const seen = this.missing().map((rank) => this.#cells.reached(rank, word, result));
    return { phase: word, expected: call, seen };
  }

  #hasCome(rank: number): boolean {
    const { word, result, call, at } = this.#wait;
    return this.#cells.hasReached(rank, word, call, result) && this.#members?.mayRead(rank, at) !== false;
  }

  /** Looks at all ranks, not only at the one whose turn it is: none of them may pay for those before it. */
  #note(stats: BigInt64Array): void {
    for (let rank = 0; rank < this.#noted.length; rank++) {
      if (this.#noted[rank] === 1 || !this.#hasCome(rank)) continue;
      this.#noted[rank] = 1;
      stats[rank]! += BigInt(Math.round((performance.now() - this.#began) * 1e6));
    }
  }
}
