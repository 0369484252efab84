// One collective call over the slots of the window: pieces that are staged, posted, taken, and freed by the next posts.
import { alignUp } from '../../abi/layout.ts';
import type { Steps } from '../../group/steps.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CollectiveCall } from '../collective-call.ts';
import {
  alone,
  type Awaited,
  type DataPlaces,
  DirectMovement,
  type DirectReads,
  type Movement,
  type MovementChoice,
  type MovementStep,
  type Mover,
  PART_ALIGNMENT,
  type Piece,
  type SlotRange,
  type StepParts,
} from './movements.ts';
import type { Mirrors, RingShape } from './window-regions.ts';
import type { RankBoard } from './rank-board.ts';

/** `worldRanks`: by rank of the window, for errors. `onCounts` is told the most bytes that any rank sends to any other. */
class VariableMovement implements Movement, MovementStep {
  readonly hasParts = true;
  readonly steps: readonly MovementStep[] = [this];
  readonly #worldRanks: readonly number[];
  readonly #onCounts: (mostBytes: number) => void;
  #hasCounts = false;

  constructor(worldRanks: readonly number[], onCounts: (mostBytes: number) => void) {
    this.#worldRanks = worldRanks;
    this.#onCounts = onCounts;
  }

  begin(): void {
    this.#hasCounts = false;
  }

  get movesNoData(): boolean {
    return !this.#hasCounts;
  }

  stages(): boolean {
    return true;
  }

  awaits(): 'all' {
    return 'all';
  }

  stage({ mover, ranks, me, call, elementBytes, offset, bytes, stride, slot, words, wordOf }: Piece): void {
    const { sendCounts, sendOffsets } = call;
    if (!this.#hasCounts) {
      words.set(sendCounts, wordOf(me));
      return;
    }
    const to = slot(me);
    for (let rank = 0; rank < ranks; rank++) {
      const left = sendCounts[rank]! * elementBytes - offset;
      if (rank === me || left <= 0) continue;
      const from = call.input + sendOffsets[rank]! * elementBytes + offset;
      mover.copy(to + rank * stride, from, Math.min(left, bytes));
    }
  }

  reads({ ranks, call, elementBytes, offset, bytes, stride }: Piece, rank: number, range: SlotRange): void {
    if (this.#hasCounts) {
      range.first = rank * stride;
      range.bytes = Math.max(0, Math.min(call.sendCounts[rank]! * elementBytes - offset, bytes));
      return;
    }
    range.first = 0;
    range.bytes = ranks * 4;
  }

  take(piece: Piece): void {
    if (this.#hasCounts) this.#takeParts(piece);
    else this.#takeCounts(piece);
  }

  #takeCounts({ ranks, me, call, elementBytes, words, wordOf }: Piece): void {
    let most = 0;
    for (let rank = 0; rank < ranks; rank++) {
      const counts = wordOf(rank);
      for (let to = 0; to < ranks; to++) most = Math.max(most, words[counts + to]!);
      const sent = words[counts + me]!;
      const expected = call.recvCounts[rank]!;
      if (sent !== expected) throw this.#mismatch(rank, me, { sent, expected, dtype: call.dtype });
    }
    this.#hasCounts = true;
    this.#onCounts(most * elementBytes);
  }

  #takeParts({ mover, ranks, me, call, elementBytes, offset, bytes, stride, slot }: Piece): void {
    const { sendOffsets, recvCounts, recvOffsets } = call;
    for (let rank = 0; rank < ranks; rank++) {
      const left = recvCounts[rank]! * elementBytes - offset;
      if (left <= 0) continue;
      const to = call.output + recvOffsets[rank]! * elementBytes + offset;
      const own = call.input + sendOffsets[me]! * elementBytes + offset;
      const from = rank === me ? own : slot(rank) + me * stride;
      if (from !== to) mover.copy(to, from, Math.min(left, bytes));
    }
  }

  #mismatch(
    rank: number,
    me: number,
    { sent, expected, dtype }: { readonly sent: number; readonly expected: number; readonly dtype: string },
  ): WeftlineError {
    const [from, to] = [this.#worldRanks[rank], this.#worldRanks[me]];
    return new WeftlineError(
      'WL_CONFIG_MISMATCH',
      `allToAllv: rank ${from} sends ${sent} ${dtype} to rank ${to}, which expects ${expected} from it; sendCounts[${me}] of rank ${from} and recvCounts[${rank}] of rank ${to} must be equal`,
      { details: { operation: 'allToAllv', rank: from, peer: to, sent, expected, dtype } },
    );
  }
}

// Memory of a rank's window that collective calls use in turn; all ranks use the same places for the same piece.

class StagingRing {
  /** Bytes of one block, which is the most that a piece may have. */
  readonly bytes: number;
  readonly #offset: number;
  readonly #blocks: number;
  readonly #maxPieces: number;
  /** The last post, and the call, of the pieces that were in each block in the round before. */
  readonly #lastPiece: Int32Array;
  readonly #lastCall: Int32Array;
  /** The last post, and the call, of the pieces that are in the present block now. */
  #usedPiece = 0;
  #usedCall = 0;
  #block = 0;
  #pieces = 0;
  #end = 0;
  /**
   * True once the caller knows that nobody reads what was in the present block before. A rank that has posted more than
   * `lastPiece` has taken all it needed of it.
   */
  isFree = true;

  /** `offset`: of the first block in every rank's part of the window. */
  constructor(offset: number, { blocks, bytes, maxPieces }: RingShape) {
    this.bytes = bytes;
    this.#offset = offset;
    this.#blocks = blocks;
    this.#maxPieces = maxPieces;
    this.#lastPiece = new Int32Array(blocks).fill(-1);
    this.#lastCall = new Int32Array(blocks);
  }

  get lastPiece(): number {
    return this.#lastPiece[this.#block]!;
  }

  get lastCall(): number {
    return this.#lastCall[this.#block]!;
  }

  /** Offset of a place for a piece: behind the last one, so that small messages share pages and caches; or in the next block. */
  next(bytes: number): number {
    if (this.#pieces === this.#maxPieces || this.#end + bytes > this.bytes) {
      this.#lastPiece[this.#block] = this.#usedPiece;
      this.#lastCall[this.#block] = this.#usedCall;
      this.#block = (this.#block + 1) % this.#blocks;
      this.#pieces = 0;
      this.#end = 0;
      this.isFree = false;
    }
    const place = this.#offset + this.#block * this.bytes + this.#end;
    this.#pieces += 1;
    this.#end += bytes;
    return place;
  }

  /** The piece that got the last place ends with that post. */
  used(piece: number, call: number): void {
    this.#usedPiece = piece;
    this.#usedCall = call;
  }
}

/** Number of the step that a piece is in, or before its first post. */
const STAGING = -1;
/** Nothing waits to be posted. */
const NONE = -2;

/** Pieces that all ranks have long left behind, also where their numbers wrapped since. */
const LONG_AGO = 2 ** 20;

interface StagedCallParts extends StepParts {
  readonly choice: MovementChoice;
  readonly direct: DirectReads | undefined;
  /** A call to begin with, which is never made. */
  readonly idle: CollectiveCall;
}

export class StagedCall implements Steps, Piece {
  readonly mover: Mover;
  readonly ranks: number;
  readonly me: number;
  call: CollectiveCall;
  elementBytes = 1;
  unitBytes = 0;
  offset = 0;
  bytes = 0;
  stride = 0;
  readonly words: Uint32Array;
  progress = 0;
  readonly slot: (rank: number) => number;
  readonly wordOf: (rank: number) => number;
  readonly #board: RankBoard;
  readonly #small: StagingRing;
  readonly #large: StagingRing;
  readonly #variable: VariableMovement;
  readonly #places: DataPlaces;
  /** Ranks of other hosts. */
  readonly #elsewhere: readonly number[];
  readonly #direct: DirectMovement | undefined;
  readonly #mirrors: Mirrors | undefined;
  readonly #choice: MovementChoice;
  readonly #range = { first: 0, bytes: 0 };
  /** Rings of the next piece, and of the present one. */
  #ring: StagingRing;
  #slots: StagingRing;
  #slotOffset = 0;
  #movement: Movement = alone;
  #step = STAGING;
  /** The step that begins with a post, once the mover has done what comes before it. */
  #next = NONE;
  /** Whether this rank's slot has what others read from that step on. */
  #hasWritten = false;
  /** Number of this rank's last post, over all calls. */
  #posted = 0;
  /** The next rank to look at in a wait for several. */
  #cursor = 0;
  #pieceBytes = 0;
  #isChecked = false;

  constructor(
    device: CpuDevice,
    { parts, board, regions, mirrors, choice, mover, places, direct, idle }: StagedCallParts,
  ) {
    this.mover = mover;
    this.ranks = board.ranks;
    this.me = board.me;
    this.call = idle;
    this.#board = board;
    this.#small = new StagingRing(regions.regions.small.offset, regions.small);
    this.#large = new StagingRing(regions.regions.large.offset, regions.large);
    this.#ring = this.#small;
    this.#slots = this.#small;
    this.#mirrors = mirrors;
    this.#choice = choice;
    const divide = (bytes: number): void => this.#divide(bytes);
    this.#variable = new VariableMovement(parts.ranks, divide);
    this.#direct = direct && new DirectMovement(direct, divide);
    this.#places = places;
    this.#elsewhere = parts.ranks.map((_, rank) => rank).filter((rank) => mirrors?.has(rank));
    this.words = new Uint32Array(device.memory.buffer);
    const { addresses } = parts;
    this.wordOf = (rank) => (addresses[rank]! + this.#slotOffset) / 4;
    this.slot = (rank) => places.addresses[rank]! + this.#slotOffset;
  }

  get name(): string {
    return this.call.kind;
  }

  /** Hot path. The call goes on by advance(). */
  begin(call: CollectiveCall): void {
    this.call = call;
    this.elementBytes = call.elementBytes;
    const unitBytes = call.count * call.elementBytes;
    this.#isChecked = false;
    this.#board.record(call);
    if (this.ranks === 1) this.#begin(alone, unitBytes);
    else if (call.kind === 'allToAllv') {
      this.#variable.begin();
      // The first piece holds counts.
      this.#begin(this.#variable, PART_ALIGNMENT);
    } else if (call.kind === 'allToAll' && this.#direct?.takes(unitBytes * this.ranks)) {
      this.#direct.begin();
      // The first piece holds addresses.
      this.#begin(this.#direct, PART_ALIGNMENT);
    } else this.#begin(this.#choice.of(call, unitBytes), unitBytes);
  }

  /** Hot path. */
  advance(): boolean {
    const { steps } = this.#movement;
    while (true) {
      if (this.#next !== NONE) {
        if (!this.mover.isSettled()) return false;
        this.#post();
      }
      if (this.#step === STAGING) {
        const stages = this.#movement.stages(this);
        if (stages) {
          if (!this.#isSlotFree()) return false;
          this.#movement.stage(this);
        }
        this.#prepare(0, stages);
        continue;
      }
      const step = steps[this.#step]!;
      if (!this.#haveCome(step.awaits(this))) return false;
      step.take(this);
      const next = this.#step + 1;
      if (next < steps.length) this.#prepare(next, true);
      else if (this.#endPiece()) return true;
    }
  }

  missing(): number[] {
    if (this.#next !== NONE) return [this.me];
    const awaited = this.#step === STAGING ? 'all' : this.#movement.steps[this.#step]!.awaits(this);
    const piece = this.#step === STAGING ? this.#slots.lastPiece + 1 : this.#posted;
    if (typeof awaited === 'object') {
      return awaited.ranks.filter((rank, at) => !this.#board.hasPosted(rank, (piece + awaited.ahead[at]!) | 0));
    }
    const missing: number[] = [];
    for (let rank = 0; rank < this.ranks; rank++) {
      const counts = awaited === 'all' || (awaited === 'root' && rank === this.call.root);
      if (counts && rank !== this.me && !this.#board.hasPosted(rank, piece)) missing.push(rank);
    }
    return missing;
  }

  #begin(movement: Movement, unitBytes: number): void {
    this.#movement = movement;
    this.#divide(unitBytes);
    this.#beginPiece(0);
  }

  /** Chooses the slots, and pieces of equal length that fit them. */
  #divide(unitBytes: number): void {
    this.unitBytes = unitBytes;
    const parts = this.#movement.hasParts ? this.ranks : 1;
    const slotBytes = alignUp(unitBytes, PART_ALIGNMENT) * parts;

    if (slotBytes * 4 <= this.#small.bytes) {
      this.#ring = this.#small;
      this.#pieceBytes = slotBytes / parts;
    } else {
      this.#ring = this.#large;
      const most = Math.floor(this.#large.bytes / parts / PART_ALIGNMENT) * PART_ALIGNMENT;
      this.#pieceBytes = alignUp(Math.ceil(unitBytes / Math.ceil(unitBytes / most)), PART_ALIGNMENT);
    }
    this.stride = this.#pieceBytes;
    this.offset = -this.#pieceBytes;
  }

  #beginPiece(offset: number): void {
    this.offset = offset;
    this.bytes = Math.min(this.#pieceBytes, this.unitBytes - offset);
    this.#slots = this.#ring;
    const parts = this.#movement.hasParts ? this.ranks : 1;
    this.#slotOffset = this.#slots.next(this.#pieceBytes * parts);
    this.#step = STAGING;
    this.#cursor = 0;
  }

  /** The next step begins with a post, which says that this rank has taken all that it needed so far. */
  #prepare(step: number, hasWritten: boolean): void {
    this.#hasWritten = hasWritten;
    if (hasWritten && !this.#places.areShared && this.#movement.movesNoData !== true) this.#copyOut(step);
    this.mover.mark();
    this.#next = step;
    this.progress += 1;
  }

  #post(): void {
    const step = this.#next;
    if (this.#hasWritten) this.#mirror(this.#movement.steps[step]!);
    this.#next = NONE;
    this.#posted = (this.#posted + 1) | 0;
    this.#board.post(this.#posted);
    this.#step = step;
    this.#cursor = 0;
    this.progress += 1;
  }

  /** True when it was the last one. */
  #endPiece(): boolean {
    this.#slots.used(this.#posted, this.#board.call);
    this.progress += 1;
    const next = this.offset + this.#pieceBytes;
    if (next >= this.unitBytes) return true;
    this.#beginPiece(next);
    return false;
  }

  /** Puts what the ranks of each other host read of this rank's slot there, each byte once. */
  #mirror(step: MovementStep): void {
    const mirrors = this.#mirrors;
    if (mirrors === undefined) return;
    for (const way of mirrors.ways) {
      this.#forRanges(step, way.ranks, (first, bytes) => mirrors.put(way, this.#slotOffset + first, bytes));
    }
  }

  /** The same before: into the memory of the host, where puts come from. */
  #copyOut(step: number): void {
    const [to, from] = [this.#places.outgoing + this.#slotOffset, this.slot(this.me)];
    this.#forRanges(this.#movement.steps[step]!, this.#elsewhere, (first, bytes) => {
      this.mover.copy(to + first, from + first, bytes);
    });
  }

  /** Ranges of this rank's slot that these ranks read; those that lie one behind the other are one. */
  #forRanges(step: MovementStep, ranks: readonly number[], tell: (first: number, bytes: number) => void): void {
    const range = this.#range;
    let [first, end] = [0, 0];
    for (const rank of ranks) {
      step.reads(this, rank, range);
      if (range.bytes === 0 || (range.first === first && range.first + range.bytes === end)) continue;
      if (range.first !== end) {
        if (end > first) tell(first, end - first);
        ({ first } = range);
      }
      end = range.first + range.bytes;
    }
    if (end > first) tell(first, end - first);
  }

  #isSlotFree(): boolean {
    const slots = this.#slots;
    if (slots.isFree) return true;
    const age = (this.#posted - slots.lastPiece) | 0;
    if (age >= 0 && age <= LONG_AGO) {
      if (!this.#allHavePosted((slots.lastPiece + 1) | 0)) return false;
      this.#board.checkCalls(slots.lastCall);
    }
    slots.isFree = true;
    return true;
  }

  #haveCome(awaited: Awaited): boolean {
    if (awaited === 'none') return true;
    const { call } = this.#board;
    if (awaited === 'root') {
      const { root } = this.call;
      if (!this.#board.hasPosted(root, this.#posted)) return false;
      if (!this.#isChecked) this.#board.checkCall(root, call);
    } else if (typeof awaited === 'object') {
      const { ranks, ahead } = awaited;
      for (; this.#cursor < ranks.length; this.#cursor++) {
        const at = this.#cursor;
        if (!this.#board.hasPosted(ranks[at]!, (this.#posted + ahead[at]!) | 0)) return false;
        this.#board.checkCall(ranks[at]!, call);
      }
      return true;
    } else {
      if (!this.#allHavePosted(this.#posted)) return false;
      if (!this.#isChecked) this.#board.checkCalls(call);
    }
    this.#isChecked = true;
    return true;
  }

  #allHavePosted(piece: number): boolean {
    for (; this.#cursor < this.ranks; this.#cursor++) {
      if (this.#cursor !== this.me && !this.#board.hasPosted(this.#cursor, piece)) return false;
    }
    return true;
  }
}
