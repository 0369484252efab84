// The WASM module of CPU kernels and the TypeScript signatures of its functions. Every address is an offset into the memory.
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { WeftlineError } from '../../core/errors.ts';
import { packageFile } from '../../core/package-file.ts';

// The part of the WebAssembly API that is used here, typed; the ES library of TypeScript does not declare it.
// What helps where the system refuses address space for the memory of the CPU kernels.

/** The option of node, as the environment of ranks holds it. */
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

/** A number for each word of a list. */
type Numbers<Names extends string> = Names extends `${string} ${infer Rest}` ? [number, ...Numbers<Rest>] : [number];

/** Arguments are plain numbers, named in the order of the AssemblyScript declarations, which document them. */
type Kernel<Names extends string, Result = void> = (...args: Numbers<Names>) => Result;

export interface CpuKernels {
  // kernels/wasm/rows.ts
  copyBytes: Kernel<'destination source bytes'>;
  scatterRows: Kernel<'source rowBytes tokens columns rowTable rankTable bases'>;
  scatterTokenIndex: Kernel<'tokens columns rowTable rankTable bases'>;
  scatterWeight: Kernel<'weights weightBytes tokens columns rowTable rankTable bases'>;
  scatterTopkIndex: Kernel<'topk indexBytes tokens k columns expertsPerRank rowTable bases columnRanks'>;
  scatterTopkWeight: Kernel<'topk indexBytes weights tokens k columns expertsPerRank rowTable bases columnRanks'>;
  gatherTopkWeight: Kernel<'out tokens k ranks rowTable bases'>;
  // kernels/wasm/host-rows.ts
  countHostTokens: Kernel<'membership tokens ranks hostOf hosts perHost lastToken'>;
  listHostTokens: Kernel<
    'rowTable rankTable tokens columns localIndex outColumns outTokens outPlaces outRanks',
    number
  >;
  gatherRows: Kernel<'destination source rowBytes list count'>;
  spreadRows: Kernel<'rowBytes tokens columns places ranks bases'>;
  // kernels/wasm/layout.ts
  countChoices: Kernel<'topk indexBytes tokens k ranks experts dropped membership perRank perExpert', number>;
  compactRows: Kernel<'membership tokens ranks nextRow rowTable'>;
  expandedRows: Kernel<'topk indexBytes tokens k experts expertsPerRank nextRow rowTable rankTable'>;
  // kernels/wasm/receive-plan.ts
  planReceive: Kernel<'records ranks experts me prefix nextRow perLocalExpert', number>;
  // kernels/wasm/sum.ts
  /** `format`: one of elementFormats, the dtype of the rows. */
  sumRows: Kernel<'out sources count bytes scattered format'>;
  gatherSum: Kernel<'out rowBytes tokens columns rowTable rankTable bases onePerRank bias0 bias1 scratch format'>;
  sumDuplicates: Kernel<'rows rowBytes count k duplicates scratch format'>;
  scatterDuplicates: Kernel<'tokens k rowTable rankTable firstBases duplicateBases'>;
  // kernels/wasm/low-latency.ts
  fillBytes: Kernel<'address value bytes'>;
  /** `scales`: one of lowLatencyScales. */
  scatterQuantized: Kernel<'x columns tokens ranks rowTable rowBases scaleBases rowStride wordStride scales scratch'>;
  placeRows: Kernel<'rows rowBytes scales words tokens topk indexBytes count k capacity next outRows outScales outTokens rowOf'>;
  closePlaces: Kernel<'first next sources experts capacity counts dropped ranges tokens', number>;
  choiceRows: Kernel<'topk indexBytes tokens k expertsPerRank capacity nextRow rowTable rankTable'>;
  sumWeightedRows: Kernel<'out rowBytes tokens k rowTable rankTable weights bases scratch'>;
  sumWeightedRowsF32: Kernel<'out rowBytes tokens k rowTable rankTable weights bases scratch'>;
  // kernels/wasm/mixed-sum.ts
  gatherSumF32: Kernel<'out rowBytes tokens columns rowTable rankTable bases onePerRank scratch format'>;
  /** `columnFormats`: i32 [columns], for each column `format`, that of f32 or FP8_SUM_FORMAT, sums of which become f32 at `wide`. */
  gatherSumMixed: Kernel<'out rowBytes tokens columns rowTable rankTable bases onePerRank bias0 bias1 scratch format columnFormats wide'>;
  // kernels/wasm/reduce.ts
  /** `sources`: u32 [count], addresses; `format`: one of reductionFormats; `reduction`: one of reductions. */
  reduceRuns: Kernel<'out sources count bytes format reduction'>;
  // kernels/wasm/block-bitmap.ts
  /** `bitmap`: u8 [blocks], 0 where a block has an element that counts; returns how many do. */
  markBlocks: Kernel<'input bytes blockBytes format threshold bitmap output', number>;
  // kernels/wasm/crc32c.ts
  /** CRC-32C of `bytes` bytes; `crc` is that of the bytes before, 0 at the beginning. The result may come as negative. */
  crc32c: Kernel<'crc address bytes', number>;
  // kernels/wasm/packet-tag.ts
  tagPackets: Kernel<'key heads headBytes bodies bodyBytes lastBytes count low high tags'>;
  isTagged: Kernel<'key packet bytes low high', number>;
  packetHash: Kernel<'key address bytes out'>;
  sipHash: Kernel<'key address bytes out'>;
  // kernels/wasm/fragments.ts
  moveFragments: Kernel<'descriptors count bounce destination packs'>;
  // kernels/wasm/fragment-check.ts
  beginFragmentCheck: Kernel<'state'>;
  checkFragments: Kernel<'block packs state', number>;
  beginMarks: Kernel<'state marks room', number>;
  markFragments: Kernel<'block packs state marks', number>;
  listFragments: Kernel<'block packs firstName state list', number>;
  findOverlap: Kernel<'list end spare digits state', number>;
  divideFragments: Kernel<'block share to', number>;
  // kernels/wasm/fp8.ts, matmul.ts, swiglu.ts, weighted-rows.ts
  /** bf16 x [rows, columns] to e4m3 data of that shape and f32 scales [rows, ceil(columns / 128)]; columns a multiple of 8. */
  quantizeFp8: Kernel<'data scales x rows columns roundScale'>;
  /** The reverse: x = bf16(data * scale). */
  dequantizeFp8: Kernel<'x data scales rows columns'>;
  /** An f32 row to a sum as FP8_SUM_FORMAT has it. */
  quantizeSum: Kernel<'out x columns'>;
  /** y[rows[i]] += weights[i] * x[i] in f32; columns a multiple of 8. */
  accumulateRows: Kernel<'y rows weights x count columns'>;
  /** out[i] = bf16(weights[i] * x[i]) for f32 x; weights 0 for none; columns a multiple of 8. */
  roundRows: Kernel<'out x weights count columns'>;
  /**
   * out[i,j] = sum over k of x[rows[i],k] * w[j,k] for i < m, j < n, summed in f32 in an order that depends on k alone.
   * x and w are bf16, out is f32; rows 0 for rows 0 to m-1; k a multiple of 8.
   */
  matmul: Kernel<'out x rows w m n k'>;
  /** out[i,j] = bf16(silu(x[i,j]) * x[i,width+j]) for f32 x [rows, 2 * width]; width a multiple of 8. */
  swiglu: Kernel<'out x rows width'>;
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
