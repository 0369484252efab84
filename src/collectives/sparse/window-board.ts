// Messages of sparse all-reduces in the windows of hosts: a rank writes into its own part, ranks of its host read it there,
// those of other hosts in a mirror. Hot path.
import { wordOffsets } from '../../abi/layout.ts';
import { SLOT_COUNTER_BYTES, sparseBoard } from '../../abi/sparse-message.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { MemoryRange } from '../../device/host-access.ts';
import { RankBells } from '../../windows/rank-bells.ts';
import type { Mirrors } from '../cpu/mirrors.ts';
import type { RankParts } from '../cpu/rank-parts.ts';
import { contribution, type MessageKind, type SlotBoard } from './slot-board.ts';
import type { SparseRegions } from './sparse-regions.ts';

const word = wordOffsets(sparseBoard);

export interface WindowBoardOptions {
  readonly parts: RankParts;
  readonly regions: SparseRegions;
  /** Of a group on several hosts. */
  readonly mirrors: Mirrors | undefined;
  /** Ranks of the group. */
  readonly workers: readonly number[];
  readonly aggregators: readonly number[];
}

export class WindowBoard implements SlotBoard {
  readonly memory: MemoryRange;
  readonly bells: RankBells;
  readonly #words: Int32Array;
  readonly #parts: RankParts;
  readonly #mirrors: Mirrors | undefined;
  readonly #workers: readonly number[];
  readonly #aggregators: readonly number[];
  /** A worker of each other host that has any. */
  readonly #hostWorkers: readonly number[];
  readonly #messageBytes: number;
  /** Offsets in a part, by kind. */
  readonly #counts: readonly number[];
  readonly #messages: readonly number[];
  readonly #left: number;

  constructor(device: CpuDevice, { parts, regions: layout, mirrors, workers, aggregators }: WindowBoardOptions) {
    const { regions, messageBytes } = layout;
    this.memory = parts.storage;
    this.#parts = parts;
    this.#mirrors = mirrors;
    this.#workers = workers;
    this.#aggregators = aggregators;
    this.#messageBytes = messageBytes;
    this.#counts = [regions.contributionCounts.offset, regions.resultCounts.offset];
    this.#messages = [regions.contributions.offset, regions.results.offset];
    this.#left = regions.board.offset + sparseBoard.offset.left;
    const { address, bytes } = parts.storage;
    this.#words = device.hostView('i32', address, bytes / 4);
    const boards = Int32Array.from(parts.addresses, (part) => this.#indexOf(part + regions.board.offset));
    this.bells = new RankBells({
      words: this.#words,
      bells: boards.map((board) => board + word.bell),
      sleepers: boards.map((board) => board + word.sleepers),
      me: parts.index,
    });
    const ways = mirrors?.ways ?? [];
    this.#hostWorkers = ways.flatMap(({ ranks }) => workers.filter((worker) => ranks.includes(worker)).slice(0, 1));
  }

  address(kind: MessageKind, rank: number, slot: number, number: number): number {
    return this.#parts.addresses[rank]! + this.#offset(kind, slot, number);
  }

  latest(kind: MessageKind, rank: number, slot: number): number {
    const at = this.#parts.addresses[rank]! + this.#counts[kind]! + slot * SLOT_COUNTER_BYTES;
    return Atomics.load(this.#words, this.#indexOf(at));
  }

  post(kind: MessageKind, slot: number, number: number, bytes: number): void {
    const count = this.#counts[kind]! + slot * SLOT_COUNTER_BYTES;
    // ORDER: sequentially consistent, as are the stores of sleepers, so that a rank about to sleep sees this or is seen.
    Atomics.store(this.#words, this.#indexOf(this.#parts.addresses[this.#parts.index]! + count), number);
    const offset = this.#offset(kind, slot, number);
    if (kind === contribution) {
      const aggregator = this.#aggregators[slot % this.#aggregators.length]!;
      this.#tell(aggregator, offset, bytes, count);
      this.bells.ring(aggregator);
      return;
    }
    for (const worker of this.#hostWorkers) this.#tell(worker, offset, bytes, count);
    for (const worker of this.#workers) if (worker !== this.#parts.index) this.bells.ring(worker);
  }

  /** This worker makes no further call. */
  leave(): void {
    Atomics.store(this.#words, this.#indexOf(this.#parts.addresses[this.#parts.index]! + this.#left), 1);
    this.#mirrors?.countAtAll(this.#left);
    this.bells.ringAll();
  }

  hasLeft(worker: number): boolean {
    return Atomics.load(this.#words, this.#indexOf(this.#parts.addresses[worker]! + this.#left)) !== 0;
  }

  /** Nothing if the rank is on this host. */
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
