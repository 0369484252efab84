// An aggregator's side of a sparse all-reduce: when all workers have told where their next blocks are, adds up those that lie
// at one place, in the order of the workers, and tells all of them the sums and the next place.
import { reductionFormats, reductions } from '../../abi/element-formats.ts';
import { sparseBlocksOffset } from '../../abi/sparse-message.ts';
import { dtypes } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Storage } from '../../device/tensor.ts';
import { dtypeOf, type ReducedDType } from '../collective-call.ts';
import { MessageView } from './message-view.ts';
import { contribution, result, type SlotBoard } from './slot-board.ts';
import { blocksOf, infinityOf, lanesInUse, type SlotShape, strideOf } from './slot-shape.ts';

export interface AggregatorSlotsOptions {
  readonly board: SlotBoard;
  readonly shape: SlotShape;
  /** Ranks of the group, ascending: the order of addition. */
  readonly workers: readonly number[];
  readonly me: number;
  /** This aggregator is number `index` of so many: slot s belongs to number s mod `aggregators`. */
  readonly index: number;
  readonly aggregators: number;
  /** Of a rank of the group, for errors. */
  readonly nameOf: (rank: number) => number;
}

export class AggregatorSlots implements Disposable {
  /** Counts messages that have come; never resets. */
  progress = 0;
  /** How long the worker waits whose message came last. */
  timeoutMs = 0;
  readonly #device: CpuDevice;
  readonly #options: AggregatorSlotsOptions;
  readonly #stride: number;
  readonly #infinity: number;
  readonly #out: MessageView;
  /** By worker. */
  readonly #in: readonly MessageView[];
  readonly #messages: Float64Array;
  /** By worker: blocks of its message that are behind. */
  readonly #taken: Uint32Array;
  readonly #sourceStorage: Storage;
  readonly #sources: Uint32Array;
  /** Per slot: results so far, over all calls; rounds of its call; lanes that are not over; workers whose message has come. */
  readonly #numbers: Int32Array;
  readonly #rounds: Uint32Array;
  readonly #active: Uint32Array;
  readonly #come: Uint32Array;
  /** By slot and worker: 1 once its message of this round has come. */
  readonly #hasCome: Uint8Array;
  /** Per slot, for each lane that is not over: its lane. */
  readonly #lanes: Uint32Array;
  /** By worker and lane of all slots: its next block. */
  readonly #next: Uint32Array;

  constructor(device: CpuDevice, options: AggregatorSlotsOptions) {
    const { board, shape, workers } = options;
    this.#device = device;
    this.#options = options;
    this.#stride = strideOf(shape);
    this.#infinity = infinityOf(shape);
    const view = (): MessageView => new MessageView(device, board.memory, shape.lanes);
    this.#out = view();
    this.#in = workers.map(view);
    this.#messages = new Float64Array(workers.length);
    this.#taken = new Uint32Array(workers.length);
    this.#sourceStorage = device.allocate(workers.length * 4);
    this.#sources = new Uint32Array(device.memory.buffer, this.#sourceStorage.address, workers.length);
    this.#numbers = new Int32Array(shape.slots);
    this.#rounds = new Uint32Array(shape.slots);
    this.#active = new Uint32Array(shape.slots);
    this.#come = new Uint32Array(shape.slots);
    this.#hasCome = new Uint8Array(shape.slots * workers.length);
    this.#lanes = new Uint32Array(this.#stride);
    this.#next = new Uint32Array(this.#stride * workers.length);
  }

  /** Hot path. Takes what has come. */
  advance(): void {
    const { aggregators, board, index, shape, workers } = this.#options;
    for (let slot = index; slot < shape.slots; slot += aggregators) {
      const number = (this.#numbers[slot]! + 1) | 0;
      for (let worker = 0; worker < workers.length; worker++) {
        const at = slot * workers.length + worker;
        if (this.#hasCome[at] !== 0 || board.latest(contribution, workers[worker]!, slot) !== number) continue;
        this.#hasCome[at] = 1;
        this.#come[slot]! += 1;
        this.progress++;
        this.#out.look(board.address(contribution, workers[worker]!, slot, number));
        this.timeoutMs = this.#out.get('timeoutMs');
      }
      if (this.#come[slot] !== workers.length) continue;
      this.#reduce(slot, number);
      this.#come[slot] = 0;
      this.#hasCome.fill(0, slot * workers.length, (slot + 1) * workers.length);
    }
  }

  /** True while no call is under way. */
  get isIdle(): boolean {
    return !this.#active.some((lanes) => lanes > 0) && !this.#come.some((workers) => workers > 0);
  }

  /** Workers that a call under way waits for: ranks of the group. */
  missing(): number[] {
    const { aggregators, index, shape, workers } = this.#options;
    const missing = new Set<number>();
    for (let slot = index; slot < shape.slots; slot += aggregators) {
      if (this.#active[slot] === 0 && this.#come[slot] === 0) continue;
      for (const [worker, rank] of workers.entries()) {
        if (this.#hasCome[slot * workers.length + worker] === 0) missing.add(rank);
      }
    }
    return [...missing].toSorted((a, b) => a - b);
  }

  [Symbol.dispose](): void {
    this.#sourceStorage[Symbol.dispose]();
  }

  #reduce(slot: number, number: number): void {
    const { board, me, shape, workers } = this.#options;
    for (let worker = 0; worker < workers.length; worker++) {
      const address = board.address(contribution, workers[worker]!, slot, number);
      this.#messages[worker] = address;
      this.#in[worker]!.look(address);
    }
    const first = this.#in[0]!;
    if (this.#active[slot] === 0) this.#beginCall(slot);
    this.#readEntries(slot);
    const address = board.address(result, me, slot, number);
    const out = this.#out;
    out.look(address);
    out.clearMask();
    const active = this.#active[slot]!;
    const offset = sparseBlocksOffset(shape.lanes, active);
    const dtype = dtypeOf(first.get('dtype')) as ReducedDType;
    const blockBytes = shape.blockSize * dtypes[dtype].bytes;
    const blocks = this.#sum(slot, { to: address + offset, blockBytes, format: reductionFormats[dtype] });
    out.set('call', first.get('call'));
    out.set('round', this.#rounds[slot]!);
    out.set('count', first.get('count'));
    out.set('dtype', first.get('dtype'));
    out.set('entries', active);
    out.set('blocks', blocks);
    out.set('timeoutMs', 0);
    out.set('reserved', 0);
    this.#goOn(slot);
    this.#rounds[slot] = this.#active[slot] === 0 ? 0 : this.#rounds[slot]! + 1;
    this.#numbers[slot] = number;
    board.post(result, slot, number, offset + blocks * blockBytes);
  }

  /** The workers must mean the same call. */
  #beginCall(slot: number): void {
    const { nameOf, shape, workers } = this.#options;
    const first = this.#in[0]!;
    for (const [worker, view] of this.#in.entries()) {
      const isSame = view.get('count') === first.get('count') && view.get('dtype') === first.get('dtype');
      if (isSame && view.get('call') === first.get('call')) continue;
      const [one, other] = [nameOf(workers[0]!), nameOf(workers[worker]!)];
      const call = view.get('call');
      throw new WeftlineError(
        'WL_CONFIG_MISMATCH',
        `Call ${call} of this SparseAllReduce is ${describe(first)} on rank ${one}, but ${describe(view)} on rank ${other}; all workers must make the same calls in the same order`,
        { details: { call, rank: other, here: describe(first), there: describe(view) } },
      );
    }
    const active = lanesInUse(shape, slot, blocksOf(shape, first.get('count')));
    for (let lane = 0; lane < active; lane++) this.#lanes[slot * shape.lanes + lane] = lane;
    this.#active[slot] = active;
  }

  /** Where each worker's next blocks are. Those who have none at the present place have told before. */
  #readEntries(slot: number): void {
    const { nameOf, shape, workers } = this.#options;
    const first = slot * shape.lanes;
    const active = this.#active[slot]!;
    const isFirst = this.#rounds[slot] === 0;
    for (let worker = 0; worker < workers.length; worker++) {
      const view = this.#in[worker]!;
      const next = worker * this.#stride + first;
      let entries = 0;
      for (let index = 0; index < active; index++) {
        const lane = this.#lanes[first + index]!;
        if (isFirst || view.hasBlock(lane)) this.#next[next + lane] = view.entry(entries++);
      }
      this.#taken[worker] = 0;
      // What the blocks of a message begin behind depends on it.
      this.#messages[worker]! += sparseBlocksOffset(shape.lanes, entries);
      if (view.get('round') === this.#rounds[slot] && view.get('entries') === entries) continue;
      const rank = nameOf(workers[worker]!);
      throw new WeftlineError(
        'WL_PROTOCOL',
        `Sparse all-reduce: rank ${rank} sent ${view.get('entries')} lanes of round ${view.get('round')} in slot ${slot}, expected ${entries} of round ${this.#rounds[slot]}`,
        { details: { rank, slot } },
      );
    }
  }

  /** Neighbouring lanes of the same workers are added up as one run. Returns the number of blocks. */
  #sum(slot: number, { to, blockBytes, format }: { to: number; blockBytes: number; format: number }): number {
    const { shape, workers } = this.#options;
    const active = this.#active[slot]!;
    const first = slot * shape.lanes;
    const [views, out] = [this.#in, this.#out];
    let blocks = 0;
    for (let index = 0; index < active;) {
      const lane = this.#lanes[first + index]!;
      let sources = 0;
      for (let worker = 0; worker < workers.length; worker++) {
        if (!views[worker]!.hasBlock(lane)) continue;
        this.#sources[sources++] = this.#messages[worker]! + this.#taken[worker]! * blockBytes;
      }
      index++;
      if (sources === 0) continue;
      out.addBlock(lane);
      let run = 1;
      while (index < active && this.#hasSameWorkers(lane, this.#lanes[first + index]!)) {
        out.addBlock(this.#lanes[first + index]!);
        run++;
        index++;
      }
      for (let worker = 0; worker < workers.length; worker++) {
        if (views[worker]!.hasBlock(lane)) this.#taken[worker]! += run;
      }
      const at = to + blocks * blockBytes;
      const { kernels } = this.#device;
      kernels.reduceRuns(at, this.#sourceStorage.address, sources, run * blockBytes, format, reductions.sum);
      blocks += run;
    }
    return blocks;
  }

  #hasSameWorkers(lane: number, other: number): boolean {
    for (const view of this.#in) if (view.hasBlock(lane) !== view.hasBlock(other)) return false;
    return true;
  }

  /** To the nearest block that any worker has, in each lane. */
  #goOn(slot: number): void {
    const { shape, workers } = this.#options;
    const first = slot * shape.lanes;
    const active = this.#active[slot]!;
    let left = first;
    for (let index = 0; index < active; index++) {
      const lane = this.#lanes[first + index]!;
      let nearest = this.#next[first + lane]!;
      for (let worker = 1; worker < workers.length; worker++) {
        nearest = Math.min(nearest, this.#next[worker * this.#stride + first + lane]!);
      }
      this.#out.setEntry(index, nearest);
      if (nearest >= this.#infinity) continue;
      this.#lanes[left] = lane;
      left++;
    }
    this.#active[slot] = left - first;
  }
}

/** What a worker calls, for errors. */
function describe(view: MessageView): string {
  return `allReduce of ${view.get('count')} ${dtypeOf(view.get('dtype'))}`;
}
