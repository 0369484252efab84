// One collective call over the slots of the window: pieces that are staged, posted, taken, and freed by the next posts.
import { alignUp } from '../../abi/layout.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { CollectiveCall } from '../collective-call.ts';
import type { DataPlaces } from './data-places.ts';
import type { Mirrors } from './mirrors.ts';
import type { MovementChoice } from './movement-choice.ts';
import { alone, type Awaited, type Movement, type MovementStep, PART_ALIGNMENT, type Piece } from './movements.ts';
import type { Mover } from './mover.ts';
import type { RankBoard } from './rank-board.ts';
import type { RankParts } from './rank-parts.ts';
import type { Steps } from '../../collective/steps.ts';
import { DirectMovement, type DirectReads } from './direct-movement.ts';
import { StagingRing } from './staging-ring.ts';
import { VariableMovement } from './variable-movement.ts';
import type { CollectiveRegions } from './window-regions.ts';

/** Number of the step that a piece is in, or before its first post. */
const STAGING = -1;
/** Nothing waits to be posted. */
const NONE = -2;

/** Pieces that all ranks have long left behind, also where their numbers wrapped since. */
const LONG_AGO = 2 ** 20;

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
  /** For the next piece, and of the present one. */
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
    {
      parts,
      board,
      regions,
      mirrors,
      choice,
      mover,
      places,
      direct,
      idle,
    }: {
      readonly parts: RankParts;
      readonly board: RankBoard;
      readonly regions: CollectiveRegions;
      /** Of a group on several hosts. */
      readonly mirrors: Mirrors | undefined;
      readonly choice: MovementChoice;
      /** Owned by whoever made it. */
      readonly mover: Mover;
      readonly places: DataPlaces;
      readonly direct: DirectReads | undefined;
      /** A call to begin with, which is never made. */
      readonly idle: CollectiveCall;
    },
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
    const awaited = this.#awaited();
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

  #awaited(): Awaited {
    return this.#step === STAGING ? 'all' : this.#movement.steps[this.#step]!.awaits(this);
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
    if (hasWritten && !this.#places.areShared && this.#movement.isSaid !== true) this.#copyOut(step);
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
    if (age < 0 || age > LONG_AGO) {
      slots.setFree();
      return true;
    }
    if (!this.#allHavePosted((slots.lastPiece + 1) | 0)) return false;
    this.#board.checkCalls(slots.lastCall);
    slots.setFree();
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
