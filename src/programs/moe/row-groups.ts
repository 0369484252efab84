// How many rows each local expert has, as kernels read it: prefix sums in device memory, set in the order of the stream.
import { GROUPED_TILE_ROWS, MOE_STORE_WORDS, type moeStoreWordsArguments } from '../../abi/moe-arguments.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import type { LaunchPlan } from '../../device/cuda/launch-plan.ts';
import type { Tensor } from '../../device/tensor.ts';
import type { Groups } from './grouped-product.ts';

export class RowGroups implements Groups, Disposable {
  rows: readonly number[] = [];
  /** Rows of all groups together. */
  total = 0;
  tiles = 0;
  busy = 0;
  readonly starts: number;
  readonly tileStarts: number;
  readonly #words: Uint32Array;
  readonly #memory: Tensor<'i32'>;
  readonly #storeWords: LaunchPlan<keyof typeof moeStoreWordsArguments.offset>;

  constructor(device: CudaDevice, count: number, storeWords: LaunchPlan<keyof typeof moeStoreWordsArguments.offset>) {
    this.#words = new Uint32Array(2 * (count + 1));
    this.#memory = device.empty('i32', [this.#words.length]);
    this.#storeWords = storeWords;
    this.starts = this.#memory.address;
    this.tileStarts = this.starts + 4 * (count + 1);
  }

  /** Enqueues the change: what was launched before still sees the groups before. */
  set(rows: readonly number[]): void {
    const tileWord = this.#words.length / 2;
    let start = 0;
    let tile = 0;
    let busy = 0;
    for (const [group, count] of rows.entries()) {
      busy += count > 0 ? 1 : 0;
      this.#words[group + 1] = start += count;
      this.#words[tileWord + group + 1] = tile += Math.ceil(count / GROUPED_TILE_ROWS);
    }
    this.rows = rows;
    this.total = start;
    this.tiles = tile;
    this.busy = busy;
    const set = this.#storeWords.arguments;
    for (let first = 0; first < this.#words.length; first += MOE_STORE_WORDS) {
      const count = Math.min(MOE_STORE_WORDS, this.#words.length - first);
      for (let index = 0; index < count; index++) set.set('words', this.#words[first + index]!, index);
      set.set('to', this.#memory.address + first * 4);
      set.set('count', count);
      this.#storeWords.launch();
    }
  }

  [Symbol.dispose](): void {
    this.#memory.dispose();
  }
}
