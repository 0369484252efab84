// The ranks of an elastic EpLowLatency that take part, told by one word per rank in the shared window. Mostly hot path.
import { wordOffsets } from '../../../abi/layout.ts';
import {
  LOW_LATENCY_RESULTS,
  LOW_LATENCY_STATE_BITS,
  lowLatencyMember,
  lowLatencyStates as states,
} from '../../../abi/low-latency.ts';
import { WeftlineError } from '../../../core/errors.ts';
import { log } from '../../../core/log.ts';
import type { CpuDevice } from '../../../device/cpu/cpu-device.ts';
import type { WindowRegion } from '../../../windows/region-layout.ts';
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
import type { Topology } from '../../../world/rank-group.ts';
import { LOW_LATENCY_NOTICE } from '../low-latency-results.ts';
import type { LowLatencyCells, MemberRegions } from './low-latency-cells.ts';

const memberWord = wordOffsets(lowLatencyMember);
const STATE_BITS = LOW_LATENCY_STATE_BITS;
const STATE_MASK = (1 << STATE_BITS) - 1;
/** Numbers in words have 30 bits and are compared by signed difference: they must not become too old. */
const REFRESH_MASK = (1 << 20) - 1;
/** Age at which they are old; then they are made half of that. Kernels may be that far behind the calls of their host. */
const OLD = 1 << 19;
/** Age of a rank that was never seen active. */
const NEVER = 1 << 30;
/** In memory that a host has just made: nothing was heard of the rank. It is older than any other word. */
const UNKNOWN = encode(states.absent, -1);
/** Rank by state of two words of the same number, the later one higher: a rank is active, leaves, is gone, is connected again. */
const RANK_OF_STATE = [0, 2, 3, 1] as const;

/** What a host knows of ranks of others. */
export interface FarMembers {
  readonly topology: Topology;
  /** The group's ranks by their numbers in the world. */
  readonly ranks: readonly number[];
  /** The region of their words, in the part of the host's first rank. */
  readonly region: WindowRegion;
  /** Whether that rank can be reached, as far as can be seen at once. */
  isAlive(rank: number): boolean;
}

export class LowLatencyMembers {
  readonly #words: Int32Array;
  readonly #window: SymmetricWindow;
  readonly #cells: LowLatencyCells;
  readonly #worldRanks: readonly number[];
  /** Place of each rank's word. */
  readonly #places: Int32Array;
  /** The begin of the part of each rank of this host. */
  readonly #parts: Int32Array;
  readonly #far: FarMembers | undefined;
  readonly #epoch: number;
  readonly #founder: number;
  readonly #me: number;
  /** The last dispatch for which each rank was seen active. */
  readonly #seen: Int32Array;
  readonly #hasMarks: boolean;

  constructor(
    device: CpuDevice,
    window: SymmetricWindow,
    { regions, hasMarks = false, far }: MemberRegions & { readonly far?: FarMembers | undefined },
    cells: LowLatencyCells,
  ) {
    this.#hasMarks = hasMarks;
    const { storage, addresses, index } = window;
    const parts = addresses.map((address) => (address - storage.address + regions.member.offset) / 4);
    this.#words = device.hostView('i32', storage.address, storage.bytes / 4);
    this.#window = window;
    this.#cells = cells;
    this.#far = far;
    this.#worldRanks = far?.ranks ?? window.ranks;
    this.#parts = Int32Array.from(parts);
    this.#places = this.#parts.map((part) => part + memberWord.word);
    this.#me = index;
    if (far !== undefined) {
      const { hosts, hostIndex, scaleUpRanks } = far.topology;
      const table = (addresses[0]! - storage.address + far.region.offset) / 4;
      this.#places = Int32Array.from(hosts.flat(), (_, rank) =>
        far.topology.hostOf(rank) === hostIndex
          ? parts[far.topology.scaleUpIndexOf(rank)]! + memberWord.word
          : table + rank,
      );
      this.#me = scaleUpRanks[index]!;
    }
    this.#epoch = parts[0]! + memberWord.epoch;
    this.#founder = parts[0]! + memberWord.founder;
    this.#seen = new Int32Array(this.#places.length).fill(-NEVER);
    // New files are zero; memory of one rank alone may have been used before.
    if (this.#places.length === 1) Atomics.store(this.#words, this.#places[0]!, 0);
  }

  /** The memory of this host is new, and the group goes on elsewhere: nothing is known of any rank. */
  forgetAll(): void {
    for (const place of this.#places) Atomics.store(this.#words, place, UNKNOWN);
  }

  /** The word of a rank, for other hosts. */
  wordOf(rank: number): number {
    return this.#load(rank);
  }

  /** Another host says that word of a rank: the later one of both holds. Conflicting words thus end alike on all hosts. */
  hear(rank: number, told: number): void {
    for (;;) {
      const own = this.#load(rank);
      if (!isLater(told, own)) return;
      if (!this.#swap(rank, own, told)) continue;
      Atomics.add(this.#words, this.#epoch, 1);
      this.#cells.bells.ringAll();
      if ((told & STATE_MASK) === states.absent && isMarkable(own)) this.#tellMasked(rank);
      return;
    }
  }

  /** False when the rank has ended, or cannot be reached. */
  isAlive(rank: number): boolean {
    const far = this.#far;
    if (far === undefined) return this.#window.isAlive(rank);
    const { topology } = far;
    if (topology.hostOf(rank) !== topology.hostIndex) return far.isAlive(rank);
    return this.#window.isAlive(topology.scaleUpIndexOf(rank));
  }

  /** Active, from whichever dispatch on. */
  isAdmitted(rank: number): boolean {
    return (this.#load(rank) & STATE_MASK) === states.active;
  }

  /** Whether ranks of this host may decide who joins: of all hosts only that of the lowest rank that stays may. */
  mayDecide(dispatch: number): boolean {
    if (this.#far === undefined) return true;
    const { topology } = this.#far;
    for (let rank = 0; rank < this.size; rank++)
      if (this.isStaying(rank, dispatch)) return topology.hostOf(rank) === topology.hostIndex;
    return false;
  }

  get size(): number {
    return this.#places.length;
  }

  /** Changes with every change of a word. */
  get epoch(): number {
    return Atomics.load(this.#words, this.#epoch);
  }

  /** Hot path. Whether the rank takes part in the dispatch with that number. */
  isActive(rank: number, dispatch: number): boolean {
    const isActive = isActiveIn(this.#load(rank), dispatch);
    if (isActive) this.#seen[rank] = dispatch;
    return isActive;
  }

  /** Hot path. Whether words that the rank wrote of that dispatch can be of it: it is active, or was just before. */
  mayRead(rank: number, dispatch: number): boolean {
    if (this.isActive(rank, dispatch)) return true;
    const age = (dispatch - this.#seen[rank]!) | 0;
    if (age >= 0 && age <= LOW_LATENCY_RESULTS) return true;
    // Never so old that the difference wraps. Calls that hooks end may be a few dispatches before the one that was looked at.
    if (age > 0 || age < -OLD) this.#seen[rank] = dispatch - NEVER;
    return false;
  }

  /** Whether the rank is active and nobody has disconnected it. */
  isStaying(rank: number, dispatch: number): boolean {
    return (this.#load(rank) & STATE_MASK) === states.active && this.isActive(rank, dispatch);
  }

  /** Now, or from a dispatch on that is yet to come, or until one. */
  isKnown(rank: number): boolean {
    return isMarkable(this.#load(rank));
  }

  isConnected(rank: number): boolean {
    return (this.#load(rank) & STATE_MASK) === states.connected;
  }

  /** Hot path. To be called at the begin of each dispatch: words that will be too old are written anew. */
  refresh(dispatch: number): void {
    if ((dispatch & REFRESH_MASK) !== 0) return;
    for (let rank = 0; rank < this.size; rank++) {
      const word = this.#load(rank);
      const state = word & STATE_MASK;
      // The sign tells what is still to come.
      if (((dispatch - (word >>> STATE_BITS)) << STATE_BITS) >> STATE_BITS < OLD) continue;
      if (word === UNKNOWN) continue;
      if (state === states.leaving) this.#change(rank, word, states.absent, dispatch - OLD / 2);
      if (state === states.absent) this.#swap(rank, word, encode(states.absent, dispatch - OLD / 2));
      if (state === states.active && rank === this.#me) {
        this.#swap(rank, word, encode(states.active, dispatch - OLD / 2));
      }
    }
  }

  /** Fails with WL_INACTIVE unless this rank takes part in that dispatch. */
  requireActive(dispatch: number): void {
    const failure = this.inactive(dispatch);
    if (failure !== undefined) throw failure;
  }

  inactive(dispatch: number): WeftlineError | undefined {
    if (this.isActive(this.#me, dispatch)) return undefined;
    const rank = this.#window.ranks[this.#window.index];
    return new WeftlineError(
      'WL_INACTIVE',
      `Rank ${rank} is not active in dispatch ${dispatch}: it was masked, because it was late or stopped, or disconnected. Connect it again: connectRanks([${this.#me}]) here, and with the same list on an active rank`,
      { details: { rank, dispatch } },
    );
  }

  /** The rank is gone or late: nobody waits for it any more. */
  mask(rank: number): void {
    for (;;) {
      const word = this.#load(rank);
      if ((word & STATE_MASK) === states.absent) return;
      if (!this.#change(rank, word, states.absent, word >>> STATE_BITS)) continue;
      this.#tellMasked(rank);
      return;
    }
  }

  /** Says that this rank, which is not active, has mapped the window. */
  offer(): void {
    this.mask(this.#me);
    const word = this.#load(this.#me);
    this.#change(this.#me, word, states.connected, word >>> STATE_BITS);
  }

  /**
   * This rank is connected, and of all that are active none lives: it becomes active by itself, from a dispatch on that is
   * later than any that was begun, and can connect the others. Returns the number of that dispatch, or undefined if an
   * active rank is there, or if another rank is looking. `last`: the last dispatch of any rank.
   */
  found(last = this.#cells.lastDispatch): number | undefined {
    const mark = this.#me + 1;
    const holder = Atomics.load(this.#words, this.#founder);
    // A mark of this rank is that of its process before, which died here.
    if (holder !== 0 && holder !== mark && this.isAlive(holder - 1)) return undefined;
    if (Atomics.compareExchange(this.#words, this.#founder, holder, mark) !== holder) return undefined;
    try {
      const gone: number[] = [];
      for (let rank = 0; rank < this.size; rank++) {
        const state = this.#load(rank) & STATE_MASK;
        // A lock holds for one host; of ranks on several the lowest one that waits begins.
        const isFirst = this.#far !== undefined && rank < this.#me && state === states.connected;
        // One that has left stays "leaving" for long.
        const takesPart =
          state === states.active ||
          (state === states.leaving && this.isActive(rank, this.#cells.dispatchOf(rank) + 1));
        if ((isFirst || takesPart) && this.isAlive(rank)) return undefined;
        if (isMarkable(this.#load(rank))) gone.push(rank);
      }
      // ORDER: only now. A rank that this one cannot reach may work with one that it can.
      for (const rank of gone) this.mask(rank);
      const word = this.#load(this.#me);
      const first = this.#firstFrom(this.#me, word, last);
      if ((word & STATE_MASK) !== states.connected) return undefined;
      return this.#change(this.#me, word, states.active, first) ? first : undefined;
    } finally {
      Atomics.store(this.#words, this.#founder, 0);
    }
  }

  /** The dispatch from which this rank is active; undefined while it is not. */
  activeFrom(): number | undefined {
    const word = this.#load(this.#me);
    return (word & STATE_MASK) === states.active ? word >>> STATE_BITS : undefined;
  }

  /**
   * A connected rank joins after the notice. `next`: the number of this active rank's next dispatch.
   * ORDER: every other rank begins its dispatch `next + LOW_LATENCY_RESULTS` only after it has received what this rank
   * publishes later than this, so all hear of it before the notice is over.
   */
  activate(rank: number, next: number): void {
    const word = this.#load(rank);
    if ((word & STATE_MASK) !== states.connected) return;
    this.#change(rank, word, states.active, this.#firstFrom(rank, word, next));
  }

  /** An active rank leaves after the notice; now, if it is connected, or active only from a later dispatch than `next`. */
  deactivate(rank: number, next: number): void {
    const word = this.#load(rank);
    const state = word & STATE_MASK;
    if (state !== states.active && state !== states.connected) return;
    // "Leaving" says nothing of where a rank begins: the others would wait for it at once.
    if (this.isStaying(rank, next)) this.#change(rank, word, states.leaving, next + LOW_LATENCY_NOTICE);
    else this.#change(rank, word, states.absent, word >>> STATE_BITS);
  }

  #load(rank: number): number {
    const at = this.#places[rank]!;
    const word = Atomics.load(this.#words, at);
    if (!this.#hasMarks || !isMarkable(word) || !this.#isMarked(rank, word)) return word;
    // A kernel has masked it; the word says so from now on.
    if (this.#change(rank, word, states.absent, word >>> STATE_BITS)) this.#tellMasked(rank);
    return Atomics.load(this.#words, at);
  }

  #isMarked(rank: number, word: number): boolean {
    const mark = memberWord.marks + rank;
    return this.#parts.some((part) => Atomics.load(this.#words, part + mark) === (word ^ 1));
  }

  /** The dispatch from which a connected rank is active. Words of a rank never go back, or another host would not take this one. */
  #firstFrom(rank: number, word: number, next: number): number {
    const first = next + LOW_LATENCY_NOTICE;
    const behind = (((word >>> STATE_BITS) + 1 - first) << STATE_BITS) >> STATE_BITS;
    return this.#unmarked(rank, this.#far === undefined || word === UNKNOWN || behind <= 0 ? first : first + behind);
  }

  /**
   * The first dispatch from that one on from which the rank can be active. Marks stay for the words that they were made for: a
   * word of which a kernel masked the rank before its time came would mask it again.
   */
  #unmarked(rank: number, dispatch: number): number {
    let first = dispatch;
    while (this.#hasMarks && this.#isMarked(rank, encode(states.active, first))) first += 1;
    return first;
  }

  #tellMasked(rank: number): void {
    log('world', 'warn', `rank ${this.#worldRanks[rank]} is masked`);
  }

  #swap(rank: number, from: number, to: number): boolean {
    return Atomics.compareExchange(this.#words, this.#places[rank]!, from, to) === from;
  }

  /** True if the word was as given; the others hear of it. */
  #change(rank: number, from: number, state: number, dispatch = 0): boolean {
    if (!this.#swap(rank, from, encode(state, dispatch))) return false;
    Atomics.add(this.#words, this.#epoch, 1);
    this.#cells.bells.ringAll();
    return true;
  }
}

/** Kernels go by the same rule (members.cuh). */
function isActiveIn(word: number, dispatch: number): boolean {
  const state = word & STATE_MASK;
  // The sign of the difference of 30 bits.
  const isFrom = (dispatch - (word >>> STATE_BITS)) << STATE_BITS >= 0;
  return state === states.active ? isFrom : state === states.leaving && !isFrom;
}

/** Whether one word of a rank is of a later time than another. */
function isLater(word: number, than: number): boolean {
  if (word === than || word === UNKNOWN) return false;
  if (than === UNKNOWN) return true;
  const by = ((word >>> STATE_BITS) - (than >>> STATE_BITS)) << STATE_BITS;
  return by === 0 ? RANK_OF_STATE[word & STATE_MASK]! > RANK_OF_STATE[than & STATE_MASK]! : by > 0;
}

function isMarkable(word: number): boolean {
  const state = word & STATE_MASK;
  return state === states.active || state === states.leaving;
}

function encode(state: number, dispatch: number): number {
  return (dispatch << STATE_BITS) | state;
}
