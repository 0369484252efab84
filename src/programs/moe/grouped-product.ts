// Products of groups of rows with one matrix per group on GPUs: by cuBLAS, by a kernel of ours, or by the faster one.
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { Cublas } from '../../device/cuda/cublas.ts';
import { WeftlineError } from '../../core/errors.ts';
import { type CublasLibrary, findCublas } from '../../native/cublas.ts';
import type { Settings } from '../../settings/settings.ts';
import { AutoProduct } from './auto-product.ts';
import { CublasProduct } from './cublas-product.ts';
import { createKernelProduct } from './kernel-product.ts';

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
  /** Of all groups together. */
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
  /** For the report. */
  readonly name: string;
  /** Enqueues the products; n and k are multiples of 8. */
  multiply(operands: GroupedOperands, groups: Groups): void;
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
