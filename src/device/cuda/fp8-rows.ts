// Rows of bf16 as rows of fp8 with scales, and back, on GPUs: the same bits as on the CPU device.
import { FP8_GROUP, type fp8RowsArguments } from '../../abi/element-formats.ts';
import type { ScaledRows, Tensor } from '../tensor.ts';
import type { CudaDevice } from './cuda-device.ts';
import type { LaunchPlan } from './kernel.ts';
import { kernelFiles } from './kernel-files.ts';

const THREADS = 256;
/** A group of columns is one warp's work. */
const GROUPS_PER_BLOCK = THREADS / 32;

type Plan = LaunchPlan<keyof typeof fp8RowsArguments.offset>;

export class CudaFp8Rows {
  readonly #quantize: Plan;
  readonly #dequantize: Plan;

  /** Compiles the kernels unless they are in a cache. Fails with WL_COMPILE, WL_UNSUPPORTED or WL_CUDA. */
  static async create(device: CudaDevice): Promise<CudaFp8Rows> {
    const { quantizeRows, dequantizeRows } = await device.loadKernels(kernelFiles.fp8Rows);
    const shape = { grid: 1, block: THREADS };
    return new CudaFp8Rows(quantizeRows.plan(shape), dequantizeRows.plan(shape));
  }

  private constructor(quantize: Plan, dequantize: Plan) {
    this.#quantize = quantize;
    this.#dequantize = dequantize;
  }

  /** Enqueues what quantizeRows() of the CPU device does: x is bf16 [T, H], H a multiple of 8; `out` has its shape. */
  quantize(x: Tensor<'bf16'>, out: ScaledRows, options: { readonly roundScale?: boolean } = {}): void {
    this.#quantize.arguments.set('roundScale', options.roundScale === true ? 1 : 0);
    launch(this.#quantize, x, out);
  }

  /** Enqueues x = bf16(data * scale). */
  dequantize(rows: ScaledRows, x: Tensor<'bf16'>): void {
    launch(this.#dequantize, x, rows);
  }
}

function launch(plan: Plan, x: Tensor<'bf16'>, { data, scales }: ScaledRows): void {
  const [rows = 0, columns = 0] = x.shape;
  const groups = rows * Math.ceil(columns / FP8_GROUP);
  if (groups === 0) return;
  const set = plan.arguments;
  set.set('x', x.address);
  set.set('data', data.address);
  set.set('scales', scales.address);
  set.set('rows', rows);
  set.set('columns', columns);
  plan.setGrid(Math.ceil(groups / GROUPS_PER_BLOCK));
  plan.launch();
}
