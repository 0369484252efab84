// The experts of a GPU rank: rows sorted by expert, a grouped product, SwiGLU, a grouped product, weighted sums.
import {
  GROUPED_TILE_ROWS,
  MOE_STORE_WORDS,
  type moeGatherRowsArguments,
  type moeListChoicesArguments,
  type moeStoreWordsArguments,
  type moeSumRowsArguments,
  type moeSwigluArguments,
} from '../../abi/moe-arguments.ts';
import { dtypes } from '../../core/dtype.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { moeExpertsKernels } from '../../device/cuda/kernels/moe.ts';
import type { LaunchPlan } from '../../device/cuda/launch-plan.ts';
import { TensorSet } from '../../device/tensor-set.ts';
import type { Tensor } from '../../device/tensor.ts';
import {
  type ExpertRows,
  expertShape,
  type ExpertShape,
  type ExpertWeights,
  type LocalExperts,
  type TokenRows,
} from './experts.ts';
import type { GroupedProduct, Groups } from './grouped-product.ts';

// How many rows each local expert has, as kernels read it: prefix sums in device memory, set in the order of the stream.

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

const THREADS = 256;
const WARPS = THREADS / 32;
const LIST_THREADS = 1024;

/** The launches of one rank's experts. */
interface ExpertLaunches {
  readonly storeWords: LaunchPlan<keyof typeof moeStoreWordsArguments.offset>;
  readonly listChoices: LaunchPlan<keyof typeof moeListChoicesArguments.offset>;
  readonly gatherRows: LaunchPlan<keyof typeof moeGatherRowsArguments.offset>;
  readonly swiglu: LaunchPlan<keyof typeof moeSwigluArguments.offset>;
  readonly sumRows: LaunchPlan<keyof typeof moeSumRowsArguments.offset>;
}

/** Compiles what is in no cache. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function loadExpertLaunches(device: CudaDevice): Promise<ExpertLaunches> {
  const kernels = await device.loadKernels(moeExpertsKernels);
  const shape = { grid: 1, block: THREADS };
  return {
    storeWords: kernels.moeStoreWords.plan(shape),
    listChoices: kernels.moeListChoices.plan({ grid: 1, block: LIST_THREADS }),
    gatherRows: kernels.moeGatherRows.plan(shape),
    swiglu: kernels.moeSwiglu.plan(shape),
    sumRows: kernels.moeSumRows.plan(shape),
  };
}

/** What a call works in; kept from call to call, and made anew when one needs more. */
interface Scratch {
  readonly set: TensorSet;
  readonly capacity: { readonly rows: number; readonly choices: number };
  /** i32 [choices] */
  readonly slots: Tensor<'i32'>;
  /** bf16 [rows, H]: the rows of each expert. */
  readonly gathered: Tensor<'bf16'>;
  /** f32 [rows, 2I] */
  readonly inner: Tensor<'f32'>;
  /** bf16 [rows, I] */
  readonly active: Tensor<'bf16'>;
  /** f32 [rows, H] */
  readonly outer: Tensor<'f32'>;
}

export class CudaExperts implements LocalExperts {
  readonly #device: CudaDevice;
  readonly #launches: ExpertLaunches;
  readonly #product: GroupedProduct;
  readonly #weights: ExpertWeights;
  readonly #shape: ExpertShape;
  readonly #groups: RowGroups;
  #scratch: Scratch;

  /** Takes ownership of the weights. H and I must be multiples of 8. Fails with WL_INVALID_ARGUMENT. */
  constructor(
    device: CudaDevice,
    weights: ExpertWeights,
    parts: { readonly launches: ExpertLaunches; readonly product: GroupedProduct },
  ) {
    this.#device = device;
    this.#launches = parts.launches;
    this.#product = parts.product;
    this.#weights = weights;
    this.#shape = expertShape(weights);
    this.#groups = new RowGroups(device, this.#shape.count, parts.launches.storeWords);
    this.#scratch = makeScratch(device, this.#shape, { rows: 0, choices: 0 });
  }

  get count(): number {
    return this.#shape.count;
  }

  forwardTokens({ x, topkIdx, topkWeights, rowsPerExpert }: TokenRows, out: Tensor<'bf16'>): void {
    const [rows = 0, columns = 0] = topkIdx.shape;
    if (rows === 0) return;
    const { listChoices, gatherRows } = this.#launches;
    const { count, hidden } = this.#shape;
    this.#groups.set(rowsPerExpert);
    const { slots, gathered } = this.#reserve(this.#groups.total, topkIdx.elements);
    listChoices.arguments.set('topk', topkIdx.address);
    listChoices.arguments.set('starts', this.#groups.starts);
    listChoices.arguments.set('slots', slots.address);
    listChoices.arguments.set('choices', topkIdx.elements);
    listChoices.arguments.set('experts', count);
    listChoices.arguments.set('indexBytes', dtypes[topkIdx.dtype].bytes);
    listChoices.setGrid(count);
    listChoices.launch();
    gatherRows.arguments.set('x', x.address);
    gatherRows.arguments.set('out', gathered.address);
    gatherRows.arguments.set('slots', slots.address);
    gatherRows.arguments.set('rows', rows);
    gatherRows.arguments.set('columns', columns);
    gatherRows.arguments.set('rowBytes', hidden * 2);
    gatherRows.setGrid(Math.ceil(rows / WARPS));
    gatherRows.launch();
    this.#applyLayers(gathered.address);
    this.#sumRows(out, { slots: slots.address, weights: topkWeights.address, rows, columns });
  }

  forwardExperts({ x, rowsPerExpert, weights }: ExpertRows, out: Tensor<'bf16'>): void {
    this.#groups.set(rowsPerExpert);
    const rows = this.#groups.total;
    if (rows === 0) return;
    this.#reserve(rows, 0);
    this.#applyLayers(x.address);
    this.#sumRows(out, { slots: 0, weights: weights?.address ?? 0, rows, columns: 1 });
  }

  [Symbol.dispose](): void {
    for (const tensor of [this.#weights.gateUp, this.#weights.down]) tensor.dispose();
    this.#groups[Symbol.dispose]();
    this.#scratch.set[Symbol.dispose]();
  }

  /** All rows, sorted by expert, through both layers into `outer`. */
  #applyLayers(x: number): void {
    const { hidden, intermediate } = this.#shape;
    const { inner, active, outer } = this.#scratch;
    const { gateUp, down } = this.#weights;
    const { swiglu } = this.#launches;
    const { total } = this.#groups;
    if (total === 0) return;
    const first = { x, w: gateUp.address, out: inner.address, n: 2 * intermediate, k: hidden };
    this.#product.multiply(first, this.#groups);
    swiglu.arguments.set('x', inner.address);
    swiglu.arguments.set('out', active.address);
    swiglu.arguments.set('rows', total);
    swiglu.arguments.set('width', intermediate);
    swiglu.setGrid(Math.ceil((total * intermediate) / 8 / THREADS));
    swiglu.launch();
    const second = { x: active.address, w: down.address, out: outer.address, n: hidden, k: intermediate };
    this.#product.multiply(second, this.#groups);
  }

  #sumRows(
    out: Tensor<'bf16'>,
    of: { readonly slots: number; readonly weights: number; readonly rows: number; readonly columns: number },
  ): void {
    const { sumRows } = this.#launches;
    sumRows.arguments.set('y', this.#scratch.outer.address);
    sumRows.arguments.set('slots', of.slots);
    sumRows.arguments.set('weights', of.weights);
    sumRows.arguments.set('out', out.address);
    sumRows.arguments.set('rows', of.rows);
    sumRows.arguments.set('columns', of.columns);
    sumRows.arguments.set('hidden', this.#shape.hidden);
    sumRows.setGrid(of.rows);
    sumRows.launch();
  }

  /** Room for rows of all experts together and for choices. What was launched before keeps what it uses. */
  #reserve(rows: number, choices: number): Scratch {
    const { capacity } = this.#scratch;
    if (capacity.rows >= rows && capacity.choices >= choices) return this.#scratch;
    const wanted = { rows: Math.max(capacity.rows, rows), choices: Math.max(capacity.choices, choices) };
    this.#scratch.set[Symbol.dispose]();
    this.#scratch = makeScratch(this.#device, this.#shape, wanted);
    return this.#scratch;
  }
}

function makeScratch(device: CudaDevice, shape: ExpertShape, capacity: Scratch['capacity']): Scratch {
  const { hidden, intermediate } = shape;
  const { rows, choices } = capacity;
  const { set, made } = TensorSet.make(device, (allocator) => ({
    slots: allocator.empty('i32', [choices]),
    gathered: allocator.empty('bf16', [rows, hidden]),
    inner: allocator.empty('f32', [rows, 2 * intermediate]),
    active: allocator.empty('bf16', [rows, intermediate]),
    outer: allocator.empty('f32', [rows, hidden]),
  }));
  return { set, capacity, ...made };
}
