// A worker's side of a sparse all-reduce: sends its blocks that are not zero, looks ahead to the next ones, takes the sums.
import {
  blocksOf,
  contribution,
  infinityOf,
  lanesInUse,
  MessageView,
  result,
  type SlotBoard,
  type SlotShape,
  slotsInUse,
  sparseBlocksOffset,
  strideOf,
} from './slot-shape.ts';
import { WeftlineError } from '../../core/errors.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { dtypeNumber } from '../collective-call.ts';
import type { BlockReducer, CompletionFlag, TensorBlocks } from './block-reducer.ts';
import { type ReductionTree, treeOf } from './reduction-tree.ts';
import { noCall, type SparseCall, type SparseTraffic } from './sparse-call.ts';

interface WorkerSlotsOptions {
  readonly board: SlotBoard;
  readonly blocks: TensorBlocks;
  readonly shape: SlotShape;
  /** Rank of the group. */
  readonly me: number;
  readonly trees: readonly ReductionTree[];
}

/** What a slot waits for. */
const NOTHING = 0;
const RESULT = 1;
/** The slot waits for its blocks, which are on their way from the device. */
const BLOCKS = 2;

export class WorkerSlots implements BlockReducer {
  /** Counts what has gone on; never resets. */
  progress = 0;
  readonly #options: WorkerSlotsOptions;
  readonly #infinity: number;
  readonly #tensor: TensorBlocks;
  readonly #view: MessageView;
  /** The rank of the group that takes a slot's blocks, by slot. */
  readonly #parents: Uint32Array;
  /** The slots below which no block changes any more, by slot. */
  readonly #final: Uint32Array;
  /** Columns by slot: messages so far, over all calls, and rounds of this call. */
  readonly #numbers: Int32Array;
  readonly #rounds: Uint32Array;
  /** Columns by slot: lanes that are not over, and for each of them its lane and its present block. */
  readonly #active: Uint32Array;
  readonly #lanes: Uint32Array;
  readonly #current: Uint32Array;
  /** What each slot of this call waits for; and how many wait for anything. */
  readonly #waitsFor: Uint8Array;
  #waiting = 0;
  /** True while blocks of the tensor are not marked yet, so no slot has sent any. */
  #isMarking = false;
  #call: SparseCall = noCall;
  #calls = 0;
  #blocks = 0;
  #blockBytes = 0;
  #sumBlocks = 0;
  #sentBytes = 0;
  #receivedBytes = 0;
  #messages = 0;

  constructor(device: CpuDevice, options: WorkerSlotsOptions) {
    const { shape, trees, me } = options;
    this.#options = options;
    this.#tensor = options.blocks;
    this.#infinity = infinityOf(shape);
    this.#view = new MessageView(device, options.board.memory, shape.lanes);
    this.#parents = Uint32Array.from({ length: shape.slots }, (_, slot) => treeOf(trees, slot).parentOf.get(me)!);
    this.#final = new Uint32Array(shape.slots);
    this.#numbers = new Int32Array(shape.slots);
    this.#rounds = new Uint32Array(shape.slots);
    this.#active = new Uint32Array(shape.slots);
    const stride = strideOf(shape);
    this.#lanes = new Uint32Array(stride);
    this.#current = new Uint32Array(stride);
    this.#waitsFor = new Uint8Array(shape.slots);
  }

  get traffic(): SparseTraffic {
    return {
      blocks: this.#blocks,
      ownBlocks: this.#tensor.ownBlocks,
      sumBlocks: this.#sumBlocks,
      sentBytes: this.#sentBytes,
      receivedBytes: this.#receivedBytes,
      messages: this.#messages,
    };
  }

  reserve(count: number): Promise<void> | void {
    return this.#tensor.reserve(count);
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
    this.#tensor.begin(call);
    const slots = slotsInUse(shape, this.#blocks);
    this.#waiting = slots;
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
      this.#waitsFor[slot] = BLOCKS;
    }
    this.#isMarking = true;
    this.#sendFirst();
  }

  advance(): boolean {
    if (this.#isMarking && !this.#sendFirst()) return false;
    if (this.#waiting === 0) return this.#tensor.finish();
    const { board, shape } = this.#options;
    for (let slot = 0; slot < shape.slots; slot++) {
      const waitsFor = this.#waitsFor[slot];
      if (waitsFor === NOTHING) continue;
      if (waitsFor === BLOCKS) {
        if (this.#send(slot)) this.progress++;
        continue;
      }
      if (board.latest(result, this.#parents[slot]!, slot) !== this.#numbers[slot]) continue;
      if (!this.#tensor.hasRoom(this.#active[slot]!)) continue;
      this.progress++;
      this.#take(slot);
      if (this.#active[slot] !== 0) {
        this.#rounds[slot]! += 1;
        this.#send(slot);
        continue;
      }
      this.#waitsFor[slot] = NOTHING;
      this.#waiting--;
    }
    return this.#waiting === 0 && this.#tensor.finish();
  }

  awaited(): number[] {
    const slots = [...this.#waitsFor.keys()].filter((slot) => this.#waitsFor[slot] === RESULT);
    return [...new Set(slots.map((slot) => this.#parents[slot]!))];
  }

  /** Results of the slot that were taken, once no call is under way. */
  numberOf(slot: number): number {
    return this.#numbers[slot]!;
  }

  flagAt(address: number): CompletionFlag {
    return this.#tensor.flagAt(address);
  }

  close(): Promise<void> | void {
    return this.#tensor.close();
  }

  get finalBlocks(): number {
    let final = this.#blocks;
    for (const block of this.#final) final = Math.min(final, block);
    return final;
  }

  /** The first message of each slot. False as long as the blocks are not marked. */
  #sendFirst(): boolean {
    if (!this.#tensor.isMarked()) return false;
    this.#isMarking = false;
    this.progress++;
    const slots = slotsInUse(this.#options.shape, this.#blocks);
    for (let slot = 0; slot < slots; slot++) this.#send(slot);
    return true;
  }

  /**
   * The blocks at the present places of the slot's lanes, as far as this worker has any, and where its next ones are. False if
   * they are not there yet.
   */
  #send(slot: number): boolean {
    const { board, me, shape } = this.#options;
    const tensor = this.#tensor;
    const number = (this.#numbers[slot]! + 1) | 0;
    const address = board.address(contribution, me, slot, number);
    const view = this.#view;
    view.look(address);
    view.clearMask();
    const isFirst = this.#rounds[slot] === 0;
    const first = slot * shape.lanes;
    const end = first + this.#active[slot]!;
    let [entries, blocks, last] = [0, 0, -1];
    for (let at = first; at < end; at++) {
      const block = this.#current[at]!;
      const has = tensor.has(block);
      if (has) {
        view.addBlock(this.#lanes[at]!);
        blocks++;
        last = Math.max(last, block);
      }
      if (has || isFirst) view.setEntry(entries++, tensor.next(block));
    }
    if (blocks > 0 && !tensor.isReady(last)) {
      this.#waitsFor[slot] = BLOCKS;
      return false;
    }
    this.#numbers[slot] = number;
    this.#waitsFor[slot] = RESULT;
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
    return true;
  }

  /** Copies the blocks behind each other; neighbours go as one. Returns their bytes. */
  #gather(slot: number, destination: number): number {
    const { shape } = this.#options;
    const tensor = this.#tensor;
    const end = slot * shape.lanes + this.#active[slot]!;
    let to = destination;
    for (let at = slot * shape.lanes; at < end; at++) {
      const block = this.#current[at]!;
      if (!tensor.has(block)) continue;
      let run = 1;
      while (at + 1 < end && this.#current[at + 1] === block + run && tensor.has(block + run)) {
        run++;
        at++;
      }
      tensor.copyOut(to, block, run);
      to += run * this.#blockBytes;
    }
    return to - destination;
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
      this.#tensor.copyIn(source + from * this.#blockBytes, block, run);
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
