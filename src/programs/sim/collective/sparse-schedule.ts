// A sparse all-reduce as SparseAllReduce makes it: which blocks workers have is random, messages and rounds are the real ones.
import { sparseBlocksOffset } from '../../../abi/sparse-message.ts';
import { reductionTrees, topLevel, type TreeNode, treeOf } from '../../../collectives/sparse/reduction-tree.ts';
import { contribution } from '../../../collectives/sparse/slot-board.ts';
import { lanesInUse, type SlotShape, slotsInUse, strideOf } from '../../../collectives/sparse/slot-shape.ts';
import { type CollectiveSchedule, requireParts, type SendMessage } from './collective-schedule.ts';

interface SparseShape {
  /** Hosts 0 to workers - 1 are workers, those behind them aggregators. */
  readonly workers: number;
  readonly aggregators: number;
  readonly fanIn: number;
  readonly slots: SlotShape;
  readonly blocks: number;
  readonly blockBytes: number;
  /** Share of its blocks that a worker has. */
  readonly density: number;
  readonly random: () => number;
}

/** One round of a slot: the blocks of its lanes that anybody has, or in the first round of all lanes. */
interface Round {
  /** Lanes that were not over before it. */
  readonly active: number;
  readonly blocks: readonly number[];
  /** Blocks of them that anybody has. */
  readonly sums: number;
}

interface SparseBytes {
  /** Of all workers: blocks alone, as theory counts them. */
  readonly ownBlocks: number;
  readonly sumBlocks: number;
}

export class SparseSchedule implements CollectiveSchedule {
  readonly name: string;
  readonly hosts: number;
  readonly messages: number;
  readonly steps: CollectiveSchedule['steps'];
  readonly usesConnectionsOnce = false;
  readonly blocksMoved: SparseBytes;
  readonly #shape: SparseShape;
  readonly #trees: ReturnType<typeof reductionTrees>;
  /** By worker and block: 1 if it has it. */
  readonly #has: Uint8Array;
  /** By slot. */
  readonly #rounds: readonly (readonly Round[])[];
  /** By slot and host: messages from below that have come in its round. */
  readonly #come: Uint32Array;

  constructor(shape: SparseShape) {
    const { workers, aggregators, fanIn, slots, blocks, blockBytes, density, random } = shape;
    this.#shape = shape;
    this.hosts = workers + aggregators;
    this.#trees = reductionTrees({
      workers: hostsOf(0, workers),
      aggregators: hostsOf(workers, aggregators),
      fanIn,
      hostOf: (host) => host,
    });
    requireParts(workers, blocks * blockBytes, blockBytes);
    this.#has = new Uint8Array(workers * blocks);
    let ownBlocks = 0;
    for (let at = 0; at < this.#has.length; at++) {
      const has = random() < density;
      if (!has) continue;
      this.#has[at] = 1;
      ownBlocks++;
    }
    const used = slotsInUse(slots, blocks);
    this.#rounds = Array.from({ length: used }, (_, slot) => this.#roundsOf(slot));
    this.#come = new Uint32Array(used * this.hosts);
    let sumBlocks = 0;
    for (let block = 0; block < blocks; block++) if (this.#isAnywhere(block)) sumBlocks++;
    this.blocksMoved = { ownBlocks, sumBlocks };
    const rounds = this.#rounds.reduce((sum, list) => sum + list.length, 0);
    const below = this.#trees[0]!.nodes.reduce((sum, { children }) => sum + children.length, 0);
    this.messages = 2 * below * rounds;
    const longest = Math.max(...this.#rounds.map((list) => list.length));
    this.steps = { count: 2 * (topLevel(this.#trees) + 1) * longest, bytes: 0 };
    this.name = below > workers ? `trees of fan-in ${fanIn}` : 'aggregators';
  }

  begin(send: SendMessage): void {
    for (let slot = 0; slot < this.#rounds.length; slot++) {
      for (let worker = 0; worker < this.#shape.workers; worker++) this.#contribute(slot, 0, worker, send);
    }
  }

  /** A tag is of a slot and a round. */
  arrived(source: number, host: number, tag: number, send: SendMessage): void {
    const slot = tag % this.#rounds.length;
    const round = Math.floor(tag / this.#rounds.length);
    const { nodeOf } = treeOf(this.#trees, slot);
    if (host < this.#shape.workers) {
      if (round + 1 < this.#rounds[slot]!.length) this.#contribute(slot, round + 1, host, send);
      return;
    }
    const node = nodeOf.get(host)!;
    if (source === node.parent) return this.#handDown(slot, round, node, send);
    const at = slot * this.hosts + host;
    this.#come[at]! += 1;
    if (this.#come[at]! < node.children.length) return;
    this.#come[at] = 0;
    if (node.parent === undefined) return this.#handDown(slot, round, node, send);
    send(host, node.parent, this.#bytesFrom(slot, round, workersBelow(nodeOf, node)), tag);
  }

  #handDown(slot: number, round: number, node: TreeNode, send: SendMessage): void {
    const { slots, blockBytes } = this.#shape;
    const { active, sums } = this.#rounds[slot]![round]!;
    const bytes = sparseBlocksOffset(slots.lanes, active) + sums * blockBytes;
    for (const { rank } of node.children) send(node.rank, rank, bytes, this.#tagOf(slot, round));
  }

  #contribute(slot: number, round: number, worker: number, send: SendMessage): void {
    const parent = treeOf(this.#trees, slot).parentOf.get(worker)!;
    send(worker, parent, this.#bytesFrom(slot, round, [worker]), this.#tagOf(slot, round));
  }

  #tagOf(slot: number, round: number): number {
    return round * this.#rounds.length + slot;
  }

  /** What these workers have of a round, joined. */
  #bytesFrom(slot: number, round: number, workers: readonly number[]): number {
    const { slots, blockBytes, blocks: all } = this.#shape;
    const { active, blocks } = this.#rounds[slot]![round]!;
    let own = 0;
    for (const block of blocks) if (workers.some((worker) => this.#has[worker * all + block] === 1)) own++;
    return sparseBlocksOffset(slots.lanes, round === 0 ? active : own) + own * blockBytes;
  }

  #isAnywhere(block: number): boolean {
    const { workers, blocks } = this.#shape;
    for (let worker = 0; worker < workers; worker++) if (this.#has[worker * blocks + block] === 1) return true;
    return false;
  }

  /** The first block of each lane, then in each lane the next one that anybody has. */
  #roundsOf(slot: number): Round[] {
    const { slots, blocks } = this.#shape;
    const stride = strideOf(slots);
    const rounds: Round[] = [];
    let present = Array.from({ length: lanesInUse(slots, slot, blocks) }, (_, lane) => slot * slots.lanes + lane);
    while (present.length > 0 || rounds.length === 0) {
      const sums = present.filter((block) => this.#isAnywhere(block)).length;
      rounds.push({ active: present.length, blocks: present, sums });
      present = present.flatMap((block) => {
        let next = block + stride;
        while (next < blocks && !this.#isAnywhere(next)) next += stride;
        return next < blocks ? [next] : [];
      });
    }
    return rounds;
  }
}

function workersBelow(nodeOf: ReadonlyMap<number, TreeNode>, node: TreeNode): number[] {
  return node.children.flatMap(({ kind, rank }) =>
    kind === contribution ? [rank] : workersBelow(nodeOf, nodeOf.get(rank)!),
  );
}

function hostsOf(first: number, count: number): number[] {
  return Array.from({ length: count }, (_, at) => first + at);
}
