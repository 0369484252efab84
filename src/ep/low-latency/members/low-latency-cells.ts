// How far each rank is in low-latency mode, told by words in the windows of the others. Hot path throughout.
import { EP_MAX_RANKS } from '../../../abi/ep.ts';
import { defineLayout, wordOffsets } from '../../../abi/layout.ts';
import { LOW_LATENCY_CALLS, LOW_LATENCY_RESULTS, lowLatencyMember } from '../../../abi/low-latency.ts';
import { WeftlineError } from '../../../core/errors.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import { layOutRegions, type WindowRegion } from '../../../windows/region-layout.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import { RankBells } from '../../../windows/wait.ts';

const CACHE_LINE = 64;

/**
 * One per (receiver, source), in the receiver's part of the window; only the source writes to it. Numbers count calls from
 * 1, are never reset, wrap, and are compared by signed difference: nothing has to be cleaned between calls.
 *
 * - `dispatched`: the last dispatch whose rows the source has put here. Its store publishes the rows, and `rows` and
 *   `dispatchCall` of that number. `dispatchedHigh`: how often it has wrapped.
 * - `released`: the source has no more use for what it received in dispatches up to this one; their slots there are free.
 * - `combined`: the last combine for which the source's rows can be read, and `combineCall` of it.
 * - `taken`, by result: the source has read all it needs of the receiver's rows there, in combines up to this one. Hooks end
 *   combines of different results in any order.
 */
export const lowLatencyCell = defineLayout(
  'LowLatencyCell',
  {
    dispatched: 'i32',
    dispatchedHigh: 'i32',
    released: 'i32',
    combined: 'i32',
    taken: { of: 'i32', count: LOW_LATENCY_RESULTS },
    /** Rows of a dispatch's slot here, by its number modulo LOW_LATENCY_CALLS; 'expert-major': tokens, wherever they go. */
    rows: { of: 'i32', count: LOW_LATENCY_CALLS },
    dispatchCall: { of: 'i32', count: LOW_LATENCY_CALLS },
    /** The last combine whose rows lay in the memory of each result. */
    combineCall: { of: 'i32', count: LOW_LATENCY_RESULTS },
  },
  CACHE_LINE,
);

/** One per rank of CPU ranks: the word that it sleeps on, and whether it does; see RankBells. */
export const lowLatencyBell = defineLayout('LowLatencyBell', { bell: 'i32', sleepers: 'i32' }, CACHE_LINE);

const cellWord = wordOffsets(lowLatencyCell);
const bellWord = wordOffsets(lowLatencyBell);
const CELL_WORDS = lowLatencyCell.size / 4;
const CALL_MASK = LOW_LATENCY_CALLS - 1;

/** Words of a cell that count calls. */
export type Progress = 'dispatched' | 'released' | 'combined' | 'taken';
/** Words that belong to one call. */
type CallWord = 'rows' | 'dispatchCall' | 'combineCall';

const TWO_32 = 2 ** 32;
/** Dispatches that a word may be behind the others: numbers of combines, 16 for each dispatch, are then far from wrapping. */
const OLD = 2 ** 20;
/** How far behind the others a word is put that was older: what it says is of the past. */
const PAST = 16;

/** Places of these regions in a window of ranks on CPUs. */
export interface MemberRegions {
  readonly regions: Readonly<Record<'cells' | 'bell' | 'member', WindowRegion>>;
  /** Whether kernels of GPUs mask ranks too, by marks beside the words. */
  readonly hasMarks?: boolean;
}

/** The rank whose words are written, and how many ranks write any. */
interface CellsOf {
  /** The rank itself, or one of another host that it stands for here. */
  readonly source: number;
  /** Ranks of the group. */
  readonly ranks: number;
  /** Places on this host of the ranks that hear of the source; all by default. */
  readonly hearers?: readonly number[] | undefined;
}

export class LowLatencyCells {
  readonly bells: RankBells;
  readonly #words: Int32Array;
  readonly #me: number;
  /** For each rank of this host, the cell of the source's words in its window; for each rank, the cell of its words in this one. */
  readonly #theirs: Int32Array;
  readonly #mine: Int32Array;

  /** `of`: this rank among those of its host, unless the group is on several. */
  constructor(
    device: CpuDevice,
    window: SymmetricWindow,
    { regions }: MemberRegions,
    of: CellsOf = { source: window.index, ranks: window.ranks.length },
  ) {
    const { storage, addresses, index } = window;
    const words = device.hostView('i32', storage.address, storage.bytes / 4);
    const wordOf = (at: number, region: 'cells' | 'bell'): number =>
      (addresses[at]! - storage.address + regions[region].offset) / 4;
    this.#words = words;
    this.#me = of.source;
    const hearers = of.hearers ?? [...addresses.keys()];
    this.#theirs = Int32Array.from(hearers, (at) => wordOf(at, 'cells') + of.source * CELL_WORDS);
    this.#mine = Int32Array.from({ length: of.ranks }, (_, rank) => wordOf(index, 'cells') + rank * CELL_WORDS);
    const board = Int32Array.from(addresses, (_, at) => wordOf(at, 'bell'));
    this.bells = new RankBells({
      words,
      bells: board.map((word) => word + bellWord.bell),
      sleepers: board.map((word) => word + bellWord.sleepers),
      me: index,
    });
  }

  /** A word of the call with that number, or of that result, for that hearer, as a rule the rank with that index on this host; a publish() must follow. */
  write(index: number, word: CallWord, call: number, value: number): void {
    this.#words[this.#theirs[index]! + cellWord[word] + (call & CALL_MASK)] = value;
  }

  /** What that rank wrote of the call, once hasReached() says that it published it. */
  read(rank: number, word: CallWord, call: number): number {
    return this.#words[this.#mine[rank]! + cellWord[word] + (call & CALL_MASK)]!;
  }

  /**
   * Tells all hearers, as a rule the ranks of this host with this one, that the source has reached that call, and publishes all that was written for it
   * before. `result`: of 'taken'.
   */
  publish(word: Progress, call: number, result = 0): void {
    if (word === 'dispatched') {
      const high = Math.floor(call / TWO_32);
      for (const cell of this.#theirs) this.#words[cell + cellWord.dispatchedHigh] = high;
    }
    // ORDER: sequentially consistent, as are the stores of sleepers, so that a rank about to sleep sees this or is seen.
    for (const cell of this.#theirs) Atomics.store(this.#words, cell + cellWord[word] + result, call | 0);
    this.bells.ringAll();
  }

  hasReached(rank: number, word: Progress, call: number, result = 0): boolean {
    return ((this.reached(rank, word, result) - call) | 0) >= 0;
  }

  /** Numbers of 32 bits. */
  reached(rank: number, word: Progress, result = 0): number {
    return Atomics.load(this.#words, this.#mine[rank]! + cellWord[word] + result);
  }

  /** The last dispatch of that rank, in full. */
  dispatchOf(rank: number): number {
    const high = this.#words[this.#mine[rank]! + cellWord.dispatchedHigh]!;
    return high * TWO_32 + (this.reached(rank, 'dispatched') >>> 0);
  }

  /** The last dispatch of any rank. */
  get lastDispatch(): number {
    let last = 0;
    for (let rank = 0; rank < this.#mine.length; rank++) last = Math.max(last, this.dispatchOf(rank));
    return last;
  }

  /**
   * This rank takes part again before long, after it was away: words of it that are so old that their numbers would seem to be
   * ahead of the others are brought up to what they may still say, that it has done nothing of late.
   */
  catchUp(combinesPerDispatch: number, last = this.lastDispatch): void {
    const bring = (word: Progress, perDispatch: number, result = 0): void => {
      const behind = (last * perDispatch - this.reached(this.#me, word, result)) | 0;
      // Combines may be of the dispatch that was last.
      if (behind < -PAST * perDispatch || behind > OLD * perDispatch)
        this.publish(word, (last - PAST) * perDispatch, result);
    };
    bring('dispatched', 1);
    bring('released', 1);
    bring('combined', combinesPerDispatch);
    for (let result = 0; result < LOW_LATENCY_RESULTS; result++) bring('taken', combinesPerDispatch, result);
  }
}

// Layout of what elastic ranks on GPUs share in memory of the host; pure, as sizes are asked for without a GPU.

/** What one rank keeps in its own part of what elastic ranks on GPUs share: how others map its window, and whose it has mapped. */
export const lowLatencyMapping = defineLayout(
  'LowLatencyMapping',
  {
    /** Handle of the window of `life`, which is stored behind it. */
    handle: { of: 'u8', count: 64 },
    /** The life of each rank's window that this rank has mapped; 0 for none. */
    mapped: { of: 'i32', count: EP_MAX_RANKS },
  },
  64,
);

// What elastic ranks of different hosts tell each other.

/** Words of what a rank tells; behind them three arrays by rank of the group: words of members, lives linked, lives wished for. */
export const toldMember = { life: 0, dispatch: 1, dispatchHigh: 2, arrays: 4 } as const;

/** Bytes of what a rank of a group of so many tells. */
export function toldMembersBytes(ranks: number): number {
  return (toldMember.arrays + 3 * ranks) * 4;
}

/** Regions of one rank's part. */
export const memberBoardLayout = layOutRegions<'cells' | 'bell' | 'member' | 'mapping'>({
  cells: EP_MAX_RANKS * lowLatencyCell.size,
  bell: lowLatencyBell.size,
  member: lowLatencyMember.size,
  mapping: lowLatencyMapping.size,
});

// Numbers of combines: how many there were, or, where ranks come and go, such as follow from the number of their dispatch.

/** Numbers of combines from one dispatch to the next, of elastic objects. Few, so that numbers do not wrap in between. */
export const COMBINES_PER_DISPATCH = 16;

/** A combine, and the dispatch whose handle it has. */
interface NumberedCombine {
  /** 0: none. */
  readonly number: number;
  readonly dispatch: number;
}

export class CombineNumbers {
  readonly #isElastic: boolean;
  #dispatch = 0;
  /** Number of the combine that was begun last. */
  #number = 0;
  /** The last combine whose rows lay in the memory of each parity of dispatches. */
  #last = noCombines();

  /** A rank that has joined knows nothing of combines before its first dispatch: `isElastic` numbers do not go by those. */
  constructor(isElastic: boolean) {
    this.#isElastic = isElastic;
  }

  beginDispatch(dispatch: number): void {
    this.#dispatch = dispatch;
  }

  /**
   * The number of a combine that begins now, with the handle of that dispatch. Numbers only grow. Fails with WL_CAPACITY.
   *
   * INVARIANT: that of a handle's first combine depends on the handle alone, unless one of a later dispatch came before. So a
   * rank whose first dispatch is the second of two that overlap agrees with the others, who combine the first of them too.
   */
  next(dispatch: number): number {
    let number = this.#number + 1;
    if (this.#isElastic) {
      number = Math.max(number, dispatch * COMBINES_PER_DISPATCH + 1);
      if (number >= (this.#dispatch + 1) * COMBINES_PER_DISPATCH) {
        const most = COMBINES_PER_DISPATCH - 1;
        const message = `An elastic EpLowLatency takes at most ${most} combines from one dispatch to the next`;
        throw new WeftlineError('WL_CAPACITY', message, { details: { combines: most } });
      }
    }
    this.#number = number;
    return number;
  }

  /** That combine has rows in the memory of the dispatch's result. */
  use(dispatch: number, number: number): void {
    this.#last[dispatch % LOW_LATENCY_RESULTS] = { number, dispatch };
  }

  /** The last combine whose rows lay in the memory of that dispatch's result. */
  before(dispatch: number): NumberedCombine {
    return this.#last[dispatch % LOW_LATENCY_RESULTS]!;
  }

  /** This rank takes part again: what it waited for is of the past. */
  beginAnew(): void {
    this.#number = 0;
    this.#last = noCombines();
  }
}

function noCombines(): NumberedCombine[] {
  return Array.from({ length: LOW_LATENCY_RESULTS }, () => ({ number: 0, dispatch: 0 }));
}
