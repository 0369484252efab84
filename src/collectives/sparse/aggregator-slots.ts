// An aggregator's side of a sparse all-reduce, a node of a tree in each slot: when all below it have told where their next blocks
// are, adds up those that lie at one place, in the order of the workers. The root tells all below it the sums and the next
// place; another node sends its sums up as a worker does, and hands down what comes back.
import { reductionFormats, reductions } from '../../abi/element-formats.ts';
import {
  blocksOf,
  infinityOf,
  lanesInUse,
  MessageView,
  partial,
  result,
  type SlotBoard,
  type SlotShape,
  sparseBlocksOffset,
  strideOf,
} from './slot-shape.ts';
import { dtypes } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Storage } from '../../device/tensor.ts';
import { dtypeOf, type ReducedDType } from '../collective-call.ts';
import { type ReductionTree, topLevel, type TreeChild, type TreeNode, treeOf } from './reduction-tree.ts';
import { callsDiffer } from './sparse-call.ts';

interface AggregatorSlotsOptions {
  readonly board: SlotBoard;
  readonly shape: SlotShape;
  readonly trees: readonly ReductionTree[];
  readonly me: number;
  /** Names a rank of the group, for errors. */
  readonly nameOf: (rank: number) => number;
}

export class AggregatorSlots implements Disposable {
  /** Counts messages that have come; never resets. */
  progress = 0;
  /** How long the worker waits whose message came last. */
  timeoutMs = 0;
  readonly #device: CpuDevice;
  readonly #options: AggregatorSlotsOptions;
  /** This rank's node by slot, if it has one there. */
  readonly #nodes: readonly (TreeNode | undefined)[];
  /** Children of the node with most. */
  readonly #children: number;
  readonly #stride: number;
  readonly #infinity: number;
  readonly #out: MessageView;
  /** Messages by child. */
  readonly #in: readonly MessageView[];
  readonly #messages: Float64Array;
  /** Blocks of a child's message that are behind, by child. */
  readonly #taken: Uint32Array;
  readonly #sourceStorage: Storage;
  readonly #sources: Uint32Array;
  /** Columns by slot: results so far, over all calls; rounds of its call; lanes that are not over; children whose message has come. */
  readonly #numbers: Int32Array;
  readonly #rounds: Uint32Array;
  readonly #active: Uint32Array;
  readonly #come: Uint32Array;
  /** 1 for a slot while sums of this node are on their way up. */
  readonly #isAwaiting: Uint8Array;
  /** 1 for a slot and child once the child's message of this round has come. */
  readonly #hasCome: Uint8Array;
  /** Lanes that are not over, by slot. */
  readonly #lanes: Uint32Array;
  /** The next block by child and lane of all slots. */
  readonly #next: Uint32Array;

  constructor(device: CpuDevice, options: AggregatorSlotsOptions) {
    const { board, shape, trees, me } = options;
    this.#device = device;
    this.#options = options;
    this.#nodes = Array.from({ length: shape.slots }, (_, slot) => treeOf(trees, slot).nodeOf.get(me));
    const children = Math.max(1, ...this.#nodes.map((node) => node?.children.length ?? 0));
    this.#children = children;
    this.#stride = strideOf(shape);
    this.#infinity = infinityOf(shape);
    const view = (): MessageView => new MessageView(device, board.memory, shape.lanes);
    this.#out = view();
    this.#in = Array.from({ length: children }, view);
    this.#messages = new Float64Array(children);
    this.#taken = new Uint32Array(children);
    this.#sourceStorage = device.allocate(children * 4);
    this.#sources = new Uint32Array(device.memory.buffer, this.#sourceStorage.address, children);
    this.#numbers = new Int32Array(shape.slots);
    this.#rounds = new Uint32Array(shape.slots);
    this.#active = new Uint32Array(shape.slots);
    this.#come = new Uint32Array(shape.slots);
    this.#isAwaiting = new Uint8Array(shape.slots);
    this.#hasCome = new Uint8Array(shape.slots * children);
    this.#lanes = new Uint32Array(this.#stride);
    this.#next = new Uint32Array(this.#stride * children);
  }

  /** Hot path. Takes what has come. */
  advance(): void {
    const { slots } = this.#options.shape;
    for (let slot = 0; slot < slots; slot++) {
      const node = this.#nodes[slot];
      if (node === undefined) continue;
      const number = (this.#numbers[slot]! + 1) | 0;
      if (this.#isAwaiting[slot] !== 0) this.#handDown(slot, node, number);
      else if (this.#gather(slot, node, number)) this.#reduce(slot, node, number);
    }
  }

  /** True while no call is under way. */
  get isIdle(): boolean {
    for (let slot = 0; slot < this.#come.length; slot++) {
      if (this.#active[slot] !== 0 || this.#come[slot] !== 0 || this.#isAwaiting[slot] !== 0) return false;
    }
    return true;
  }

  get slots(): number {
    return this.#options.shape.slots;
  }

  /** Results of the slot that this rank has handed down; undefined where it has no node. */
  numberOf(slot: number): number | undefined {
    return this.#nodes[slot] === undefined ? undefined : this.#numbers[slot]!;
  }

  /** Ranks of the group that a call under way waits for, below this rank or above it. */
  missing(): number[] {
    const below = this.#missingChildren().map(({ child }) => child.rank);
    return ascending(below.length > 0 ? below : this.#missingParents().map(({ parent }) => parent!));
  }

  /**
   * The same, of those who are the furthest down: they know least of the others, so a rank waits for them no longer than for
   * anybody else. `nets`: how many ranks further down give up before this one does, so that the one who knows most tells it.
   */
  stalled(): { readonly ranks: readonly number[]; readonly nets: number } | undefined {
    const children = this.#missingChildren();
    if (children.length > 0) {
      const nets = Math.min(...children.map(({ node }) => node.level));
      return {
        ranks: ascending(children.flatMap(({ child, node }) => (node.level === nets ? [child.rank] : []))),
        nets,
      };
    }
    const parents = this.#missingParents();
    if (parents.length === 0) return undefined;
    const { trees } = this.#options;
    const nets = Math.min(...parents.map(({ level }) => 2 * topLevel(trees) - level));
    return { ranks: ascending(parents.map(({ parent }) => parent!)), nets };
  }

  [Symbol.dispose](): void {
    this.#sourceStorage[Symbol.dispose]();
  }

  #missingChildren(): { readonly child: TreeChild; readonly node: TreeNode }[] {
    return this.#nodes.flatMap((node, slot) => {
      const isOver = this.#active[slot] === 0 && this.#come[slot] === 0;
      if (node === undefined || isOver || this.#isAwaiting[slot] !== 0) return [];
      const hasCome = (child: number): boolean => this.#hasCome[slot * this.#children + child] !== 0;
      return node.children.flatMap((child, index) => (hasCome(index) ? [] : [{ child, node }]));
    });
  }

  #missingParents(): TreeNode[] {
    return this.#nodes.flatMap((node, slot) => (node !== undefined && this.#isAwaiting[slot] !== 0 ? [node] : []));
  }

  /** True when all below have sent that message. */
  #gather(slot: number, { children }: TreeNode, number: number): boolean {
    const { board } = this.#options;
    for (let index = 0; index < children.length; index++) {
      const at = slot * this.#children + index;
      const { kind, rank } = children[index]!;
      if (this.#hasCome[at] !== 0 || board.latest(kind, rank, slot) !== number) continue;
      this.#hasCome[at] = 1;
      this.#come[slot]! += 1;
      this.progress++;
      this.#out.look(board.address(kind, rank, slot, number));
      this.timeoutMs = this.#out.get('timeoutMs');
    }
    return this.#come[slot] === children.length;
  }

  #reduce(slot: number, node: TreeNode, number: number): void {
    const { board, me, shape } = this.#options;
    const { children, parent } = node;
    for (let index = 0; index < children.length; index++) {
      const { kind, rank } = children[index]!;
      const address = board.address(kind, rank, slot, number);
      this.#messages[index] = address;
      this.#in[index]!.look(address);
    }
    const first = this.#in[0]!;
    if (this.#active[slot] === 0) this.#beginCall(slot, node);
    this.#readEntries(slot, node);
    const kind = parent === undefined ? result : partial;
    const address = board.address(kind, me, slot, number);
    const out = this.#out;
    out.look(address);
    out.clearMask();
    const dtype = dtypeOf(first.get('dtype')) as ReducedDType;
    const blockBytes = shape.blockSize * dtypes[dtype].bytes;
    const entries = this.#tellEntries(slot, node);
    const offset = sparseBlocksOffset(shape.lanes, entries);
    const to = address + offset;
    const blocks = this.#sum(slot, { to, blockBytes, format: reductionFormats[dtype], children: children.length });
    out.set('call', first.get('call'));
    out.set('round', this.#rounds[slot]!);
    out.set('count', first.get('count'));
    out.set('dtype', first.get('dtype'));
    out.set('entries', entries);
    out.set('blocks', blocks);
    out.set('timeoutMs', this.timeoutMs);
    out.set('reserved', 0);
    this.#come[slot] = 0;
    this.#hasCome.fill(0, slot * this.#children, (slot + 1) * this.#children);
    if (parent === undefined) this.#goOn(slot, number);
    else this.#isAwaiting[slot] = 1;
    board.post(kind, slot, number, offset + blocks * blockBytes);
  }

  /** Copies the result that has come from above, if it has. */
  #handDown(slot: number, { parent }: TreeNode, number: number): void {
    const { board, me, shape } = this.#options;
    if (board.latest(result, parent!, slot) !== number) return;
    const from = board.address(result, parent!, slot, number);
    const address = board.address(result, me, slot, number);
    const out = this.#out;
    out.look(from);
    const blockBytes = shape.blockSize * dtypes[dtypeOf(out.get('dtype')) as ReducedDType].bytes;
    const active = this.#active[slot]!;
    if (out.get('round') !== this.#rounds[slot] || out.get('entries') !== active || out.get('blocks') > active) {
      throw this.#notExpected(slot, parent!, out, active);
    }
    const bytes = sparseBlocksOffset(shape.lanes, active) + out.get('blocks') * blockBytes;
    this.#device.kernels.copyBytes(address, from, bytes);
    out.look(address);
    this.progress++;
    this.#isAwaiting[slot] = 0;
    this.#goOn(slot, number);
    board.post(result, slot, number, bytes);
  }

  /** All below must mean the same call. */
  #beginCall(slot: number, { children }: TreeNode): void {
    const { nameOf, shape } = this.#options;
    const first = this.#in[0]!;
    for (const [index, child] of children.entries()) {
      const view = this.#in[index]!;
      const isSame = view.get('count') === first.get('count') && view.get('dtype') === first.get('dtype');
      if (isSame && view.get('call') === first.get('call')) continue;
      const factsOf = ({ worker }: TreeChild, message: MessageView): Parameters<typeof callsDiffer>[1] => ({
        rank: nameOf(worker),
        count: message.get('count'),
        dtype: message.get('dtype'),
      });
      throw callsDiffer(view.get('call'), factsOf(children[0]!, first), factsOf(child, view));
    }
    const active = lanesInUse(shape, slot, blocksOf(shape, first.get('count')));
    for (let lane = 0; lane < active; lane++) this.#lanes[slot * shape.lanes + lane] = lane;
    this.#active[slot] = active;
  }

  /** Reads where the next blocks of each child are. Children that have none at the present place have told before. */
  #readEntries(slot: number, { children }: TreeNode): void {
    const { shape } = this.#options;
    const first = slot * shape.lanes;
    const active = this.#active[slot]!;
    const isFirst = this.#rounds[slot] === 0;
    for (let index = 0; index < children.length; index++) {
      const view = this.#in[index]!;
      const next = index * this.#stride + first;
      let entries = 0;
      for (let at = 0; at < active; at++) {
        const lane = this.#lanes[first + at]!;
        if (isFirst || view.hasBlock(lane)) this.#next[next + lane] = view.entry(entries++);
      }
      this.#taken[index] = 0;
      // What the blocks of a message begin behind depends on it.
      this.#messages[index]! += sparseBlocksOffset(shape.lanes, entries);
      if (view.get('round') === this.#rounds[slot] && view.get('entries') === entries) continue;
      throw this.#notExpected(slot, children[index]!.rank, view, entries);
    }
  }

  #notExpected(slot: number, sender: number, view: MessageView, entries: number): WeftlineError {
    const rank = this.#options.nameOf(sender);
    return new WeftlineError(
      'WL_PROTOCOL',
      `Sparse all-reduce: rank ${rank} sent ${view.get('entries')} lanes of round ${view.get('round')} in slot ${slot}, expected ${entries} of round ${this.#rounds[slot]}`,
      { details: { rank, slot } },
    );
  }

  /**
   * Marks the lanes in which anybody has a block, and tells the nearest next one: the root of all lanes, another node as a
   * worker does, of those that it has marked or, in the first round, of all. Returns the number of lanes told.
   */
  #tellEntries(slot: number, { children, parent }: TreeNode): number {
    const first = slot * this.#options.shape.lanes;
    const active = this.#active[slot]!;
    const tellsAll = parent === undefined || this.#rounds[slot] === 0;
    let entries = 0;
    for (let at = 0; at < active; at++) {
      const lane = this.#lanes[first + at]!;
      let [nearest, has] = [this.#next[first + lane]!, this.#in[0]!.hasBlock(lane)];
      for (let index = 1; index < children.length; index++) {
        nearest = Math.min(nearest, this.#next[index * this.#stride + first + lane]!);
        has ||= this.#in[index]!.hasBlock(lane);
      }
      if (has) this.#out.addBlock(lane);
      if (has || tellsAll) this.#out.setEntry(entries++, nearest);
    }
    return entries;
  }

  /** Neighbouring lanes of the same children are added up as one run. Returns the number of blocks. */
  #sum(slot: number, { to, blockBytes, format, children }: SumOf): number {
    const { shape } = this.#options;
    const active = this.#active[slot]!;
    const first = slot * shape.lanes;
    const views = this.#in;
    let blocks = 0;
    for (let index = 0; index < active;) {
      const lane = this.#lanes[first + index]!;
      let sources = 0;
      for (let child = 0; child < children; child++) {
        if (!views[child]!.hasBlock(lane)) continue;
        this.#sources[sources++] = this.#messages[child]! + this.#taken[child]! * blockBytes;
      }
      index++;
      if (sources === 0) continue;
      let run = 1;
      while (index < active && this.#isOfSame(lane, this.#lanes[first + index]!, children)) {
        run++;
        index++;
      }
      for (let child = 0; child < children; child++) {
        if (views[child]!.hasBlock(lane)) this.#taken[child]! += run;
      }
      const at = to + blocks * blockBytes;
      const { kernels } = this.#device;
      kernels.reduceRuns(at, this.#sourceStorage.address, sources, run * blockBytes, format, reductions.sum);
      blocks += run;
    }
    return blocks;
  }

  #isOfSame(lane: number, other: number, children: number): boolean {
    for (let child = 0; child < children; child++) {
      if (this.#in[child]!.hasBlock(lane) !== this.#in[child]!.hasBlock(other)) return false;
    }
    return true;
  }

  /** Goes on to the nearest block that any worker has, in each lane: as `out` says, the result of that number. */
  #goOn(slot: number, number: number): void {
    const first = slot * this.#options.shape.lanes;
    const active = this.#active[slot]!;
    let left = first;
    for (let index = 0; index < active; index++) {
      if (this.#out.entry(index) >= this.#infinity) continue;
      this.#lanes[left] = this.#lanes[first + index]!;
      left++;
    }
    this.#active[slot] = left - first;
    this.#rounds[slot] = this.#active[slot] === 0 ? 0 : this.#rounds[slot]! + 1;
    this.#numbers[slot] = number;
  }
}

/** Blocks that are added up: where the sums go, bytes of each, and from how many children they come. */
interface SumOf {
  readonly to: number;
  readonly blockBytes: number;
  readonly format: number;
  readonly children: number;
}

function ascending(ranks: readonly number[]): number[] {
  return [...new Set(ranks)].toSorted((a, b) => a - b);
}
