// How far each rank is in low-latency mode, told by words in the windows of the others. Hot path throughout.
import { LOW_LATENCY_CALLS, lowLatencyBell, lowLatencyCell } from '../../../abi/low-latency.ts';
import { wordOffsets } from '../../../abi/layout.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { RankBells } from '../../../windows/rank-bells.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { WindowRegion } from '../../../windows/region-layout.ts';

const cellWord = wordOffsets(lowLatencyCell);
const bellWord = wordOffsets(lowLatencyBell);
const CELL_WORDS = lowLatencyCell.size / 4;
const CALL_MASK = LOW_LATENCY_CALLS - 1;

/** Words of a cell that count calls. */
export type Progress = 'dispatched' | 'released' | 'combined' | 'taken';
/** Words that belong to one call. */
export type CallWord = 'rows' | 'dispatchCall' | 'combineCall';

/** Where a window of ranks on CPUs has these regions. */
export interface MemberRegions {
  readonly regions: Readonly<Record<'cells' | 'bell' | 'member', WindowRegion>>;
  /** Whether kernels of GPUs mask ranks too, by marks beside the words. */
  readonly hasMarks?: boolean;
}

export class LowLatencyCells {
  readonly bells: RankBells;
  readonly #words: Int32Array;
  /** By rank: where its cell for this rank's words is in its window, and this window's cell for its words. */
  readonly #theirs: Int32Array;
  readonly #mine: Int32Array;

  constructor(device: CpuDevice, window: SymmetricWindow, { regions }: MemberRegions) {
    const { storage, addresses, index: me } = window;
    const words = device.hostView('i32', storage.address, storage.bytes / 4);
    const wordOf = (rank: number, region: 'cells' | 'bell'): number =>
      (addresses[rank]! - storage.address + regions[region].offset) / 4;
    this.#words = words;
    this.#theirs = Int32Array.from(addresses, (_, rank) => wordOf(rank, 'cells') + me * CELL_WORDS);
    this.#mine = Int32Array.from(addresses, (_, rank) => wordOf(me, 'cells') + rank * CELL_WORDS);
    const board = Int32Array.from(addresses, (_, rank) => wordOf(rank, 'bell'));
    this.bells = new RankBells({
      words,
      bells: board.map((word) => word + bellWord.bell),
      sleepers: board.map((word) => word + bellWord.sleepers),
      me,
    });
  }

  /** A word of the call with that number, for one rank; a publish() must follow. */
  write(rank: number, word: CallWord, call: number, value: number): void {
    this.#words[this.#theirs[rank]! + cellWord[word] + (call & CALL_MASK)] = value;
  }

  /** What that rank wrote of the call, once hasReached() says that it published it. */
  read(rank: number, word: CallWord, call: number): number {
    return this.#words[this.#mine[rank]! + cellWord[word] + (call & CALL_MASK)]!;
  }

  /** Tells all ranks, this one too, that this rank has reached that call, and publishes all that it wrote before. */
  publish(word: Progress, call: number): void {
    // ORDER: sequentially consistent, as are the stores of sleepers, so that a rank about to sleep sees this or is seen.
    for (let rank = 0; rank < this.#theirs.length; rank++) {
      Atomics.store(this.#words, this.#theirs[rank]! + cellWord[word], call | 0);
    }
    this.bells.ringAll();
  }

  hasReached(rank: number, word: Progress, call: number): boolean {
    return ((this.reached(rank, word) - call) | 0) >= 0;
  }

  reached(rank: number, word: Progress): number {
    return Atomics.load(this.#words, this.#mine[rank]! + cellWord[word]);
  }
}
