// The functions of cuBLAS, one line each. Handles and device addresses are numbers: all are below 2^53.
import { findCudaLibrary } from './library-search.ts';
import { localFiles } from './file-probe.ts';
import { bindLazily, type Out, prototype, type StatusCalls } from './library.ts';

const table = {
  cublasCreate: prototype<[handle: Out]>('int cublasCreate_v2(_Out_ uint64_t*)'),
  cublasDestroy: prototype<[handle: number]>('int cublasDestroy_v2(uint64_t)'),
  cublasSetStream: prototype<[handle: number, stream: number]>('int cublasSetStream_v2(uint64_t, uint64_t)'),
  cublasGetVersion: prototype<[handle: number, version: Out]>('int cublasGetVersion_v2(uint64_t, _Out_ int*)'),
  cublasGemmEx: prototype<
    [
      handle: number,
      transposeA: number,
      transposeB: number,
      m: number,
      n: number,
      k: number,
      alpha: number,
      a: number,
      aType: number,
      aPitch: number,
      b: number,
      bType: number,
      bPitch: number,
      beta: number,
      c: number,
      cType: number,
      cPitch: number,
      computeType: number,
      algorithm: number,
    ]
  >(
    'int cublasGemmEx(uint64_t, int, int, int, int, int, uint64_t, uint64_t, int, int, uint64_t, int, int, uint64_t, uint64_t, int, int, int, int)',
  ),
};

export type CublasCalls = StatusCalls<typeof table>;

export interface CublasLibrary {
  readonly path: string;
  readonly calls: CublasCalls;
}

/** The library of this machine, found but not yet loaded; undefined when there is none, or none at the given place. */
export function findCublas(setting = ''): CublasLibrary | undefined {
  const path = findCudaLibrary(localFiles(), 'cublas', setting);
  return path === undefined ? undefined : { path, calls: bindLazily(() => path, table) };
}
