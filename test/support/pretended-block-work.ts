// What a GPU does for sparse all-reduces, by the processor, slow and obvious, and late: work is done only when somebody asks
// whether it is, and then a random part of it. So whoever does not wait for it finds what was there before.
import { SPARSE_NO_BLOCK } from '#lib/abi/collectives.js';
import type {
  BlockIndex,
  BlockMove,
  BlockWay,
  BlockWork,
  SharedBytes,
  WorkMark,
} from '#lib/collectives/sparse/block-work.js';
import { infinityOf, type SlotShape, strideOf } from '#lib/collectives/sparse/slot-shape.js';
import type { SparseCall } from '#lib/collectives/sparse/sparse-call.js';
import { dtypes } from '#lib/core/dtype.js';
import { type CpuDevice, fromBf16 } from 'weftline';

/** Addresses of shared memory, far from those of the device. */
const FIRST = 2 ** 40;
const STEP = 2 ** 33;

export class PretendedBlockWork implements BlockWork {
  /** Told to whoever polls a flag. */
  onTell: ((flag: number, parts: number) => void) | undefined;
  readonly #device: CpuDevice;
  readonly #shape: SlotShape;
  readonly #next: () => number;
  readonly #queues: Readonly<Record<BlockWay, (() => void)[]>> = { out: [], in: [] };
  readonly #shared: ArrayBuffer[] = [];
  #index: BlockIndex | undefined;
  #call: SparseCall | undefined;
  #blocks = 0;
  #list: number[] = [];
  /** Pieces of shared memory that were not given back. */
  pieces = 0;

  constructor(device: CpuDevice, shape: SlotShape, next: () => number) {
    this.#device = device;
    this.#shape = shape;
    this.#next = next;
  }

  reserve(blocks: number): BlockIndex {
    this.#index = {
      found: new Uint32Array(1),
      numbers: new Uint32Array(blocks).fill(12_345),
      nexts: new Uint32Array(blocks).fill(12_345),
    };
    return this.#index;
  }

  allocateHost(bytes: number): SharedBytes {
    const buffer = new ArrayBuffer(bytes);
    this.#shared.push(buffer);
    this.pieces++;
    return {
      buffer,
      deviceAddress: FIRST + (this.#shared.length - 1) * STEP,
      [Symbol.dispose]: () => void this.pieces--,
    };
  }

  makeMark(way: BlockWay): WorkMark {
    let isDone = true;
    return {
      record: () => {
        isDone = false;
        this.#queues[way].push(() => (isDone = true));
      },
      isDone: () => {
        if (!isDone) this.#doSome(way);
        return isDone;
      },
    };
  }

  begin(call: SparseCall, blocks: number): void {
    this.#call = call;
    this.#blocks = blocks;
  }

  mark(): void {
    this.#queues.out.push(() => this.#markNow());
  }

  gather(first: number, { packed, count }: BlockMove): void {
    this.#queues.out.push(() => {
      for (let at = 0; at < count; at++) {
        const block = this.#call!.isDense ? first + at : this.#list[first + at]!;
        const from = this.#block(this.#call!.input, block);
        this.#at(packed + at * this.#blockBytes, from.length).set(from);
      }
    });
  }

  scatter(list: number, { packed, count }: BlockMove): void {
    this.#queues.in.push(() => {
      const words = this.#at(list, 4 * count).slice();
      const blocks = new Uint32Array(words.buffer);
      for (let at = 0; at < count; at++) {
        const to = this.#block(this.#call!.output, blocks[at]!);
        to.set(this.#at(packed + at * this.#blockBytes, to.length));
      }
    });
  }

  tell(flag: number, parts: number): void {
    this.#queues.in.push(() => {
      const view = this.#device.hostView('i32', flag, 1);
      view[0] = view[0]! + parts;
      this.onTell?.(view[0], parts);
    });
  }

  /** Whatever comes next, comes later. */
  join(): void {
    for (const way of ['out', 'in'] as const) {
      const queue = this.#queues[way];
      for (const piece of queue.splice(0)) piece();
    }
  }

  close(): Promise<void> {
    this.join();
    return Promise.resolve();
  }

  get #blockBytes(): number {
    return this.#shape.blockSize * this.#call!.elementBytes;
  }

  #doSome(way: BlockWay): void {
    const queue = this.#queues[way];
    for (let some = Math.floor(this.#next() * 4); some > 0; some--) queue.shift()?.();
  }

  #at(address: number, bytes: number): Uint8Array {
    const number = Math.floor((address - FIRST) / STEP);
    return new Uint8Array(this.#shared[number]!, address - FIRST - number * STEP, bytes);
  }

  #block(tensor: number, block: number): Uint8Array {
    const { count, elementBytes } = this.#call!;
    const from = block * this.#blockBytes;
    return this.#device.hostView('u8', tensor + from, Math.min(this.#blockBytes, count * elementBytes - from));
  }

  #markNow(): void {
    const { dtype, input, output, threshold } = this.#call!;
    const { found, numbers, nexts } = this.#index!;
    const limit = dtype === 'i32' ? threshold : Math.fround(threshold);
    const valueOf = (value: number): number => (dtype === 'bf16' ? fromBf16(value) : value);
    this.#list = [];
    for (let block = 0; block < this.#blocks; block++) {
      const bytes = this.#block(input, block);
      const values = this.#device.hostView(dtype, input + block * this.#blockBytes, bytes.length / dtypes[dtype].bytes);
      const counts = [...values].some((value) => !(Math.abs(valueOf(value)) <= limit));
      numbers[block] = counts ? this.#list.push(block) - 1 : SPARSE_NO_BLOCK;
      if (!counts) this.#block(output, block).fill(0);
    }
    found[0] = this.#list.length;
    const stride = strideOf(this.#shape);
    const ahead = Array.from({ length: stride }, (_, lane) => infinityOf(this.#shape) + lane);
    for (let block = this.#blocks - 1; block >= 0; block--) {
      nexts[block] = ahead[block % stride]!;
      if (numbers[block] !== SPARSE_NO_BLOCK) ahead[block % stride] = block;
    }
  }
}
