// The WASM module of CPU kernels and the TypeScript signatures of its functions. Every address is an offset into the memory.
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { WeftlineError } from '../../core/errors.ts';
import { wasm, type WasmMemory } from './wasm.ts';

/** Arguments are plain numbers in the order of the AssemblyScript declarations, which document them. */
type Kernel<Arguments extends number[], Result = void> = (...args: Arguments) => Result;

export interface CpuKernels {
  // kernels/wasm/rows.ts
  copyBytes: Kernel<[destination: number, source: number, bytes: number]>;
  scatterRows: Kernel<
    [
      source: number,
      rowBytes: number,
      tokens: number,
      columns: number,
      rowTable: number,
      rankTable: number,
      bases: number,
    ]
  >;
  scatterTokenIndex: Kernel<
    [first: number, tokens: number, columns: number, rowTable: number, rankTable: number, bases: number]
  >;
  scatterWeight: Kernel<
    [
      weights: number,
      weightBytes: number,
      tokens: number,
      columns: number,
      rowTable: number,
      rankTable: number,
      bases: number,
    ]
  >;
  scatterTopkIndex: Kernel<
    [
      topk: number,
      indexBytes: number,
      tokens: number,
      k: number,
      ranks: number,
      expertsPerRank: number,
      rowTable: number,
      bases: number,
    ]
  >;
  scatterTopkWeight: Kernel<
    [
      topk: number,
      indexBytes: number,
      weights: number,
      tokens: number,
      k: number,
      ranks: number,
      expertsPerRank: number,
      rowTable: number,
      bases: number,
    ]
  >;
  gatherTopkWeight: Kernel<[out: number, tokens: number, k: number, ranks: number, rowTable: number, bases: number]>;
  // kernels/wasm/layout.ts
  countChoices: Kernel<
    [
      topk: number,
      indexBytes: number,
      tokens: number,
      k: number,
      ranks: number,
      experts: number,
      dropped: number,
      membership: number,
      perRank: number,
      perExpert: number,
    ],
    number
  >;
  compactRows: Kernel<[membership: number, tokens: number, ranks: number, nextRow: number, rowTable: number]>;
  expandedRows: Kernel<
    [
      topk: number,
      indexBytes: number,
      tokens: number,
      k: number,
      experts: number,
      expertsPerRank: number,
      nextRow: number,
      rowTable: number,
      rankTable: number,
    ]
  >;
  // kernels/wasm/sum.ts
  sumRows: Kernel<[out: number, sources: number, count: number, bytes: number]>;
  gatherSum: Kernel<
    [
      out: number,
      rowBytes: number,
      tokens: number,
      columns: number,
      rowTable: number,
      rankTable: number,
      bases: number,
      onePerRank: number,
      bias0: number,
      bias1: number,
      scratch: number,
    ]
  >;
  sumDuplicates: Kernel<
    [rows: number, rowBytes: number, count: number, k: number, duplicates: number, scratch: number]
  >;
  scatterDuplicates: Kernel<
    [tokens: number, k: number, rowTable: number, rankTable: number, firstBases: number, duplicateBases: number]
  >;
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
