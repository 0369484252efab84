// A MoE block's computations on a GPU: every call is enqueued on device.stream; only the gate's choices are the host's.
import {
  GROUPED_TILE_COLUMNS,
  GROUPED_TILE_ROWS,
  MOE_STORE_WORDS,
  type moeGatherRowsArguments,
  type moeListChoicesArguments,
  type moeStoreWordsArguments,
  type moeSumRowsArguments,
  type moeSwigluArguments,
} from '../../abi/moe.ts';
import { dtypes } from '../../core/dtype.ts';
import { WeftlineError } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { Cublas } from '../../device/cuda/cublas.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { CudaFp8Rows } from '../../device/cuda/fp8-rows.ts';
import type { LaunchPlan } from '../../device/cuda/kernel.ts';
import { type Tensor } from '../../device/tensor.ts';
import { TensorSet } from '../../device/device.ts';
import { type CublasLibrary, findCublas } from '../../native/cublas.ts';
import type { Settings } from '../../settings/settings.ts';
import { createCpuMoeEngine } from './cpu-moe-engine.ts';
import {
  type ExpertRows,
  expertShape,
  type ExpertShape,
  type ExpertWeights,
  type GateOptions,
  type LocalExperts,
  type MoeEngine,
  type Routing,
  type TokenRows,
} from './moe-engine.ts';
import { kernelFiles } from '../../device/cuda/kernel-files.ts';

const GROUPED_THREADS = 256;
/** Three stages of a tile of x and one of w, each 64 columns of bf16 deep. */
const GROUPED_SHARED_BYTES = 3 * (GROUPED_TILE_ROWS + GROUPED_TILE_COLUMNS) * 64 * 2;

/** Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
export async function createCudaMoeEngine(device: CudaDevice, settings: Settings): Promise<MoeEngine> {
  const launches = await loadExpertLaunches(device);
  const fp8Rows = await CudaFp8Rows.create(device);
  const product = await openGroupedProduct(device, settings);
  return {
    product: product.name,
    createExperts: (weights) => new CudaExperts(device, weights, { launches, product }),
    openGate: (options) => openGate(device, options),
    quantizeRows: (x, out) => fp8Rows.quantize(x, out),
    dequantizeRows: (rows, out) => fp8Rows.dequantize(rows, out),
    finish: () => device.stream.idle(),
    [Symbol.dispose]: () => product[Symbol.dispose](),
  };
}

/** Chooses on the CPU, once: a gate is a small part of a block, and its choices stay the same from pass to pass. */
async function openGate(device: CudaDevice, { block, x, xValues, weights }: GateOptions): Promise<Routing> {
  await using cpu = await CpuDevice.create();
  using rows = await cpu.tensor('bf16', x.shape, xValues);
  using chosen = await createCpuMoeEngine(cpu).openGate({ block, x: rows, xValues, weights });
  const topkIdx = await device.tensor('i64', chosen.topkIdx.shape, chosen.topkIdx.view());
  const topkWeights = await device.tensor('f32', chosen.topkWeights.shape, chosen.topkWeights.view());
  const { sharedWeights: shared } = chosen;
  const sharedWeights = shared && (await device.tensor('f32', shared.shape, shared.view()));
  const release = (): void => {
    for (const tensor of [topkIdx, topkWeights, sharedWeights]) tensor?.close();
  };
  const found = sharedWeights === undefined ? {} : { sharedWeights };
  return { topkIdx, topkWeights, ...found, route: undefined, [Symbol.dispose]: release };
}

// Products of groups of rows with one matrix per group on GPUs: operands, groups, and what multiplies them.

/** out[r, j] = sum over i of x[r, i] * w[group of r, j, i]: x and w bf16, out and the sums f32. Addresses of device memory. */
export interface GroupedOperands {
  /** [rows, k], the rows of group 0 first. */
  readonly x: number;
  /** [groups, n, k] */
  readonly w: number;
  /** [rows, n] */
  readonly out: number;
  readonly n: number;
  readonly k: number;
}

/** Rows of each group, in host and in device memory. */
export interface Groups {
  readonly rows: readonly number[];
  /** Rows of all groups together. */
  readonly total: number;
  /** Tiles of the kernel, of all groups together. */
  readonly tiles: number;
  /** Groups that have rows. */
  readonly busy: number;
  /** u32 [groups + 1] first row of each group. */
  readonly starts: number;
  /** u32 [groups + 1] first tile of each group. */
  readonly tileStarts: number;
}

export interface GroupedProduct extends Disposable {
  /** The name that the report shows. */
  readonly name: string;
  /** Enqueues the products; n and k are multiples of 8. */
  multiply(operands: GroupedOperands, groups: Groups): void;
}

// The grouped product by our own kernel: all groups in one launch, a row's bits independent of the others.

/** `why` it is taken, for the report. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
async function createKernelProduct(device: CudaDevice, why: string): Promise<GroupedProduct> {
  const { groupedProduct } = await device.loadKernels(kernelFiles.groupedProduct);
  const plan = groupedProduct.plan({ grid: 1, block: GROUPED_THREADS, sharedBytes: GROUPED_SHARED_BYTES });
  const { arguments: set } = plan;
  return {
    name: `tensor core kernel (${why})`,
    multiply: ({ x, w, out, n, k }, groups) => {
      if (groups.tiles === 0) return;
      set.set('x', x);
      set.set('w', w);
      set.set('out', out);
      set.set('starts', groups.starts);
      set.set('tileStarts', groups.tileStarts);
      set.set('groups', groups.rows.length);
      set.set('n', n);
      set.set('k', k);
      plan.setGrid([Math.ceil(n / GROUPED_TILE_COLUMNS), groups.tiles]);
      plan.launch();
    },
    [Symbol.dispose]: () => {},
  };
}

// The grouped product by cuBLAS: one product per group that has rows.

const BF16_BYTES = 2;
const F32_BYTES = 4;

function createCublasProduct(cublas: Cublas, path: string): GroupedProduct {
  return {
    name: `cuBLAS ${cublas.version} (${path})`,
    multiply: ({ x, w, out, n, k }, { rows: counts }) => {
      let first = 0;
      for (const [group, rows] of counts.entries()) {
        if (rows === 0) continue;
        const from = { x: x + first * k * BF16_BYTES, w: w + group * n * k * BF16_BYTES };
        cublas.multiply({ ...from, out: out + first * n * F32_BYTES, rows, n, k });
        first += rows;
      }
    },
    [Symbol.dispose]: () => cublas[Symbol.dispose](),
  };
}

// The grouped product by whichever is faster for a batch: our kernel where groups are small, cuBLAS where they are large.

/**
 * Tiles of rows per group up to which our kernel is faster, on average over the groups that have rows: each group's
 * weights are then read once, and one launch for all groups beats one for each. docs/benchmarks/moe-cuda.md.
 */
export const FEW_TILES = 1;

/** Floating-point operations per group that our kernel does while the host calls cuBLAS once: 4 us at 276 Tflop/s. */
export const FEW_OPERATIONS = 1.1e9;

/** Owns both. */
export function createAutoProduct(small: GroupedProduct, large: GroupedProduct): GroupedProduct {
  return {
    name: `${small.name}; ${large.name}`,
    multiply: (operands, groups) => {
      const operations = 2 * groups.total * operands.n * operands.k;
      const isSmall = groups.tiles <= groups.busy * FEW_TILES || operations <= groups.busy * FEW_OPERATIONS;
      (isSmall ? small : large).multiply(operands, groups);
    },
    [Symbol.dispose]: () => {
      small[Symbol.dispose]();
      large[Symbol.dispose]();
    },
  };
}

/** Goes by the settings expertProduct and cublasPath. Fails with WL_UNSUPPORTED if cuBLAS is asked for and cannot be used. */
export async function openGroupedProduct(device: CudaDevice, settings: Settings): Promise<GroupedProduct> {
  const { expertProduct, cublasPath } = settings;
  if (expertProduct === 'kernel') return createKernelProduct(device, 'asked for');
  const library = findCublas(cublasPath);
  const opened = library === undefined ? notFound(cublasPath) : open(device, library);
  if (opened instanceof Cublas) {
    const many = createCublasProduct(opened, (library as CublasLibrary).path);
    if (expertProduct === 'cublas') return many;
    return createAutoProduct(await createKernelProduct(device, 'for small groups of rows'), many);
  }
  // A path that was given is a wish too.
  if (expertProduct === 'cublas' || cublasPath !== '') throw opened;
  return createKernelProduct(device, opened.message);
}

function notFound(setting: string): WeftlineError {
  const where = setting === '' ? 'cuBLAS was not found' : `there is no cuBLAS at ${setting}`;
  return new WeftlineError('WL_UNSUPPORTED', where, { details: { path: setting } });
}

function open(device: CudaDevice, library: CublasLibrary): Cublas | WeftlineError {
  try {
    return new Cublas(device, library);
  } catch (cause) {
    // A lost device is no reason to go on without it.
    if (!(cause instanceof WeftlineError) || device.context.lost !== undefined) throw cause;
    return new WeftlineError('WL_UNSUPPORTED', `cuBLAS cannot be used: ${cause.message}`, {
      details: { path: library.path },
      cause,
    });
  }
}

// The experts of a GPU rank: rows sorted by expert, a grouped product, SwiGLU, a grouped product, weighted sums.

/** How many rows each local expert has, as kernels read it: prefix sums in device memory, set in the order of the stream. */
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
    this.#memory.close();
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
async function loadExpertLaunches(device: CudaDevice): Promise<ExpertLaunches> {
  const kernels = await device.loadKernels(kernelFiles.moeExperts);
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

class CudaExperts implements LocalExperts {
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
    for (const tensor of [this.#weights.gateUp, this.#weights.down]) tensor.close();
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
