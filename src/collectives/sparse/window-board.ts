// Messages of sparse all-reduces in the windows of hosts: a rank writes into its own part, ranks of its host read it there,
// those of other hosts in a mirror. Hot path.
import { wordOffsets } from '../../abi/layout.ts';
import { SLOT_COUNTER_BYTES, sparseBoard } from './message-view.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { MemoryRange } from '../../device/tensor.ts';
import { RankBells } from '../../windows/wait.ts';
import type { Mirrors } from '../cpu/mirrors.ts';
import type { RankParts } from '../cpu/rank-parts.ts';
import type { ReductionTree } from './reduction-tree.ts';
import { contribution, type MessageKind, partial, result, type SlotBoard } from './slot-board.ts';
import type { SparseRegions } from './sparse-regions.ts';

const word = wordOffsets(sparseBoard);

interface WindowBoardOptions {
  readonly parts: RankParts;
  readonly regions: SparseRegions;
  /** Of a group on several hosts. */
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
  /** By rank: where its board begins in `words`, all of the memory. */
  readonly boards: Int32Array;
  readonly words: Int32Array;
  readonly #parts: RankParts;
  readonly #mirrors: Mirrors | undefined;
  /** By tree, then by kind. */
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
    for (const rank of hostRanks) this.#tell(rank, offset, bytes, count);
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

  #tell(rank: number, offset: number, bytes: number, count: number): void {
    this.#mirrors?.putTo(rank, offset, bytes);
    this.#mirrors?.countAt(rank, count);
  }

  #offset(kind: MessageKind, slot: number, number: number): number {
    return this.#messages[kind]! + (slot * 2 + (number & 1)) * this.#messageBytes;
  }

  #indexOf(address: number): number {
    return (address - this.memory.address) / 4;
  }
}
