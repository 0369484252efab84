// Chooses what multiplies groups of rows on a GPU: cuBLAS, weftline's kernel, or the faster one.
import type { CudaDevice } from '../../device/cuda/cuda-device.ts';
import { Cublas } from '../../device/cuda/cublas.ts';
import { WeftlineError } from '../../core/errors.ts';
import { type CublasLibrary, findCublas } from '../../native/cublas.ts';
import type { Settings } from '../../settings/settings.ts';
import { AutoProduct } from './auto-product.ts';
import { CublasProduct } from './cublas-product.ts';
import { createKernelProduct } from './kernel-product.ts';
import type { GroupedProduct } from './grouped-product.ts';

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
