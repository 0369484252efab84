// The WASM module of CPU kernels and the TypeScript signatures of its functions. Every address is an offset into the memory.
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { WeftlineError } from '../../core/errors.ts';
import { wasm, type WasmMemory } from './wasm.ts';

export interface CpuKernels {
  /** Copies `bytes` from `source` to `destination`. */
  copyBytes(destination: number, source: number, bytes: number): void;
}

const modulePath = fileURLToPath(new URL('../../kernels/weftline.wasm', import.meta.url));
let compiled: Promise<object> | undefined;

/** Compiles the module once per process and instantiates it over `memory`. */
export async function instantiateKernels(memory: WasmMemory): Promise<CpuKernels> {
  compiled ??= compile();
  const instance = await wasm.instantiate(await compiled, { env: { memory } });
  return instance.exports as unknown as CpuKernels;
}

async function compile(): Promise<object> {
  let bytes: Buffer;
  try {
    bytes = await readFile(modulePath);
  } catch (cause) {
    throw new WeftlineError(
      'WL_FILE',
      `Cannot read the CPU kernels at ${modulePath}: build the package with "npm run build"`,
      {
        details: { path: modulePath },
        cause,
      },
    );
  }
  return wasm.compile(bytes);
}
