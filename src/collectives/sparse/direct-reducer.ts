// Sums of GPUs that reach each other's memory, without messages: each rank puts its blocks that count into its window, piece by
// piece, and adds up what the windows of all have. The hosts tell each other which pieces are there, and which were taken.
import { wordOffsets } from '../../abi/layout.ts';
import type { RankBells } from '../../windows/wait.ts';
import { dtypeNumber } from '../collective-call.ts';
import { type BlockReducer, type CompletionFlag, StagedFlag } from './block-reducer.ts';
import { type DirectWork, type Piece, type WorkMark, WorkPatience } from './block-work.ts';
import { blocksOf, type SlotShape, sparseBoard } from './slot-shape.ts';
import { type CallFacts, callsDiffer, noCall, type SparseCall, type SparseTraffic } from './sparse-call.ts';

interface DirectReducerOptions {
  readonly board: DirectBoard;
  readonly work: DirectWork;
  readonly shape: SlotShape;
  /** Names a rank of the group, for errors. */
  readonly nameOf: (rank: number) => number;
  /** Fails once a rank has given up. */
  readonly throwIfUnusable: () => void;
}

/**
 * A call ends when all ranks have taken all pieces: so a window is free when the next call begins, or when it is closed.
 */
export class DirectReducer implements BlockReducer {
  progress = 0;
  readonly #options: DirectReducerOptions;
  readonly #outMarks: readonly WorkMark[];
  readonly #inMarks: readonly WorkMark[];
  readonly #patience = new WorkPatience();
  /** 1 for each rank that has told that it makes the same call. */
  readonly #isSame: Uint8Array;
  #call: SparseCall = noCall;
  /** Counts of calls, and of pieces before this one; both wrap. */
  #number = 0;
  #base = 0;
  #blocks = 0;
  #perPiece = 1;
  /** Pieces of this call, and how many of them are on their way to the window, there, being summed and summed. */
  #pieces = 0;
  #shared = 0;
  #ready = 0;
  #summed = 0;
  #taken = 0;
  #isOver = true;

  constructor(options: DirectReducerOptions) {
    const { work, board } = options;
    this.#options = options;
    this.#isSame = new Uint8Array(board.ranks);
    this.#outMarks = Array.from({ length: work.buffers }, () => work.makeMark('out'));
    this.#inMarks = Array.from({ length: work.buffers }, () => work.makeMark('in'));
  }

  /** Bytes are those of blocks that this rank has put into its window, and of sums. */
  get traffic(): SparseTraffic {
    const [ownBlocks, sumBlocks] = this.#options.work.found as unknown as readonly [number, number];
    const blockBytes = this.#options.shape.blockSize * this.#call.elementBytes;
    const sentBytes = ownBlocks * blockBytes;
    const receivedBytes = sumBlocks * blockBytes;
    return { blocks: this.#blocks, ownBlocks, sumBlocks, sentBytes, receivedBytes, messages: this.#pieces };
  }

  get finalBlocks(): number {
    return Math.min(this.#blocks, this.#summed * this.#perPiece);
  }

  reserve(): void {}

  begin(call: SparseCall): void {
    const { board, work, shape } = this.#options;
    this.#base = (this.#base + this.#pieces) | 0;
    this.#number = (this.#number + 1) | 0;
    this.#call = call;
    this.#blocks = blocksOf(shape, call.count);
    this.#perPiece = Math.floor(work.pieceBytes / (shape.blockSize * call.elementBytes));
    // One at least, so that ranks agree on what they call.
    this.#pieces = Math.max(1, Math.ceil(this.#blocks / this.#perPiece));
    this.#shared = 0;
    this.#ready = 0;
    this.#summed = 0;
    this.#taken = 0;
    this.#isOver = false;
    this.#isSame.fill(0);
    this.#patience.reset();
    board.announce(this.#number, { count: call.count, dtype: dtypeNumber(call.dtype) });
    work.begin(call);
  }

  advance(): boolean {
    if (this.#isOver) return true;
    const { board, work, throwIfUnusable } = this.#options;
    const { buffers } = work;
    const areSame = this.#compare();
    const least = this.#least('taken');
    while (this.#shared < this.#pieces && this.#shared < Math.min(least, this.#ready) + buffers) {
      throwIfUnusable();
      work.share(this.#piece(this.#shared));
      this.#outMarks[this.#shared % buffers]!.record();
      this.#shared++;
    }
    if (this.#ready < this.#shared && this.#isDone(this.#outMarks[this.#ready % buffers]!)) {
      this.#ready++;
      this.progress++;
      board.post('ready', (this.#base + this.#ready) | 0);
    }
    const there = areSame ? this.#least('ready') : 0;
    while (this.#summed < Math.min(this.#ready, there, this.#taken + buffers)) {
      // This rank may have stood still for so long that others have given up, and their memory is gone: a kernel that reads it
      // may never end, and the driver then waits for it without a deadline.
      throwIfUnusable();
      work.sum(this.#piece(this.#summed), this.#summed === this.#pieces - 1);
      this.#inMarks[this.#summed % buffers]!.record();
      this.#summed++;
    }
    if (this.#taken < this.#summed && this.#isDone(this.#inMarks[this.#taken % buffers]!)) {
      this.#taken++;
      this.progress++;
      board.post('taken', (this.#base + this.#taken) | 0);
    }
    if (this.#taken < this.#pieces || this.#least('taken') < this.#pieces) return false;
    work.join();
    this.#isOver = true;
    return true;
  }

  awaited(): number[] {
    const { board } = this.#options;
    const others = [...this.#isSame.keys()].filter((rank) => rank !== board.me);
    const [what, needed] =
      this.#ready > this.#summed ? (['ready', this.#summed + 1] as const) : (['taken', this.#taken] as const);
    return others.filter((rank) => board.piecesOf(rank, what, this.#base) < needed);
  }

  flagAt(address: number): CompletionFlag {
    const { work } = this.#options;
    return new StagedFlag({ tell: (parts) => work.tell(address, parts), join: () => work.join() });
  }

  close(): Promise<void> {
    return this.#options.work.close();
  }

  #piece(number: number): Piece {
    const first = number * this.#perPiece;
    const blocks = Math.min(this.#perPiece, this.#blocks - first);
    return { first, blocks, buffer: number % this.#options.work.buffers };
  }

  /** The least that any rank has told. */
  #least(what: 'ready' | 'taken'): number {
    const { board } = this.#options;
    let least = this.#pieces;
    for (let rank = 0; rank < board.ranks; rank++) least = Math.min(least, board.piecesOf(rank, what, this.#base));
    return least;
  }

  #isDone(mark: WorkMark): boolean {
    return this.#patience.isDone(mark, this.#call.timeoutMs);
  }

  /** True once all ranks have told that they make the same call: that of the first one. */
  #compare(): boolean {
    const { board, nameOf } = this.#options;
    const first = board.factsOf(0, this.#number);
    if (first === undefined) return false;
    let areSame = true;
    for (let rank = 0; rank < board.ranks; rank++) {
      if (this.#isSame[rank] === 1) continue;
      const facts = board.factsOf(rank, this.#number);
      if (facts === undefined) {
        areSame = false;
        continue;
      }
      if (facts.count !== first.count || facts.dtype !== first.dtype) {
        throw callsDiffer(this.#number, { ...first, rank: nameOf(0) }, { ...facts, rank: nameOf(rank) });
      }
      this.#isSame[rank] = 1;
    }
    return areSame;
  }
}

// What ranks whose GPUs reach each other tell of their calls and pieces, in the window of their host. Hot path.

const word = wordOffsets(sparseBoard);

export class DirectBoard {
  readonly ranks: number;
  readonly me: number;
  readonly #words: Int32Array;
  /** The begin of each rank's board in the words. */
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
