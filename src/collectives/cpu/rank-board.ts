// How far each rank is: posts of pieces, records of calls, and waking ranks of this host that sleep. Hot path throughout.
import {
  CALL_RECORDS,
  callRecord,
  collectiveBoard,
  type CollectiveRegion,
  type CollectiveRegions,
  type Mirrors,
  pairCell,
  type RankParts,
} from './window-regions.ts';
import { wordOffsets } from '../../abi/layout.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { RankBells } from '../../windows/wait.ts';
import { type CollectiveCall, describeRecord, operationWord } from '../collective-call.ts';

const boardWord = wordOffsets(collectiveBoard);
const recordWord = wordOffsets(callRecord);
const RECORD_STRIDE = callRecord.size / 4;
const CELL_STRIDE = pairCell.size / 4;
const RECORD_MASK = CALL_RECORDS - 1;
/**
 * Ranks are at most CALL_RECORDS / 4 pieces of small calls, and a few of large ones, apart. So of so many calls before this rank's
 * own all records are still there, however far the others are ahead.
 */
const CHECKED_BACK = CALL_RECORDS / 2;
/** More pieces, or calls, than a rank can be ahead of another. What was seen of a rank so long ago that its number wrapped says nothing. */
const MAX_AHEAD = 2 ** 20;

export class RankBoard {
  /** Ranks of the group, and this one among them. */
  readonly ranks: number;
  readonly me: number;
  readonly bells: RankBells;
  readonly #worldRanks: readonly number[];
  /** All windows in one array: typed arrays of each rank would cost a look-up per access. */
  readonly #words: Int32Array;
  readonly #boards: Int32Array;
  readonly #signatures: Int32Array;
  readonly #records: Int32Array;
  readonly #sent: Int32Array;
  readonly #taken: Int32Array;
  readonly #mirrors: Mirrors | undefined;
  /** The begin of this rank's part, in words. */
  readonly #part: number;
  /** Pieces that each rank had posted when this rank last looked. A look costs a cache line that the other one writes. */
  readonly #seen: Int32Array;
  /** Number of the call that began last, from 1; the same on all ranks. */
  call = 0;
  #firstUnchecked = 1;

  /** `mirrors`: of a group on several hosts. */
  constructor(device: CpuDevice, parts: RankParts, { regions }: CollectiveRegions, mirrors?: Mirrors) {
    const { storage } = parts;
    this.ranks = parts.ranks.length;
    this.me = parts.index;
    this.#worldRanks = parts.ranks;
    this.#mirrors = mirrors;
    this.#part = (parts.addresses[parts.index]! - storage.address) / 4;
    this.#words = device.hostView('i32', storage.address, storage.bytes / 4);
    const wordsOf = (region: CollectiveRegion): Int32Array =>
      Int32Array.from(parts.addresses, (address) => (address - storage.address + regions[region].offset) / 4);
    this.#boards = wordsOf('board');
    this.#signatures = wordsOf('signatures');
    this.#records = wordsOf('records');
    this.#seen = new Int32Array(this.ranks);
    this.#sent = wordsOf('sent');
    this.#taken = wordsOf('taken');
    this.bells = new RankBells({
      words: this.#words,
      bells: this.#boards.map((board) => board + boardWord.bell),
      sleepers: this.#boards.map((board) => board + boardWord.sleepers),
      me: this.me,
    });
  }

  /** Begins the next call: what it is can be read by all once this rank posts. */
  record(call: CollectiveCall): void {
    const number = (this.call + 1) | 0;
    this.call = number;
    const words = this.#words;
    const at = this.#recordOf(this.me, number);
    words[at + recordWord.call] = number;
    const operation = operationWord(call);
    words[at + recordWord.operation] = operation;
    words[at + recordWord.root] = call.root;
    words[at + recordWord.count] = call.count | 0;
    words[this.#signatures[this.me]! + (number & RECORD_MASK)] = signature(operation, call.root, call.count);
    this.#mirrors?.putToAll(this.#offsetOf(at), callRecord.size);
  }

  /** Publishes all that this rank wrote before. */
  post(piece: number): void {
    // ORDER: sequentially consistent, as are the stores of sleepers, so that a rank about to sleep sees this post or is seen.
    const at = this.#boards[this.me]! + boardWord.posted;
    Atomics.store(this.#words, at, piece);
    this.#mirrors?.countAtAll(this.#offsetOf(at));
    this.bells.ringAll();
  }

  hasPosted(rank: number, piece: number): boolean {
    const seen = this.#seen;
    const ahead = (seen[rank]! - piece) | 0;
    if (ahead >= 0 && ahead <= MAX_AHEAD) return true;
    const posted = Atomics.load(this.#words, this.#boards[rank]! + boardWord.posted);
    seen[rank] = posted;
    return ((posted - piece) | 0) >= 0;
  }

  /** All ranks have posted a piece of that call: fails with WL_CONFIG_MISMATCH if any made another call, or did before. */
  checkCalls(call: number): void {
    const unchecked = (this.call - this.#firstUnchecked) | 0;
    const hasWrapped = unchecked < -MAX_AHEAD;
    if (unchecked > CHECKED_BACK || hasWrapped) this.#firstUnchecked = (this.call - CHECKED_BACK) | 0;
    for (; ((call - this.#firstUnchecked) | 0) >= 0; this.#firstUnchecked = (this.#firstUnchecked + 1) | 0) {
      for (let rank = 0; rank < this.ranks; rank++) this.checkCall(rank, this.#firstUnchecked);
    }
  }

  /** The same for one rank. */
  checkCall(rank: number, call: number): void {
    if (this.#signatureOf(rank, call) !== this.#words[this.#signatures[this.me]! + (call & RECORD_MASK)])
      throw this.#mismatch(rank, call);
  }

  /** Pieces that `from` has sent to `to`, or with 'taken' that `to` has taken of them. Either is counted by its writer. */
  pairPieces(which: 'sent' | 'taken', from: number, to: number): number {
    return Atomics.load(this.#words, this.#pairCellOf(which, from, to));
  }

  /** Sets a count to one more than before, by its writer; publishes what that wrote before, or that it has read. */
  setPairPieces(which: 'sent' | 'taken', from: number, to: number, pieces: number): void {
    const at = this.#pairCellOf(which, from, to);
    const other = which === 'sent' ? to : from;
    Atomics.store(this.#words, at, pieces);
    this.#mirrors?.countAt(other, this.#offsetOf(at));
    this.bells.ring(other);
  }

  #pairCellOf(which: 'sent' | 'taken', from: number, to: number): number {
    return which === 'sent' ? this.#sent[from]! + to * CELL_STRIDE : this.#taken[to]! + from * CELL_STRIDE;
  }

  /** Reads the mirrored record of a rank of another host: only records are mirrored. */
  #signatureOf(rank: number, call: number): number {
    const words = this.#words;
    if (this.#mirrors?.has(rank) !== true) return words[this.#signatures[rank]! + (call & RECORD_MASK)]!;
    const at = this.#recordOf(rank, call);
    return signature(words[at + recordWord.operation]!, words[at + recordWord.root]!, words[at + recordWord.count]!);
  }

  /** The offset of a word in this rank's part. */
  #offsetOf(index: number): number {
    return (index - this.#part) * 4;
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
