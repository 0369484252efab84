// The functions of cuBLAS, one line each. Handles and device addresses are numbers: all are below 2^53.
import { findCudaLibrary, localFiles } from './file-probe.ts';
import { bindLazily, type StatusCalls } from './library.ts';

const table = {
  cublasCreate: 'int cublasCreate_v2(_Out_ uint64_t* handle)',
  cublasDestroy: 'int cublasDestroy_v2(uint64_t handle)',
  cublasSetStream: 'int cublasSetStream_v2(uint64_t handle, uint64_t stream)',
  cublasGetVersion: 'int cublasGetVersion_v2(uint64_t handle, _Out_ int* version)',
  cublasGemmEx:
    'int cublasGemmEx(uint64_t handle, int transposeA, int transposeB, int m, int n, int k, uint64_t alpha, uint64_t a, int aType, int aPitch, uint64_t b, int bType, int bPitch, uint64_t beta, uint64_t c, int cType, int cPitch, int computeType, int algorithm)',
} as const;

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
