// How far each rank of the host is: posts of pieces, records of calls, and waking ranks that sleep. Hot path throughout.
import { CALL_RECORDS, callRecord, collectiveBoard, pairCell } from '../../abi/collective-window.ts';
import { wordOffsets } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { Futex } from '../../native/libc.ts';
import type { SymmetricWindow } from '../../windows/symmetric-window.ts';
import type { SharedWord } from '../../windows/wait.ts';
import { type CollectiveCall, describeRecord, operationWord } from '../collective-call.ts';
import type { CollectiveRegion, CollectiveRegions } from './window-regions.ts';

const boardWord = wordOffsets(collectiveBoard);
const recordWord = wordOffsets(callRecord);
const RECORD_STRIDE = callRecord.size / 4;
const CELL_STRIDE = pairCell.size / 4;
const RECORD_MASK = CALL_RECORDS - 1;
/** Ranks are at most CALL_RECORDS / 2 pieces of small calls, and a few of large ones, apart. */
const CHECKED_BACK = CALL_RECORDS / 4;
/** More pieces, or calls, than a rank can be ahead of another. What was seen of a rank so long ago that its number wrapped says nothing. */
const MOST_AHEAD = 2 ** 20;

export class RankBoard {
  /** Ranks of the window, and this one among them. */
  readonly ranks: number;
  readonly me: number;
  /** What this rank sleeps on. */
  readonly bell: SharedWord;
  readonly #worldRanks: readonly number[];
  /** All windows in one array: typed arrays of each rank would cost a look-up per access. */
  readonly #words: Int32Array;
  readonly #boards: Int32Array;
  readonly #signatures: Int32Array;
  readonly #records: Int32Array;
  readonly #sent: Int32Array;
  readonly #taken: Int32Array;
  readonly #futexes: readonly Futex[];
  /** By rank: pieces that it has posted, when this rank last looked. A look costs a cache line that the other one writes. */
  readonly #seen: Int32Array;
  #call = 0;
  #firstUnchecked = 1;

  constructor(device: CpuDevice, window: SymmetricWindow, { regions }: CollectiveRegions) {
    const { storage } = window;
    this.ranks = window.ranks.length;
    this.me = window.index;
    this.#worldRanks = window.ranks;
    this.#words = device.hostView('i32', storage.address, storage.bytes / 4);
    const wordsOf = (region: CollectiveRegion): Int32Array =>
      Int32Array.from(window.addresses, (address) => (address - storage.address + regions[region].offset) / 4);
    this.#boards = wordsOf('board');
    this.#signatures = wordsOf('signatures');
    this.#records = wordsOf('records');
    this.#seen = new Int32Array(this.ranks);
    this.#sent = wordsOf('sent');
    this.#taken = wordsOf('taken');
    const bells = Array.from(this.#boards, (board) => this.#word(board + boardWord.bell));
    this.#futexes = bells.map((bell) => new Futex(bell));
    this.bell = {
      value: bells[this.me]!,
      waiters: this.#word(this.#boards[this.me]! + boardWord.sleepers),
      futex: this.#futexes[this.me]!,
    };
  }

  /** Number of the call that began last, from 1; the same on all ranks. */
  get call(): number {
    return this.#call;
  }

  /** Begins the next call: what it is can be read by all once this rank posts. */
  record(call: CollectiveCall): void {
    const number = (this.#call + 1) | 0;
    this.#call = number;
    const words = this.#words;
    const at = this.#recordOf(this.me, number);
    words[at + recordWord.call] = number;
    const operation = operationWord(call);
    words[at + recordWord.operation] = operation;
    words[at + recordWord.root] = call.root;
    words[at + recordWord.count] = call.count | 0;
    words[this.#signatures[this.me]! + (number & RECORD_MASK)] = signature(operation, call.root, call.count);
  }

  /** Publishes all that this rank wrote before. */
  post(piece: number): void {
    // ORDER: sequentially consistent, as are the stores of sleepers, so that a rank about to sleep sees this post or is seen.
    Atomics.store(this.#words, this.#boards[this.me]! + boardWord.posted, piece);
    this.ringAll();
  }

  /** Something has changed that any other rank may wait for. */
  ringAll(): void {
    for (let rank = 0; rank < this.ranks; rank++) if (rank !== this.me) this.ring(rank);
  }

  hasPosted(rank: number, piece: number): boolean {
    const seen = this.#seen;
    const ahead = (seen[rank]! - piece) | 0;
    if (ahead >= 0 && ahead <= MOST_AHEAD) return true;
    const posted = Atomics.load(this.#words, this.#boards[rank]! + boardWord.posted);
    seen[rank] = posted;
    return ((posted - piece) | 0) >= 0;
  }

  /** Something that the rank may wait for has changed. */
  ring(rank: number): void {
    const board = this.#boards[rank]!;
    if (Atomics.load(this.#words, board + boardWord.sleepers) === 0) return;
    Atomics.add(this.#words, board + boardWord.bell, 1);
    this.#futexes[rank]!.wakeAll();
  }

  /** All ranks have posted a piece of that call: fails with WL_CONFIG_MISMATCH if any made another call, or did before. */
  checkCalls(call: number): void {
    // Of so many calls all records are still there.
    const unchecked = (call - this.#firstUnchecked) | 0;
    const hasWrapped = unchecked < -MOST_AHEAD;
    if (unchecked > CHECKED_BACK || hasWrapped) this.#firstUnchecked = (call - CHECKED_BACK) | 0;
    for (; ((call - this.#firstUnchecked) | 0) >= 0; this.#firstUnchecked = (this.#firstUnchecked + 1) | 0) {
      for (let rank = 0; rank < this.ranks; rank++) this.checkCall(rank, this.#firstUnchecked);
    }
  }

  /** The same for one rank. */
  checkCall(rank: number, call: number): void {
    const words = this.#words;
    const at = call & RECORD_MASK;
    if (words[this.#signatures[rank]! + at] !== words[this.#signatures[this.me]! + at])
      throw this.#mismatch(rank, call);
  }

  /** Pieces that `from` has sent to `to`, or with 'taken' that `to` has taken of them. Either is counted by its writer. */
  pairPieces(which: 'sent' | 'taken', from: number, to: number): number {
    return Atomics.load(this.#words, this.#pairCellOf(which, from, to));
  }

  /** By the writer; publishes what it wrote before, or that it has read. */
  setPairPieces(which: 'sent' | 'taken', from: number, to: number, pieces: number): void {
    Atomics.store(this.#words, this.#pairCellOf(which, from, to), pieces);
    this.ring(which === 'sent' ? to : from);
  }

  #pairCellOf(which: 'sent' | 'taken', from: number, to: number): number {
    return which === 'sent' ? this.#sent[from]! + to * CELL_STRIDE : this.#taken[to]! + from * CELL_STRIDE;
  }

  #word(index: number): Int32Array {
    return this.#words.subarray(index, index + 1);
  }

  #recordOf(rank: number, call: number): number {
    return this.#records[rank]! + (call & RECORD_MASK) * RECORD_STRIDE;
  }

  #mismatch(rank: number, call: number): WeftlineError {
    const words = this.#words;
    const describe = (at: number): string =>
      describeRecord(
        words[at + recordWord.operation]!,
        words[at + recordWord.root]!,
        words[at + recordWord.count]! >>> 0,
      );
    const here = describe(this.#recordOf(this.me, call));
    const there = describe(this.#recordOf(rank, call));
    const [self, other] = [this.#worldRanks[this.me], this.#worldRanks[rank]];
    return new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `Call ${call} of this Communicator is ${here} on rank ${self}, but ${there} on rank ${other}; all ranks must make the same calls in the same order`,
      { details: { call, rank: other, here, there } },
    );
  }
}

/** Differs for calls that differ in one of these, because the factors are odd; for others, but for one in 2^32. */
function signature(operation: number, root: number, count: number): number {
  return Math.imul(operation, 0x9e37_79b1) ^ Math.imul(root + 1, 0x85eb_ca77) ^ Math.imul(count | 0, 0xc2b2_ae3d);
}
