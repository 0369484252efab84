// Messages of sparse all-reduces in the windows of hosts: a rank writes into its own part, ranks of its host read it there,
// those of other hosts in a mirror. Hot path.
import { wordOffsets } from '../../abi/layout.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { MemoryRange } from '../../device/tensor.ts';
import { layOutRegions, type RegionLayout } from '../../windows/region-layout.ts';
import { RankBells } from '../../windows/wait.ts';
import type { Mirrors, RankParts } from '../cpu/window-regions.ts';
import type { ReductionTree } from './reduction-tree.ts';
import {
  contribution,
  type MessageKind,
  partial,
  result,
  SLOT_COUNTER_BYTES,
  type SlotBoard,
  type SlotShape,
  sparseBoard,
  sparseMessageBytes,
} from './slot-shape.ts';

const word = wordOffsets(sparseBoard);

interface WindowBoardOptions {
  readonly parts: RankParts;
  readonly regions: SparseRegions;
  /** Mirrors of a group on several hosts. */
  readonly mirrors: Mirrors | undefined;
  readonly trees: readonly ReductionTree[];
}

/** Ranks of the group that a message is for. */
interface Audience {
  /** Others, wherever they are. */
  readonly ranks: readonly number[];
  /** One of them on each other host that has any. */
  readonly hostRanks: readonly number[];
}

export class WindowBoard implements SlotBoard {
  readonly memory: MemoryRange;
  readonly bells: RankBells;
  /** The begin of each rank's board in `words`, all of the memory. */
  readonly boards: Int32Array;
  readonly words: Int32Array;
  readonly #parts: RankParts;
  readonly #mirrors: Mirrors | undefined;
  /** Audiences by tree, then by kind. */
  readonly #audiences: readonly (readonly Audience[])[];
  readonly #messageBytes: number;
  /** Offsets in a part, by kind. */
  readonly #counts: readonly number[];
  readonly #messages: readonly number[];
  readonly #left: number;

  constructor(device: CpuDevice, { parts, regions: layout, mirrors, trees }: WindowBoardOptions) {
    const { regions, messageBytes } = layout;
    this.memory = parts.storage;
    this.#parts = parts;
    this.#mirrors = mirrors;
    this.#messageBytes = messageBytes;
    const { contributionCounts, resultCounts, partialCounts, contributions, results, partials } = regions;
    this.#counts = [contributionCounts.offset, resultCounts.offset, partialCounts.offset];
    this.#messages = [contributions.offset, results.offset, partials.offset];
    this.#left = regions.board.offset + sparseBoard.offset.left;
    const { address, bytes } = parts.storage;
    this.words = device.hostView('i32', address, bytes / 4);
    const boards = Int32Array.from(parts.addresses, (part) => this.#indexOf(part + regions.board.offset));
    this.boards = boards;
    this.bells = new RankBells({
      words: this.words,
      bells: boards.map((board) => board + word.bell),
      sleepers: boards.map((board) => board + word.sleepers),
      me: parts.index,
    });
    const ways = mirrors?.ways ?? [];
    const audience = (ranks: readonly (number | undefined)[]): Audience => {
      const others = ranks.filter((rank): rank is number => rank !== undefined && rank !== parts.index);
      return {
        ranks: others,
        hostRanks: ways.flatMap((way) => others.filter((rank) => way.ranks.includes(rank)).slice(0, 1)),
      };
    };
    this.#audiences = trees.map(({ parentOf, nodeOf }) => {
      const node = nodeOf.get(parts.index);
      const audiences: Audience[] = [];
      audiences[contribution] = audience([parentOf.get(parts.index)]);
      audiences[result] = audience(node?.children.map(({ rank }) => rank) ?? []);
      audiences[partial] = audience([node?.parent]);
      return audiences;
    });
  }

  address(kind: MessageKind, rank: number, slot: number, number: number): number {
    return this.#parts.addresses[rank]! + this.#offset(kind, slot, number);
  }

  latest(kind: MessageKind, rank: number, slot: number): number {
    const at = this.#parts.addresses[rank]! + this.#counts[kind]! + slot * SLOT_COUNTER_BYTES;
    return Atomics.load(this.words, this.#indexOf(at));
  }

  post(kind: MessageKind, slot: number, number: number, bytes: number): void {
    const count = this.#counts[kind]! + slot * SLOT_COUNTER_BYTES;
    // ORDER: sequentially consistent, as are the stores of sleepers, so that a rank about to sleep sees this or is seen.
    Atomics.store(this.words, this.#indexOf(this.#parts.addresses[this.#parts.index]! + count), number);
    const offset = this.#offset(kind, slot, number);
    const { ranks, hostRanks } = this.#audiences[slot % this.#audiences.length]![kind]!;
    for (const rank of hostRanks) {
      this.#mirrors?.putTo(rank, offset, bytes);
      this.#mirrors?.countAt(rank, count);
    }
    for (const rank of ranks) this.bells.ring(rank);
  }

  /** This worker makes no further call. */
  leave(): void {
    Atomics.store(this.words, this.#indexOf(this.#parts.addresses[this.#parts.index]! + this.#left), 1);
    this.#mirrors?.countAtAll(this.#left);
    this.bells.ringAll();
  }

  hasLeft(worker: number): boolean {
    return Atomics.load(this.words, this.#indexOf(this.#parts.addresses[worker]! + this.#left)) !== 0;
  }

  #offset(kind: MessageKind, slot: number, number: number): number {
    return this.#messages[kind]! + (slot * 2 + (number & 1)) * this.#messageBytes;
  }

  #indexOf(address: number): number {
    return (address - this.memory.address) / 4;
  }
}

// What the window of a sparse all-reduce holds at each rank: its board, and counters and messages of both kinds.

type SparseRegion =
  | 'board'
  | 'contributionCounts'
  | 'resultCounts'
  | 'partialCounts'
  | 'contributions'
  | 'results'
  | 'partials';

export interface SparseRegions extends RegionLayout<SparseRegion> {
  /** Room of one message, of which each slot has two. */
  readonly messageBytes: number;
}

/** Bytes of the longest elements. */
export const MAX_ELEMENT_BYTES = 4;

/** Kinds of messages that one rank may have to write. */
interface SparseUse {
  /** A worker aggregates as well. */
  readonly hasBothRoles: boolean;
  /** Aggregators send to aggregators. */
  readonly isTree: boolean;
}

/** Pure. The same for all ranks; kinds of messages that no rank writes both lie in the same memory. */
export function sparseRegions(
  { blockSize, lanes, slots }: SlotShape,
  { hasBothRoles, isTree }: SparseUse,
): SparseRegions {
  const messageBytes = sparseMessageBytes(lanes, blockSize * MAX_ELEMENT_BYTES);
  const messages = slots * 2 * messageBytes;
  const layout = layOutRegions<SparseRegion>({
    board: sparseBoard.size,
    contributionCounts: slots * SLOT_COUNTER_BYTES,
    resultCounts: slots * SLOT_COUNTER_BYTES,
    partialCounts: slots * SLOT_COUNTER_BYTES,
    contributions: messages,
    results: hasBothRoles || isTree ? messages : 'contributions',
    partials: hasBothRoles && isTree ? messages : 'contributions',
  });
  return { ...layout, messageBytes };
}
