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
import type { SymmetricWindow } from '../../../windows/symmetric-window.ts';
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

export class LowLatencyMembers {
  readonly #words: Int32Array;
  readonly #window: SymmetricWindow;
  readonly #cells: LowLatencyCells;
  /** Place of each rank's word. */
  readonly #places: Int32Array;
  readonly #epoch: number;
  readonly #founder: number;
  readonly #me: number;
  /** The last dispatch for which each rank was seen active. */
  readonly #seen: Int32Array;
  readonly #hasMarks: boolean;

  constructor(
    device: CpuDevice,
    window: SymmetricWindow,
    { regions, hasMarks = false }: MemberRegions,
    cells: LowLatencyCells,
  ) {
    this.#hasMarks = hasMarks;
    const { storage, addresses, index } = window;
    const places = addresses.map((address) => (address - storage.address + regions.member.offset) / 4);
    this.#words = device.hostView('i32', storage.address, storage.bytes / 4);
    this.#window = window;
    this.#cells = cells;
    this.#places = Int32Array.from(places);
    this.#epoch = places[0]! + memberWord.epoch;
    this.#founder = places[0]! + memberWord.founder;
    this.#me = index;
    this.#seen = new Int32Array(places.length).fill(-NEVER);
    // New files are zero; memory of one rank alone may have been used before.
    if (places.length === 1) Atomics.store(this.#words, places[0]! + memberWord.word, 0);
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
      if (state === states.leaving) this.#change(rank, word, states.absent);
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
    const rank = this.#window.ranks[this.#me];
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
      if (!this.#change(rank, word, states.absent)) continue;
      this.#tellMasked(rank);
      return;
    }
  }

  /** Says that this rank, which is not active, has mapped the window. */
  offer(): void {
    this.mask(this.#me);
    this.#change(this.#me, this.#load(this.#me), states.connected);
  }

  /**
   * This rank is connected, and of all that are active none lives: it becomes active by itself, from a dispatch on that is
   * later than any that was begun, and can connect the others. Returns the number of that dispatch, or undefined if an
   * active rank is there, or if another rank is looking.
   */
  found(): number | undefined {
    const mark = this.#me + 1;
    const holder = Atomics.load(this.#words, this.#founder);
    // A mark of this rank is that of its process before, which died here.
    if (holder !== 0 && holder !== mark && this.#window.isAlive(holder - 1)) return undefined;
    if (Atomics.compareExchange(this.#words, this.#founder, holder, mark) !== holder) return undefined;
    try {
      for (let rank = 0; rank < this.size; rank++) {
        const state = this.#load(rank) & STATE_MASK;
        if (state !== states.active && state !== states.leaving) continue;
        // One that has left stays "leaving" for long.
        const takesPart = state === states.active || this.isActive(rank, this.#cells.dispatchOf(rank) + 1);
        if (takesPart && this.#window.isAlive(rank)) return undefined;
        this.mask(rank);
      }
      const first = this.#unmarked(this.#me, this.#cells.lastDispatch + LOW_LATENCY_NOTICE);
      const word = this.#load(this.#me);
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
    this.#change(rank, word, states.active, this.#unmarked(rank, next + LOW_LATENCY_NOTICE));
  }

  /** An active rank leaves after the notice; now, if it is connected, or active only from a later dispatch than `next`. */
  deactivate(rank: number, next: number): void {
    const word = this.#load(rank);
    const state = word & STATE_MASK;
    if (state !== states.active && state !== states.connected) return;
    // "Leaving" says nothing of where a rank begins: the others would wait for it at once.
    if (this.isStaying(rank, next)) this.#change(rank, word, states.leaving, next + LOW_LATENCY_NOTICE);
    else this.#change(rank, word, states.absent);
  }

  #load(rank: number): number {
    const at = this.#places[rank]! + memberWord.word;
    const word = Atomics.load(this.#words, at);
    if (!this.#hasMarks || !isMarkable(word) || !this.#isMarked(rank, word)) return word;
    // A kernel has masked it; the word says so from now on.
    if (this.#change(rank, word, states.absent)) this.#tellMasked(rank);
    return Atomics.load(this.#words, at);
  }

  #isMarked(rank: number, word: number): boolean {
    const mark = memberWord.marks + rank;
    return this.#places.some((place) => Atomics.load(this.#words, place + mark) === (word ^ 1));
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
    log('world', 'warn', `rank ${this.#window.ranks[rank]} is masked`);
  }

  #swap(rank: number, from: number, to: number): boolean {
    return Atomics.compareExchange(this.#words, this.#places[rank]! + memberWord.word, from, to) === from;
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

function isMarkable(word: number): boolean {
  const state = word & STATE_MASK;
  return state === states.active || state === states.leaving;
}

function encode(state: number, dispatch: number): number {
  return (dispatch << STATE_BITS) | state;
}
