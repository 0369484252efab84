// What moves and adds up the bytes of calls: the processor, at once, or a GPU, in order but later.
import { reductionFormats, reductions } from '../../abi/element-formats.ts';
import type { CpuDevice } from '../../device/cpu/cpu-device.ts';
import type { Storage } from '../../device/tensor.ts';
import type { CollectiveCall, ReducedDType } from '../collective-call.ts';

/** Addresses are those of tensors, and of the data of slots and channels; work is done in the order in which it is given. */
export interface Mover extends Disposable {
  /** Work is done when it was given: isSettled() always holds. */
  readonly isImmediate: boolean;
  /** Addresses of what reduce() adds up, by place. */
  readonly sources: { [place: number]: number };
  copy(to: number, from: number, bytes: number): void;
  /** The reduction of the first `count` of `sources`, as the call says. */
  reduce(call: CollectiveCall, count: number, out: number, bytes: number): void;
  /** isSettled() is about the work so far, until the next mark(). */
  mark(): void;
  /** True when it is done. Fails with what made it impossible. */
  isSettled(): boolean;
}

/** Of CPU ranks: nothing is ever under way. */
export class CpuMover implements Mover {
  readonly isImmediate: boolean = true;
  readonly sources: Uint32Array;
  readonly #kernels: CpuDevice['kernels'];
  readonly #storage: Storage;

  constructor(device: CpuDevice, ranks: number) {
    this.#kernels = device.kernels;
    this.#storage = device.allocate(ranks * 4);
    this.sources = new Uint32Array(device.memory.buffer, this.#storage.address, ranks);
  }

  copy(to: number, from: number, bytes: number): void {
    this.#kernels.copyBytes(to, from, bytes);
  }

  reduce({ dtype, reduction }: CollectiveCall, count: number, out: number, bytes: number): void {
    const format = reductionFormats[dtype as ReducedDType];
    this.#kernels.reduceRuns(out, this.#storage.address, count, bytes, format, reductions[reduction]);
  }

  mark(): void {}

  isSettled(): boolean {
    return true;
  }

  [Symbol.dispose](): void {
    this.#storage[Symbol.dispose]();
  }
}

// Where the data of slots and channels lie, which a mover reads and writes: in the windows, or in memory of GPUs beside them.

/** Offsets in a rank's part are those of its window. */
export interface DataPlaces {
  /** They are the windows themselves: what was written there can be put from there. */
  readonly areShared: boolean;
  /** By rank of the group: of its part, or of its mirror here. */
  readonly addresses: readonly number[];
  /** Of this rank's part of the window, for the mover: from there data go to other hosts. */
  readonly outgoing: number;
}
