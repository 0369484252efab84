// A MoE block's computations on a GPU: every call is enqueued on device.stream; only the gate's choices are the host's.
import { GROUPED_TILE_COLUMNS, type groupedProductArguments } from '../../abi/moe-arguments.ts';
import { WeftlineError } from '../../core/errors.ts';
import { CpuDevice } from '../../device/cpu/cpu-device.ts';
import { Cublas } from '../../device/cuda/cublas.ts';
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { CudaFp8Rows } from '../../device/cuda/fp8-rows.ts';
import { GROUPED_SHARED_BYTES, GROUPED_THREADS, groupedProductKernels } from '../../device/cuda/kernels/moe.ts';
import type { LaunchPlan } from '../../device/cuda/launch-plan.ts';
import { type CublasLibrary, findCublas } from '../../native/cublas.ts';
import type { Settings } from '../../settings/settings.ts';
import { createCpuMoeEngine } from './cpu-moe-engine.ts';
import { CudaExperts, loadExpertLaunches } from './cuda-experts.ts';
import type { GroupedOperands, GroupedProduct, Groups } from './grouped-product.ts';
import type { GateOptions, MoeEngine, Routing } from './moe-engine.ts';

// Chooses what multiplies groups of rows on a GPU: cuBLAS, weftline's kernel, or the faster one.

// The grouped product by our own kernel: all groups in one launch, a row's bits independent of the others.

/** `why` it is taken, for the report. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
async function createKernelProduct(device: CudaDevice, why: string): Promise<GroupedProduct> {
  const { groupedProduct } = await device.loadKernels(groupedProductKernels);
  return new KernelProduct(
    groupedProduct.plan({ grid: 1, block: GROUPED_THREADS, sharedBytes: GROUPED_SHARED_BYTES }),
    why,
  );
}

class KernelProduct implements GroupedProduct {
  readonly name: string;
  readonly #plan: LaunchPlan<keyof typeof groupedProductArguments.offset>;

  constructor(plan: LaunchPlan<keyof typeof groupedProductArguments.offset>, why: string) {
    this.name = `tensor core kernel (${why})`;
    this.#plan = plan;
  }

  multiply({ x, w, out, n, k }: GroupedOperands, groups: Groups): void {
    if (groups.tiles === 0) return;
    const set = this.#plan.arguments;
    set.set('x', x);
    set.set('w', w);
    set.set('out', out);
    set.set('starts', groups.starts);
    set.set('tileStarts', groups.tileStarts);
    set.set('groups', groups.rows.length);
    set.set('n', n);
    set.set('k', k);
    this.#plan.setGrid([Math.ceil(n / GROUPED_TILE_COLUMNS), groups.tiles]);
    this.#plan.launch();
  }

  [Symbol.dispose](): void {}
}

// The grouped product by cuBLAS: one product per group that has rows.

const BF16_BYTES = 2;
const F32_BYTES = 4;

class CublasProduct implements GroupedProduct {
  readonly name: string;
  readonly #cublas: Cublas;

  constructor(cublas: Cublas, path: string) {
    this.name = `cuBLAS ${cublas.version} (${path})`;
    this.#cublas = cublas;
  }

  multiply({ x, w, out, n, k }: GroupedOperands, { rows: counts }: Groups): void {
    let first = 0;
    for (const [group, rows] of counts.entries()) {
      if (rows === 0) continue;
      this.#cublas.multiply({
        x: x + first * k * BF16_BYTES,
        w: w + group * n * k * BF16_BYTES,
        out: out + first * n * F32_BYTES,
        rows,
        n,
        k,
      });
      first += rows;
    }
  }

  [Symbol.dispose](): void {
    this.#cublas[Symbol.dispose]();
  }
}

// The grouped product by whichever is faster for a batch: our kernel where groups are small, cuBLAS where they are large.

/**
 * Tiles of rows per group up to which our kernel is faster, on average over the groups that have rows: each group's
 * weights are then read once, and one launch for all groups beats one for each. docs/benchmarks/moe-cuda.md.
 */
export const FEW_TILES = 1;
/** Floating-point operations per group that our kernel does while the host calls cuBLAS once: 4 us at 276 Tflop/s. */
export const FEW_OPERATIONS = 1.1e9;

export class AutoProduct implements GroupedProduct {
  readonly name: string;
  readonly #small: GroupedProduct;
  readonly #large: GroupedProduct;

  /** Owns both. */
  constructor(small: GroupedProduct, large: GroupedProduct) {
    this.name = `${small.name}; ${large.name}`;
    this.#small = small;
    this.#large = large;
  }

  multiply(operands: GroupedOperands, groups: Groups): void {
    const operations = 2 * groups.total * operands.n * operands.k;
    const isSmall = groups.tiles <= groups.busy * FEW_TILES || operations <= groups.busy * FEW_OPERATIONS;
    (isSmall ? this.#small : this.#large).multiply(operands, groups);
  }

  [Symbol.dispose](): void {
    this.#small[Symbol.dispose]();
    this.#large[Symbol.dispose]();
  }
}

/** By the settings expertProduct and cublasPath. Fails with WL_UNSUPPORTED if cuBLAS is asked for and cannot be used. */
export async function openGroupedProduct(device: CudaDevice, settings: Settings): Promise<GroupedProduct> {
  const { expertProduct, cublasPath } = settings;
  if (expertProduct === 'kernel') return createKernelProduct(device, 'asked for');
  const library = findCublas(cublasPath);
  const opened = library === undefined ? notFound(cublasPath) : open(device, library);
  if (opened instanceof Cublas) {
    const many = new CublasProduct(opened, (library as CublasLibrary).path);
    if (expertProduct === 'cublas') return many;
    return new AutoProduct(await createKernelProduct(device, 'for small groups of rows'), many);
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
    for (const tensor of [topkIdx, topkWeights, sharedWeights]) tensor?.dispose();
  };
  const found = sharedWeights === undefined ? {} : { sharedWeights };
  return { topkIdx, topkWeights, ...found, route: undefined, [Symbol.dispose]: release };
}
