// A CUDA driver that is only pretended.
import type { CudaCall, CudaDriver } from '#lib/native/cuda-driver.js';

export interface PretendedDriver {
  readonly driver: CudaDriver;
  readonly calls: string[];
  /** Status of later calls of a name, for all parameters or by them; 0 otherwise. */
  readonly status: Partial<Record<CudaCall, number | ((...parameters: unknown[]) => number)>>;
}

/** Counts handles and addresses up; calls succeed unless told otherwise. */
export function pretendDriver(): PretendedDriver {
  const calls: string[] = [];
  const status: PretendedDriver['status'] = {};
  let next = 4096;
  const driver = new Proxy({} as CudaDriver, {
    get: (_target, name: CudaCall) => {
      return (...parameters: unknown[]): number => {
        if (name === 'cuGetErrorName') {
          (parameters[1] as [string | null])[0] = `CUDA_ERROR_${String(parameters[0])}`;
          return 0;
        }
        calls.push(name);
        const out = parameters[0];
        if (Array.isArray(out)) out[0] = next += 4096;
        const answer = status[name] ?? 0;
        return typeof answer === 'number' ? answer : answer(...parameters);
      };
    },
  });
  return { driver, calls, status };
}
