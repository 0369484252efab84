// A worker's side of a sparse all-reduce: sends its blocks that are not zero, looks ahead to the next ones, takes the sums.
import { reductionFormats } from '../../abi/element-formats.ts';
import { sparseBlocksOffset } from '../../abi/sparse-message.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Storage } from '../../device/tensor.ts';
import { dtypeNumber } from '../collective-call.ts';
import type { BlockReducer } from './block-reducer.ts';
import { MessageView } from './message-view.ts';
import { type ReductionTree, treeOf } from './reduction-tree.ts';
import { contribution, result, type SlotBoard } from './slot-board.ts';
import { blocksOf, infinityOf, lanesInUse, type SlotShape, slotsInUse, strideOf } from './slot-shape.ts';
import type { SparseCall, SparseTraffic } from './sparse-call.ts';

export interface WorkerSlotsOptions {
  readonly board: SlotBoard;
  readonly shape: SlotShape;
  /** Rank of the group. */
  readonly me: number;
  readonly trees: readonly ReductionTree[];
}

const noCall: SparseCall = {
  dtype: 'f32',
  elementBytes: 4,
  count: 0,
  input: 0,
  output: 0,
  threshold: 0,
  isDense: false,
  timeoutMs: 0,
};

export class WorkerSlots implements BlockReducer, Disposable {
  /** Counts results that were taken; never resets. */
  progress = 0;
  readonly #device: CpuDevice;
  readonly #options: WorkerSlotsOptions;
  readonly #stride: number;
  readonly #infinity: number;
  readonly #view: MessageView;
  /** By slot: the rank of the group that takes its blocks. */
  readonly #parents: Uint32Array;
  /** By slot: no block of the slot below this one changes any more. */
  readonly #final: Uint32Array;
  /** Per slot: messages so far, over all calls, and rounds of this call. */
  readonly #numbers: Int32Array;
  readonly #rounds: Uint32Array;
  /** Per slot: lanes that are not over, and for each of them its lane and its present block. */
  readonly #active: Uint32Array;
  readonly #lanes: Uint32Array;
  readonly #current: Uint32Array;
  /** Slots of this call that await a result. */
  readonly #isAwaiting: Uint8Array;
  #awaiting = 0;
  #call: SparseCall = noCall;
  #calls = 0;
  #blocks = 0;
  #blockBytes = 0;
  #bitmapStorage: Storage | undefined;
  #bitmap: Uint8Array = new Uint8Array(0);
  #ownBlocks = 0;
  #sumBlocks = 0;
  #sentBytes = 0;
  #receivedBytes = 0;
  #messages = 0;

  constructor(device: CpuDevice, options: WorkerSlotsOptions) {
    const { shape, trees, me } = options;
    this.#device = device;
    this.#options = options;
    this.#stride = strideOf(shape);
    this.#infinity = infinityOf(shape);
    this.#view = new MessageView(device, options.board.memory, shape.lanes);
    this.#parents = Uint32Array.from({ length: shape.slots }, (_, slot) => treeOf(trees, slot).parentOf.get(me)!);
    this.#final = new Uint32Array(shape.slots);
    this.#numbers = new Int32Array(shape.slots);
    this.#rounds = new Uint32Array(shape.slots);
    this.#active = new Uint32Array(shape.slots);
    this.#lanes = new Uint32Array(this.#stride);
    this.#current = new Uint32Array(this.#stride);
    this.#isAwaiting = new Uint8Array(shape.slots);
  }

  get traffic(): SparseTraffic {
    return {
      blocks: this.#blocks,
      ownBlocks: this.#ownBlocks,
      sumBlocks: this.#sumBlocks,
      sentBytes: this.#sentBytes,
      receivedBytes: this.#receivedBytes,
      messages: this.#messages,
    };
  }

  reserve(count: number): Promise<void> | void {
    const blocks = blocksOf(this.#options.shape, count);
    if (this.#bitmap.length >= blocks) return;
    const making = this.#device.allocating(() => this.#device.allocate(blocks));
    return making instanceof Promise ? making.then((made) => this.#useBitmap(made)) : this.#useBitmap(making);
  }

  begin(call: SparseCall): void {
    const { shape } = this.#options;
    this.#call = call;
    this.#calls = (this.#calls + 1) >>> 0;
    this.#blocks = blocksOf(shape, call.count);
    this.#blockBytes = shape.blockSize * call.elementBytes;
    this.#sumBlocks = 0;
    this.#sentBytes = 0;
    this.#receivedBytes = 0;
    this.#messages = 0;
    this.#markBlocks();
    const slots = slotsInUse(shape, this.#blocks);
    this.#awaiting = slots;
    this.#final.fill(this.#blocks);
    for (let slot = 0; slot < slots; slot++) {
      const active = lanesInUse(shape, slot, this.#blocks);
      const first = slot * shape.lanes;
      for (let lane = 0; lane < active; lane++) {
        this.#lanes[first + lane] = lane;
        this.#current[first + lane] = first + lane;
      }
      this.#active[slot] = active;
      this.#final[slot] = Math.min(this.#blocks, first);
      this.#rounds[slot] = 0;
      this.#isAwaiting[slot] = 1;
      this.#send(slot);
    }
  }

  advance(): boolean {
    if (this.#awaiting === 0) return true;
    const { board, shape } = this.#options;
    for (let slot = 0; slot < shape.slots; slot++) {
      if (this.#isAwaiting[slot] === 0) continue;
      const number = this.#numbers[slot]!;
      if (board.latest(result, this.#parents[slot]!, slot) !== number) continue;
      this.progress++;
      this.#take(slot);
      if (this.#active[slot] !== 0) {
        this.#rounds[slot]! += 1;
        this.#send(slot);
        continue;
      }
      this.#isAwaiting[slot] = 0;
      this.#awaiting--;
    }
    return this.#awaiting === 0;
  }

  awaited(): number[] {
    const slots = [...this.#isAwaiting.keys()].filter((slot) => this.#isAwaiting[slot] !== 0);
    return [...new Set(slots.map((slot) => this.#parents[slot]!))];
  }

  /** Results of the slot that were taken, once no call is under way. */
  numberOf(slot: number): number {
    return this.#numbers[slot]!;
  }

  get finalBlocks(): number {
    let final = this.#blocks;
    for (const block of this.#final) final = Math.min(final, block);
    return final;
  }

  [Symbol.dispose](): void {
    this.#bitmapStorage?.[Symbol.dispose]();
    this.#bitmapStorage = undefined;
  }

  #useBitmap(storage: Storage): void {
    this.#bitmapStorage?.[Symbol.dispose]();
    this.#bitmapStorage = storage;
    this.#bitmap = this.#device.hostView('u8', storage.address, storage.bytes);
  }

  #markBlocks(): void {
    const { count, dtype, elementBytes, input, output, threshold, isDense } = this.#call;
    if (isDense) {
      this.#bitmap.fill(0, 0, this.#blocks);
      this.#ownBlocks = this.#blocks;
      return;
    }
    const bitmap = this.#bitmapStorage?.address ?? 0;
    const { kernels } = this.#device;
    const [bytes, format] = [count * elementBytes, reductionFormats[dtype]];
    this.#ownBlocks = kernels.markBlocks(input, bytes, this.#blockBytes, format, threshold, bitmap, output);
  }

  /** The blocks at the present places of the slot's lanes, as far as this worker has any, and where its next ones are. */
  #send(slot: number): void {
    const { board, me, shape } = this.#options;
    const number = (this.#numbers[slot]! + 1) | 0;
    this.#numbers[slot] = number;
    const address = board.address(contribution, me, slot, number);
    const view = this.#view;
    view.look(address);
    view.clearMask();
    const isFirst = this.#rounds[slot] === 0;
    const first = slot * shape.lanes;
    const end = first + this.#active[slot]!;
    let [entries, blocks] = [0, 0];
    for (let at = first; at < end; at++) {
      const block = this.#current[at]!;
      const has = this.#bitmap[block] === 0;
      if (has) {
        view.addBlock(this.#lanes[at]!);
        blocks++;
      }
      if (has || isFirst) view.setEntry(entries++, this.#nextBlock(block));
    }
    const bytes = this.#gather(slot, address + sparseBlocksOffset(shape.lanes, entries));
    view.set('call', this.#calls);
    view.set('round', this.#rounds[slot]!);
    view.set('count', this.#call.count);
    view.set('dtype', dtypeNumber(this.#call.dtype));
    view.set('entries', entries);
    view.set('blocks', blocks);
    view.set('timeoutMs', this.#call.timeoutMs);
    view.set('reserved', 0);
    const total = sparseBlocksOffset(shape.lanes, entries) + bytes;
    this.#sentBytes += total;
    this.#messages++;
    board.post(contribution, slot, number, total);
  }

  /** Copies the blocks behind each other; neighbours go as one. Returns their bytes. */
  #gather(slot: number, destination: number): number {
    const { shape } = this.#options;
    const { input } = this.#call;
    const blockBytes = this.#blockBytes;
    const end = slot * shape.lanes + this.#active[slot]!;
    let to = destination;
    for (let at = slot * shape.lanes; at < end; at++) {
      const block = this.#current[at]!;
      if (this.#bitmap[block] !== 0) continue;
      let run = 1;
      while (at + 1 < end && this.#current[at + 1] === block + run && this.#bitmap[block + run] === 0) {
        run++;
        at++;
      }
      const bytes = this.#bytesOf(block, run);
      this.#device.kernels.copyBytes(to, input + block * blockBytes, bytes);
      // The rest of the last block is summed as well.
      if (bytes < run * blockBytes) {
        this.#device.hostView('u8', to + bytes, run * blockBytes - bytes).fill(0);
      }
      to += run * blockBytes;
    }
    return to - destination;
  }

  /** Of so many blocks, of which the tensor's last one may be shorter. */
  #bytesOf(block: number, run: number): number {
    const { count, elementBytes } = this.#call;
    return Math.min(run * this.#blockBytes, count * elementBytes - block * this.#blockBytes);
  }

  /** Behind this one, in its lane. */
  #nextBlock(block: number): number {
    const [bitmap, blocks, stride] = [this.#bitmap, this.#blocks, this.#stride];
    for (let next = block + stride; next < blocks; next += stride) if (bitmap[next] === 0) return next;
    return this.#infinity + (block % stride);
  }

  #take(slot: number): void {
    const { board, shape } = this.#options;
    const address = board.address(result, this.#parents[slot]!, slot, this.#numbers[slot]!);
    const view = this.#view;
    view.look(address);
    const active = this.#active[slot]!;
    this.#check(slot, active);
    const offset = sparseBlocksOffset(shape.lanes, active);
    const blocks = this.#spread(slot, address + offset);
    this.#sumBlocks += blocks;
    this.#receivedBytes += offset + blocks * this.#blockBytes;
    const first = slot * shape.lanes;
    let left = first;
    let final = this.#blocks;
    for (let index = 0; index < active; index++) {
      const next = view.entry(index);
      final = Math.min(final, next);
      if (next >= this.#infinity) continue;
      this.#lanes[left] = this.#lanes[first + index]!;
      this.#current[left] = next;
      left++;
    }
    this.#active[slot] = left - first;
    this.#final[slot] = final;
  }

  /** Copies sums to their places. Returns how many. */
  #spread(slot: number, source: number): number {
    const { shape } = this.#options;
    const { output } = this.#call;
    const view = this.#view;
    const end = slot * shape.lanes + this.#active[slot]!;
    let from = 0;
    for (let at = slot * shape.lanes; at < end; at++) {
      if (!view.hasBlock(this.#lanes[at]!)) continue;
      const block = this.#current[at]!;
      let run = 1;
      while (at + 1 < end && this.#current[at + 1] === block + run && view.hasBlock(this.#lanes[at + 1]!)) {
        run++;
        at++;
      }
      const to = output + block * this.#blockBytes;
      this.#device.kernels.copyBytes(to, source + from * this.#blockBytes, this.#bytesOf(block, run));
      from += run;
    }
    return from;
  }

  #check(slot: number, active: number): void {
    const view = this.#view;
    const isRight =
      view.get('round') === this.#rounds[slot] &&
      view.get('count') === this.#call.count &&
      view.get('entries') === active &&
      view.get('blocks') <= active;
    if (isRight) return;
    const details = { slot, round: view.get('round'), entries: view.get('entries'), blocks: view.get('blocks') };
    throw new WeftlineError(
      'WL_PROTOCOL',
      `Sparse all-reduce: the result of slot ${slot} is of round ${details.round} with ${details.entries} lanes, expected round ${this.#rounds[slot]} with ${active}`,
      { details },
    );
  }
}
