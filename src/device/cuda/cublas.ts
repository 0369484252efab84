// cuBLAS on one stream of a device: products of bf16 matrices with f32 results.
import { WeftlineError } from '../../core/errors.ts';
import type { CublasCalls, CublasLibrary } from '../../native/cublas.ts';
import { addressOf, type Out } from '../../native/library.ts';
import { OwnedResource } from './cuda-context.ts';
import type { CudaDevice } from './cuda-device.ts';
import type { CudaStream } from './cuda-stream.ts';

const TRANSPOSED = 1;
const AS_IT_IS = 0;
/** cudaDataType_t. */
const BF16 = 14;
const F32 = 0;
/** cublasComputeType_t: sums in f32. */
const COMPUTE_F32 = 68;
const ANY_ALGORITHM = -1;

/** cublasStatus_t. */
const statusNames: Readonly<Record<number, string>> = {
  1: 'CUBLAS_STATUS_NOT_INITIALIZED',
  3: 'CUBLAS_STATUS_ALLOC_FAILED',
  7: 'CUBLAS_STATUS_INVALID_VALUE',
  8: 'CUBLAS_STATUS_ARCH_MISMATCH',
  11: 'CUBLAS_STATUS_MAPPING_ERROR',
  13: 'CUBLAS_STATUS_EXECUTION_FAILED',
  14: 'CUBLAS_STATUS_INTERNAL_ERROR',
  15: 'CUBLAS_STATUS_NOT_SUPPORTED',
};

/** out [rows, n] = x [rows, k] times the transpose of w [n, k]; x and w are bf16, out is f32, all row-major. */
interface Product {
  readonly x: number;
  readonly w: number;
  readonly out: number;
  readonly rows: number;
  readonly n: number;
  readonly k: number;
}

export class Cublas extends OwnedResource {
  /** "13.0.2". */
  readonly version: string;
  readonly #calls: CublasCalls;
  readonly #handle: number;
  /** Shared memory never moves, so the factors' addresses may be kept. */
  readonly #factors: Float32Array = new Float32Array(new SharedArrayBuffer(8));
  readonly #one: number;
  readonly #zero: number;

  /** Loads the library, which takes hundreds of milliseconds. Fails with WL_UNSUPPORTED or WL_NATIVE. */
  constructor({ context, stream }: CudaDevice, { calls, path }: CublasLibrary) {
    super(context);
    this.#calls = calls;
    this.#factors[0] = 1;
    this.#one = Number(addressOf(this.#factors));
    this.#zero = this.#one + 4;
    context.enter();
    const cell: Out = [0];
    check('cublasCreate', calls.cublasCreate(cell), path);
    this.#handle = cell[0];
    this.version = this.#prepare(stream, path);
    context.own(this);
  }

  /** Enqueues one product. How its sums are ordered is cuBLAS's own choice and may depend on all extents. */
  multiply({ x, w, out, rows, n, k }: Product): void {
    this.context.enter();
    this.context.workCount += 1;
    this.context.lastLaunch = 'cublasGemmEx';
    for (const address of [x, w, out]) this.context.holdRecorded?.(address);
    // cuBLAS counts by columns: the transpose of out is w, which it must transpose, times the transpose of x.
    // oxfmt-ignore
    const status = this.#calls.cublasGemmEx(
      this.#handle, TRANSPOSED, AS_IT_IS, n, rows, k,
      this.#one, w, BF16, k, x, BF16, k,
      this.#zero, out, F32, n, COMPUTE_F32, ANY_ALGORITHM,
    );
    if (status !== 0) check('cublasGemmEx', status, `${rows} rows of ${k} by [${n}, ${k}]`);
  }

  override release(): void {
    if (this.context.lost !== undefined) return;
    this.context.enter();
    this.#calls.cublasDestroy(this.#handle);
  }

  #prepare(stream: CudaStream, path: string): string {
    try {
      check('cublasSetStream', this.#calls.cublasSetStream(this.#handle, stream.handle), path);
      const cell: Out = [0];
      check('cublasGetVersion', this.#calls.cublasGetVersion(this.#handle, cell), path);
      const number = cell[0];
      return `${Math.floor(number / 10_000)}.${Math.floor(number / 100) % 100}.${number % 100}`;
    } catch (error) {
      this.#calls.cublasDestroy(this.#handle);
      throw error;
    }
  }
}

function check(call: string, status: number, subject: string): void {
  if (status === 0) return;
  const name = statusNames[status] ?? 'an unknown status';
  throw new WeftlineError('WL_NATIVE', `${call} (${subject}) failed with ${name} (${status})`, {
    details: { call, status, name, subject },
  });
}
