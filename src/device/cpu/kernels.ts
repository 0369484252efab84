// The WASM module of CPU kernels and the TypeScript signatures of its functions. Every address is an offset into the memory.
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { WeftlineError } from '../../core/errors.ts';
import { packageFile } from '../../core/package-file.ts';

// The part of the WebAssembly API that is used here, typed; the ES library of TypeScript does not declare it.
// What helps where the system refuses address space for the memory of the CPU kernels.

/** As the option of node, or in the environment of ranks. */
const WITHOUT_GUARD = 'NODE_OPTIONS=--disable-wasm-trap-handler';

/**
 * With the trap handler, which is on by default, V8 reserves as much for a memory of any size as for the largest: asking for
 * less helps only without it. As the end of a sentence.
 * @param setting How less is asked for, such as "WEFTLINE_ADDRESS_SPACE_MIB=1024".
 * @param isSmallGranted Whether the system grants the smallest memory.
 */
export function addressSpaceAdvice(setting: string, isSmallGranted: boolean): string {
  if (isSmallGranted) return `raise "ulimit -v", or set ${setting}`;
  return `raise "ulimit -v" (16 GiB for each rank are enough), or set ${WITHOUT_GUARD}, without which Node reserves some 10 GiB for a memory of any size; if that is refused as well, set ${setting} too`;
}

export interface WasmMemory {
  readonly buffer: SharedArrayBuffer;
  grow(pages: number): number;
}

interface WasmApi {
  readonly Memory: new (options: { initial: number; maximum: number; shared: true }) => WasmMemory;
  validate(bytes: Uint8Array): boolean;
  compile(bytes: Uint8Array): Promise<object>;
  readonly Module: new (bytes: Uint8Array) => object;
  readonly Instance: new (module: object, imports: { env: { memory: WasmMemory } }) => { readonly exports: object };
  instantiate(module: object, imports: { env: { memory: WasmMemory } }): Promise<{ readonly exports: object }>;
}

export const wasm: WasmApi = (globalThis as object as { WebAssembly: WasmApi }).WebAssembly;

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
  scatterTokenIndex: Kernel<[tokens: number, columns: number, rowTable: number, rankTable: number, bases: number]>;
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
      columns: number,
      expertsPerRank: number,
      rowTable: number,
      bases: number,
      columnRanks: number,
    ]
  >;
  scatterTopkWeight: Kernel<
    [
      topk: number,
      indexBytes: number,
      weights: number,
      tokens: number,
      k: number,
      columns: number,
      expertsPerRank: number,
      rowTable: number,
      bases: number,
      columnRanks: number,
    ]
  >;
  gatherTopkWeight: Kernel<[out: number, tokens: number, k: number, ranks: number, rowTable: number, bases: number]>;
  // kernels/wasm/host-rows.ts
  countHostTokens: Kernel<
    [
      membership: number,
      tokens: number,
      ranks: number,
      hostOf: number,
      hosts: number,
      perHost: number,
      lastToken: number,
    ]
  >;
  listHostTokens: Kernel<
    [
      rowTable: number,
      rankTable: number,
      tokens: number,
      columns: number,
      localIndex: number,
      outColumns: number,
      outTokens: number,
      outPlaces: number,
      outRanks: number,
    ],
    number
  >;
  gatherRows: Kernel<[destination: number, source: number, rowBytes: number, list: number, count: number]>;
  spreadRows: Kernel<[rowBytes: number, tokens: number, columns: number, places: number, ranks: number, bases: number]>;
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
  // kernels/wasm/receive-plan.ts
  planReceive: Kernel<
    [
      records: number,
      ranks: number,
      experts: number,
      me: number,
      prefix: number,
      nextRow: number,
      perLocalExpert: number,
    ],
    number
  >;
  // kernels/wasm/sum.ts
  /** `format`: one of elementFormats, the dtype of the rows. */
  sumRows: Kernel<[out: number, sources: number, count: number, bytes: number, scattered: number, format: number]>;
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
      format: number,
    ]
  >;
  sumDuplicates: Kernel<
    [rows: number, rowBytes: number, count: number, k: number, duplicates: number, scratch: number, format: number]
  >;
  scatterDuplicates: Kernel<
    [tokens: number, k: number, rowTable: number, rankTable: number, firstBases: number, duplicateBases: number]
  >;
  // kernels/wasm/low-latency.ts
  fillBytes: Kernel<[address: number, value: number, bytes: number]>;
  /** `scales`: one of lowLatencyScales. */
  scatterQuantized: Kernel<
    [
      x: number,
      columns: number,
      tokens: number,
      ranks: number,
      rowTable: number,
      rowBases: number,
      scaleBases: number,
      rowStride: number,
      wordStride: number,
      scales: number,
      scratch: number,
    ]
  >;
  placeRows: Kernel<
    [
      rows: number,
      rowBytes: number,
      scales: number,
      words: number,
      tokens: number,
      topk: number,
      indexBytes: number,
      count: number,
      k: number,
      capacity: number,
      next: number,
      outRows: number,
      outScales: number,
      outTokens: number,
      rowOf: number,
    ]
  >;
  closePlaces: Kernel<
    [
      first: number,
      next: number,
      sources: number,
      experts: number,
      capacity: number,
      counts: number,
      dropped: number,
      ranges: number,
      tokens: number,
    ],
    number
  >;
  choiceRows: Kernel<
    [
      topk: number,
      indexBytes: number,
      tokens: number,
      k: number,
      expertsPerRank: number,
      capacity: number,
      nextRow: number,
      rowTable: number,
      rankTable: number,
    ]
  >;
  sumWeightedRows: Kernel<
    [
      out: number,
      rowBytes: number,
      tokens: number,
      k: number,
      rowTable: number,
      rankTable: number,
      weights: number,
      bases: number,
      scratch: number,
    ]
  >;
  // kernels/wasm/mixed-sum.ts
  gatherSumF32: Kernel<
    [
      out: number,
      rowBytes: number,
      tokens: number,
      columns: number,
      rowTable: number,
      rankTable: number,
      bases: number,
      onePerRank: number,
      scratch: number,
      format: number,
    ]
  >;
  /** `columnFormats`: i32 [columns], for each column `format` or that of f32. */
  gatherSumMixed: Kernel<
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
      format: number,
      columnFormats: number,
    ]
  >;
  // kernels/wasm/reduce.ts
  /** `sources`: u32 [count], addresses; `format`: one of reductionFormats; `reduction`: one of reductions. */
  reduceRuns: Kernel<[out: number, sources: number, count: number, bytes: number, format: number, reduction: number]>;
  // kernels/wasm/block-bitmap.ts
  /** `bitmap`: u8 [blocks], 0 where a block has an element that counts; returns how many do. */
  markBlocks: Kernel<
    [
      input: number,
      bytes: number,
      blockBytes: number,
      format: number,
      threshold: number,
      bitmap: number,
      output: number,
    ],
    number
  >;
  // kernels/wasm/crc32c.ts
  /** CRC-32C of `bytes` bytes; `crc` is that of the bytes before, 0 at the beginning. The result may come as negative. */
  crc32c: Kernel<[crc: number, address: number, bytes: number], number>;
  // kernels/wasm/packet-tag.ts
  tagPackets: Kernel<
    [
      key: number,
      heads: number,
      headBytes: number,
      bodies: number,
      bodyBytes: number,
      lastBytes: number,
      count: number,
      low: number,
      high: number,
      tags: number,
    ]
  >;
  isTagged: Kernel<[key: number, packet: number, bytes: number, low: number, high: number], number>;
  packetHash: Kernel<[key: number, address: number, bytes: number, out: number]>;
  sipHash: Kernel<[key: number, address: number, bytes: number, out: number]>;
  // kernels/wasm/fragments.ts
  moveFragments: Kernel<[descriptors: number, count: number, bounce: number, destination: number, packs: number]>;
  // kernels/wasm/fragment-check.ts
  beginFragmentCheck: Kernel<[state: number]>;
  checkFragments: Kernel<[block: number, packs: number, state: number], number>;
  beginMarks: Kernel<[state: number, marks: number, room: number], number>;
  markFragments: Kernel<[block: number, packs: number, state: number, marks: number], number>;
  listFragments: Kernel<[block: number, packs: number, firstName: number, state: number, list: number], number>;
  findOverlap: Kernel<[list: number, end: number, spare: number, digits: number, state: number], number>;
  divideFragments: Kernel<[block: number, share: number, to: number], number>;
  // kernels/wasm/fp8.ts, matmul.ts, swiglu.ts, weighted-rows.ts
  /** bf16 x [rows, columns] to e4m3 data of that shape and f32 scales [rows, ceil(columns / 128)]; columns a multiple of 8. */
  quantizeFp8(data: number, scales: number, x: number, rows: number, columns: number, roundScale: number): void;

  /** The reverse: x = bf16(data * scale). */
  dequantizeFp8(x: number, data: number, scales: number, rows: number, columns: number): void;

  /** y[rows[i]] += weights[i] * x[i] in f32; columns a multiple of 8. */
  accumulateRows(y: number, rows: number, weights: number, x: number, count: number, columns: number): void;

  /** out[i] = bf16(weights[i] * x[i]) for f32 x; weights 0 for none; columns a multiple of 8. */
  roundRows(out: number, x: number, weights: number, count: number, columns: number): void;

  /**
   * out[i,j] = sum over k of x[rows[i],k] * w[j,k] for i < m, j < n, summed in f32 in an order that depends on k alone.
   * x and w are bf16, out is f32; rows 0 for rows 0 to m-1; k a multiple of 8.
   */
  matmul(out: number, x: number, rows: number, w: number, m: number, n: number, k: number): void;

  /** out[i,j] = bf16(silu(x[i,j]) * x[i,width+j]) for f32 x [rows, 2 * width]; width a multiple of 8. */
  swiglu(out: number, x: number, rows: number, width: number): void;
}

let compiled: Promise<object> | undefined;
let compiledNow: object | undefined;

/** Compiles the module once per process and instantiates it over `memory`. */
export async function instantiateKernels(memory: WasmMemory): Promise<CpuKernels> {
  compiled ??= compile();
  const instance = await wasm.instantiate(await compiled, { env: { memory } });
  return instance.exports as CpuKernels;
}

/** The same for callers that cannot wait: reads and compiles on this thread, once per thread. */
export function instantiateKernelsNow(memory: WasmMemory): CpuKernels {
  compiledNow ??= compileNow();
  return new wasm.Instance(compiledNow, { env: { memory } }).exports as CpuKernels;
}

async function compile(): Promise<object> {
  const file = moduleFile();
  return wasm.compile(await readFile(file).catch((cause: unknown) => cannotRead(file, cause)));
}

function compileNow(): object {
  const file = moduleFile();
  let bytes: Buffer;
  try {
    bytes = readFileSync(file);
  } catch (cause) {
    cannotRead(file, cause);
  }
  return new wasm.Module(bytes);
}

function moduleFile(): string {
  return fileURLToPath(packageFile('../../kernels/weftline.wasm', import.meta.url));
}

function cannotRead(path: string, cause: unknown): never {
  throw new WeftlineError('WL_FILE', `Cannot read the CPU kernels at ${path}: build the package with "npm run build"`, {
    details: { path },
    cause,
  });
}
